"""DFlash: one pass over a block of mask tokens drafts all of them (arXiv 2602.06036); DSpark adds a Markov head."""

from treeopt.runtime.drafters.dflash.drafters import DDTreeDrafter, DFlashDrafter, tree_filler
from treeopt.runtime.drafters.dflash.head import DFlashHead
from treeopt.runtime.drafters.dflash.load import load_dflash

__all__ = ["DDTreeDrafter", "DFlashDrafter", "DFlashHead", "load_dflash", "tree_filler"]
