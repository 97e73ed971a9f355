"""The fastest chain, and how its length changes with the batch size: what most engines can be told."""

from dataclasses import dataclass, replace

from treeopt.planner.condition import condition
from treeopt.planner.contexts import context_models
from treeopt.planner.model import Candidate, StepModel
from treeopt.planner.request import PlanRequest
from treeopt.records.profile import Profile
from treeopt.trees import chain

ANYTHING = PlanRequest()
CLOSE = 1e-9
"""Speeds that differ by no more than this share are equal; then the shorter chain, or the smaller tree, wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSegment:
    """A range of batch sizes, both ends included, in which one length is the fastest."""

    batch_sizes: tuple[int, int]
    choice: Candidate
    """The chain, or plain decoding, with its prediction at the start of the range."""

    @property
    def length(self) -> int:
        """Draft tokens, root not counted; 0 is plain decoding."""
        return self.choice.tree.max_depth


def fastest_chain(model: StepModel, *, max_length: int | None = None) -> Candidate:
    """Return the fastest chain under one condition, or plain decoding where no draft pays.

    Args:
        model: the condition.
        max_length: most draft tokens; by default all depths that were measured.
    """
    length = fastest_length(model, max_length=max_length)
    return model.predict("chain" if length else "plain", chain(length))


def fastest_length(model: StepModel, *, max_length: int | None = None) -> int:
    """Return the draft tokens of the fastest chain, in a tie of the shortest; 0 is plain decoding."""
    depths, costs = model.acceptance.table.max_depth, model.costs
    limits = [costs.max_nodes - 1, *(limit for limit in (depths, max_length) if limit is not None)]
    speedups = model.speedups([chain(length) for length in range(min(limits) + 1)]).tolist()
    best = 0
    for length, speedup in enumerate(speedups):
        if speedup > speedups[best] * (1 + CLOSE):
            best = length
    return best


def chain_schedule(profile: Profile, request: PlanRequest = ANYTHING) -> tuple[ChainSegment, ...]:
    """Return the fastest chain of every batch size from the smallest to the largest measured, equal ones together.

    Args:
        profile: what was measured.
        request: whose acceptance counts, at which context length, and by `max_depth` the most draft tokens.
    """
    sizes = sorted({latency.batch_size for latency in profile.step_latencies})
    acceptance = profile.acceptance(rule=request.rule, temperature=request.temperature)
    drafts = context_models(profile, acceptance, raw=request.raw)
    found: list[tuple[int, int, Candidate]] = []
    for batch in range(sizes[0], sizes[-1] + 1):
        where = condition(profile, acceptance.temperature, replace(request.where, batch_size=batch, extrapolate=False))
        model = drafts.at(where.context_tokens).under(where)
        length = fastest_length(model, max_length=request.max_depth)
        if found and found[-1][2].tree.max_depth == length:
            found[-1] = (found[-1][0], batch, found[-1][2])
        else:
            found.append((batch, batch, fastest_chain(model, max_length=request.max_depth)))
    return tuple(ChainSegment(batch_sizes=(first, last), choice=choice) for first, last, choice in found)
