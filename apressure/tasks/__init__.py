"""Tasks in the format of Blueque, for work that runs for minutes or days."""

from apressure.tasks.client import TaskClient
from apressure.tasks.core import TaskStatistics
from apressure.tasks.delivery import TaskDelivery
from apressure.tasks.nodes.consumer import Listener
from apressure.tasks.processor import Processor
from apressure.tasks.queue import TaskQueue
from apressure.tasks.runner.command import Command, Function
from apressure.tasks.runner.reports import report_progress
from apressure.tasks.runner.runner import Ran, Runner
from apressure.tasks.scheduler import Scheduler
from apressure.tasks.task import Task

__all__ = [
    "Command",
    "Function",
    "Listener",
    "Processor",
    "Ran",
    "Runner",
    "Scheduler",
    "Task",
    "TaskClient",
    "TaskDelivery",
    "TaskQueue",
    "TaskStatistics",
    "report_progress",
]
