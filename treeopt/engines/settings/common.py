"""What the exporters share: rules on the fields of a file, chains, schedules, versions, and lines of flags."""

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from treeopt.engines.engine import BatchLength, EngineFile, Json, SettingFiles, SettingRequest
from treeopt.errors import InfeasibleError, InvalidValueError, Warning

BENCH_FIRST = "Bench it before you serve."
"""What to do about a setting that is not the one planned."""
NO_FLAGS = "\n"
NO_FIELDS = "{}\n"
"""Files that change nothing: what plain decoding takes."""
RATE_DECIMALS = 6
"""Rounding keeps the order, so rates that never rise still never rise."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The fields of one engine's file, so that every broken rule is told alike: the engine, its field, what to do."""

    engine: str
    fields: Json

    @classmethod
    def from_json(cls, engine: str, text: str) -> "Checked":
        """Return the fields of a JSON object."""
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise InfeasibleError(f"{engine}: expected JSON. Got text that is none ({error}).") from None
        if not isinstance(fields, dict):
            raise InfeasibleError(f"{engine}: expected a JSON object. Got {type(fields).__name__}.")
        return cls(engine, fields)

    @classmethod
    def from_flags(cls, engine: str, text: str) -> "Checked":
        """Return the values of a line of flags, each followed by its value; digits become whole numbers."""
        words = shlex.split(text)
        flags, values = words[::2], words[1::2]
        if len(flags) != len(values) or not all(flag.startswith("-") for flag in flags):
            raise InfeasibleError(f"{engine}: expected flags, each with a value. Got {text.strip()!r}.")
        numbers = [int(value) if value.isdecimal() else value for value in values]
        return cls(engine, dict(zip(flags, numbers, strict=True)))

    def require(self, held: bool, field: str, expected: str, action: str, got: object = None) -> None:
        """Raise InfeasibleError unless a rule on a field held; without `got` the field's value is told."""
        if not held:
            came = self.fields.get(field, "nothing") if got is None else got
            raise InfeasibleError(f"{self.engine}: {field}: expected {expected}. Got {came}: {action}.")

    def whole(self, field: str, least: int = 1) -> int:
        """Return a field that must be a whole number of at least `least`."""
        value = self.fields.get(field)
        held = type(value) is int and value >= least
        self.require(held, field, f"a whole number of at least {least}", "ask for a longer chain or a larger tree")
        return int(value or 0)

    def one_of(self, field: str, names: Sequence[str]) -> str:
        """Return a field that must be one of some names."""
        value = self.fields.get(field)
        self.require(value in names, field, f"one of {', '.join(names)}", "name one of these as the method")
        return str(value)

    def rates(self, field: str, rates: object, length: int) -> None:
        """Refuse rates that are not the chances that a step accepts at least 1, 2, … `length` draft tokens."""
        good = isinstance(rates, list) and all(type(rate) in (int, float) and 0 <= rate <= 1 for rate in rates)
        self.require(good, field, "numbers from 0 to 1", "plan from a profile", got=rates)
        assert isinstance(rates, list)
        self.require(len(rates) == length, field, f"{length}, one a draft token", "plan that length", got=len(rates))
        falling = all(after <= before for before, after in pairwise(rates))
        self.require(falling, field, "rates that never rise, each counted from the root", "plan from a profile", rates)


def chain_length(asked: SettingRequest, engine: str, field: str) -> int:
    """Return the draft tokens of a chain, which goes into `field`; raise InfeasibleError for a tree with branches."""
    tree = asked.tree
    if not tree.is_chain:
        raise InfeasibleError(
            f"{engine}: {field}: expected a chain, all that it drafts. "
            f"Got top-k {tree.top_k}, depth {tree.depth}, {tree.nodes} nodes: ask for a chain."
        )
    return tree.depth


def speculation_off(text: str, usage: str) -> SettingFiles:
    """Return the setting of an engine that decodes plainly: a file without any draft in it, and how it is started."""
    return SettingFiles(files=(EngineFile(name="", text=text),), usage=usage)


def chosen_method(asked: SettingRequest, engine: str, default: str, methods: Sequence[str]) -> str:
    """Return the method asked for or the default; raise InvalidValueError for one that the engine does not know."""
    method = asked.method or default
    if method not in methods:
        raise InvalidValueError(
            f"method: expected one of {engine}'s: {', '.join(methods)}. Got {method!r}.", field="method"
        )
    return method


def refuse_method(asked: SettingRequest, engine: str) -> None:
    """Raise InvalidValueError where a method is asked of an engine that has no choice of them."""
    if asked.method is not None:
        raise InvalidValueError(
            f"method: expected none, {engine} has no choice. Got {asked.method!r}: leave it out.", field="method"
        )


