"""The engine for servers that refuse scripts: the same operations with the specification's commands."""
