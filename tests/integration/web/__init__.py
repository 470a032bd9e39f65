"""The page of `apressure web`."""
