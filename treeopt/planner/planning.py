"""Profile to plan: the rule and the tree, chain or plain decoding with the most tokens per second, found together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from treeopt.arguments import instance
from treeopt.array_record import ShortRepr
from treeopt.planner.condition import Condition, condition
from treeopt.planner.contexts import context_models
from treeopt.planner.draws import Confidence, confidence
from treeopt.planner.fastest import Fastest, speeds
from treeopt.planner.model import Candidate, StepModel
from treeopt.planner.request import PlanRequest, Where
from treeopt.planner.rule_choice import RuleChoice, planned_acceptances
from treeopt.planner.rule_trees import RuleTrees
from treeopt.records.profile import Profile
from treeopt.records.rules import LOSSY_RULES, rule_label
from treeopt.solver import Solution
from treeopt.trees import TokenTree, chain


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Plan(ShortRepr):
    """What to run: under the best rule, the best of the best tree, the best chain and plain decoding, with all three."""

    _shown: ClassVar[tuple[str, ...]] = ("conditions", "choice")
    tree: Candidate
    """The best tree, over every budget and depth."""
    chain: Candidate
    """The best single sequence."""
    plain: Candidate
    """One token per pass."""
    budgets: tuple[Candidate, ...]
    """For a row of sizes: the fastest of the trees of most tokens that have exactly so many nodes."""
    objective: str
    """What the best has most of: `speed`, or `tokens` per step, whatever they cost."""
    fastest: Fastest
    """The tree with the largest speedup by the acceptance table alone, and the bound on all others."""
    confidence: Confidence
    """How sure the choice is."""
    model: StepModel
    """The acceptance and the costs that were used."""
    solution: Solution
    rules: tuple[RuleChoice, ...] = ()
    """Every rule that was planned, in the order measured; the plan itself is that of the best of them."""

    @property
    def choice(self) -> Candidate:
        """The best; in a tie the simplest."""
        return max((self.plain, self.chain, self.tree), key=self._merit)

    @property
    def merit(self) -> float:
        """What the objective asks for: the choice's speedup, or its tokens per step."""
        return self._merit(self.choice)

    @property
    def rule(self) -> str:
        """The verification rule planned for."""
        return self.model.acceptance.rule

    @property
    def lossy(self) -> bool:
        """Whether the text no longer follows the target's distribution under that rule."""
        return self.rule in LOSSY_RULES

    @property
    def temperature(self) -> float:
        """The temperature planned for."""
        return self.model.acceptance.temperature

    @property
    def context_tokens(self) -> int:
        """The context length planned for."""
        return self.model.condition.context_tokens

    @property
    def extrapolated(self) -> bool:
        """Whether the conditions, or some of the budgets, lie outside what was measured."""
        return self.model.condition.extrapolated or self.solution.max_nodes > self.model.condition.max_nodes

    @property
    def conditions(self) -> str:
        """The conditions planned for, in words."""
        where = self.model.condition
        batch = f", batch of {where.batch_size}" if where.batch_size > 1 else ""
        beyond = " (extrapolated)" if self.extrapolated else ""
        return (
            f"{rule_label(self.rule)} at temperature {self.temperature:g}, "
            f"{where.context_tokens} tokens of context{batch}{beyond}"
        )

    def _merit(self, candidate: Candidate) -> float:
        return candidate.speedup.value if self.objective == "speed" else candidate.tokens_per_step.value


def plan(
    profile: Profile,
    max_nodes: int = 512,
    *,
    max_depth: int | None = None,
    level_widths: int | Sequence[int] | None = None,
    objective: str = "speed",
    rule: str | None = None,
    temperature: float | None = None,
    context_tokens: int | None = None,
    batch_size: int | None = None,
    raw: bool = False,
    extrapolate: bool = False,
    lossy: bool = False,
) -> Plan:
    """Return the best rule with its best tree, chain and plain decoding, over all budgets up to `max_nodes`.

    Rules are compared through the best way to decode under each; in a tie the one measured first is taken.

    Args:
        profile: what was measured.
        max_nodes: largest number of nodes, root included.
        max_depth: most levels below the root; by default all that the acceptance was measured for.
        level_widths: most nodes at each depth, as for `treeopt.solve`.
        objective: `speed`, or `tokens` to ignore what a step costs.
        rule: verification rule; by default the best of all that were measured at the temperature.
        temperature: at which acceptance was measured; by default the first of the rule, or of all.
        context_tokens: tokens in the cache.
        batch_size: sequences verified together.
        raw: take the acceptance as measured.
        extrapolate: go on beyond what was measured.
        lossy: allow rules that change the text's distribution.

    Raises InvalidValueError for a budget below 1, an unknown objective or a lossy rule that is not allowed,
    InfeasibleError for conditions and sizes beyond what was measured.
    """
    request = PlanRequest(
        rule=rule,
        temperature=temperature,
        where=Where(context_tokens=context_tokens, batch_size=batch_size, extrapolate=extrapolate),
        max_nodes=max_nodes,
        max_depth=max_depth,
        level_widths=level_widths,
        objective=objective,
        raw=raw,
        lossy=lossy,
    )
    return requested_plan(profile, request)


