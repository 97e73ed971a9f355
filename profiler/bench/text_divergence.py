"""Where two greedy texts of one engine part: at a near-tie, or at a fault.

Engines tell texts and log-probabilities, no logits.  The place is found token by token from the last word that both
texts have in common, because a text that is cut elsewhere may be other tokens than those that the engine wrote.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from treeopt.engines.probes.client import UNREADABLE
from treeopt.errors import printable
from treeopt.records.results import FAULT, NEAR_TIE, UNCHECKED, TextDivergence

NEAR_TIE_ULPS = 4
"""Rounding steps of the larger logit, in the model's number format, that a near-tie may span."""
ULP = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
"""Rounding step of 1 in each number format."""
LOGIT = 20.0
"""Magnitude that a likely token's logit is taken to have, since log-probabilities do not tell it."""
MOST_BACK = 40
"""Characters before the divergence that are read again, at most."""
LAST_WORD = re.compile(r"\s*\S*\Z")
SHOWN = 20
"""Characters of each text that are kept."""

Ask = Callable[[str], Mapping[str, float]]
"""Returns the likeliest next tokens after a text with their log-probabilities; raises EngineError."""


class Decoded(NamedTuple):
    """A continuation of a prompt."""

    text: str
    tokens: int


class _Reading(NamedTuple):
    """What the engine says of a place."""

    gap: float
    """Nats."""
    at_least: bool


def near_tie_nats(dtype: str | None) -> float:
    """Return the gap up to which rounding in a dtype may decide; float16's where the dtype is not known.

    >>> round(near_tie_nats("bfloat16"), 3), round(near_tie_nats(None), 3)
    (0.625, 0.078)
    """
    return NEAR_TIE_ULPS * ULP.get(dtype or "", ULP["float16"]) * LOGIT


def text_divergence(
    number: int, prompt: str, plain: Decoded, other: Decoded, ask: Ask | None, tolerance_nats: float
) -> TextDivergence:
    """Return where two different continuations of a prompt part, and why.

    Args:
        number: of the prompt.
        prompt: its text.
        plain: plain decoding's continuation.
        other: another of the same length.
        ask: plain decoding's log-probabilities; None where the engine does not tell them.
        tolerance_nats: largest gap of a near-tie.

    Raises EngineError as `ask` does.
    """
    place = common_length(plain.text, other.text)
    verdict, reading = UNCHECKED, None
    if place in (len(plain.text), len(other.text)):  # one ends too early, or holds back half a character
        verdict = FAULT if plain.tokens != other.tokens else UNCHECKED
    elif ask is not None:
        reading = _nearest(prompt, plain.text, other.text, ask, tolerance_nats)
        verdict = UNCHECKED if reading is None else _verdict(reading, tolerance_nats)
    return TextDivergence(
        prompt=number,
        place=place,
        plain=printable(plain.text[place : place + SHOWN]),
        other=printable(other.text[place : place + SHOWN]),
        gap=None if reading is None else reading.gap,
        at_least=reading is not None and reading.at_least,
        verdict=verdict,
    )


def common_length(first: str, second: str) -> int:
    """Return how many characters two texts have in common at their start.

    >>> common_length("abc", "abd")
    2
    """
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _verdict(reading: _Reading, tolerance_nats: float) -> str:
    if reading.gap > tolerance_nats:
        return FAULT
    return UNCHECKED if reading.at_least else NEAR_TIE


def _nearest(prompt: str, plain: str, other: str, ask: Ask, tolerance_nats: float) -> _Reading | None:
    """Return the reading with the smallest gap, so that an unclear place accuses nobody; None where there is none."""
    place = common_length(plain, other)
    start = _word_start(plain, place)
    found: list[_Reading] = []
    while start <= place:
        told = ask(prompt + plain[:start])
        ours = _matching(told, plain[start:])
        best = max(told.values(), default=0.0)
        if not ours or told[ours[0]] < best - tolerance_nats:  # not where a token of plain decoding begins
            start += 1
            continue
        own = ours[0]
        theirs = [each for each in _matching(told, other[start:]) if each != own]
        beyond = [each for each in theirs if start + len(each) > place]
        if start + len(own) > place:
            last = _at(told, best, beyond or theirs)
            return min([*found, *([] if last is None else [last])], default=None)
        found += [_Reading(best - told[each], at_least=False) for each in beyond[:1]]
        start += len(own)
    return min(found, default=None)


def _at(told: Mapping[str, float], best: float, theirs: Sequence[str]) -> _Reading | None:
    """Return the reading of a place where the other text takes the first of some tokens, or one that is not told."""
    if theirs:
        return _Reading(best - told[theirs[0]], at_least=False)
    if any(UNREADABLE in each for each in told):
        return None
    return _Reading(best - min(told.values()), at_least=True)


def _matching(told: Mapping[str, float], text: str) -> list[str]:
    """Return the tokens that a text may begin with, the likeliest first."""
    return sorted((each for each in told if each and text.startswith(each)), key=lambda each: -told[each])


def _word_start(text: str, place: int) -> int:
    """Return where the last word before a place begins, the white space before it included.

    >>> _word_start("one  two", 7), _word_start("one", 2)
    (3, 0)
    """
    first = max(0, place - MOST_BACK)
    found = LAST_WORD.search(text[first:place])
    assert found is not None  # it matches the empty text too
    return first + found.start()
