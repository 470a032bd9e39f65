"""How a queue works: keys, steps and their scripts, batches of concurrent operations, and waits."""
