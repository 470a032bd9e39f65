"""Queues in the protocol pressure 0.15: keys, then steps, then the objects that users see."""
