"""How an engine is run and asked: one protocol, which every probe and the fake of the tests keep.

An engine is started under one draft length, answers prompts, several at once, and tells its counters, as far as it
has any.  Whoever measures compares both; nothing here knows of plans.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from treeopt.errors import EngineError, InvalidValueError, printable
from treeopt.records.engine import EngineSetting

NGRAM, EAGLE3, MTP = "ngram", "eagle3", "mtp"
UNREADABLE = "\ufffd"
"""Stands for bytes that are no whole character."""
METHODS = (NGRAM, EAGLE3, MTP)
"""How engines draft otherwise than with a draft model: from the text itself, with an EAGLE-3 head, with the target's own module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One setting that an engine is run under."""

    target: str | None
    """Model in the form that the engine takes; None where the engine runs already."""
    draft: str | None
    """Draft model or head; None where the engine runs already, or drafts without one."""
    draft_tokens: int
    """Length of the chain; 0 is plain decoding."""
    slots: int = 1
    """Texts decoded at the same time, at most."""
    context_tokens: int = 1024
    """Room for each text, prompt included; probes ask for more where a text may be longer."""
    threads: int | None = None
    """CPU threads; None leaves them to the engine."""
    timeout_s: float = 60.0
    """Longest wait for a start or an answer."""
    method: str | None = None
    """One of `METHODS`; None drafts with a draft model."""
    device: str | None = None
    """Where an engine of `treeopt.engines.probes.named.PLACED` runs, such as `cuda`; None elsewhere."""
    dtype: str | None = None
    """Dtype that such an engine runs in, such as `bfloat16`."""
    ngram_tokens: int | None = None
    """Of the method `ngram`, tokens that have to match; None leaves them to the engine."""

    @property
    def complete(self) -> bool:
        """Whether the models that an engine needs are named."""
        return self.target is not None and (self.draft is not None or self.method == NGRAM)


class Question(NamedTuple):
    """What an engine is asked."""

    prompt: str
    max_new_tokens: int
    temperature: float
    seed: int = 0


class Answer(NamedTuple):
    """One text, as far as the engine tells it."""

    text: str
    tokens: int
    """Generated, the first included, which comes out of the prompt's pass."""
    decode_s: float
    """Seconds from the first token to the last."""
    steps: int | None
    """Passes of the target after the prompt's; None where the engine does not tell."""
    prompt_tokens: int
    accepted: tuple[int, ...] = ()
    """How often the 1st, 2nd, … draft token was accepted, where the engine tells it of each text."""
    prefill_s: float | None = None
    """Seconds from the question to the first token; None where the engine does not tell."""
    prefill_tokens: int = 0
    """Tokens of the prompt that were read in them; others were known of texts before."""
    coalesced: bool = False
    """Whether some chunks hold more tokens than a step can yield, so that steps cannot be told from them."""

    @property
    def after_first(self) -> int:
        """Tokens that steps committed."""
        return self.tokens - 1


class Counters(NamedTuple):
    """What an engine has counted since it started, over all its clients."""

    drafts: int
    """Steps that drafted."""
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    """How often the 1st, 2nd, … draft token was accepted; empty where it does not tell."""

    def since(self, before: "Counters") -> "Counters":
        """Return the difference; negative where the engine began to count anew."""
        most = max(len(self.accepted_per_position), len(before.accepted_per_position))
        own, earlier = (
            (*each.accepted_per_position, *[0] * (most - len(each.accepted_per_position))) for each in (self, before)
        )
        return Counters(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted_tokens - before.accepted_tokens,
            tuple(now - then for now, then in zip(own, earlier, strict=True)),
        )


class Running(Protocol):
    """An engine that runs under one setting."""

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """Return the answers to questions that are asked at the same time, so that their steps are shared.

        Raises EngineError where the engine does not answer in time, or answers what is no answer.
        """

    def counters(self) -> Counters | None:
        """Return what it has counted; None where it does not tell.  Raises EngineError likewise."""

    def close(self) -> None:
        """End what was started for it; an engine that ran before goes on."""


