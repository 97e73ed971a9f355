"""Sequences of unequal lengths with unequal trees, for passes over several of them."""

from treeopt.trees import chain, level_widths

LENGTHS = (9, 0, 4, 23, 5)
"""Committed tokens of each sequence."""
TREE = level_widths([2, 3])
UNEQUAL = (TREE, chain(0), chain(2), chain(0), level_widths([3]))
COUNTS = [9, 25, 3, 14, 21]
"""New tokens of each sequence: they join and leave in nearly every step."""
