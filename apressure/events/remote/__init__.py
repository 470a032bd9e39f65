"""Queues of events on an okq server, ours or the released one, over okq's own commands."""
