"""The okq server: every Redis client, in any language, can use event queues through it."""
