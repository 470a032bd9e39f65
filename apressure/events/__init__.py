"""Event queues, in the format of okq."""
