"""A worker: handlers of any number of queues as one process, or several, that `apressure worker` runs."""
