"""Whole runs in a simulated world: its schedule, clock and network follow from a seed, and so does each failure.

The clients are the real ones, up to their connections. What is simulated is the event loop, the network, and a server:
fakeredis behind a socket. `nox -s simulate -- --seeds 2000` runs these tests, with Python 3.12 or later;
`nox -s simulate -- --seed 17 -k members` repeats a seed.
"""
