"""Dynamic trees: in every step the draft model grows a tree where it is sure of itself (Li et al., 2024)."""

from functools import partial

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.beam_expansion import BeamExpansion
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter, draft_models
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import LanguageModel, length_limit
from treeopt.trees.dynamic_tree import DynamicTree


class DynamicDrafter(ExpandingDrafter):
    """Grows the tree of every step with a small model that shares the target's vocabulary.

    Args:
        model: the draft model.
        tree: how trees grow.
        capacity: longest text; nothing is drafted in one longer than the model takes.

    Raises InvalidValueError for a tree that is wider than the vocabulary or deeper than the model was trained for.
    """

    def __init__(self, model: LanguageModel, tree: DynamicTree, *, capacity: int) -> None:
        vocabulary, trained = model.config.vocabulary, model.config.max_positions
        if tree.top_k > vocabulary:
            raise InvalidValueError(
                f"tree: expected a top_k of at most {vocabulary}, the vocabulary. Got {tree.top_k}."
            )
        if tree.depth > trained:
            raise InvalidValueError(
                f"tree: expected a depth of at most {trained}, because {length_limit(model)}. Got {tree.depth}."
            )
        capacity = min(capacity, trained)
        caches = partial(new_caches, model, capacity + sum(tree.draft_widths))
        super().__init__(model, draft_models(model, caches, capacity), partial(BeamExpansion, tree))
        self.tree = tree
