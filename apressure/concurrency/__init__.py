"""What asyncio itself lacks for our operations: cancellations that settle, deadlines, background tasks, signals.

These modules know nothing of queues.
"""
