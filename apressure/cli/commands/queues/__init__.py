"""The commands for queues in the format of pressure: `apressure put` and the like."""

from apressure.cli.commands.queues.close import close
from apressure.cli.commands.queues.create import create
from apressure.cli.commands.queues.dead import dead
from apressure.cli.commands.queues.delete import delete
from apressure.cli.commands.queues.doctor import doctor
from apressure.cli.commands.queues.get import get
from apressure.cli.commands.queues.health import health
from apressure.cli.commands.queues.ls import ls
from apressure.cli.commands.queues.pause import pause
from apressure.cli.commands.queues.put import put
from apressure.cli.commands.queues.requeue import requeue
from apressure.cli.commands.queues.resume import resume
from apressure.cli.commands.queues.stat import stat

COMMANDS = (create, put, get, dead, requeue, ls, stat, pause, resume, close, delete, doctor, health)
"""In the order of `apressure --help`."""
