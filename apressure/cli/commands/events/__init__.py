"""`apressure events`: the okq server, and queues of events."""

from apressure.cli.commands.events.queues import dead, pause, requeue, resume, stat
from apressure.cli.commands.events.server import health, serve

__all__ = ["dead", "health", "pause", "requeue", "resume", "serve", "stat"]
