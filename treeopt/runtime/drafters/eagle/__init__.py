"""EAGLE: one small decoder layer on the target's hidden states drafts token by token (Li et al., 2024 and 2025)."""

from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.drafters.eagle.load import load_eagle
from treeopt.runtime.drafters.eagle.p_eagle import PEagleDrafter, PEagleHead, load_p_eagle

__all__ = [
    "EagleHead",
    "PEagleDrafter",
    "PEagleHead",
    "load_eagle",
    "load_p_eagle",
]
