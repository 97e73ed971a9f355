"""Acceptance in answers of Spec-Bench (Xia et al., 2024), and of programs that reuse its evaluation.

As `evaluation/eval.py` writes them, one line per question, with one or more `choices`:

    accept_lengths: tokens that each step yielded, including the target's own; of all turns together
    new_tokens, wall_time: tokens and seconds of every turn

Lengths are of paths: of a tree they are those of the best path, which a chain does not reach. Seconds include prefill,
drafting and verification together, so no times are read.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from treeopt.engines.importers.acceptance_tables import pool_lengths
from treeopt.engines.importers.foreign_file import MAX_STEP_TOKENS, ForeignFile
from treeopt.engines.importers.importer import ImportedAcceptance, Importer
from treeopt.files.fields import Fields

MAX_S = 1e9


def _is_answer(content: Mapping[str, Any]) -> bool:
    choices = content.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and bool(first.keys() & {"accept_lengths", "new_tokens"})


def read_answers(file: ForeignFile) -> ImportedAcceptance:
    """Return the acceptance of all answers together.

    Raises FormatError naming the line and the field, for lengths that contradict the new tokens, several models, and a
    baseline, whose steps yield one token each.
    """
    file.check_one("model_id", "the answers of one model", [answer.content.get("model_id") for answer in file.objects])
    answers = [_count_steps(answer) for answer in file.objects]
    if not any(max(steps, default=0) for steps in answers):
        raise file.error(
            "accept_lengths",
            "expected steps of more than 1 token. Got none: take the answers of the speculative run, not of a baseline.",
        )
    kind = "Spec-Bench answers; of a tree's best paths if it drafted trees"
    return file.build("accept_lengths", pool_lengths, answers, kind)


def _count_steps(answer: Fields) -> Counter[int]:
    """Return the steps of an answer by accepted draft tokens."""
    steps: Counter[int] = Counter()
    for choice in answer.mappings("choices"):
        lengths = choice.integers("accept_lengths")
        if not 1 <= min(lengths, default=1) <= max(lengths, default=1) <= MAX_STEP_TOKENS:
            raise choice.error(
                "accept_lengths",
                f"expected 1 to {MAX_STEP_TOKENS} tokens a step, the target's own included. Got {min(lengths)} to "
                f"{max(lengths)}.",
            )
        _check_tokens(choice, lengths)
        steps.update(length - 1 for length in lengths)
    return steps


def _check_tokens(choice: Fields, lengths: Sequence[int]) -> None:
    """Refuse lengths that contradict the new tokens; one of the two may omit the first and last tokens of a turn."""
    seconds = choice.numbers("wall_time") if "wall_time" in choice else []
    if not 0 <= min(seconds, default=0) <= max(seconds, default=0) <= MAX_S:
        raise choice.error("wall_time", f"expected seconds from 0 on. Got {min(seconds):g} to {max(seconds):g}.")
    if "new_tokens" not in choice:
        return
    tokens = choice.integers("new_tokens")
    if seconds and len(seconds) != len(tokens):
        raise choice.error("wall_time", f"expected {len(tokens)}, one per turn of new_tokens. Got {len(seconds)}.")
    allowed = len(tokens) * max(lengths, default=0)
    if min(tokens, default=0) < 0 or abs(sum(lengths) - sum(tokens)) > allowed:
        raise choice.error(
            "accept_lengths",
            f"expected to sum to about new_tokens, {sum(tokens)}. Got {sum(lengths)}: is the target's token counted?",
        )


ANSWERS = Importer(
    name="spec-bench",
    title="answers of Spec-Bench (JSON Lines)",
    needs="accept_lengths of a speculative run",
    matches=lambda file: any(_is_answer(answer.content) for answer in file.objects),
    read=read_answers,
)
