"""Where two greedy outputs of one engine diverge: at a near-tie, or because of a fault.

Engines report text and log-probabilities, no logits.  The diverging token is found token by token, starting at the last
word that both outputs have in common, because text that is cut elsewhere may be tokenized differently.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from treeopt.engines.clients.client import UNREADABLE
from treeopt.errors import printable
from treeopt.records.results import FAULT, NEAR_TIE, UNCHECKED, OutputDivergence

NEAR_TIE_ULPS = 4
"""The largest near-tie, in rounding steps of the larger logit in the model's dtype."""
ULP = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
"""Rounding step of 1 in each dtype."""
LOGIT = 20.0
"""Assumed magnitude of a likely token's logit, which log-probabilities do not determine."""
MAX_BACK = 40
"""Characters before the divergence that are read again."""
LAST_WORD = re.compile(r"\s*\S*\Z")
SHOWN = 20
"""Characters of each output in the result."""

NextLogprobs = Callable[[str], Mapping[str, float]]
"""Returns the likeliest next tokens after a text with their log-probabilities; raises EngineError."""


class Output(NamedTuple):
    """What an engine generated after a prompt."""

    text: str
    tokens: int


class _Gap(NamedTuple):
    """The log-probability of the likeliest token minus that of the other output's token."""

    nats: float
    at_least: bool
    """Whether this is a lower bound."""


def near_tie_nats(dtype: str | None) -> float:
    """Return the largest gap that rounding in a dtype may bridge; an unknown dtype counts as float16.

    >>> round(near_tie_nats("bfloat16"), 3), round(near_tie_nats(None), 3)
    (0.625, 0.078)
    """
    return NEAR_TIE_ULPS * ULP.get(dtype or "", ULP["float16"]) * LOGIT


def output_divergence(
    number: int,
    prompt: str,
    plain: Output,
    other: Output,
    next_logprobs: NextLogprobs | None,
    tolerance_nats: float,
) -> OutputDivergence:
    """Return where two different outputs for a prompt diverge, and why.

    Args:
        number: of the prompt.
        prompt: its text.
        plain: of plain decoding.
        other: another one.
        next_logprobs: log-probabilities of plain decoding; None if the engine does not report them.
        tolerance_nats: largest gap of a near-tie.

    Raises EngineError as `next_logprobs` does.
    """
    place = common_length(plain.text, other.text)
    verdict, gap = UNCHECKED, None
    if place in (len(plain.text), len(other.text)):  # one ends too early, or withholds half a character
        verdict = FAULT if plain.tokens != other.tokens else UNCHECKED
    elif next_logprobs is not None:
        gap = _smallest_gap(prompt, plain.text, other.text, next_logprobs, tolerance_nats)
        verdict = UNCHECKED if gap is None else _verdict(gap, tolerance_nats)
    return OutputDivergence(
        prompt=number,
        position=place,
        plain=printable(plain.text[place : place + SHOWN]),
        other=printable(other.text[place : place + SHOWN]),
        gap=None if gap is None else gap.nats,
        at_least=gap is not None and gap.at_least,
        verdict=verdict,
    )


def common_length(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts.

    >>> common_length("abc", "abd")
    2
    """
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _verdict(gap: _Gap, tolerance_nats: float) -> str:
    if gap.nats > tolerance_nats:
        return FAULT
    return UNCHECKED if gap.at_least else NEAR_TIE


def _smallest_gap(
    prompt: str, plain: str, other: str, next_logprobs: NextLogprobs, tolerance_nats: float
) -> _Gap | None:
    """Return the smallest gap, so that an ambiguous tokenization is no fault; None without one."""
    place = common_length(plain, other)
    start = _word_start(plain, place)
    gaps: list[_Gap] = []
    while start <= place:
        logprobs = next_logprobs(prompt + plain[:start])
        plain_tokens = _matching_tokens(logprobs, plain[start:])
        best = max(logprobs.values(), default=0.0)
        if (
            not plain_tokens or logprobs[plain_tokens[0]] < best - tolerance_nats
        ):  # no token of plain decoding starts here
            start += 1
            continue
        plain_token = plain_tokens[0]
        other_tokens = [token for token in _matching_tokens(logprobs, other[start:]) if token != plain_token]
        beyond = [token for token in other_tokens if start + len(token) > place]
        if start + len(plain_token) > place:
            last = _gap_at(logprobs, best, beyond or other_tokens)
            return min([*gaps, *([] if last is None else [last])], default=None)
        gaps += [_Gap(best - logprobs[token], at_least=False) for token in beyond[:1]]
        start += len(plain_token)
    return min(gaps, default=None)


def _gap_at(logprobs: Mapping[str, float], best: float, other_tokens: Sequence[str]) -> _Gap | None:
    """Return the gap to the first of some tokens, or to one that is not reported if there are none."""
    if other_tokens:
        return _Gap(best - logprobs[other_tokens[0]], at_least=False)
    if any(UNREADABLE in token for token in logprobs):
        return None
    return _Gap(best - min(logprobs.values()), at_least=True)


def _matching_tokens(logprobs: Mapping[str, float], text: str) -> list[str]:
    return sorted((token for token in logprobs if token and text.startswith(token)), key=lambda token: -logprobs[token])


def _word_start(text: str, place: int) -> int:
    """Return where the last word before a place starts, the white space before it included.

    >>> _word_start("one  two", 7), _word_start("one", 2)
    (3, 0)
    """
    first = max(0, place - MAX_BACK)
    match = LAST_WORD.search(text[first:place])
    assert match is not None  # it matches the empty text too
    return first + match.start()
