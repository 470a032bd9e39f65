"""What `apressure demo` and `apressure pipeline` run: real flights, real processes."""

from typing import Final

ALL_FLIGHTS: Final = 336_776
"""How many flights left New York City in 2013."""
