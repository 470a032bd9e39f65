"""How long leases last, and what keeps them renewed: for every kind of queue that is on a server."""
