"""Acceptance of drafts: per position, per prompt, per context length."""
