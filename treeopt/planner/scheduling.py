"""Several operating points: what to run at which batch size and context length, and where to switch.

Every measured operating point is planned separately.  Between two of them times are linear, and so are the seconds per
token of any tree, except for padding.  A minimum of linear functions is concave, so a tree that wins at both ends of a
range wins in between.  Bisection finds the batch sizes at which to switch between the trees found so far.  Then all trees
are searched on both sides of each switch, until none is faster there (Eisner and Severance, 1976).

Tokens are linear too between contexts at which acceptance was measured.  There the best tree would change with nearly
every token of context, so over contexts only the trees of the measured operating points are compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import RuleTrees, check_profile, fastest_tree_and_chain, plan_rules, select_acceptances
from treeopt.planner.request import Memory, PlanRequest, device_memory, limit_nodes
from treeopt.planner.segments import Segment, find_winners, first_fastest
from treeopt.planner.tokens import token_models
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.tabular import Row, Tabular
from treeopt.trees import TokenTree, chain
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

PLAIN = chain(0)
Choice = tuple[str, TokenTree]
"""A rule and a tree."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Schedule(ShortRepr, Tabular):
    """What to run at each operating point; a new segment begins at every switch."""

    plans: tuple[Plan, ...]
    """One for every measured temperature, batch size and context length, in this order; each compares the rules."""
    over_contexts: tuple[Segment, ...]
    """Over context lengths, at every measured batch size."""
    over_batch_sizes: tuple[Segment, ...]
    """Over batch sizes, at every context length that was measured at more than one."""

    def single_sequence_plans(self, temperature: float) -> list[Plan]:
        """Return the plans for single sequences at a temperature, by increasing context length."""
        plans = [plan for plan in self.plans if plan.temperature == temperature]
        return [plan for plan in plans if plan.model.point.batch_size == 1]

    def to_records(self) -> list[Row]:
        """Return a row for every segment: first those over context lengths, then those over batch sizes."""
        return [
            {"over": name, **segment.row}
            for name, segments in (("context_tokens", self.over_contexts), ("batch_size", self.over_batch_sizes))
            for segment in segments
        ]


def schedule(
    profile: Profile,
    max_nodes: int | None = None,
    *,
    max_depth: int | None = None,
    level_widths: int | Sequence[int] | None = None,
    rule: str | None = None,
    temperature: float | None = None,
    raw: bool = False,
    lossy: bool = False,
    memory_bytes: int | None = None,
    tick: Callable[[], object] = lambda: None,
) -> Schedule:
    """Return the fastest rule and tree at every operating point within what was measured.

    Args:
        profile: what was measured.
        max_nodes: largest number of nodes, root included; by default, and at most, that of the largest pass that was
            timed at each operating point.
        max_depth: most levels below the root.
        level_widths: most nodes at each depth.
        rule: verification rule; by default the fastest at each operating point.
        temperature: sampling temperature; by default a schedule for each that was measured.
        raw: take the acceptance as measured, without smoothing.
        lossy: allow rules that change the output's distribution.
        memory_bytes: memory for weights and KV caches; trees that do not fit are not planned.
        tick: called after every operating point.

    Raises as `plan` does.
    """
    request = PlanRequest(
        rule=rule,
        temperature=temperature,
        max_nodes=max_nodes,
        max_depth=max_depth,
        level_widths=level_widths,
        raw=raw,
        lossy=lossy,
        memory_bytes=memory_bytes,
    )
    return requested_schedule(profile, request, tick)


def count_scheduled_points(profile: Profile, request: PlanRequest) -> int:
    """Return the number of operating points of a schedule, for all temperatures; 0 if `schedule_if_measured` makes none."""
    temperatures = {acceptance.temperature for acceptance in select_acceptances(profile, request)}
    points = sum(len(measured_points(profile, temperature)) for temperature in temperatures)
    return points if points > 1 and request.objective == "speed" else 0


