"""The nodes that run tasks: listeners and consumers, the leases of what they have in hand, and what dead ones leave."""
