"""What the exporters share: limits, schedules, versions, and lines of flags."""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from treeopt.engines.engine import MAIN, BatchLength, Engine, Json, SettingFiles, SettingRequest
from treeopt.errors import InfeasibleError, InvalidValueError, Warning

BENCH_FIRST = "Bench it before you serve."
"""What to do about a setting that is not the one planned."""
NO_FLAGS = "\n"
NO_FIELDS = "{}\n"
"""Files that change nothing: what plain decoding takes."""
RATE_DECIMALS = 6
"""Rounding keeps the order, so rates that never rise still never rise."""


def emit(engine: Engine, request: SettingRequest) -> SettingFiles:
    """Return the files of an engine's setting.

    Raises InvalidValueError for an unknown method, InfeasibleError for a request beyond the engine's limits.
    """
    check_method(engine, request.method)
    if reason := refusal(engine, request):
        raise InfeasibleError(reason)
    made = engine.render(request)
    before = unchecked_version(engine, request)
    after = () if engine.schedules else one_length(request, engine.title)
    return replace(made, warnings=(*before, *made.warnings, *after))


def refusal(engine: Engine, request: SettingRequest) -> str | None:
    """Return why an engine cannot be set to a request; None if it can."""
    reason = engine.limits(request)
    return None if reason is None else f"{engine.title}: {reason}"


def check_method(engine: Engine, method: str | None) -> None:
    """Raise InvalidValueError for a method that an engine does not have."""
    if method is not None and method not in (*engine.method_names, *engine.old_method_names):
        raise unknown_method(engine.title, engine.method_names, method)


def unknown_method(engine: str, names: Sequence[str], got: str) -> InvalidValueError:
    """Return the error for a method that an engine does not have."""
    expected = f"one of {engine}'s: {', '.join(names)}" if names else f"none, {engine} has no choice"
    action = "" if names else ": leave it out"
    return InvalidValueError(f"method: expected {expected}. Got {got!r}{action}.", field="method")


def unlimited(_: SettingRequest) -> None:
    """Take any request."""


def chains_only(field: str) -> Callable[[SettingRequest], str | None]:
    """Return the limits of an engine that takes any chain, whose length goes into `field`."""

    def limits(request: SettingRequest) -> str | None:
        tree = request.tree
        if tree.is_chain:
            return None
        return (
            f"{field}: expected a chain, all that it drafts. "
            f"Got top-k {tree.top_k}, depth {tree.depth}, {tree.nodes} nodes: ask for a chain."
        )

    return limits


def speculation_off(text: str, usage: str) -> SettingFiles:
    """Return the setting of an engine that decodes plainly: a file without any draft in it, and how it is started."""
    return SettingFiles(files={MAIN: text}, usage=usage)


def varying_schedule(request: SettingRequest) -> tuple[BatchLength, ...]:
    """Return the schedule with equal neighbours joined; empty if one length serves all batch sizes."""
    joined: list[BatchLength] = []
    for part in request.schedule:
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


def left_out_schedule(request: SettingRequest, why: str) -> tuple[Warning, ...]:
    """Return the warning that lengths differ over batch sizes and cannot be given, if they differ."""
    schedule = varying_schedule(request)
    if not schedule:
        return ()
    found = f"{why}, so the schedule ({schedule_text(schedule)}) is left out."
    return (Warning(found, "Export for the batch size you serve."),)


def one_length(request: SettingRequest, engine: str) -> tuple[Warning, ...]:
    """Return the warning of an engine that drafts as many tokens at all batch sizes."""
    return left_out_schedule(request, f"{engine} takes one length for all batch sizes")


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


def unchecked_version(engine: Engine, request: SettingRequest) -> tuple[Warning, ...]:
    """Return the warning that the version asked for lies outside of what was checked, if it does."""
    if engine.checked is None or request.engine_version is None:
        return ()
    oldest, newest = engine.checked
    if version_numbers(oldest) <= version_numbers(request.engine_version) <= version_numbers(newest):
        return ()
    checked = newest if oldest == newest else f"{oldest} to {newest}"
    return (
        Warning(
            f"{engine.title} {request.engine_version} was not checked, only {checked}.",
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
