"""`apressure tasks`: very long tasks, in the format of Blueque."""

from apressure.cli.commands.tasks.look import ls, show, stat, wait
from apressure.cli.commands.tasks.manage import cancel, close, create, delete, pause, purge, resume, retry
from apressure.cli.commands.tasks.put import enqueue, schedule
from apressure.cli.commands.tasks.run import run
from apressure.cli.commands.tasks.work import complete, fail, listen, progress

__all__ = [
    "cancel", "close", "complete", "create", "delete", "enqueue", "fail", "listen", "ls", "pause", "progress", "purge",
    "resume", "retry", "run", "schedule", "show", "stat", "wait",
]  # fmt: skip
