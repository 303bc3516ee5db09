"""Seeded fuzzing against the plain-Python oracles: ``python -m tests.fuzz``."""
