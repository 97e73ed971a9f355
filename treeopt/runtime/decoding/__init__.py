"""Decoding: draft, verify, accept, commit."""
