"""What every engine client offers: it starts an engine with a configuration, completes prompts and reports counters."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from typing import NamedTuple, Protocol

from treeopt.errors import EngineError, TreeoptError, printable
from treeopt.records.engine import EngineSetting
from treeopt.records.profile import UNKNOWN

NGRAM, EAGLE3, MTP = "ngram", "eagle3", "mtp"
METHODS = (NGRAM, EAGLE3, MTP)
"""Draft methods without a draft model: n-grams of the sequence, an EAGLE-3 head, the target's own MTP module."""
MAX_REASON = 300
"""Characters of an engine's own error."""
UNREADABLE = "\ufffd"
"""Stands for bytes that are not a whole character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How an engine is started."""

    target: str | None
    """Model in the form that the engine takes; None if the engine already runs."""
    draft: str | None
    """Draft model or head; None if the engine already runs, or drafts without one."""
    draft_tokens: int
    """Length of the chain; 0 is plain decoding."""
    slots: int = 1
    """Largest batch size."""
    context_tokens: int = 1024
    """KV cache of each sequence, prompt included."""
    threads: int | None = None
    """CPU threads; None is the engine's default."""
    timeout_s: float = 60.0
    """Longest wait for a start or a completion."""
    method: str | None = None
    """One of `METHODS`; None drafts with a draft model."""
    device: str | None = None
    """Device of an engine in `treeopt.engines.clients.registry.PLACED`, such as `cuda`; None for others."""
    dtype: str | None = None
    """Dtype of such an engine, such as `bfloat16`."""
    ngram_tokens: int | None = None
    """Tokens that have to match with the method `ngram`; None is the engine's default."""

    def check_models(self, name: str) -> None:
        """Raise EngineError unless the engine `name` gets a target, and a draft unless its method is `ngram`."""
        if self.target is None or (self.draft is None and self.method != NGRAM):
            raise _missing_models(name)

    def model_pair(self, name: str) -> tuple[str, str]:
        """Return target and draft; raises EngineError if either is missing."""
        if self.target is None or self.draft is None:
            raise _missing_models(name)
        return self.target, self.draft


class CompletionRequest(NamedTuple):
    """A prompt to complete; decoding ignores end tokens."""

    prompt: str
    max_new_tokens: int
    temperature: float
    seed: int = 0


class Completion(NamedTuple):
    """A generated sequence, with the times and counts that the engine reports."""

    text: str
    tokens: int
    """Generated tokens, including the first, which the prefill yields."""
    decode_s: float
    """Seconds from the first token to the last."""
    steps: int | None
    """Decoding steps; None if the engine does not report them."""
    prompt_tokens: int
    accepted: tuple[int, ...] = ()
    """Steps that accepted the 1st, 2nd, … draft token; empty if the engine does not report it."""
    prefill_s: float | None = None
    """Seconds from the request to the first token; None if the engine does not report it."""
    prefill_tokens: int = 0
    """Prompt tokens that were computed in that time, without those in the prefix cache."""
    coalesced: bool = False
    """Whether some chunks hold more tokens than a step can yield, so that chunks are not steps."""

    @property
    def after_first(self) -> int:
        """Tokens that decoding steps committed."""
        return self.tokens - 1


class Counters(NamedTuple):
    """What an engine has counted since its start, over all its clients."""

    drafts: int
    """Steps that drafted."""
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    """Steps that accepted the 1st, 2nd, … draft token; empty if the engine does not report it."""

    def since(self, before: "Counters") -> "Counters":
        """Return the difference; negative if the engine was restarted."""
        positions = zip_longest(self.accepted_per_position, before.accepted_per_position, fillvalue=0)
        return Counters(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted_tokens - before.accepted_tokens,
            tuple(last - first for last, first in positions),
        )


class PassTimes(NamedTuple):
    """Mean seconds of an engine's passes in a step."""

    verify_s: float
    """Of the target's pass."""
    draft_s: float
    """Of all passes of the draft model; 0 without one."""


