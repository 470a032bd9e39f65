"""`apressure tasks`: what only tasks have. Everything else is in the commands of every kind of queue."""

from apressure.cli.commands.tasks.look import ls, show, wait
from apressure.cli.commands.tasks.manage import cancel, purge
from apressure.cli.commands.tasks.run import run
from apressure.cli.commands.tasks.work import complete, fail, listen, progress

__all__ = [
    "cancel", "complete", "fail", "listen", "ls", "progress", "purge", "run", "show", "wait",
]  # fmt: skip
