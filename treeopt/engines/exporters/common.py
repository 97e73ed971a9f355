"""What exporters share: checks of a request, schedules, versions, and the syntax of files."""

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

from treeopt.engines.exporters.engine import BatchLength, Engine, Json, SettingFiles, SettingRequest
from treeopt.errors import InfeasibleError, InvalidValueError, Warning

BENCH_FIRST = "Bench it before you serve."
"""Action of a warning that the setting is not the planned one."""
NO_FLAGS = "\n"
NO_FIELDS = "{}\n"
RATE_DECIMALS = 6
"""Rounding preserves the order, so non-increasing rates stay non-increasing."""


def render_setting(engine: Engine, request: SettingRequest) -> SettingFiles:
    """Return the files of an engine's setting.

    Raises InvalidValueError for an unknown method, InfeasibleError for a request beyond the engine's limits.
    """
    check_method(engine, request.method)
    if reason := find_refusal(engine, request):
        raise InfeasibleError(reason)
    output = engine.render(request)
    single_length = () if engine.schedules else warn_single_length(request, engine.title)
    return replace(output, warnings=(*_warn_unchecked_version(engine, request), *output.warnings, *single_length))


def loads_draft_model(engine: Engine, request: SettingRequest) -> bool:
    """Return whether the files of a setting, or the line that uses it, name the draft model."""
    setting, other = (
        render_setting(engine, replace(request, draft_model=name))
        for name in (request.draft_model, f"{request.draft_model}-")
    )
    return (setting.files, setting.usage) != (other.files, other.usage)


def find_refusal(engine: Engine, request: SettingRequest) -> str | None:
    """Return why an engine does not accept a request; None if it does."""
    tree, method = request.tree, request.method
    if tree.is_chain or engine.drafts_trees(method):
        reason = engine.limits(request)
        return None if reason is None else f"{engine.title}: {reason}"
    condition = f" with {method}" if method else ""
    return (
        f"{engine.title}: expected a chain, all that it drafts{condition}. Got top-k {tree.top_k}, depth {tree.depth}, "
        f"{tree.nodes} nodes: ask for a chain."
    )


def check_method(engine: Engine, method: str | None) -> None:
    """Raise InvalidValueError for a method that an engine does not have."""
    if method is not None and method not in (*engine.method_names, *engine.old_method_names):
        raise unknown_method(engine.title, engine.method_names, method)


def unknown_method(engine: str, names: Sequence[str], method: str) -> InvalidValueError:
    expected = f"one of {engine}'s: {', '.join(names)}" if names else f"none, {engine} has no choice"
    action = "" if names else ": leave it out"
    return InvalidValueError(f"method: expected {expected}. Got {method!r}{action}.", field="method")


def varying_schedule(request: SettingRequest) -> tuple[BatchLength, ...]:
    """Return the schedule with equal neighbours joined; empty if one length serves all batch sizes."""
    joined: list[BatchLength] = []
    for part in request.schedule:
        first = joined.pop().first_batch if joined and joined[-1].length == part.length else part.first_batch
        joined.append(BatchLength(first_batch=first, last_batch=part.last_batch, length=part.length))
    return tuple(joined) if len(joined) > 1 else ()


def _describe_batches(part: BatchLength) -> str:
    if part.first_batch == part.last_batch:
        return f"batch size {part.first_batch}"
    return f"batch sizes {part.first_batch} to {part.last_batch}"


def warn_schedule_omitted(request: SettingRequest, why: str) -> tuple[Warning, ...]:
    """Return the warning that the files contain no schedule, if lengths differ over batch sizes."""
    schedule = varying_schedule(request)
    if not schedule:
        return ()
    lengths = ", ".join(f"{part.length} at {_describe_batches(part)}" for part in schedule)
    problem = f"{why}, so the schedule ({lengths}) is left out."
    return (Warning(problem, "Export for the batch size you serve."),)


def warn_single_length(request: SettingRequest, title: str) -> tuple[Warning, ...]:
    """Return the warning of an engine without schedules."""
    return warn_schedule_omitted(request, f"{title} takes one length for all batch sizes")


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, at least three; raises InvalidValueError for other text.

    >>> version_numbers("0.33"), version_numbers("v1.4.0rc1")
    ((0, 33, 0), (1, 4, 0))
    """
    match = re.fullmatch(r"v?(\d{1,9}(?:\.\d{1,9})*)(?:[-_.+]?[a-zA-Z].*|[-+].*)?", version.strip())
    if match is None:
        raise InvalidValueError(
            f"engine_version: expected numbers with dots, such as 1.4.0. Got {version!r:.60}.", field="engine_version"
        )
    numbers = tuple(int(number) for number in match[1].split("."))
    return numbers + (0,) * (3 - len(numbers))


def _warn_unchecked_version(engine: Engine, request: SettingRequest) -> tuple[Warning, ...]:
    version = request.engine_version
    if version is None:
        return ()
    oldest, newest = engine.checked[0], engine.checked[-1]
    is_release = newest[0].isdigit()
    if is_release and version_numbers(oldest) <= version_numbers(version) <= version_numbers(newest):
        return ()
    return (
        Warning(
            f"{engine.title} {version} was not checked, only {engine.versions}.",
            "Compare the fields with its documentation.",
        ),
    )


def round_rates(rates: Sequence[float]) -> list[float]:
    return [round(rate, RATE_DECIMALS) for rate in rates]


def json_text(content: Json) -> str:
    """Return a JSON file, lists of numbers on one line.

    >>> print(json_text({"schedule": [[1, 4, 3]]}), end="")
    {
      "schedule": [
        [1, 4, 3]
      ]
    }
    """

    def join_lines(match: re.Match[str]) -> str:
        return " ".join(match[0].split()).replace("[ ", "[").replace(" ]", "]")

    return re.sub(r"\[[^][{}\"]*\]", join_lines, json.dumps(content, indent=2)) + "\n"


def flag_line(flags: Iterable[tuple[str, object]]) -> str:
    """Return flags with their values, quoted for a shell, as one line.

    >>> flag_line([("--num-draft-tokens", 3), ("--draft-model", "my draft")]).strip()
    "--num-draft-tokens 3 --draft-model 'my draft'"
    """
    return " ".join(f"{flag} {shlex.quote(str(value))}" for flag, value in flags) + "\n"


def with_flags(command: str, line: str) -> str:
    """Return a command that reads its flags from `FILE`; a shell parses quotes in a file only through `eval`."""
    return f'eval "{command} $(cat FILE)"' if shlex.split(line) != line.split() else f"{command} $(cat FILE)"
