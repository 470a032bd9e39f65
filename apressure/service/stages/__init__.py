"""Stages of a pipeline: what `pipe` runs between two queues."""
