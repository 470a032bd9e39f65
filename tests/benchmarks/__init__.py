"""Benchmarks as ratios to code by hand and to other libraries, in one run: `nox -s bench`."""
