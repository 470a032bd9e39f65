"""`serve`: handlers for the messages of a queue; `pipe`: stages between queues.

These modules know `apressure.protocols`, and no kind of queue.
"""
