"""Decoding: one loop for every drafter."""
