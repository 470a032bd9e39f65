"""Watches queues of every kind, on any number of servers and in directories: for `apressure top`, the page, metrics."""
