"""The model of a step: what a profile says of any tree, under one of its conditions.

    speedup(T) = F(T) / step_s(T) * verify_s(1)

with the costs of `treeopt.planner.costs`.  Plain decoding is the tree of the root alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from treeopt.array_record import ArrayRecord, ShortRepr
from treeopt.arrays import Float64
from treeopt.planner.condition import Condition
from treeopt.planner.costs import StepCosts, sizes, step_costs
from treeopt.planner.dependence import ChainDependence, Dependence
from treeopt.planner.drafted import Drafted
from treeopt.planner.draws import Draws, MixedDraws, TokenDraws, condition_draws, draw_tokens, estimates
from treeopt.planner.overheads import branches
from treeopt.planner.smoothing import Smoothing, smooth
from treeopt.records.latency import Estimate
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.root_ranks import RootRanks
from treeopt.tabular import Row
from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Candidate(ShortRepr):
    """One way to decode, and what the profile says of it."""

    _shown: ClassVar[tuple[str, ...]] = ("shape", "tokens_per_step", "step_s", "speedup")
    kind: str
    """`tree`, `chain` or `plain`."""
    tree: TokenTree
    verify_tokens: int
    """Tokens of the verification pass: the tree's nodes, or more where a padded pass is faster."""
    tokens_per_step: Estimate
    step_s: Estimate
    speedup: Estimate
    """Tokens per second over those of plain decoding."""

    @property
    def shape(self) -> str:
        """In words: `plain decoding`, `chain of 8 nodes` or `tree of 8 nodes, depth 6`."""
        if self.kind == "plain":
            return "plain decoding"
        depth = f", depth {self.tree.max_depth}" if self.kind == "tree" else ""
        return f"{self.kind} of {self.tree.nodes} node{'s' * (self.tree.nodes > 1)}{depth}"

    @property
    def row(self) -> Row:
        """The columns that it has in tables."""
        return {
            "kind": self.kind,
            "nodes": self.tree.nodes,
            "depth": self.tree.max_depth,
            **self.tokens_per_step.row("tokens_per_step"),
            **self.step_s.row("step_s"),
            **self.speedup.row("speedup"),
        }