def requested_schedule(profile: Profile, request: PlanRequest, tick: Callable[[], object] = lambda: None) -> Schedule:
    """Return the schedule for a request.

    Args:
        profile: what was measured.
        request: the limits; its context length and batch size do not count.
        tick: called after every operating point.

    Raises as `plan` does.
    """
    check_profile(profile)
    acceptances = select_acceptances(profile, request)
    memory = None if request.memory_bytes is None else device_memory(profile, request.memory_bytes)
    plans: list[Plan] = []
    over_contexts: list[Segment] = []
    over_batch_sizes: list[Segment] = []
    for temperature in dict.fromkeys(acceptance.temperature for acceptance in acceptances):
        by_rule = [acceptance for acceptance in acceptances if acceptance.temperature == temperature]
        scheduler = _Scheduler(profile, by_rule, request, memory)
        plans += scheduler.plan(tick)
        over_contexts += scheduler.over_contexts()
        over_batch_sizes += scheduler.over_batch_sizes()
    return Schedule(plans=tuple(plans), over_contexts=tuple(over_contexts), over_batch_sizes=tuple(over_batch_sizes))


def schedule_if_measured(
    profile: Profile, request: PlanRequest, tick: Callable[[], object] = lambda: None
) -> Schedule | None:
    """Return the schedule for a request; None for a single operating point or another objective than speed."""
    if not count_scheduled_points(profile, request):
        return None
    return requested_schedule(profile, request, tick)


def tree_schedule(schedule: Schedule | None, *, rule: str, temperature: float, context_tokens: int) -> TreeSchedule:
    """Return the trees of a schedule by batch size, between which a decoder switches as sequences come and go.

    Args:
        schedule: planned for one rule, so that sequences keep theirs; None if a single operating point was measured.
        rule: that rule.
        temperature: sampling temperature.
        context_tokens: one of the measured context lengths.

    Raises InfeasibleError for another context length, and if a single batch size was measured at that one.
    """
    segments = [
        segment
        for segment in (() if schedule is None else schedule.over_batch_sizes)
        if (segment.option.rule, segment.temperature) == (rule, temperature)
        and segment.context_tokens == (context_tokens, context_tokens)
    ]
    if not segments and schedule is not None:
        measured = sorted({segment.context_tokens[0] for segment in schedule.over_batch_sizes})
        if measured and context_tokens not in measured:
            raise InfeasibleError(
                f"context_tokens: expected {', '.join(map(str, measured))}, where several batch sizes were measured. Got "
                f"{context_tokens}: name one of them.",
                field="context_tokens",
            )
    if not segments:
        limited = schedule is not None and schedule.plans[0].memory is not None
        raise InfeasibleError(
            f"schedule: expected several batch sizes at {context_tokens} tokens of context. One was measured"
            f"{' and fits in memory' if limited else ''}: measure more with --batch-sizes 1,2,4,8"
            f"{', or allow more memory' if limited else ''}.",
            field="schedule",
        )
    return TreeSchedule(
        trees=tuple(
            ScheduledTree(
                # the first tree serves smaller batches too
                first_batch_size=1 if index == 0 else segment.batch_sizes[0],
                last_batch_size=segment.batch_sizes[1],
                tree=segment.option.tree,
            )
            for index, segment in enumerate(segments)
        )
    )


def measured_points(profile: Profile, temperature: float) -> list[tuple[int, int]]:
    """Return the measured batch sizes and context lengths, sorted."""
    return sorted({(latency.batch_size, latency.context_tokens) for latency in profile.latencies_at(temperature)})


