"""The profile of a sweep over the draft length, made of what another program measured."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from treeopt.engines.importers.content import source_text
from treeopt.engines.importers.importer import SweepRow
from treeopt.engines.importers.mean_acceptance import equal_rate
from treeopt.engines.importers.read import read_sweep
from treeopt.errors import FormatError, InvalidValueError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.engine import ChainLatency, EngineRun, EngineSetting, TimedChain
from treeopt.records.latency import Timing
from treeopt.records.machine import Machine, Pair
from treeopt.records.measured_acceptance import ACCEPTANCE, MeasuredAcceptance
from treeopt.records.profile import IMPORTED, UNKNOWN, Profile
from treeopt.records.rules import GIVEN_TOKENS
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import Imported
from treeopt.version import TOOL

LEFT_OUT, EXTRAPOLATED = "left out", "plain decoding"


def sweep_profile(
    paths: Sequence[Path],
    *,
    sampling: Sampling,
    context_tokens: int,
    target: str = UNKNOWN,
    draft: str = UNKNOWN,
) -> Profile:
    """Return the profile of a sweep; rows of equal length, batch and context are samples of one time.

    Where plain decoding was not measured, its step time is extrapolated from the two shortest lengths, and an engine
    setting says so.
    Raises FormatError for a file that is no sweep, or a condition with a single length above 0.
    """
    every = [row for path in paths for row in read_sweep(path)]
    rows, trees = [row for row in every if not row.tree], sum(row.tree for row in every)
    survival, smoothed = fitted_survival(rows) if any(row.length for row in rows) else ([], False)
    if not survival:
        raise FormatError(paths[0], "content", "expected rows of chains that draft. Got none: add them.")
    remark = "sweep, inconsistent accept lengths smoothed" if smoothed else "sweep"
    settings = [EngineSetting(name=LEFT_OUT, value=f"{trees} rows of trees (top-k above 1)")] if trees else []
    try:
        latencies, extrapolated = _latencies(rows, context_tokens)
    except InvalidValueError as error:
        raise FormatError(paths[0], "content", str(error)) from None
    if extrapolated:
        settings.append(EngineSetting(name=EXTRAPOLATED, value="extrapolated from the two shortest draft lengths"))
    return Profile(
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        tool=TOOL,
        machine=Machine(
            device=IMPORTED, processor=UNKNOWN, threads=None, system=UNKNOWN, python=UNKNOWN, torch=UNKNOWN
        ),
        pair=Pair(target=target, draft=draft, dtype=UNKNOWN),
        engine=EngineRun(name=IMPORTED, version=UNKNOWN, settings=tuple(settings)),
        chain_latencies=latencies,
        acceptances=(
            MeasuredAcceptance(
                rule=GIVEN_TOKENS,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                prompts=None,
                positions=None,
                table=AcceptanceTable(_conditional(survival)),
                imported=(Imported(what=ACCEPTANCE, source=source_text(paths[0], remark)),),
            ),
        ),
    )


def fitted_survival(rows: Sequence[SweepRow]) -> tuple[list[float], bool]:
    """Return the share of steps that accept at least 1, 2, … draft tokens, and whether accept lengths had to be changed.

    Between two measured lengths every further token is accepted with one conditional rate, which makes the difference
    of the accept lengths.
    """
    by_length: dict[int, list[float]] = {}
    for row in rows:
        if row.length:
            by_length.setdefault(row.length, []).append(row.tokens_per_step)
    survival: list[float] = []
    last, reached, smoothed = 1.0, 1.0, False
    for length in sorted(by_length):
        mean = sum(by_length[length]) / len(by_length[length])
        count, more = length - len(survival), mean - reached
        smoothed |= not 0 <= more <= count * last + 1e-9
        rate = equal_rate(more / last, count) if last > 0 and more > 0 else 0.0
        block = [last * rate**power for power in range(1, count + 1)]
        survival += block
        last, reached = block[-1], reached + sum(block)
    return survival, smoothed


def _conditional(survival: Sequence[float]) -> list[list[float]]:
    before = [1.0, *survival]
    return [[min(1.0, now / then)] if then > 0 else [0.0] for then, now in zip(before, survival, strict=False)]


def _latencies(rows: Sequence[SweepRow], context_tokens: int) -> tuple[tuple[ChainLatency, ...], bool]:
    """Return the step times of every condition, and whether plain decoding of one was extrapolated."""
    conditions: dict[tuple[int, int], dict[int, list[float]]] = {}
    for row in rows:
        context = context_tokens if row.context_tokens is None else row.context_tokens
        conditions.setdefault((context, row.batch_size), {}).setdefault(row.length, []).append(row.step_s)
    without = [times for times in conditions.values() if 0 not in times and len(times) > 1]
    for times in without:
        plain_s = _extrapolated_s(times)
        if plain_s > 0:
            times[0] = [plain_s]
    latencies = tuple(
        ChainLatency(
            context_tokens=context,
            batch_size=batch,
            chains=tuple(TimedChain(length=length, steps=Timing(times[length])) for length in sorted(times)),
        )
        for (context, batch), times in sorted(conditions.items())
    )
    return latencies, bool(without)


def _extrapolated_s(times: dict[int, list[float]]) -> float:
    """Return the seconds of a plain step on the line through the two shortest lengths, at most those of the shortest."""
    first, second = sorted(times)[:2]
    first_s, second_s = (sum(times[length]) / len(times[length]) for length in (first, second))
    return first_s - max(0.0, second_s - first_s) / (second - first) * first
