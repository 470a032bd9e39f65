"""One connection: sends commands, receives replies, and sends again what was lost."""
