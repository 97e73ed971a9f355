"""Benchmarks: speed next to predictions, and whether the output is the same."""
