"""A queue in a directory, with no server, in the format of vsqs.

The modules, from the ground up: `names` says what file names mean, `directory` has every transition of a message as one
atomic operation (with `renaming`), `index` knows what is in the directory, `watcher` tells it, `store` puts these
together, `publishing` and `receiving` are the steps, `waits` is where one waits, `queue` is what programs see.
"""

from apressure.files.message import FileMessage
from apressure.files.options import FileQueueOptions
from apressure.files.queue import FileQueue
from apressure.files.statistics import FileQueueStatistics

__all__ = ["FileMessage", "FileQueue", "FileQueueOptions", "FileQueueStatistics"]
