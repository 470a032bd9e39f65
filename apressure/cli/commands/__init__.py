"""One module a command, named like it; `files` has those of `apressure files`."""
