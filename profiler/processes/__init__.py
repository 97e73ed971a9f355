"""Profiling with several processes."""