def kind_of(tree: TokenTree) -> str:
    """Return `plain`, `chain` or `tree`.

    >>> kind_of(TokenTree([-1])), kind_of(TokenTree([-1, 0, 1])), kind_of(TokenTree([-1, 0, 0]))
    ('plain', 'chain', 'tree')
    """
    if tree.nodes == 1:
        return "plain"
    return "tree" if branches(tree) else "chain"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TokenModel(ArrayRecord):
    """What one acceptance says of any tree: tokens per step, the same under every condition of its context length."""

    acceptance: MeasuredAcceptance
    """As measured, or smoothed, or mixed of `parts`."""
    smoothing: Smoothing | None
    """What smoothing did; None where it was not asked for."""
    root_ranks: RootRanks | None = None
    """The accepted ranks below every position, where a drafter's children hang on where the step began."""
    parts: "tuple[tuple[float, TokenModel], ...]" = ()
    """Shares of the models measured at other context lengths that make this one; empty where it was measured itself."""

    def tokens_per_step(self, tree: TokenTree) -> float:
        """Return F(T), corrected by the replay of the measured texts where their accepted ranks are known."""
        if tree not in self._tokens:
            self._tokens[tree] = self._expected(tree)
        return self._tokens[tree]

    def _expected(self, tree: TokenTree) -> float:
        if self.parts:
            return sum(share * part.tokens_per_step(tree) for share, part in self.parts)
        return (self.acceptance.table.expected_tokens if self.dependence is None else self.dependence.tokens)(tree)

    def under(self, where: Condition, *, max_nodes: int = 0) -> "StepModel":
        """Return the model of a step under a condition.

        Args:
            where: the condition.
            max_nodes: where larger than what was measured, how far the curves go on.

        Raises InfeasibleError where an extrapolated time is not above 0.
        """
        costs = step_costs(where, rule=self.acceptance.rule, max_nodes=max_nodes)
        return StepModel(condition=where, drafts=self, costs=costs)

    @cached_property
    def dependence(self) -> ChainDependence | Dependence | None:
        """What the table leaves out; None where no accepted ranks are known, and of what was mixed."""
        depth = self.acceptance.table.max_depth or 0
        chains = tuple(each for each in self.acceptance.chains if each.length <= depth)
        if chains:
            return ChainDependence(self.acceptance.table, chains)
        accepted_ranks = self.acceptance.accepted_ranks or self.root_ranks
        return None if accepted_ranks is None else Dependence(self.acceptance.table, accepted_ranks)

    @property
    def replayed(self) -> bool:
        """Whether it tells more than a table: measured texts are replayed, those of all parts where it was mixed."""
        return all(part.replayed for _, part in self.parts) if self.parts else self.dependence is not None

    @cached_property
    def draws(self) -> TokenDraws | MixedDraws:
        """What the measured texts leave open."""
        if self.parts:
            return MixedDraws(tuple((share, part.draws) for share, part in self.parts))
        return draw_tokens(self.acceptance, self.dependence)

    @cached_property
    def _tokens(self) -> dict[TokenTree, float]:
        return {}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StepModel(ArrayRecord):
    """Predicted tokens, seconds and speedup of any tree under one condition of a profile."""

    _shown: ClassVar[tuple[str, ...]] = (
        "acceptance.rule",
        "acceptance.temperature",
        "condition.context_tokens",
        "condition.batch_size",
        "costs",
    )
    condition: Condition
    drafts: TokenModel
    costs: StepCosts
    drafted: Drafted | None = None
    """The decoded texts that a drafter's steps are known from; None for the draft model, whose passes were timed."""

    @property
    def acceptance(self) -> MeasuredAcceptance:
        """As measured, or smoothed."""
        return self.drafts.acceptance

    @property
    def smoothing(self) -> Smoothing | None:
        """What smoothing did; None where it was not asked for."""
        return self.drafts.smoothing

    @property
    def dependence(self) -> ChainDependence | Dependence | None:
        """What the acceptance table leaves out; None where no accepted ranks are known."""
        return self.drafts.dependence

    @cached_property
    def draws(self) -> Draws:
        """What the measurements leave open."""
        return condition_draws(
            self.drafts.draws,
            self.condition,
            rule=self.acceptance.rule,
            max_nodes=self.costs.max_nodes,
            drafted=self.drafted,
        )

    def step_s(self, tree: TokenTree) -> float:
        """Return the seconds of a step; InfeasibleError for sizes that were not measured."""
        return float(self.costs.tree_s(tree))

    def tokens_per_step(self, tree: TokenTree) -> float:
        """Return F(T), corrected by the replay of the measured texts where their accepted ranks are known."""
        return self.drafts.tokens_per_step(tree)

    def knows(self, tree: TokenTree) -> bool:
        """Return whether passes as large and levels as deep and as wide as a tree's were measured."""
        return (
            tree.nodes <= self.costs.max_nodes
            and tree.max_depth <= (self.acceptance.table.max_depth or tree.max_depth)
            and int(tree.draft_widths.max(initial=0)) <= self.costs.max_draft_width
        )

    def speedup(self, tree: TokenTree) -> float:
        """Return tokens per second over those of plain decoding."""
        return float(self.speedups([tree])[0])

    def speedups(self, trees: Sequence[TokenTree]) -> Float64:
        """Return (trees,): the same of each."""
        tokens = np.array([self.tokens_per_step(tree) for tree in trees])
        return self.costs.speedup(tokens, self.costs.step_s(*sizes(trees)))

    def predict(self, kind: str, tree: TokenTree) -> Candidate:
        """Return the prediction for one tree with 95 % intervals; InfeasibleError for sizes that were not measured."""
        return self.predict_all([(kind, tree)])[0]

    def predict_all(self, ways: Sequence[tuple[str, TokenTree]]) -> tuple[Candidate, ...]:
        """Return the predictions for some kinds and trees, each as by itself; raises as `predict` does."""
        trees = [tree for _, tree in ways]
        tokens = np.array([self.tokens_per_step(tree) for tree in trees])
        tokens_drawn = np.stack([self.draws.tokens(tree) for tree in trees], axis=-1)
        step_s, drawn_s = self.costs.step_s(*sizes(trees)), self.draws.costs.step_s(*sizes(trees))
        columns = zip(
            ways,
            estimates(tokens, tokens_drawn),
            estimates(step_s, drawn_s),
            estimates(self.costs.speedup(tokens, step_s), self.draws.costs.speedup(tokens_drawn, drawn_s)),
            strict=True,
        )
        return tuple(
            Candidate(
                kind=kind,
                tree=tree,
                verify_tokens=int(self.costs.verify_tokens[tree.nodes]),
                step_s=seconds,
                tokens_per_step=expected,
                speedup=faster,
            )
            for (kind, tree), expected, seconds, faster in columns
        )


def token_model(acceptance: MeasuredAcceptance, *, raw: bool = False) -> TokenModel:
    """Return the model of an acceptance, smoothed unless it is taken `raw`, as measured."""
    smoothing = None if raw else smooth(acceptance)
    return TokenModel(acceptance=smoothing.acceptance if smoothing else acceptance, smoothing=smoothing)
