"""Random cancellations, kills and faults, and the account of every message afterwards.

The short form runs at every push; `APRESSURE_CHAOS=long` (`nox -s chaos`) does the same 4 to 25 times over and
prints what was tried and what came of it. All randomness comes from one seed, which the header of the run and every
failure show; `APRESSURE_SEED=…` repeats it.
"""
