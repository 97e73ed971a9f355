"""Warnings about requests for more than was measured."""

from collections.abc import Iterable

from treeopt.errors import Warning
from treeopt.planner.request import PlanRequest
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile


def unmeasured_warnings(request: PlanRequest, point: OperatingPoint, table: AcceptanceTable) -> tuple[Warning, ...]:
    """Return warnings about a request for more than was measured.

    They are about a budget and a depth to which plans are limited, and about times of greedy steps in place of sampled ones,
    or the reverse.
    """
    warnings = []
    if not request.extrapolate and request.max_nodes is not None and request.max_nodes > point.max_nodes:
        option = (
            f"--lengths up to {request.max_nodes - 1}" if point.whole_steps else f"--max-tokens {request.max_nodes}"
        )
        warnings.append(
            Warning(
                f"the budget is {request.max_nodes} nodes, but passes were measured up to {point.max_nodes} tokens; "
                "larger trees were not planned.",
                f"{'Probe' if point.whole_steps else 'Profile'} with {option} to plan for more.",
            )
        )
    if request.max_depth is not None and table.max_depth is not None and request.max_depth > table.max_depth:
        warnings.append(
            Warning(
                f"the depth is {request.max_depth}, but acceptance was measured to depth {table.max_depth}; deeper trees "
                "were not planned.",
                f"Ask for at most {table.max_depth}, or measure deeper.",
            )
        )
    temperature = point.sampling.temperature
    if any(latency.sampled not in (None, temperature > 0) for latency in point.latencies):
        timed = "greedy" if temperature > 0 else "sampled"
        warnings.append(
            Warning(
                f"only {timed} steps were timed; steps at temperature {temperature:g} may take longer or shorter.",
                f"Profile with --temperature {temperature:g}.",
            )
        )
    return tuple(warnings)


def warn_outside_contexts(profile: Profile, acceptance: MeasuredAcceptance, contexts: Iterable[int]) -> Warning | None:
    """Return a warning for context lengths outside those at which an acceptance was measured, None if there are none.

    An acceptance without a context length counts for the first one that was timed.  Engines report the lengths of whole
    sequences, which differ between batch sizes: there is no warning for them, nor without a draft model.
    """
    if profile.engine is not None or not profile.has_draft_model:
        return None
    measured = tuple(
        item.context_tokens for item in profile.acceptances_by_context(acceptance) if item.context_tokens is not None
    )
    if measured and not acceptance.imported:
        return outside_contexts("acceptance", measured, contexts)
    assumed = measured or (profile.step_latencies[0].context_tokens,)
    outside = _outside(assumed, contexts)
    if not outside:
        return None
    lengths = ", ".join(map(str, outside))
    if acceptance.imported:
        return Warning(
            f"the imported acceptance may differ at {lengths} tokens of context.",
            "Import acceptance that was measured there.",
        )
    return Warning(
        f"acceptance was measured right after the prompts and may differ at {lengths} tokens of context.",
        _profile_there(assumed, outside),
    )


def outside_contexts(what: str, measured: tuple[int, ...], contexts: Iterable[int]) -> Warning | None:
    """Return a warning for context lengths outside the measured ones, which increase; None if there are none."""
    outside = _outside(measured, contexts)
    if not outside:
        return None
    ends = " to ".join(map(str, dict.fromkeys((measured[0], measured[-1]))))
    return Warning(
        f"{what} was measured at {ends} tokens of context and may differ at {', '.join(map(str, outside))}.",
        _profile_there(measured, outside),
    )


def _outside(measured: tuple[int, ...], contexts: Iterable[int]) -> list[int]:
    return sorted({context for context in contexts if not measured[0] <= context <= measured[-1]})


def _profile_there(measured: Iterable[int], outside: Iterable[int]) -> str:
    return f"Profile with --context-tokens {','.join(map(str, sorted({*measured, *outside})))}."
