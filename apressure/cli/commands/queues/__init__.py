"""The commands for queues in the format of pressure: `apressure put` and the like, a module each."""
