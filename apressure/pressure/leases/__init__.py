"""At-least-once: leases on the consumer role, what is in flight under them, and how it is settled."""
