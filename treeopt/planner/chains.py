"""The fastest chain, and how its length changes with the batch size: what most engines accept."""

from treeopt.planner.model import StepModel, model_at
from treeopt.planner.request import PlanRequest
from treeopt.planner.segments import CLOSE, Segment, ranges
from treeopt.planner.tokens import token_models
from treeopt.records.profile import Profile
from treeopt.trees import chain

ANYTHING = PlanRequest()


def fastest_length(model: StepModel, *, max_length: int | None = None) -> int:
    """Return the draft tokens of the fastest chain, in a tie of the shortest; 0 is plain decoding.

    Args:
        model: of steps at one operating point.
        max_length: most draft tokens; by default all depths that were measured.
    """
    depths, costs = model.acceptance.table.max_depth, model.costs
    limits = [costs.max_nodes - 1, *(limit for limit in (depths, max_length) if limit is not None)]
    speedups = model.speedups([chain(length) for length in range(min(limits) + 1)]).tolist()
    best = 0
    for length, speedup in enumerate(speedups):
        if speedup > speedups[best] * (1 + CLOSE):
            best = length
    return best


def chain_schedule(profile: Profile, request: PlanRequest = ANYTHING) -> tuple[Segment, ...]:
    """Return the fastest chain of every batch size from the smallest to the largest measured, in ranges.

    Args:
        profile: what was measured.
        request: whose acceptance and context length count, and by `max_depth` the most draft tokens.
    """
    acceptance = profile.acceptance(rule=request.rule, temperature=request.temperature)
    tokens = token_models(profile, acceptance, raw=request.raw)
    sizes = sorted({latency.batch_size for latency in profile.step_latencies})

    def model(batch_size: int) -> StepModel:
        point = profile.at(request.context_tokens, batch_size, acceptance.sampling)
        return model_at(point, tokens.at(point.context_tokens))

    models = {size: model(size) for size in range(sizes[0], sizes[-1] + 1)}
    lengths = {size: fastest_length(each, max_length=request.max_depth) for size, each in models.items()}
    starts = {size: length for size, length in lengths.items() if lengths.get(size - 1) != length}
    return tuple(
        Segment(
            temperature=acceptance.temperature,
            batch_sizes=ends,
            context_tokens=(models[ends[0]].point.context_tokens,) * 2,
            option=models[ends[0]].predict(chain(length)),
        )
        for ends, length in ranges(starts, sizes[-1])
    )
