"""A queue in a directory, with no server, in the format of vsqs. docs/internals/design.md describes the modules."""

from apressure.files.administration import FileQueueStatistics
from apressure.files.delivery import FileDelivery
from apressure.files.options import FileQueueOptions
from apressure.files.queue import FileQueue

__all__ = ["FileDelivery", "FileQueue", "FileQueueOptions", "FileQueueStatistics"]
