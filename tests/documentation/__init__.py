"""Tests of the docs: their code runs, their tables name what exists, and their site builds."""
