"""Acceptance in the answers of Spec-Bench (Xia et al., 2024), and of programs that took over its evaluation.

As `evaluation/eval.py` writes them, a line for every question, with one or more `choices`:

    accept_lengths: tokens that each step yielded, the target's own one included; of all turns together
    new_tokens, wall_time: tokens and seconds of every turn

Lengths are of paths: where a tree was drafted, they are those of its best path, which a chain does not reach.
Seconds hold prompts, drafts and verification together, so no times are taken.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from treeopt.engines.importers.content import MOST
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.engines.importers.step_counts import StepCounts, pooled
from treeopt.errors import FormatError
from treeopt.files.fields import Fields

KIND = "Spec-Bench answers; of a tree's best paths if it drafted trees"
MOST_SECONDS = 1e9


def is_answers(file: ForeignFile) -> bool:
    """Return whether one of the objects is the answer to a question."""
    return any(_is_answer(each.fields) for each in file.objects)


def _is_answer(content: Mapping[str, Any]) -> bool:
    choices = content.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and bool(first.keys() & {"accept_lengths", "new_tokens"})


def read_answers(file: ForeignFile) -> Measurements:
    """Return the acceptance of all answers together.

    Raises FormatError naming the line and the field: for lengths that do not come to the new tokens, several models,
    and a baseline, whose steps yield one token each.
    """
    path, objects = file.path, file.objects
    models = {model for each in objects if isinstance(model := each.fields.get("model_id"), str)}
    if len(models) > 1:
        raise FormatError(path, "model_id", f"expected the answers of one model. Got {len(models)}: keep one's lines.")
    texts = [_lengths(each.read(path)) for each in objects]
    depth = max((max(each) for each in texts if each), default=0)
    if depth == 0:
        reason = "expected steps of more than 1 token. Got none: take the answers of the speculative run, no baseline."
        raise FormatError(path, "accept_lengths", reason)
    total = Fields(path, {}).build("accept_lengths", pooled, [StepCounts.of_lengths(each, depth) for each in texts])
    return Measurements(
        acceptance=ImportedAcceptance(
            table=total.table,
            kind=KIND,
            prompts=len(texts),
            positions=sum(sum(each.values()) for each in texts),
            texts=total.texts,
        )
    )


def _lengths(answer: Fields) -> Counter[int]:
    """Return how many steps of an answer accepted so many draft tokens, the target's own token not counted."""
    steps: Counter[int] = Counter()
    for choice in answer.mappings("choices"):
        lengths = choice.integers("accept_lengths")
        if not 1 <= min(lengths, default=1) <= max(lengths, default=1) <= MOST:
            reason = (
                f"expected 1 to {MOST} tokens a step, the target's own included. Got {min(lengths)} to {max(lengths)}."
            )
            raise choice.error("accept_lengths", reason)
        _check_tokens(choice, lengths)
        steps.update(length - 1 for length in lengths)
    return steps


def _check_tokens(choice: Fields, lengths: Sequence[int]) -> None:
    """Refuse lengths that do not come to the new tokens: what a turn starts and ends with may be counted in one only."""
    seconds = choice.numbers("wall_time") if "wall_time" in choice else []
    if not 0 <= min(seconds, default=0) <= max(seconds, default=0) <= MOST_SECONDS:
        raise choice.error("wall_time", f"expected seconds from 0 on. Got {min(seconds):g} to {max(seconds):g}.")
    if "new_tokens" not in choice:
        return
    tokens = choice.integers("new_tokens")
    if seconds and len(seconds) != len(tokens):
        raise choice.error("wall_time", f"expected {len(tokens)}, one per turn of new_tokens. Got {len(seconds)}.")
    allowed = len(tokens) * max(lengths, default=0)
    if min(tokens, default=0) < 0 or abs(sum(lengths) - sum(tokens)) > allowed:
        reason = (
            f"expected to sum to about new_tokens, {sum(tokens)}. Got {sum(lengths)}: is the target's token counted?"
        )
        raise choice.error("accept_lengths", reason)
