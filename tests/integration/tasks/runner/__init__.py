"""Queues of tasks on real servers."""
