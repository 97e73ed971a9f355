"""Online learning of the draft model during decoding (Liu et al., 2023)."""
