"""Imported curves and acceptance to a profile: of their own, or in place of what was measured here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from treeopt.engines.importers.imported_latency import ImportedLatency
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.records.latency import Timing
from treeopt.records.machine import Machine, Pair
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
    dtype: str = UNKNOWN,
    processor: str = UNKNOWN,
    created: str | None = None,
) -> Profile:
    """Return a profile in which everything was measured elsewhere.

    Args:
        latencies: curves of verification and of drafting, of any number of files.
        acceptances: one per rule and temperature.
        context_tokens: what curves that name no context were measured at.
        sampled: whether the timed steps sampled; None is not said.
        target: name of the target model, as far as it is known.
        draft: name of the draft model.
        dtype: number format of both.
        processor: name of the machine that was measured.
        created: date and time, ISO 8601; by default now.

    Raises InvalidValueError for a curve given twice, InfeasibleError for one that is missing.
    """
    return Profile(
        created=created or datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        tool=TOOL,
        machine=Machine(
            device=IMPORTED, processor=processor, threads=None, system=UNKNOWN, python=UNKNOWN, torch=UNKNOWN
        ),
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
    """Return a profile with what was imported in place of what was measured.

    Where curves are imported, only their conditions stay: times of two machines do not belong on one line.  What is not
    imported at such a condition, drafting perhaps, is taken from the one measured there.  Where any acceptance is
    imported, none of the measured stays.

    Args:
        profile: what was measured here.
        latencies: imported times; none leaves the measured ones.
        acceptances: imported tables; none leaves the measured ones.
        context_tokens: what curves that name no context were measured at; by default the first context of the profile.
        sampled: whether the steps of imported verify times sampled; None is not said.

    Raises InvalidValueError for a curve given twice, InfeasibleError for one that is missing.
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
    """Return a step's times at every imported condition, what is missing taken from those measured there.

    Curves that name no context hold at every context that others of their batch size name; where none does, at
    `context_tokens`.

    Imported verify times are of whole steps: with them the overhead is 0, unless one is imported too.

    Raises InvalidValueError for a curve given twice, InfeasibleError for one that is missing.
    """
    conditions: dict[tuple[int, int], dict[str, ImportedLatency]] = {}
    curves = tuple(imports)
    named: dict[int, dict[int, None]] = {}  # contexts of a batch size, in their order
    for each in curves:
        if each.context_tokens is not None:
            named.setdefault(each.batch_size, {})[each.context_tokens] = None
    for each in curves:
        contexts = (
            named.get(each.batch_size, (context_tokens,)) if each.context_tokens is None else (each.context_tokens,)
        )
        for context in contexts:
            parts = conditions.setdefault((context, each.batch_size), {})
            for part in LATENCY_PARTS:
                if getattr(each, part) is not None and part in parts:
                    sources = f"{parts[part].source} and {each.source}"
                    raise InvalidValueError(
                        f"{part}: expected one for {_condition(context, each.batch_size)}. Got {sources}.", field=part
                    )
                if getattr(each, part) is not None:
                    parts[part] = each
    known = {(each.context_tokens, each.batch_size): each for each in measured}
    return tuple(_step(key, parts, known.get(key), sampled) for key, parts in conditions.items())


def _step(
    condition: tuple[int, int], parts: Mapping[str, ImportedLatency], measured: StepLatency | None, sampled: bool | None
) -> StepLatency:
    verify = parts["verify"].verify if "verify" in parts else measured.verify if measured else None
    draft = parts["draft"].draft if "draft" in parts else measured.draft if measured else None
    if verify is None or draft is None:
        missing, what = ("latency", "verification") if verify is None else ("draft_latency", "drafting")
        there = " and ".join(sorted({each.source for each in parts.values()}))
        raise InfeasibleError(
            f"{missing}: expected times of {what} for {_condition(*condition)}, as in {there}. Got none: import them "
            "for the same context and batch, or measure there.",
            field=missing,
        )
    per_block = parts["draft"].per_block if "draft" in parts else measured is not None and measured.per_block
    sources = {part: parts[part].source for part in parts}
    overhead = parts["overhead"].overhead if "overhead" in parts else None
    if overhead is None and "verify" in parts:
        overhead, sources["overhead"] = NO_OVERHEAD, INCLUDED
    earlier = {each.what: each.source for each in measured.imported} if measured else {}
    sources = earlier | sources
    imported = tuple(Imported(what=part, source=sources[part]) for part in LATENCY_PARTS if part in sources)
    if measured is not None and overhead is None:
        # whole steps were drafted here
        return replace(measured, verify=verify, draft=draft, per_block=per_block, imported=imported, steps=())
    assert overhead is not None  # verify times are imported, or else measured
    return StepLatency(
        context_tokens=condition[0],
        batch_size=condition[1],
        verify=verify,
        draft=draft,
        per_block=per_block,
        overhead=overhead,
        sampled=sampled if "verify" in parts or measured is None else measured.sampled,
        imported=imported,
        disturbance=None if measured is None or len(imported) == len(LATENCY_PARTS) else measured.disturbance,
    )


def _condition(context_tokens: int, batch_size: int) -> str:
    return f"{context_tokens} tokens of context x batch {batch_size}"