class PassTimes(NamedTuple):
    """Seconds of an engine's passes in one step, on average."""

    verify_s: float
    """Of the target's."""
    draft_s: float
    """Of all of the draft model's together; 0 without one."""


@runtime_checkable
class TellsPasses(Protocol):
    """A `Running` that tells passes apart."""

    def passes(self, questions: Sequence[Question]) -> PassTimes:
        """Return the passes of steps that answer questions asked at the same time; raises EngineError likewise."""


@runtime_checkable
class TellsLogprobs(Protocol):
    """A `Running` that tells how likely tokens are."""

    def next_logprobs(self, text: str) -> dict[str, float]:
        """Return the likeliest next tokens after a text, and their log-probabilities at temperature 1.

        Raises EngineError where it does not tell them.
        """


class EngineClient(Protocol):
    """An engine that can be asked."""

    name: str
    """As in `treeopt probe NAME`."""
    version: str
    """Of the engine that answers."""
    settings: tuple[EngineSetting, ...]
    """What it runs under beside the draft length."""
    device: str
    """`cpu` or `gpu` of this machine; `UNKNOWN` where it may be another machine's, or the engine does not tell."""
    concurrent: bool
    """Whether several lengths can run at the same time without loading the models again."""

    def start(self, launch: Launch) -> Running:
        """Return the engine under a setting, ready to answer; raises EngineError where it does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """What `treeopt probe --list` says of an engine."""

    name: str
    title: str
    version: str | None
    """Installed here; None where it is not."""
    started: str
    """How it is started, in words."""
    tells: str
    """What it can tell, in words."""
    install: str
    """What to do where it is not installed."""


def likeliest(name: str, tokens: Iterable[tuple[object, object]]) -> dict[str, float]:
    """Return tokens and log-probabilities that an engine tells, of tokens with the same text the likeliest.

    Raises EngineError where none has a text and a finite number.

    >>> likeliest("engine", [("a", -0.1), ("a", -3.0), ("b", float("-inf"))])
    {'a': -0.1}
    """
    found: dict[str, float] = {}
    for text, value in tokens:
        if isinstance(text, str) and text and isinstance(value, int | float) and math.isfinite(value):
            found[text] = max(found.get(text, -math.inf), float(value))
    if not found:
        raise EngineError(f"{name}: expected log-probabilities of the next token. Got none: check the texts by hand.")
    return found


def served_model(name: object) -> tuple[EngineSetting, ...]:
    """Return what a server says that it serves, as a setting; nothing where it does not say."""
    return (EngineSetting(name="model", value=printable(name)),) if isinstance(name, str) and name else ()


def is_address(url: str) -> bool:
    """Return whether this is one address, and not one for each length.

    >>> is_address("http://a:1"), is_address("0=http://a:1")
    (True, False)
    """
    return url.startswith(("http://", "https://"))


def addresses(url: str) -> dict[int, str]:
    """Return the address of each draft length.

    Raises InvalidValueError for anything but pairs of a length and an address.

    >>> addresses("0=http://a:1,3=http://a:2")
    {0: 'http://a:1', 3: 'http://a:2'}
    """
    found = {}
    for pair in url.split(","):
        length, equals, address = pair.partition("=")
        if not equals or not length.strip().isdecimal() or not is_address(address):
            raise InvalidValueError(
                f"--url: expected a server for each length, such as 0=http://localhost:8000,3=http://localhost:8001. Got {pair!r:.80}."
            )
        found[int(length)] = address.strip()
    return found


def address_of(name: str, by_length: Mapping[int, str], launch: Launch) -> str:
    """Return the address of the server with the length of a launch; raises EngineError where none was named."""
    if launch.draft_tokens not in by_length:
        raise EngineError(
            f"{name}: expected a server with {launch.draft_tokens} draft tokens. Got those with {sorted(by_length)}: add "
            f"{launch.draft_tokens}=URL to --url, or leave the length out of --lengths."
        )
    return by_length[launch.draft_tokens]
