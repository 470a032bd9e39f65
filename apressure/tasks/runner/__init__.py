"""Runs tasks: as commands and functions in processes of their own, or as coroutines."""
