"""How long texts may be, and what a decoder refuses before anything runs."""

from collections.abc import Sequence

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.model import LanguageModel, length_limit
from treeopt.trees import TokenTree


def shortest_model(*models: LanguageModel | None) -> LanguageModel:
    """Return the model that takes the shortest texts; None stands for no model."""
    return min((model for model in models if model is not None), key=lambda model: model.config.max_positions)


def trained_tokens(*models: LanguageModel | None) -> int:
    """Return the longest text that all of some models take; None stands for no model."""
    return shortest_model(*models).config.max_positions


def text_limit(max_text_tokens: int | None, target: LanguageModel) -> int:
    """Return the longest text: `max_text_tokens`, by default as long as the target takes; raises InvalidValueError beyond."""
    longest = target.config.max_positions
    if max_text_tokens is not None and not 1 <= max_text_tokens <= longest:
        raise InvalidValueError(
            f"max_text_tokens: expected 1 to {longest}, because {length_limit(target)}. Got {max_text_tokens}."
        )
    return longest if max_text_tokens is None else max_text_tokens


def check_draft(target: LanguageModel, draft: LanguageModel | None) -> None:
    """Refuse a draft model with another vocabulary size, or on another device, than the target."""
    if draft is None:
        return
    vocabulary = target.config.vocabulary
    if draft.config.vocabulary != vocabulary:
        raise InvalidValueError(
            f"drafter: expected the target's vocabulary of {vocabulary} tokens. "
            f"Got {draft.config.vocabulary}: choose a draft model of the same family, and load both with load_pair.",
            field="drafter",
        )
    if draft.device != target.device:
        raise InvalidValueError(
            f"drafter: expected a draft model on {target.device}, as the target {target.name}. Got {draft.name} on "
            f"{draft.device}: load both on one device.",
            field="drafter",
        )


def check_tree(tree: TokenTree, *, drafts: bool, max_nodes: int, vocabulary: int, shortest: LanguageModel) -> None:
    """Refuse a static tree that a decoder cannot draft and verify.

    Args:
        tree: the tree.
        drafts: whether there is a draft model.
        max_nodes: most nodes.
        vocabulary: most children of a node.
        shortest: the model with the shortest longest text, which is the deepest tree.
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
    deepest = shortest.config.max_positions  # positions are prepared for twice as many
    if tree.max_depth > deepest:
        raise InvalidValueError(
            f"tree: expected a depth of at most {deepest}, because {length_limit(shortest)}. Got {tree.max_depth}."
        )


def check_text(
    tokens: Sequence[int], max_new_tokens: int, *, vocabulary: int, max_text_tokens: int, reason: str
) -> None:
    """Refuse a prompt, or a number of new tokens after it, that a decoder cannot take; `reason` explains the longest text."""
    if len(tokens) == 0:
        raise InvalidValueError("token_ids: expected at least one token. Got an empty prompt.", field="token_ids")
    if not all(0 <= token < vocabulary for token in tokens):
        raise InvalidValueError(f"token_ids: expected tokens from 0 to {vocabulary - 1}.", field="token_ids")
    if max_new_tokens < 0:
        raise InvalidValueError(f"max_new_tokens: expected at least 0. Got {max_new_tokens}.", field="max_new_tokens")
    most = max_text_tokens - (max_new_tokens > 0)
    if len(tokens) > most:
        raise InvalidValueError(
            f"token_ids: expected at most {most} tokens{' before a new one' if max_new_tokens else ''}, because "
            f"{reason}. Got {len(tokens)}: give a shorter prompt.",
            field="token_ids",
        )
    room = max_text_tokens - len(tokens)
    if max_new_tokens > room:
        raise InvalidValueError(
            f"max_new_tokens: expected at most {room} after a prompt of {len(tokens)} tokens, because {reason}. "
            f"Got {max_new_tokens}: decode fewer, or give a shorter prompt.",
            field="max_new_tokens",
        )