class RunningEngine(ABC):
    """An engine that runs with a configuration."""

    def __init__(self, name: str, config: EngineConfig) -> None:
        self._name, self._config = name, config

    @abstractmethod
    def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Complete prompts as one batch.

        Raises EngineError if the engine fails, exceeds the time limit, or sends something else than a completion.
        """

    def counters(self) -> Counters | None:
        """Return the engine's counters; None if it has none.  Raises EngineError as `complete` does."""
        return None

    def measure_passes(self, requests: Sequence[CompletionRequest]) -> PassTimes | None:
        """Complete prompts as one batch and return the times of target and draft passes; None if they are not reported."""
        del requests
        return None

    def next_logprobs(self, text: str) -> dict[str, float]:
        """Return the likeliest next tokens after a text, and their log-probabilities at temperature 1.

        Raises EngineError if the engine does not report them.
        """
        del text
        raise EngineError(
            f"{self._name}: expected log-probabilities. It does not report them: compare the outputs by hand."
        )

    def close(self) -> None:
        """End what was started; models that serve other draft lengths, and servers that ran before, stay."""
        return

    def _count_steps(
        self,
        text: str,
        step_tokens: Sequence[int],
        step_ends_s: Sequence[float],
        *,
        prompt_tokens: int,
        step_accepted: Sequence[int] | None = None,
        requested_s: float | None = None,
    ) -> Completion:
        """Return the completion of a sequence from the tokens of each step; the first step is the prefill.

        Args:
            text: all new tokens.
            step_tokens: tokens that each step committed.
            step_ends_s: when each step ended.
            prompt_tokens: tokens of the prompt.
            step_accepted: draft tokens among `step_tokens`; by default all but one.
            requested_s: when the request was sent; None if the prefill was not timed.
        """
        accepted = [tokens - 1 for tokens in step_tokens] if step_accepted is None else step_accepted
        lengths = range(1, 1 + self._config.draft_tokens)
        return Completion(
            text=text,
            tokens=1 + sum(step_tokens[1:]),
            decode_s=step_ends_s[-1] - step_ends_s[0] if step_ends_s else 0.0,
            steps=len(step_tokens[1:]),
            prompt_tokens=prompt_tokens,
            accepted=tuple(sum(drafts >= length for drafts in accepted[1:]) for length in lengths),
            prefill_s=None if requested_s is None or not step_ends_s else step_ends_s[0] - requested_s,
            prefill_tokens=0 if requested_s is None else prompt_tokens,
        )


class EngineClient(Protocol):
    """An engine that can be started or reached."""

    name: str
    """As in `treeopt probe NAME`."""
    version: str
    settings: tuple[EngineSetting, ...] = ()
    """What it runs with besides its configuration."""
    device: str = UNKNOWN
    """`cpu` or `gpu` of this machine; `UNKNOWN` if it may be another machine's, or is not reported."""
    concurrent: bool = True
    """Whether several draft lengths can run at the same time without loading the models again."""

    def start(self, config: EngineConfig) -> RunningEngine:
        """Start the engine; raises EngineError if it does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What `treeopt probe --list` prints of an engine."""

    name: str
    title: str
    version: str | None
    """Version installed here; None if it is not."""
    started: str
    """How it is started."""
    reports: str
    """What it reports."""
    install: str | None
    """Command that installs it; None for a server that treeopt never starts."""

    def require_version(self) -> str:
        """Return the installed version; raises EngineError if there is none."""
        if self.version is None:
            raise EngineError(f"{self.name}: expected its package. It is not installed: {self.install}.")
        return self.version

    @property
    def state(self) -> str:
        """Version, or what is missing."""
        if self.version is not None:
            return self.version
        return "give --url of a running server" if self.install is None else f"not installed: {self.install}"


def _missing_models(name: str) -> EngineError:
    return EngineError(f"{name}: expected two models. Got one or none: give --target and --draft.")


@contextmanager
def engine_errors(name: str, expected: str, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise an EngineError of one line for the errors of an engine's own package.

    Args:
        name: the engine.
        expected: what it should have got, such as `models that it can load`.
        kinds: classes of its errors.
    """
    try:
        yield
    except TreeoptError:
        raise
    except kinds as error:
        reason = printable(" ".join(str(error).split()))[:MAX_REASON]
        raise EngineError(f"{name}: expected {expected}. Got: {reason}") from None


def installed_version(package: str) -> str | None:
    """Return the version of a package that is installed here; None if it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def top_logprobs(name: str, tokens: Iterable[tuple[object, object]]) -> dict[str, float]:
    """Return the tokens and log-probabilities that the engine `name` reports; of tokens with equal text the likeliest.

    Raises EngineError if none has a text and a finite number.

    >>> top_logprobs("engine", [("a", -0.1), ("a", -3.0), ("b", float("-inf"))])
    {'a': -0.1}
    """
    logprobs: dict[str, float] = {}
    for text, value in tokens:
        if isinstance(text, str) and text and isinstance(value, int | float) and math.isfinite(value):
            logprobs[text] = max(logprobs.get(text, -math.inf), float(value))
    if not logprobs:
        raise EngineError(
            f"{name}: expected log-probabilities of the next token. Got none: compare the outputs by hand."
        )
    return logprobs
