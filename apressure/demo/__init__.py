"""What `apressure demo` and `apressure pipeline` run: user programs, over public names of apressure only."""

from typing import Final

ALL_FLIGHTS: Final = 336_776
"""How many flights left New York City in 2013."""
