"""The profile of a sweep over the draft length."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from treeopt.engines.importers.foreign_file import source_text
from treeopt.engines.importers.importer import SweepRow
from treeopt.engines.importers.profiles import unknown_machine
from treeopt.engines.importers.read import read_sweep
from treeopt.engines.importers.sweep_acceptance import estimate_rate, fit_survival
from treeopt.errors import FormatError, InvalidValueError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.engine import ChainLatency, EngineRun, EngineSetting, TimedChain
from treeopt.records.latency import Timing
from treeopt.records.machine import Pair, now
from treeopt.records.measured_acceptance import ACCEPTANCE, MeasuredAcceptance
from treeopt.records.profile import IMPORTED, UNKNOWN, Profile
from treeopt.records.rules import TARGET_RULE
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import Imported
from treeopt.version import TOOL

LEFT_OUT, EXTRAPOLATED, ESTIMATED = "left out", "plain decoding", "acceptance"
"""Names of engine settings that contain how a sweep was read."""


def sweep_profile(
    paths: Sequence[Path],
    *,
    sampling: Sampling,
    context_tokens: int,
    target: str = UNKNOWN,
    draft: str = UNKNOWN,
) -> Profile:
    """Return the profile of a sweep; rows of equal length, batch size and context are samples of one time.

    Without plain decoding its step time is extrapolated from the two shortest lengths.  Without any accept length one
    acceptance rate is estimated from the speeds.  Engine settings record both.
    Raises FormatError for a file that is not a sweep, for files of several models, for a condition with a single length above 0, and where accept
    lengths are missing and cannot be estimated.
    """
    all_rows = _read_rows(paths)
    rows = [row for row in all_rows if not row.tree]
    if not any(row.length for row in rows):
        others = "plain decoding" if len(rows) == len(all_rows) else "trees (top-k above 1)"
        raise FormatError(paths[0], "content", f"expected rows of chains that draft. Got only {others}: add chains.")
    try:
        survival, kind, rate = _find_survival(rows)
        latencies, extrapolated = _build_chain_latencies(rows, survival, context_tokens)
    except InvalidValueError as error:
        raise FormatError(paths[0], "content", str(error)) from None
    settings = []
    if trees := len(all_rows) - len(rows):
        settings.append(
            EngineSetting(name=LEFT_OUT, value=f"{trees} {'row' if trees == 1 else 'rows'} of trees (top-k above 1)")
        )
    if extrapolated:
        settings.append(EngineSetting(name=EXTRAPOLATED, value="extrapolated from the two shortest draft lengths"))
    if rate is not None:
        settings.append(
            EngineSetting(name=ESTIMATED, value=f"estimated from the speeds, {rate:.2f} for every draft token")
        )
    return Profile(
        created=now(),
        tool=TOOL,
        machine=unknown_machine(),
        pair=Pair(target=target, draft=draft, dtype=UNKNOWN),
        engine=EngineRun(name=IMPORTED, version=UNKNOWN, settings=tuple(settings)),
        chain_latencies=latencies,
        acceptances=(
            MeasuredAcceptance(
                rule=TARGET_RULE,
                sampling=sampling,
                table=AcceptanceTable(_condition_survival(survival)),
                imported=(Imported(what=ACCEPTANCE, source=source_text(paths[0], kind)),),
            ),
        ),
    )


def _read_rows(paths: Sequence[Path]) -> list[SweepRow]:
    """Return the rows of all files; raises FormatError naming the first file of another model."""
    rows: list[SweepRow] = []
    model: str | None = None
    for path in paths:
        for row in read_sweep(path):
            model = model or row.model
            if row.model not in (None, model):
                raise FormatError(
                    path,
                    "model",
                    f"expected the sweep of one model, {model!r:.60}. Got {row.model!r:.60}: import it alone.",
                )
            rows.append(row)
    return rows


def average_by_length(values: Sequence[tuple[int, float | None]]) -> dict[int, float]:
    """Return the mean of the values at every draft length that has some."""
    by_length: dict[int, list[float]] = {}
    for length, value in values:
        if value is not None:
            by_length.setdefault(length, []).append(value)
    return {length: sum(samples) / len(samples) for length, samples in by_length.items()}


def _find_survival(rows: Sequence[SweepRow]) -> tuple[list[float], str, float | None]:
    """Return the share of steps that accept at least 1, 2, … draft tokens, its kind, and the rate if it is estimated.

    Raises InvalidValueError if accept lengths are missing at the longest length, or everywhere next to a step time.
    """
    longest = max(row.length for row in rows)
    accept_lengths = average_by_length([(row.length, row.tokens_per_step) for row in rows if row.length])
    if accept_lengths:
        if longest > max(accept_lengths):
            raise InvalidValueError(
                f"expected the accept length of the longest draft. Got none at {longest} draft tokens: add it.",
                field="content",
            )
        survival, smoothed = fit_survival(accept_lengths)
        return survival, "sweep, inconsistent accept lengths smoothed" if smoothed else "sweep", None
    if any(row.token_s is None for row in rows if row.length):
        raise InvalidValueError(
            "expected an accept length with every step time. Got none: add the column accept_length.", field="content"
        )
    speeds: dict[tuple[int | None, int], list[tuple[int, float | None]]] = {}
    for row in rows:
        token_s = row.step_s if row.token_s is None else row.token_s  # a plain step has one token
        speeds.setdefault((row.context_tokens, row.batch_size), []).append((row.length, token_s))
    rate = estimate_rate(max(map(average_by_length, speeds.values()), key=len))
    return [rate**power for power in range(1, longest + 1)], "sweep, acceptance estimated from speeds", rate


def _condition_survival(survival: Sequence[float]) -> list[list[float]]:
    """Return the acceptance of each position, given that the one before was accepted."""
    pairs = zip([1.0, *survival], survival, strict=False)
    return [[min(1.0, after / before)] if before > 0 else [0.0] for before, after in pairs]


def _build_chain_latencies(
    rows: Sequence[SweepRow], survival: Sequence[float], context_tokens: int
) -> tuple[tuple[ChainLatency, ...], bool]:
    """Return the step times of every condition, and whether plain decoding of one was extrapolated."""
    conditions: dict[tuple[int, int], dict[int, list[float]]] = {}
    for row in rows:
        context = context_tokens if row.context_tokens is None else row.context_tokens
        times = conditions.setdefault((context, row.batch_size), {})
        times.setdefault(row.length, []).append(_find_step_s(row, survival))
    without_plain = [times for times in conditions.values() if 0 not in times and len(times) > 1]
    for times in without_plain:
        plain_s = _extrapolate_plain_s(times)
        if plain_s > 0:
            times[0] = [plain_s]
    latencies = tuple(
        ChainLatency(
            context_tokens=context,
            batch_size=batch_size,
            chains=tuple(TimedChain(length=length, steps=Timing(times[length])) for length in sorted(times)),
        )
        for (context, batch_size), times in sorted(conditions.items())
    )
    return latencies, bool(without_plain)


def _find_step_s(row: SweepRow, survival: Sequence[float]) -> float:
    """Return the step time of a row; from a speed the one that predicts this speed."""
    if row.step_s is not None:
        return row.step_s
    assert row.token_s is not None  # a row has a step time or a speed
    return row.token_s * (1 + sum(survival[: row.length]))


def _extrapolate_plain_s(times: Mapping[int, Sequence[float]]) -> float:
    """Return the seconds of a plain step on the line through the two shortest lengths, at most the shortest's."""
    first, second = sorted(times)[:2]
    first_s, second_s = (sum(times[length]) / len(times[length]) for length in (first, second))
    return first_s - max(0.0, second_s - first_s) / (second - first) * first
