"""`apressure events`: the okq server. The commands of every kind of queue are for queues of events, too."""

from apressure.cli.commands.events.server import health, serve

__all__ = ["health", "serve"]