def requested_plan(profile: Profile, request: PlanRequest) -> Plan:
    """Return the plan that is asked for; raises as `plan` does."""
    check_profile(profile)
    if request.temperature is None:
        request = replace(request, temperature=profile.acceptance(rule=request.rule).temperature)
    where = _condition(profile, request)
    most = where.max_nodes if request.max_nodes is None else request.max_nodes
    acceptances = planned_acceptances(profile, request)
    beyond = most if request.where.extrapolate else 0
    by_context = [context_models(profile, each, raw=request.raw) for each in acceptances]
    models = [each.at(where.context_tokens).under(where, max_nodes=beyond) for each in by_context]
    for model in models:
        model.costs.step_s(np.array([most]), np.zeros((1, 0), np.int64))  # refuse now what was not measured
    rules = [RuleTrees.solve(model.drafts, most, request.max_depth, request.level_widths) for model in models]
    return plan_rules(rules, where, max_nodes=beyond, objective=request.objective)


def check_profile(profile: Profile) -> None:
    """Raise InvalidValueError for what is no profile."""
    instance("profile", profile, Profile, "read one with treeopt.Profile.load(path)")


def plan_rules(rules: Sequence[RuleTrees], where: Condition, *, max_nodes: int = 0, objective: str = "speed") -> Plan:
    """Return the plan of the rule whose choice is best under a condition, beside what the others come to.

    Args:
        rules: solved.
        where: the condition.
        max_nodes: where larger than what was measured, how far the curves go on.
        objective: as for `plan`.
    """
    plans = [rule_plan(each, each.drafts.under(where, max_nodes=max_nodes), objective) for each in rules]
    choices = tuple(RuleChoice(rule=each.rule, lossy=each.lossy, choice=each.choice) for each in plans)
    return replace(max(plans, key=lambda each: each.merit), rules=choices)


def rule_plan(trees: RuleTrees, model: StepModel, objective: str) -> Plan:
    """Return the plan of one acceptance's trees under a condition and an objective."""
    solution, chains, speedups = trees.solution, trees.chains, speeds(trees.solution, model.costs)
    fastest = trees.fastest(model.costs, speedups)
    rivals = [fastest.tree, *trees.rivals(speedups)]
    # without accepted ranks the first is the fastest; with them what the table leaves out may put another before it
    rivals = [rivals[place] for place in np.argsort(-model.speedups(rivals), kind="stable")]
    known = np.array([model.tokens_per_step(tree) for tree in rivals])
    if objective == "speed":
        best, longest = rivals[0], chains[int(model.speedups(chains).argmax())]
    else:
        best, longest = solution.tree(solution.max_nodes, solution.max_depth), max(chains, key=model.tokens_per_step)
    row = [("tree", tree) for tree in trees.row(speedups)]
    plain, single, whole, *budgets = model.predict_all([("plain", chain(0)), ("chain", longest), ("tree", best), *row])
    return Plan(
        plain=plain,
        chain=single,
        tree=whole,
        budgets=tuple(budgets),
        objective=objective,
        fastest=fastest,
        confidence=confidence(model.draws, known, model.costs, rivals),
        model=model,
        solution=solution,
    )


def largest_pass(
    profile: Profile,
    *,
    rule: str | None = None,
    temperature: float | None = None,
    context_tokens: int | None = None,
    batch_size: int | None = None,
    extrapolate: bool = False,
) -> int:
    """Return the nodes of the largest verification pass that was timed where a plan is to hold; arguments as for `plan`."""
    where = Where(context_tokens=context_tokens, batch_size=batch_size, extrapolate=extrapolate)
    return _condition(profile, PlanRequest(rule=rule, temperature=temperature, where=where)).max_nodes


def _condition(profile: Profile, request: PlanRequest) -> Condition:
    acceptance = profile.acceptance(rule=request.rule, temperature=request.temperature)
    return condition(profile, acceptance.temperature, request.where)


def fastest_drafted_tree(profile: Profile) -> TokenTree:
    """Return the fastest tree that has a drafted node, of all that a profile allows."""
    found = requested_plan(profile, PlanRequest())
    drafted = [each for each in (found.tree, *found.budgets) if each.tree.nodes > 1]
    return max(drafted, key=lambda candidate: candidate.speedup.value).tree
