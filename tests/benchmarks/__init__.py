"""Measurements, as ratios to what a user would write by hand, in one run: `nox -s bench`."""
