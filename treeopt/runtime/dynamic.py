"""Decoding with dynamic trees: in every step the draft model grows a tree where it is sure of itself (Li et al., 2024)."""

from treeopt.errors import InvalidValueError
from treeopt.runtime.decode_loop import check_vocabularies, text_limit, trained_tokens
from treeopt.runtime.drafting_decoder import DraftingDecoder
from treeopt.runtime.dynamic_growth import Children, Grown, Growth
from treeopt.runtime.growing import GrowingDrafter
from treeopt.runtime.models.memory import new_cache
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees.dynamic_tree import DynamicTree


class DynamicDecoder(DraftingDecoder):
    """Decodes one text at a time with the EAGLE-2 style trees of a draft model.

    Args:
        target: the model whose text is wanted.
        draft: the draft model; its probabilities are those of temperature 1, whatever the target's.
        tree: how the trees grow.
        temperature: 0 takes the likeliest token.
        top_p: share of the target's law that is kept, above 0 and at most 1.
        top_k: tokens of the target's law that are kept, the likeliest; 0 keeps all.
        seed: of all randomness; the same seed and the same texts give the same tokens.
        max_text_tokens: longest text, prompt included; at most and by default what both models were trained for.

    Raises InvalidValueError for values out of range and models whose vocabularies differ in size.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel,
        tree: DynamicTree,
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        max_text_tokens: int | None = None,
    ) -> None:
        check_vocabularies(target, draft)
        trained = trained_tokens(target, draft)
        longest = text_limit(max_text_tokens, trained)
        limits = {"top_k": (target.config.vocabulary, "vocabulary"), "depth": (trained, "trained length")}
        for name, (most, what) in limits.items():
            if getattr(tree, name) > most:
                raise InvalidValueError(
                    f"tree: expected a {name} of at most {most}, the {what}. Got {getattr(tree, name)}."
                )
        super().__init__(
            target,
            DynamicDrafter(draft, tree, capacity=longest),
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            max_text_tokens=longest,
        )


class DynamicDrafter(GrowingDrafter):
    """Grows the tree of every step with a small model that shares the target's vocabulary.

    Args:
        model: the draft model.
        tree: how trees grow.
        capacity: longest text.
    """

    def __init__(self, model: LanguageModel, tree: DynamicTree, *, capacity: int) -> None:
        cache = new_cache(model, capacity + sum(tree.draft_widths))
        super().__init__(model, cache, children=tree.top_k, max_nodes=tree.nodes)
        self.tree = tree

    def _grow(self, root: Children) -> Grown | None:
        """Return the tree below the root, drafted in `depth` passes."""
        growth = Growth(self.tree, root)
        for _ in range(self.tree.depth - 1):
            children = self._feed(*growth.beams())
            if not children.finite:
                return None
            growth.add(children)
        return growth.best()
