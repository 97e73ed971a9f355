"""Profile to plan: the rule and the tree, chain or plain decoding with the most tokens per second, found together."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from treeopt import __version__
from treeopt.arguments import flag, instance, number, text, whole
from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.identity import Identity
from treeopt.planner.condition import condition
from treeopt.planner.fastest import Fastest, fastest_tree, speeds
from treeopt.planner.model import Candidate, StepModel, step_model
from treeopt.planner.rule_choice import RuleChoice, planned_acceptances
from treeopt.planner.uncertainty import Confidence, confidence
from treeopt.profile import Profile
from treeopt.rules import LOSSY_RULES, rule_label
from treeopt.solver import Solution, solve
from treeopt.trees import Provenance, TokenTree, TreeFile, chain

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

OBJECTIVES = ("speed", "tokens")
RIVALS = 100
"""Trees, the fastest of all budgets and depths, that the chosen one is compared with."""


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
        """Whether the text no longer follows the target's law under that rule."""
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
        lossy: allow rules that change the text's law.

    Raises InvalidValueError for a budget below 1, an unknown objective or a lossy rule that is not allowed,
    InfeasibleError for conditions and sizes beyond what was measured.
    """
    check_measured(profile, rule, temperature)
    max_nodes = whole("max_nodes", max_nodes, 1)
    if objective not in OBJECTIVES:
        raise InvalidValueError(f"objective: expected {' or '.join(OBJECTIVES)}. Got {objective!r}.")
    context_tokens = None if context_tokens is None else whole("context_tokens", context_tokens, 0)
    batch_size = None if batch_size is None else whole("batch_size", batch_size, 1)
    for name, asked in (("raw", raw), ("extrapolate", extrapolate), ("lossy", lossy)):
        flag(name, asked)
    if temperature is None:
        temperature = profile.acceptance(rule=rule).temperature
    models = [
        step_model(
            profile,
            rule=acceptance.rule,
            temperature=temperature,
            context_tokens=context_tokens,
            batch_size=batch_size,
            raw=raw,
            extrapolate=extrapolate,
            max_nodes=max_nodes,
        )
        for acceptance in planned_acceptances(profile, rule=rule, temperature=temperature, lossy=lossy)
    ]
    return _best_rule([_best_of_rule(model, max_nodes, max_depth, level_widths, objective) for model in models])


def check_measured(profile: Profile, rule: str | None, temperature: float | None) -> None:
    """Raise InvalidValueError for what is no profile, no rule's name or no temperature."""
    instance("profile", profile, Profile, "read one with treeopt.Profile.load(path)")
    if rule is not None:
        text("rule", rule)
    if temperature is not None:
        number("temperature", temperature)


def _best_rule(plans: Sequence[Plan]) -> Plan:
    """Return the plan whose choice is best, beside what the others come to."""
    rules = tuple(RuleChoice(rule=each.rule, lossy=each.lossy, choice=each.choice) for each in plans)
    return replace(max(plans, key=lambda each: each.merit), rules=rules)


def _best_of_rule(
    model: StepModel,
    max_nodes: int,
    max_depth: int | None,
    level_widths: int | Sequence[int] | None,
    objective: str,
) -> Plan:
    """Return the plan under one rule."""
    model.costs.step_s(np.array([max_nodes]), np.zeros((1, 0), np.int64))  # refuse now what was not measured
    solution = solve(model.acceptance.table, max_nodes, max_depth, level_widths=level_widths)
    fastest = fastest_tree(solution, model.costs, level_widths=level_widths)
    chains = [chain(depth) for depth in range(min(solution.max_depth, max_nodes - 1) + 1)]
    merit = model.speedup if objective == "speed" else model.tokens_per_step
    speedups = speeds(solution, model.costs)
    rivals = [fastest.tree, *_rivals(solution, speedups)]
    # without outcomes the first is the fastest; with them what the table leaves out may put another before it
    rivals.sort(key=model.speedup, reverse=True)
    best = rivals[0] if objective == "speed" else solution.tree(max_nodes, solution.max_depth)
    return Plan(
        plain=model.predict("plain", chain(0)),
        chain=model.predict("chain", max(chains, key=merit)),
        tree=model.predict("tree", best),
        budgets=tuple(model.predict("tree", tree) for tree in _row_of_trees(solution, speedups)),
        objective=objective,
        fastest=fastest,
        confidence=confidence(
            model.worlds, np.array([model.tokens_per_step(tree) for tree in rivals]), model.costs, rivals
        ),
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
    return condition(
        profile,
        temperature=profile.acceptance(rule=rule, temperature=temperature).temperature,
        context_tokens=context_tokens,
        batch_size=batch_size,
        extrapolate=extrapolate,
    ).max_nodes


def fastest_drafted_tree(profile: Profile) -> TokenTree:
    """Return the fastest tree that has a drafted node, of all that a profile allows."""
    found = plan(profile, largest_pass(profile))
    drafted = [each for each in (found.tree, *found.budgets) if each.tree.nodes > 1]
    return max(drafted, key=lambda candidate: candidate.speedup.value).tree


def tree_file(plan: Plan, profile: Profile, *, source: str) -> TreeFile:
    """Return the tree file of a plan's choice, with what was promised of it and where the promise comes from."""
    choice = plan.choice
    return TreeFile(
        tree=choice.tree,
        reach=plan.solution.table.reach(choice.tree),
        provenance=Provenance(
            tool=f"treeopt {__version__}",
            created=profile.created,
            source=source,
            **asdict(Identity.of(profile.pair, profile.machine)),
            rule=plan.rule,
            lossy=plan.lossy or None,
            temperature=plan.temperature,
            tokens_per_step=choice.tokens_per_step.value,
            step_s=choice.step_s.value,
            speedup=choice.speedup.value,
        ),
    )


def _row_of_trees(solution: Solution, speedups: FloatArray) -> list[TokenTree]:
    """Return the fastest tree of 2, 4, 8, … nodes and of the most; sizes that no best tree has are left out."""
    speedups = np.where(_exactly_so_many(solution), speedups, 0.0)
    sizes = {2**i for i in range(1, solution.max_nodes.bit_length())} | {solution.max_nodes}
    columns = [nodes for nodes in sorted(sizes) if speedups[:, nodes].any()]
    return [solution.tree(nodes, int(speedups[:, nodes].argmax())) for nodes in columns]


def _rivals(solution: Solution, speedups: FloatArray) -> list[TokenTree]:
    """Return the fastest of a solution's trees, each once."""
    shallowest = solution.tree_depth == np.arange(solution.max_depth + 1)[:, None]
    speedups = np.where(_exactly_so_many(solution) & shallowest, speedups, 0.0)
    places = np.argsort(-speedups, axis=None, kind="stable")[:RIVALS]
    return [
        solution.tree(int(nodes), int(depth))
        for depth, nodes in zip(*np.unravel_index(places, speedups.shape), strict=True)
        if speedups[depth, nodes] > 0
    ]


def _exactly_so_many(solution: Solution) -> BoolArray:
    """Return where a tree has all the nodes of its budget."""
    return np.asarray(solution.tree_nodes == np.arange(solution.max_nodes + 1))
