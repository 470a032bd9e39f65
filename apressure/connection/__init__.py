"""The only rooms that import redis: settings, connections, waiting."""
