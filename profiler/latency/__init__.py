"""Latencies of passes and whole steps, over context lengths and batch sizes."""
