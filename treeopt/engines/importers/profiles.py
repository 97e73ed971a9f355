"""Profiles of imported latencies and acceptance, and latencies in which imports replace what was measured here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from treeopt.engines.importers.importer import ImportedLatency
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.records.latency import Timing
from treeopt.records.machine import Machine, Pair, now
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import IMPORTED, INCLUDED, UNKNOWN, Profile
from treeopt.records.step_latency import LATENCY_PARTS, Imported, StepLatency
from treeopt.version import TOOL

NO_OVERHEAD = Timing([0.0], allow_negative=True)


def imported_profile(
    latencies: Iterable[ImportedLatency],
    acceptances: Iterable[MeasuredAcceptance],
    *,
    context_tokens: int,
    sampled: bool | None = None,
    target: str = UNKNOWN,
    draft: str = UNKNOWN,
) -> Profile:
    """Return a profile in which everything was measured elsewhere.

    Args:
        latencies: curves of verification and drafting, from any number of files.
        acceptances: one per rule and temperature.
        context_tokens: context of curves without one.
        sampled: whether the timed steps sampled; None if unknown.
        target: name of the target model.
        draft: name of the draft model.

    Raises InvalidValueError for a repeated curve, InfeasibleError for a missing one.
    """
    return Profile(
        created=now(),
        tool=TOOL,
        machine=unknown_machine(),
        pair=Pair(target=target, draft=draft, dtype=UNKNOWN),
        latencies=step_latencies(latencies, context_tokens=context_tokens, sampled=sampled),
        acceptances=tuple(acceptances),
    )


def step_latencies(
    imports: Iterable[ImportedLatency],
    measured: Sequence[StepLatency] = (),
    *,
    context_tokens: int,
    sampled: bool | None = None,
) -> tuple[StepLatency, ...]:
    """Return the latencies of a step at every imported condition; parts that are missing are those measured there.

    Other measured conditions are left out, because times of two machines do not belong on one curve.
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


def unknown_machine() -> Machine:
    return Machine(device=IMPORTED, processor=UNKNOWN, threads=None, system=UNKNOWN, python=UNKNOWN, torch=UNKNOWN)
