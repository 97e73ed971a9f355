"""More than one condition: what to run at which batch size and context length, and where to switch.

Every measured condition is planned by itself.  Between two of them times lie on straight lines, and so do the seconds a
token that any tree takes, but for what is padded there and not elsewhere.  The least of straight lines bends down only: a
tree that is the fastest at both ends of a range is so within it.  So the fastest of the trees known so far is looked for
at every batch size, the fastest of all at both sides of each switch, and this again until no faster one is found there
(Eisner and Severance, 1976).

Between contexts that acceptance was measured at tokens lie on straight lines too.  There the best tree would change with
nearly every token of context, so over contexts the trees of the measured conditions are compared alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError
from treeopt.planner.memory import Memory, memory_of
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import check_profile, fastest_trees, plan_rules, planned_acceptances
from treeopt.planner.request import PlanRequest
from treeopt.planner.rule_trees import RuleTrees
from treeopt.planner.segments import CLOSE, Segment, ranges, winners
from treeopt.planner.tokens import TokenModel, TokenModels, token_models
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.tabular import Row, Tabular
from treeopt.trees import TokenTree
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

Models = dict[str, StepModel]
"""The model of one operating point under each rule."""
Choice = tuple[str, TokenTree]
"""A rule and a tree."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Schedule(ShortRepr, Tabular):
    """What to run where; a new segment begins at every switching point."""

    plans: tuple[Plan, ...]
    """One for every measured temperature, batch size and context length, in this order; rules are compared in each."""
    over_contexts: tuple[Segment, ...]
    """At every measured batch size, over context lengths."""
    over_batch_sizes: tuple[Segment, ...]
    """At every context length measured at more than one batch size, over batch sizes."""

    @property
    def switches(self) -> tuple[tuple[Segment, Segment], ...]:
        """Every place where another option becomes the fastest as the context grows: what ends there, what begins."""
        return tuple(
            (before, after)
            for before, after in pairwise(self.over_contexts)
            if (before.temperature, before.batch_sizes) == (after.temperature, after.batch_sizes)
        )

    def plans_of_texts(self, temperature: float) -> list[Plan]:
        """Return the plans for single texts at a temperature, by rising context length."""
        found = [each for each in self.plans if each.temperature == temperature]
        return [each for each in found if each.model.point.batch_size == 1]

    def to_records(self) -> list[Row]:
        """Return a row for every segment: first those over context lengths, then those over batch sizes."""
        return [
            {"over": name, **each.row}
            for name, segments in (("context_tokens", self.over_contexts), ("batch_size", self.over_batch_sizes))
            for each in segments
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
    """Return what to run at every condition that a profile covers, the rule and the tree.

    Args:
        profile: what was measured.
        max_nodes: largest number of nodes, root included; by default that of the largest pass timed at every condition.
        max_depth: most levels below the root.
        level_widths: most nodes at each depth.
        rule: only this one; by default the fastest, at each condition, of all that were measured.
        temperature: only this one; by default a schedule for each that was measured.
        raw: take the acceptance as measured.
        lossy: allow rules that change the text's distribution.
        memory_bytes: of the device; nothing is planned whose weights and KV caches do not fit.
        tick: called after every condition that was planned.

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


def several_conditions(profile: Profile, request: PlanRequest) -> int:
    """Return how many conditions a schedule is made for, temperatures counted; 0 where there is one or no speed asked for."""
    temperatures = {acceptance.temperature for acceptance in planned_acceptances(profile, request)}
    if len(profile.step_latencies) * len(temperatures) == 1 or request.objective != "speed":
        return 0
    return sum(len(measured_conditions(profile, temperature)) for temperature in temperatures)


def requested_schedule(profile: Profile, request: PlanRequest, tick: Callable[[], object] = lambda: None) -> Schedule:
    """Return the schedule that is asked for; raises as `schedule` does.

    Args:
        profile: what was measured.
        request: as for a plan; conditions are all that were measured, and without `max_nodes` trees have at most as
            many as were measured everywhere.
        tick: called after every condition that was planned.
    """
    check_profile(profile)
    measured = planned_acceptances(profile, request)
    most = request.max_nodes
    if most is None:
        most = min(latency.verify.max_tokens for latency in profile.step_latencies)
    memory = None if request.memory_bytes is None else memory_of(profile, request.memory_bytes)
    plans: list[Plan] = []
    contexts: list[Segment] = []
    batches: list[Segment] = []
    for each in dict.fromkeys(acceptance.temperature for acceptance in measured):
        models = [token_models(profile, one, raw=request.raw) for one in measured if one.temperature == each]
        conditions = _fitting_conditions(measured_conditions(profile, each), memory)
        _refuse_unmeasured(profile, models[0], most, conditions)
        solved = _Solved(models, most, request, memory)
        at_temperature = []
        for batch, context in conditions:
            point = profile.at(context, batch, models[0].acceptance.sampling)
            trees = solved.at(batch, context)
            plan = plan_rules(trees, [model_at(point, one.tokens) for one in trees])
            at_temperature.append(replace(plan, memory=memory))
            tick()
        chosen = [(option.rule, option.tree) for plan in at_temperature for option in plan.rules]
        switches = _Switches(profile, models[0].acceptance.sampling, solved, chosen, conditions)
        plans += at_temperature
        contexts += switches.over_contexts()
        batches += switches.over_batch_sizes()
    return Schedule(plans=tuple(plans), over_contexts=tuple(contexts), over_batch_sizes=tuple(batches))


def schedule_as_measured(
    profile: Profile, request: PlanRequest, tick: Callable[[], object] = lambda: None
) -> Schedule | None:
    """Return what to run at every condition, or None where one was measured or speed is not asked for.

    Its trees have at most as many nodes as were measured everywhere, whatever is asked for; `tick` is called after
    every condition.
    """
    if not several_conditions(profile, request):
        return None
    measured = min(latency.verify.max_tokens for latency in profile.step_latencies)
    most = measured if request.max_nodes is None else min(request.max_nodes, measured)
    return requested_schedule(profile, replace(request, max_nodes=most), tick)


def tree_schedule(schedule: Schedule | None, *, rule: str, temperature: float, context_tokens: int) -> TreeSchedule:
    """Return the trees of a schedule by the number of texts, which a decoder takes as texts come and go.

    Args:
        schedule: planned for one rule, so that texts go on as they began; None where one condition was measured.
        rule: that rule.
        temperature: of the text.
        context_tokens: one of those measured.

    Raises InfeasibleError where no other number of texts than one was measured, or not that context length.
    """
    at = [
        each
        for each in (() if schedule is None else schedule.over_batch_sizes)
        if (each.option.rule, each.temperature) == (rule, temperature)
        and each.context_tokens == (context_tokens, context_tokens)
    ]
    if not at:
        raise InfeasibleError(
            f"schedule: expected several batch sizes at {context_tokens} tokens of context. One was measured: profile with "
            "--batch-sizes 1,2,4,8.",
            field="schedule",
        )
    return TreeSchedule(
        trees=tuple(
            ScheduledTree(
                first_texts=1 if number == 0 else each.batch_sizes[0],  # what was planned for the smallest holds below
                last_texts=each.batch_sizes[1],
                tree=each.option.tree,
            )
            for number, each in enumerate(at)
        )
    )


class _Solved:
    """The trees of some rules at any context length, solved once where one acceptance holds for several."""

    def __init__(
        self, models: Sequence[TokenModels], max_nodes: int, request: PlanRequest, memory: Memory | None
    ) -> None:
        self._models, self._max_nodes, self._request, self._memory = models, max_nodes, request, memory
        self._known: dict[tuple[int, int], RuleTrees] = {}

    @property
    def rules(self) -> list[str]:
        """As measured."""
        return [each.acceptance.rule for each in self._models]

    def tokens(self, context: int) -> list[TokenModel]:
        """Return the model of each rule."""
        return [each.at(context) for each in self._models]

    def at(self, batch: int, context: int) -> list[RuleTrees]:
        """Return the trees of each rule that fit in memory."""
        return [self.of(tokens, batch, context) for tokens in self.tokens(context)]

    def of(self, tokens: TokenModel, batch: int, context: int) -> RuleTrees:
        """Return the trees of one of the models that fit in memory."""
        most = self._max_nodes if self._memory is None else min(self._max_nodes, self._memory.max_nodes(context, batch))
        key = id(tokens), most  # the models live as long as this does, so that no other gets the id
        if key not in self._known:
            limits = self._request.max_depth, self._request.level_widths
            self._known[key] = RuleTrees.solve(tokens, most, *limits)
        return self._known[key]

    def fits(self, tree: TokenTree, batch: int, context: int) -> bool:
        """Return whether memory suffices for a tree in every sequence."""
        return self._memory is None or tree.nodes <= self._memory.max_nodes(context, batch)


def _fitting_conditions(conditions: list[tuple[int, int]], memory: Memory | None) -> list[tuple[int, int]]:
    """Return the batch sizes and context lengths for which memory suffices; raises InfeasibleError for none."""
    if memory is None:
        return conditions
    fitting = [(batch, context) for batch, context in conditions if memory.max_nodes(context, batch) >= 1]
    if not fitting:
        raise InfeasibleError(
            f"memory: expected room for the weights and a measured batch. Got {memory.total_bytes} bytes, of which the "
            f"weights take {memory.weight_bytes}: allow more.",
            field="memory",
        )
    return fitting


def _refuse_unmeasured(
    profile: Profile, models: TokenModels, max_nodes: int, conditions: Sequence[tuple[int, int]]
) -> None:
    """Raise before any long work if passes of `max_nodes` were not timed under every condition."""
    for batch, context in conditions:
        point = profile.at(context, batch, models.acceptance.sampling)
        costs = model_at(point, models.at(context)).costs
        costs.step_s(np.array([max_nodes]), np.zeros((1, 0), np.int64))


def measured_conditions(profile: Profile, temperature: float) -> list[tuple[int, int]]:
    """Return the batch sizes and context lengths that times were taken at."""
    return sorted({(item.batch_size, item.context_tokens) for item in profile.latencies_at(temperature)})


class _Switches:
    """The fastest rule and tree, anywhere between the measured conditions."""

    def __init__(
        self,
        profile: Profile,
        sampling: Sampling,
        solved: "_Solved",
        choices: Sequence[Choice],
        conditions: Sequence[tuple[int, int]],
    ) -> None:
        self._profile, self._sampling = profile, sampling
        self._solved = solved
        self._choices = dict.fromkeys(choices)
        self._conditions = conditions
        self._known: dict[tuple[int, int], Models] = {}

    def over_contexts(self) -> list[Segment]:
        """Return the segments over context lengths, at every measured batch size."""
        segments = []
        for batch in sorted({batch for batch, _ in self._conditions}):
            measured = [context for size, context in self._conditions if size == batch]
            found = self._winners(measured, lambda context, batch=batch: self._models(batch, context))  # type: ignore[misc]
            segments += [self._segment((batch, batch), ends, choice) for ends, choice in ranges(found, measured[-1])]
        return segments

    def over_batch_sizes(self) -> list[Segment]:
        """Return the segments over batch sizes, at every context length measured at more than one."""
        segments = []
        for context in sorted({context for _, context in self._conditions}):
            measured = [batch for batch, length in self._conditions if length == context]
            if len(measured) > 1:
                found = self._searched(measured, lambda batch, context=context: self._models(batch, context))  # type: ignore[misc]
                segments += [
                    self._segment(ends, (context, context), choice) for ends, choice in ranges(found, measured[-1])
                ]
        return segments

    def _searched(self, measured: Sequence[int], models_at: Callable[[int], Models]) -> dict[int, Choice]:
        """Return the fastest of all choices from where on it is."""
        searched = set(measured)
        while True:
            winners = self._winners(measured, models_at)
            beside = {value for start in winners for value in (start - 1, start) if start != measured[0]} - searched
            if not beside:
                return winners
            for value in beside:
                self._search(models_at(value))
            searched |= beside

    def _winners(self, measured: Sequence[int], models_at: Callable[[int], Models]) -> dict[int, Choice]:
        """Return the fastest of the known choices from where on it is."""
        return winners(measured, lambda value: self._fastest(models_at(value)))

    def _search(self, models: Models) -> None:
        """Add the fastest trees of an operating point to the choices, except for interpolated acceptance."""
        place = _place(models)
        found = [
            (rule, tree)
            for rule, model in models.items()
            if not model.tokens.parts
            for tree in fastest_trees(self._solved.of(model.tokens, *place), model)
        ]
        self._choices |= dict.fromkeys(found)

    def _fastest(self, models: Models) -> Choice:
        """Return which known choice is fastest, in a tie the smallest and then the rule measured first.

        Trees that are too large for what was measured, or for the memory, are left out.
        """
        speeds: dict[Choice, float] = {}
        place = _place(models)
        for rule, model in models.items():
            known = [tree for of, tree in self._choices if of == rule and model.knows(tree)]
            fitting = [tree for tree in known if self._solved.fits(tree, *place)]
            if fitting:
                speeds |= zip(((rule, tree) for tree in fitting), model.speedups(fitting).tolist(), strict=True)
        rules = self._solved.rules
        ordered = sorted(speeds, key=lambda choice: (choice[1].nodes, rules.index(choice[0])))
        winner = ordered[0]
        for choice in ordered:
            if speeds[choice] > speeds[winner] * (1 + CLOSE):
                winner = choice
        return winner

    def _models(self, batch: int, context: int) -> Models:
        if (batch, context) not in self._known:
            point = self._profile.at(context, batch, self._sampling)
            self._known[batch, context] = {
                tokens.acceptance.rule: model_at(point, tokens) for tokens in self._solved.tokens(context)
            }
        return self._known[batch, context]

    def _segment(self, batches: tuple[int, int], contexts: tuple[int, int], choice: Choice) -> Segment:
        """Return the segment of a choice, predicted at its start."""
        rule, tree = choice
        return Segment(
            temperature=self._sampling.temperature,
            batch_sizes=batches,
            context_tokens=contexts,
            option=self._models(batches[0], contexts[0])[rule].predict(tree),
        )


def _place(models: Models) -> tuple[int, int]:
    """Return the batch size and the context length of some models."""
    point = next(iter(models.values())).point
    return point.batch_size, point.context_tokens
