"""A draft model that learns from the target while it drafts (Liu et al., 2023)."""
