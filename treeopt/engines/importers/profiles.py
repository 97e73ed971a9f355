"""Profiles of imported latencies, acceptance and sweeps, or with them in place of what was measured here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from treeopt.engines.importers.acceptance_tables import solve_constant_rate
from treeopt.engines.importers.foreign_file import source_text
from treeopt.engines.importers.importer import ImportedLatency, SweepRow
from treeopt.engines.importers.read import read_sweep
from treeopt.errors import FormatError, InfeasibleError, InvalidValueError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.engine import ChainLatency, EngineRun, EngineSetting, TimedChain
from treeopt.records.latency import Timing
from treeopt.records.machine import Machine, Pair
from treeopt.records.measured_acceptance import ACCEPTANCE, MeasuredAcceptance
from treeopt.records.profile import IMPORTED, INCLUDED, UNKNOWN, Profile
from treeopt.records.rules import TARGET_RULE
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import LATENCY_PARTS, Imported, StepLatency
from treeopt.version import TOOL

NO_OVERHEAD = Timing([0.0], allow_negative=True)
LEFT_OUT, EXTRAPOLATED = "left out", "plain decoding"
"""Names of engine settings that contain how a sweep was read."""


def imported_profile(
    latencies: Iterable[ImportedLatency],
    acceptances: Iterable[MeasuredAcceptance],
    *,
    context_tokens: int,
    sampled: bool | None = None,
    target: str = UNKNOWN,
    draft: str = UNKNOWN,
    dtype: str = UNKNOWN,
    processor: str = UNKNOWN,
    created: str | None = None,
) -> Profile:
    """Return a profile in which everything was measured elsewhere.

    Args:
        latencies: curves of verification and drafting, from any number of files.
        acceptances: one per rule and temperature.
        context_tokens: context of curves without one.
        sampled: whether the timed steps sampled; None if unknown.
        target: name of the target model.
        draft: name of the draft model.
        dtype: dtype of both models.
        processor: name of the measured machine.
        created: date and time, ISO 8601; by default now.

    Raises InvalidValueError for a repeated curve, InfeasibleError for a missing one.
    """
    return Profile(
        created=created or _now(),
        tool=TOOL,
        machine=_unknown_machine(processor),
        pair=Pair(target=target, draft=draft, dtype=dtype),
        latencies=step_latencies(latencies, context_tokens=context_tokens, sampled=sampled),
        acceptances=tuple(acceptances),
    )


def with_imported(
    profile: Profile,
    latencies: Iterable[ImportedLatency] = (),
    acceptances: Iterable[MeasuredAcceptance] = (),
    *,
    context_tokens: int | None = None,
    sampled: bool | None = None,
) -> Profile:
    """Return a profile in which imports replace measurements.

    Imported curves remove all conditions that they do not contain, because times of two machines do not belong on one
    curve. A part that is not imported at a condition, such as drafting, is the one measured there. Imported acceptance
    removes all that was measured.

    Args:
        profile: what was measured here.
        latencies: imported times; none keeps the measured ones.
        acceptances: imported tables; none keeps the measured ones.
        context_tokens: context of curves without one; by default the first context of the profile.
        sampled: whether the steps of imported verification times sampled; None if unknown.

    Raises InvalidValueError for a repeated curve, InfeasibleError for a missing one.
    """
    imports, tables = tuple(latencies), tuple(acceptances)
    context = profile.latencies[0].context_tokens if context_tokens is None else context_tokens
    return replace(
        profile,
        latencies=step_latencies(imports, profile.latencies, context_tokens=context, sampled=sampled)
        if imports
        else profile.latencies,
        acceptances=tables or profile.acceptances,
    )


def step_latencies(
    imports: Iterable[ImportedLatency],
    measured: Sequence[StepLatency] = (),
    *,
    context_tokens: int,
    sampled: bool | None = None,
) -> tuple[StepLatency, ...]:
    """Return the latencies of a step at every imported condition; parts that are missing are those measured there.

    Curves without a context hold at every context that other curves of their batch size have; if there is none, at
    `context_tokens`. Imported verification times are whole steps, so the overhead is 0 unless it is imported too.

    Raises InvalidValueError for a repeated curve, InfeasibleError for a missing one.
    """
    curves = tuple(imports)
    contexts_by_batch: dict[int, dict[int, None]] = {}  # in the order of the curves
    for curve in curves:
        if curve.context_tokens is not None:
            contexts_by_batch.setdefault(curve.batch_size, {})[curve.context_tokens] = None
    conditions: dict[tuple[int, int], dict[str, ImportedLatency]] = {}
    for curve in curves:
        contexts: Iterable[int] = (
            contexts_by_batch.get(curve.batch_size, (context_tokens,))
            if curve.context_tokens is None
            else (curve.context_tokens,)
        )
        for context in contexts:
            parts = conditions.setdefault((context, curve.batch_size), {})
            for part in LATENCY_PARTS:
                if getattr(curve, part) is None:
                    continue
                if part in parts:
                    sources = f"{parts[part].source} and {curve.source}"
                    raise InvalidValueError(
                        f"{part}: expected one for {_describe_condition(context, curve.batch_size)}. Got {sources}.",
                        field=part,
                    )
                parts[part] = curve
    measured_at = {(latency.context_tokens, latency.batch_size): latency for latency in measured}
    return tuple(
        _merge_latency(condition, parts, measured_at.get(condition), sampled) for condition, parts in conditions.items()
    )


def _merge_latency(
    condition: tuple[int, int], parts: Mapping[str, ImportedLatency], measured: StepLatency | None, sampled: bool | None
) -> StepLatency:
    verify = parts["verify"].verify if "verify" in parts else measured.verify if measured else None
    draft = parts["draft"].draft if "draft" in parts else measured.draft if measured else None
    if verify is None or draft is None:
        field, missing = ("latency", "verification") if verify is None else ("draft_latency", "drafting")
        imported_from = " and ".join(sorted({latency.source for latency in parts.values()}))
        raise InfeasibleError(
            f"{field}: expected times of {missing} for {_describe_condition(*condition)}, as in {imported_from}. Got none: "
            "import them for the same context and batch, or measure there.",
            field=field,
        )
    per_block = parts["draft"].per_block if "draft" in parts else measured is not None and measured.per_block
    sources = {imported.what: imported.source for imported in measured.imported} if measured else {}
    sources |= {part: latency.source for part, latency in parts.items()}
    overhead = parts["overhead"].overhead if "overhead" in parts else None
    if overhead is None and "verify" in parts:
        overhead, sources["overhead"] = NO_OVERHEAD, INCLUDED
    imports = tuple(Imported(what=part, source=sources[part]) for part in LATENCY_PARTS if part in sources)
    if measured is not None and overhead is None:
        # the whole steps were timed with the measured drafting
        return replace(measured, verify=verify, draft=draft, per_block=per_block, imported=imports, steps=())
    assert overhead is not None  # verification times are imported or measured
    return StepLatency(
        context_tokens=condition[0],
        batch_size=condition[1],
        verify=verify,
        draft=draft,
        per_block=per_block,
        overhead=overhead,
        sampled=sampled if "verify" in parts or measured is None else measured.sampled,
        imported=imports,
        interference=None if measured is None or len(imports) == len(LATENCY_PARTS) else measured.interference,
    )


def _describe_condition(context_tokens: int, batch_size: int) -> str:
    return f"{context_tokens} tokens of context x batch {batch_size}"


def sweep_profile(
    paths: Sequence[Path],
    *,
    sampling: Sampling,
    context_tokens: int,
    target: str = UNKNOWN,
    draft: str = UNKNOWN,
) -> Profile:
    """Return the profile of a sweep; rows of equal length, batch size and context are samples of one time.

    Without plain decoding its step time is extrapolated from the two shortest lengths, which an engine setting records.
    Raises FormatError for a file that is not a sweep, and for a condition with a single length above 0.
    """
    all_rows = [row for path in paths for row in read_sweep(path)]
    rows = [row for row in all_rows if not row.tree]
    survival, smoothed = _fit_survival(rows)
    if not survival:
        raise FormatError(paths[0], "content", "expected rows of chains that draft. Got none: add them.")
    try:
        latencies, extrapolated = _build_chain_latencies(rows, context_tokens)
    except InvalidValueError as error:
        raise FormatError(paths[0], "content", str(error)) from None
    settings = []
    if trees := len(all_rows) - len(rows):
        settings.append(EngineSetting(name=LEFT_OUT, value=f"{trees} rows of trees (top-k above 1)"))
    if extrapolated:
        settings.append(EngineSetting(name=EXTRAPOLATED, value="extrapolated from the two shortest draft lengths"))
    kind = "sweep, inconsistent accept lengths smoothed" if smoothed else "sweep"
    return Profile(
        created=_now(),
        tool=TOOL,
        machine=_unknown_machine(),
        pair=Pair(target=target, draft=draft, dtype=UNKNOWN),
        engine=EngineRun(name=IMPORTED, version=UNKNOWN, settings=tuple(settings)),
        chain_latencies=latencies,
        acceptances=(
            MeasuredAcceptance(
                rule=TARGET_RULE,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                prompts=None,
                positions=None,
                table=AcceptanceTable(_condition_survival(survival)),
                imported=(Imported(what=ACCEPTANCE, source=source_text(paths[0], kind)),),
            ),
        ),
    )


def _fit_survival(rows: Sequence[SweepRow]) -> tuple[list[float], bool]:
    """Return the share of steps that accept at least 1, 2, … draft tokens, and whether accept lengths had to change.

    Between two measured lengths every token is accepted with the same conditional rate, which yields the difference of
    the accept lengths.
    """
    by_length: dict[int, list[float]] = {}
    for row in rows:
        if row.length:
            by_length.setdefault(row.length, []).append(row.tokens_per_step)
    survival: list[float] = []
    last_survival, last_tokens, smoothed = 1.0, 1.0, False
    for length in sorted(by_length):
        tokens = sum(by_length[length]) / len(by_length[length])
        count, gain = length - len(survival), tokens - last_tokens
        smoothed |= not 0 <= gain <= count * last_survival + 1e-9
        rate = solve_constant_rate(gain / last_survival, count) if last_survival > 0 and gain > 0 else 0.0
        block = [last_survival * rate**power for power in range(1, count + 1)]
        survival += block
        last_survival, last_tokens = block[-1], last_tokens + sum(block)
    return survival, smoothed


def _condition_survival(survival: Sequence[float]) -> list[list[float]]:
    """Return the acceptance of each position, given that the one before was accepted."""
    pairs = zip([1.0, *survival], survival, strict=False)
    return [[min(1.0, after / before)] if before > 0 else [0.0] for before, after in pairs]


def _build_chain_latencies(rows: Sequence[SweepRow], context_tokens: int) -> tuple[tuple[ChainLatency, ...], bool]:
    """Return the step times of every condition, and whether plain decoding of one was extrapolated."""
    conditions: dict[tuple[int, int], dict[int, list[float]]] = {}
    for row in rows:
        context = context_tokens if row.context_tokens is None else row.context_tokens
        conditions.setdefault((context, row.batch_size), {}).setdefault(row.length, []).append(row.step_s)
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


def _extrapolate_plain_s(times: Mapping[int, Sequence[float]]) -> float:
    """Return the seconds of a plain step on the line through the two shortest lengths, at most the shortest's."""
    first, second = sorted(times)[:2]
    first_s, second_s = (sum(times[length]) / len(times[length]) for length in (first, second))
    return first_s - max(0.0, second_s - first_s) / (second - first) * first


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _unknown_machine(processor: str = UNKNOWN) -> Machine:
    return Machine(device=IMPORTED, processor=processor, threads=None, system=UNKNOWN, python=UNKNOWN, torch=UNKNOWN)
