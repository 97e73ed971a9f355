"""How long texts may be, and what a decoder refuses before anything runs."""

from collections.abc import Sequence

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree


def trained_tokens(*models: LanguageModel | None) -> int:
    """Return the longest text that all of some models were trained for; None stands for no model."""
    return min(model.config.max_positions for model in models if model is not None)


def text_limit(asked: int | None, trained: int) -> int:
    """Return the longest text that models trained for so many tokens can be used for."""
    if asked is not None and not 1 <= asked <= trained:
        raise InvalidValueError(f"max_text_tokens: expected 1 to {trained}, the trained length. Got {asked}.")
    return trained if asked is None else asked


def check_vocabularies(target: LanguageModel, draft: LanguageModel | None) -> None:
    """Refuse a draft model whose vocabulary has another size than the target's."""
    vocabulary = target.config.vocabulary
    if draft is not None and draft.config.vocabulary != vocabulary:
        raise InvalidValueError(
            f"drafter: expected the target's vocabulary of {vocabulary} tokens. "
            f"Got {draft.config.vocabulary}: choose a draft model of the same family.",
            field="drafter",
        )


def check_tree(tree: TokenTree, *, drafts: bool, max_nodes: int, vocabulary: int, trained: int) -> None:
    """Refuse a static tree that a decoder cannot draft and verify.

    Args:
        tree: the tree.
        drafts: whether there is a draft model.
        max_nodes: most nodes.
        vocabulary: most children of a node.
        trained: longest text of the models, and the deepest tree.
    """
    if tree.nodes > 1 and not drafts:
        raise InvalidValueError(
            f"drafter: expected a draft model for a tree of {tree.nodes} nodes. Got None.", field="drafter"
        )
    if tree.nodes > max_nodes:
        raise InvalidValueError(f"tree: expected at most {max_nodes} nodes, the decoder's max_nodes. Got {tree.nodes}.")
    if tree.nodes > 1 and int(tree.child_counts.max()) > vocabulary:
        raise InvalidValueError(
            f"tree: expected at most {vocabulary} children per node, the vocabulary. Got {tree.child_counts.max()}."
        )
    if tree.max_depth > trained:  # positions are prepared for twice the trained length
        raise InvalidValueError(
            f"tree: expected a depth of at most {trained}, the trained length. Got {tree.max_depth}."
        )


def check_text(tokens: Sequence[int], max_new_tokens: int, *, vocabulary: int, max_text_tokens: int) -> None:
    """Refuse a prompt, or a number of new tokens behind it, that a decoder cannot take."""
    if len(tokens) == 0:
        raise InvalidValueError("token_ids: expected at least one token. Got an empty prompt.", field="token_ids")
    if not all(0 <= token < vocabulary for token in tokens):
        raise InvalidValueError(f"token_ids: expected tokens from 0 to {vocabulary - 1}.", field="token_ids")
    room = max_text_tokens - len(tokens)
    if room < 0:
        raise InvalidValueError(
            f"token_ids: expected at most {max_text_tokens} tokens, the longest text. Got {len(tokens)}: "
            "give a shorter prompt.",
            field="token_ids",
        )
    if not 0 <= max_new_tokens <= room:
        raise InvalidValueError(
            f"max_new_tokens: expected 0 to {room} after a prompt of "
            f"{len(tokens)}, because the models were trained on texts of {max_text_tokens} tokens. "
            f"Got {max_new_tokens}.",
            field="max_new_tokens",
        )
