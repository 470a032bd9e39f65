"""A queue in memory, for unit tests: a driver of the core that has no server."""