def varying_schedule(asked: SettingRequest) -> tuple[BatchLength, ...]:
    """Return the schedule with equal neighbours joined; empty where one length serves all batch sizes.

    Raises InvalidValueError for ranges that do not follow one another from 1 on, and lengths outside 0 to the depth.
    """
    joined: list[BatchLength] = []
    next_batch = 1
    for part in asked.schedule:
        if part.first_batch != next_batch or part.last_batch < part.first_batch:
            came = f"{part.first_batch} to {part.last_batch}"
            raise InvalidValueError(
                f"schedule: expected a range from batch size {next_batch} on. Got {came}.", field="schedule"
            )
        if not 0 <= part.length <= asked.tree.depth:
            raise InvalidValueError(
                f"schedule: expected lengths from 0 to {asked.tree.depth}. Got {part.length}.", field="schedule"
            )
        next_batch = part.last_batch + 1
        first = joined.pop().first_batch if joined and joined[-1].length == part.length else part.first_batch
        joined.append(BatchLength(first_batch=first, last_batch=part.last_batch, length=part.length))
    return tuple(joined) if len(joined) > 1 else ()


def schedule_text(schedule: Iterable[BatchLength]) -> str:
    """Return a schedule in words.

    >>> schedule_text([BatchLength(first_batch=1, last_batch=8, length=3)])
    '3 at batch sizes 1 to 8'
    """
    return ", ".join(f"{part.length} at {_batches(part)}" for part in schedule)


def _batches(part: BatchLength) -> str:
    if part.first_batch == part.last_batch:
        return f"batch size {part.first_batch}"
    return f"batch sizes {part.first_batch} to {part.last_batch}"


def left_out_schedule(asked: SettingRequest, why: str) -> tuple[Warning, ...]:
    """Return the warning that lengths differ over batch sizes and cannot be given, if they differ."""
    schedule = varying_schedule(asked)
    if not schedule:
        return ()
    found = f"{why}, so the schedule ({schedule_text(schedule)}) is left out."
    return (Warning(found, "Export for the batch size you serve."),)


def one_length(asked: SettingRequest, engine: str) -> tuple[Warning, ...]:
    """Return the warning of an engine that drafts as many tokens at all batch sizes."""
    return left_out_schedule(asked, f"{engine} takes one length for all batch sizes")


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, at least three; raise InvalidValueError for text that has none.

    >>> version_numbers("0.33"), version_numbers("v1.4.0rc1")
    ((0, 33, 0), (1, 4, 0))
    """
    found = re.fullmatch(r"v?(\d+(?:\.\d+)*)(?:[-_.+]?[a-zA-Z].*|[-+].*)?", version.strip())
    if found is None:
        raise InvalidValueError(
            f"engine_version: expected numbers with dots, such as 1.4.0. Got {version!r}.", field="engine_version"
        )
    numbers = tuple(int(number) for number in found[1].split("."))
    return numbers + (0,) * (3 - len(numbers))


def asked_version(asked: SettingRequest, newest: str) -> tuple[int, ...]:
    """Return the numbers of the version asked for, by default of the newest that the exporter knows."""
    return version_numbers(asked.engine_version or newest)


def unchecked_version(asked: SettingRequest, engine: str, oldest: str, newest: str) -> tuple[Warning, ...]:
    """Return the warning that the version asked for lies outside of what was checked, if it does."""
    version = asked_version(asked, newest)
    if version_numbers(oldest) <= version <= version_numbers(newest):
        return ()
    checked = newest if oldest == newest else f"{oldest} to {newest}"
    return (
        Warning(
            f"{engine} {asked.engine_version} was not checked, only {checked}.",
            "Compare the fields with its documentation.",
        ),
    )


def rounded_rates(survival: Sequence[float]) -> list[float]:
    """Return rates with a few decimals."""
    return [round(rate, RATE_DECIMALS) for rate in survival]


def json_text(content: Json) -> str:
    """Return a JSON file, lists of numbers on one line.

    >>> print(json_text({"schedule": [[1, 4, 3]]}), end="")
    {
      "schedule": [
        [1, 4, 3]
      ]
    }
    """
    text = json.dumps(content, indent=2)
    return (
        re.sub(r"\[[^][{}\"]*\]", lambda found: " ".join(found[0].split()).replace("[ ", "[").replace(" ]", "]"), text)
        + "\n"
    )


def flag_line(flags: Iterable[tuple[str, object]]) -> str:
    """Return flags with their values on one line, quoted for a shell, and the line's end.

    >>> flag_line([("--num-draft-tokens", 3), ("--draft-model", "my draft")]).strip()
    "--num-draft-tokens 3 --draft-model 'my draft'"
    """
    return " ".join(f"{flag} {shlex.quote(str(value))}" for flag, value in flags) + "\n"


def with_flags(command: str, line: str) -> str:
    """Return how a command is started with a file of flags; a shell reads quotes in a file only through `eval`."""
    return f'eval "{command} $(cat FILE)"' if shlex.split(line) != line.split() else f"{command} $(cat FILE)"
