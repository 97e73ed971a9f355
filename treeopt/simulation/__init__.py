"""Simulate a server under random arrivals, with the times and accepted ranks of a profile."""
