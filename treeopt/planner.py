"""Profile to plan: the tree, chain or plain decoding with the most tokens per second on the measured machine.

The model of a step, for a tree T of n nodes and D levels (docs/planning.md):

    step_s(T)  = sum over levels of draft_s(internal nodes of the level) + verify_s(n) + overhead_s
    speedup(T) = F(T) / step_s(T) * verify_s(1)

Plain decoding is the tree of the root alone: one token per verify_s(1), nothing else.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeopt import __version__
from treeopt.errors import InvalidValueError
from treeopt.latency import Estimate
from treeopt.profile import MeasuredAcceptance, Profile, StepLatency
from treeopt.solver import Solution, solve
from treeopt.trees import Provenance, TokenTree, TreeFile, chain
from treeopt.uncertainty import Draws

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to decode, and what the profile says of it."""

    kind: str
    """`tree`, `chain` or `plain`."""
    tree: TokenTree
    tokens_per_step: Estimate
    step_s: Estimate
    speedup: Estimate
    """Tokens per second over those of plain decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run: the fastest of the best tree, the best chain and plain decoding, with all three beside it."""

    tree: Candidate
    """The best tree, over every budget and depth."""
    chain: Candidate
    """The best single sequence."""
    plain: Candidate
    """One token per pass."""
    budgets: tuple[Candidate, ...]
    """The fastest tree of exactly so many nodes, for a row of sizes."""
    rule: str
    temperature: float
    context_tokens: int
    solution: Solution

    @property
    def choice(self) -> Candidate:
        """The fastest; in a tie the simplest."""
        return max((self.plain, self.chain, self.tree), key=lambda candidate: candidate.speedup.value)


class StepModel:
    """Predicted tokens, seconds and speedup of any tree under one condition of a profile."""

    def __init__(self, latency: StepLatency, acceptance: MeasuredAcceptance) -> None:
        self.latency = latency
        self.acceptance = acceptance
        self._draws = Draws(latency, acceptance.table)

    def step_s(self, tree: TokenTree) -> float:
        """Return the median seconds of a step; InfeasibleError for sizes that were not measured."""
        verify_s = float(self.latency.verify.seconds(tree.nodes))
        if tree.max_depth == 0:
            return verify_s
        draft_s = float(self.latency.draft.seconds(tree.draft_widths).sum())
        return draft_s + verify_s + max(0.0, self.latency.overhead.median_s)

    def tokens_per_step(self, tree: TokenTree) -> float:
        """Return F(T)."""
        return self.acceptance.table.expected_tokens(tree)

    def speedup(self, tree: TokenTree) -> float:
        """Return tokens per second over those of plain decoding."""
        return self.tokens_per_step(tree) * (float(self.latency.verify.seconds(1)) / self.step_s(tree))

    def predict(self, kind: str, tree: TokenTree) -> Candidate:
        """Return the prediction for one tree with 95 % intervals."""
        tokens, step_s, speedup = self._draws.of(tree)
        return Candidate(
            kind=kind,
            tree=tree,
            tokens_per_step=_estimate(self.tokens_per_step(tree), tokens),
            step_s=_estimate(self.step_s(tree), step_s),
            speedup=_estimate(self.speedup(tree), speedup),
        )


def step_model(
    profile: Profile,
    *,
    rule: str | None = None,
    temperature: float | None = None,
    context_tokens: int | None = None,
) -> StepModel:
    """Return the model of one condition of a profile; by default the first one measured.

    Raises InfeasibleError naming what was measured.
    """
    return StepModel(
        profile.latency(context_tokens=context_tokens),
        profile.acceptance(rule=rule, temperature=temperature),
    )


def plan(
    profile: Profile,
    max_nodes: int = 512,
    *,
    max_depth: int | None = None,
    rule: str | None = None,
    temperature: float | None = None,
    context_tokens: int | None = None,
) -> Plan:
    """Return the best tree, chain and plain decoding under a profile, over all budgets up to `max_nodes`.

    The tree is the fastest among the trees of most expected tokens for every (budget, depth).
    Raises InvalidValueError for a budget below 1, InfeasibleError for one beyond what was measured.
    """
    if max_nodes < 1:
        raise InvalidValueError(f"max_nodes: expected at least 1, the root. Got {max_nodes}.")
    model = step_model(profile, rule=rule, temperature=temperature, context_tokens=context_tokens)
    model.latency.verify.seconds(max_nodes)  # refuse now what was not measured
    solution = solve(model.acceptance.table, max_nodes, max_depth)
    chains = [chain(depth) for depth in range(min(solution.max_depth, max_nodes - 1) + 1)]
    return Plan(
        tree=model.predict("tree", fastest_tree(model, solution)),
        chain=model.predict("chain", max(chains, key=model.speedup)),
        plain=model.predict("plain", chain(0)),
        budgets=tuple(model.predict("tree", tree) for tree in _row_of_trees(model, solution)),
        rule=model.acceptance.rule,
        temperature=model.acceptance.temperature,
        context_tokens=model.latency.context_tokens,
        solution=solution,
    )


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
            pair=f"{profile.pair.target} + {profile.pair.draft}",
            machine=profile.machine.processor,
            rule=plan.rule,
            temperature=plan.temperature,
            tokens_per_step=choice.tokens_per_step.value,
            step_s=choice.step_s.value,
            speedup=choice.speedup.value,
        ),
    )


def fastest_tree(model: StepModel, solution: Solution) -> TokenTree:
    """Return the solution's fastest tree.

    The speed of the tree of every (depth, budget) is computed and the largest taken, in a tie the shallower and then
    the smaller.
    """
    speedups = _speedups(model, solution)
    depth, nodes = np.unravel_index(speedups[:, 1:].argmax(), (solution.max_depth + 1, solution.max_nodes))
    return solution.tree(int(nodes) + 1, int(depth))


def _row_of_trees(model: StepModel, solution: Solution) -> list[TokenTree]:
    """Return the fastest tree of 2, 4, 8, … nodes and of the most; sizes that no best tree has are left out."""
    speedups = np.where(solution.tree_nodes == np.arange(solution.max_nodes + 1), _speedups(model, solution), 0.0)
    sizes = {2**i for i in range(1, solution.max_nodes.bit_length())} | {solution.max_nodes}
    columns = [nodes for nodes in sorted(sizes) if speedups[:, nodes].any()]
    return [solution.tree(nodes, int(speedups[:, nodes].argmax())) for nodes in columns]


def _speedups(model: StepModel, solution: Solution) -> FloatArray:
    """Return float64 (max_depth + 1, max_nodes + 1), the speedup of every tree of a solution; column 0 is 0."""
    latency = model.latency
    draft_s = np.append(0.0, latency.draft.seconds(np.arange(1, int(solution.draft_widths.max(initial=1)) + 1)))
    verify_s = np.append(np.inf, latency.verify.seconds(np.arange(1, solution.max_nodes + 1)))
    overhead_s = np.where(solution.tree_nodes > 1, max(0.0, latency.overhead.median_s), 0.0)
    step_s = draft_s[solution.draft_widths].sum(axis=2) + verify_s[solution.tree_nodes] + overhead_s
    return np.asarray(solution.expected_tokens / step_s * verify_s[1])


def _estimate(value: float, draws: FloatArray) -> Estimate:
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(value, min(value, float(low)), max(value, float(high)))
