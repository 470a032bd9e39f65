"""Measure other libraries, each in its own process and environment. Nothing in this package imports apressure.

Each module uses one library in the fastest way that its documentation names. If it names none, the module uses the
fastest way that we tried, and a comment lists the others. Results are turned off if possible, since ours has none.
"""