class _Scheduler:
    """Plans for one temperature: at the measured operating points, and anywhere between them."""

    def __init__(
        self,
        profile: Profile,
        acceptances: Sequence[MeasuredAcceptance],
        request: PlanRequest,
        memory: Memory | None,
    ) -> None:
        self._profile, self._request, self._memory = profile, request, memory
        self._sampling = acceptances[0].sampling
        self._tokens = {item.rule: token_models(profile, item, raw=request.raw) for item in acceptances}
        self._models_at: dict[tuple[int, int], dict[str, StepModel]] = {}
        self._solved: dict[tuple[int, int], RuleTrees] = {}
        self._choices: dict[Choice, None] = dict.fromkeys((rule, PLAIN) for rule in self._tokens)
        """Plain decoding, the best of each rule at the measured operating points, and what `_searched_winners` adds."""
        self._points = self._fitting_points()

    def plan(self, tick: Callable[[], object]) -> list[Plan]:
        """Return the plan of every measured operating point."""
        plans = []
        for batch, context in self._points:
            models = list(self._models(batch, context).values())
            plan = plan_rules([self._trees(model) for model in models], models)
            plans.append(replace(plan, memory=self._memory))
            tick()
        self._choices |= dict.fromkeys((option.rule, option.tree) for plan in plans for option in plan.rules)
        return plans

    def over_contexts(self) -> list[Segment]:
        segments = []
        for batch in sorted({batch for batch, _ in self._points}):
            contexts = [context for size, context in self._points if size == batch]
            winners = find_winners(contexts, lambda context, batch=batch: self._fastest(batch, context))  # type: ignore[misc]
            segments += [self._segment((batch, batch), ends, choice) for ends, choice in winners]
        return segments

    def over_batch_sizes(self) -> list[Segment]:
        segments = []
        for context in sorted({context for _, context in self._points}):
            batches = [batch for batch, length in self._points if length == context]
            if len(batches) > 1:
                winners = self._searched_winners(batches, context)
                segments += [self._segment(ends, (context, context), choice) for ends, choice in winners]
        return segments

    def _searched_winners(self, batches: Sequence[int], context: int) -> list[tuple[tuple[int, int], Choice]]:
        """Return the fastest choices with their ranges of batch sizes; searches for new ones at every switch."""
        searched = set(batches)
        while True:
            winners = find_winners(batches, lambda batch: self._fastest(batch, context))
            neighbours = {batch for (start, _), _ in winners[1:] for batch in (start - 1, start)} - searched
            if not neighbours:
                return winners
            for batch in neighbours:
                self._search(batch, context)
            searched |= neighbours

    def _search(self, batch: int, context: int) -> None:
        """Add the fastest trees of an operating point to the choices, unless its acceptance is interpolated."""
        for rule, model in self._models(batch, context).items():
            if not model.tokens.parts:
                trees = fastest_tree_and_chain(self._trees(model), model)
                self._choices |= dict.fromkeys((rule, tree) for tree in trees)

    def _fastest(self, batch: int, context: int) -> Choice:
        """Return the fastest choice, in a tie the smallest and then the rule measured first.

        Trees that are too large for what was measured, or for the memory, are left out.
        """
        speedups: dict[Choice, float] = {}
        for rule, model in self._models(batch, context).items():
            trees = [tree for name, tree in self._choices if name == rule and model.covers(tree)]
            if self._memory is not None:
                trees = [tree for tree in trees if tree.nodes <= self._memory.max_nodes(context, batch)]
            if trees:
                speedups |= zip(((rule, tree) for tree in trees), model.speedups(trees).tolist(), strict=True)
        rules = list(self._tokens)
        ordered = sorted(speedups, key=lambda choice: (choice[1].nodes, rules.index(choice[0])))
        return ordered[first_fastest([speedups[choice] for choice in ordered])]

    def _models(self, batch: int, context: int) -> dict[str, StepModel]:
        """Return the model of each rule at an operating point."""
        if (batch, context) not in self._models_at:
            point = self._profile.at(context, batch, self._sampling)
            self._models_at[batch, context] = {
                rule: model_at(point, tokens.at(context)) for rule, tokens in self._tokens.items()
            }
        return self._models_at[batch, context]

    def _trees(self, model: StepModel) -> RuleTrees:
        """Return the trees that were measured and fit in memory, solved once per acceptance and size."""
        max_nodes = limit_nodes(model.point.max_nodes, self._request, self._memory, model.point)
        key = id(model.tokens), max_nodes  # ids are unique, because the models live as long as the scheduler
        if key not in self._solved:
            self._solved[key] = RuleTrees.solve(model, max_nodes, self._request)
        return self._solved[key]

    def _fitting_points(self) -> list[tuple[int, int]]:
        """Return the measured batch sizes and context lengths that fit in memory; raises InfeasibleError for none."""
        points, memory = measured_points(self._profile, self._sampling.temperature), self._memory
        if memory is None:
            return points
        batch, context = min(points, key=lambda point: point[0] * (point[1] + 1))
        memory.check(context, batch)
        return [(batch, context) for batch, context in points if memory.max_nodes(context, batch) >= 1]

    def _segment(self, batches: tuple[int, int], contexts: tuple[int, int], choice: Choice) -> Segment:
        """Return the segment of a choice, predicted at its start."""
        rule, tree = choice
        return Segment(
            temperature=self._sampling.temperature,
            batch_sizes=batches,
            context_tokens=contexts,
            option=self._models(batches[0], contexts[0])[rule].predict(tree),
        )
