"""Settings of a server: plain decoding, one tree at every batch size, or a tree for each batch size."""

from dataclasses import dataclass, replace

from treeopt.array_record import ShortRepr
from treeopt.planner.planning import requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.scheduling import requested_schedule
from treeopt.planner.segments import chain_schedule
from treeopt.records.profile import Profile
from treeopt.simulation.step_times import StepTimes
from treeopt.trees import TokenTree, chain, describe_tree

LONGEST_CHAIN = 8
PLAIN, SCHEDULE = "plain", "schedule"


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ServedSetting(ShortRepr):
    """The trees that a server decodes with."""

    name: str
    trees: tuple[TokenTree, ...]
    """For batch sizes 1, 2, …"""

    @property
    def draft_tokens(self) -> int:
        """Levels of the deepest tree; 0 without drafting."""
        return max(tree.max_depth for tree in self.trees)

    @classmethod
    def fixed(cls, name: str, tree: TokenTree, batch_size: int) -> "ServedSetting":
        """Return the setting of one tree at every batch size up to `batch_size`."""
        return cls(name=name, trees=(tree,) * batch_size)


def served_settings(
    times: StepTimes, request: PlanRequest, default_length: int | None = None, *, profile: Profile | None = None
) -> tuple[ServedSetting, ...]:
    """Return plain decoding, the engine's default, every other fixed setting, and last the schedule.

    Fixed settings are the measured chains of up to 8 draft tokens and all trees of the schedule.

    Args:
        times: of the profile; its rule and temperature are planned for.
        request: limits of trees.
        default_length: draft tokens of the engine's default; None without one.
        profile: of the sequences that the schedule is planned for; by default that of the times.
    """
    largest_pass = times.limiting_point.max_nodes
    request = replace(
        request,
        rule=times.acceptance.rule,
        temperature=times.acceptance.temperature,
        max_nodes=min(largest_pass, request.max_nodes or largest_pass),
    )
    scheduled = _schedule(profile or times.profile, times, request)
    longest = times.longest_chain if request.max_length is None else min(times.longest_chain, request.max_length)
    names = {chain(0): PLAIN}
    if default_length is not None and 0 < default_length <= longest:
        names[chain(default_length)] = f"default, {describe_tree(chain(default_length))}"
    for tree in (*map(chain, range(1, min(LONGEST_CHAIN, longest) + 1)), *scheduled):
        names.setdefault(tree, describe_tree(tree))
    fixed = [ServedSetting.fixed(name, tree, times.max_batch_size) for tree, name in names.items()]
    return (*fixed, ServedSetting(name=SCHEDULE, trees=scheduled))


def _schedule(profile: Profile, times: StepTimes, request: PlanRequest) -> tuple[TokenTree, ...]:
    """Return the tree for every batch size from 1 to the largest measured; outside the planned ones that of the nearest."""
    if profile.engine is not None:
        segments = chain_schedule(profile, request)
    else:
        segments = requested_schedule(profile, request).over_batch_sizes
        segments = tuple(segment for segment in segments if segment.context_tokens[0] == times.planned_context)
    if not segments:
        return (requested_plan(profile, request).choice.tree,) * times.max_batch_size
    return tuple(
        next((segment for segment in segments if size <= segment.batch_sizes[1]), segments[-1]).option.tree
        for size in range(1, times.max_batch_size + 1)
    )
