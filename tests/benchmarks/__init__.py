"""Measurements, as ratios to what a user would write by hand and to other libraries, in one run: `nox -s bench`."""
