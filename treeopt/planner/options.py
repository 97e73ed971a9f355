"""Options to decode with, and their predicted speed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar

from treeopt.array_record import ShortRepr
from treeopt.arrays import Float64
from treeopt.planner.resampling import estimates
from treeopt.records.latency import Estimate
from treeopt.records.rules import LOSSY_RULES
from treeopt.tabular import Row
from treeopt.trees import TokenTree, describe_tree, kind_of
from treeopt.trees.drafter_setting import DrafterSetting

DRAFT_MODEL = DrafterSetting(name="model")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Prediction(ShortRepr):
    """Predicted speed, each number with its 95 % interval."""

    tokens_per_step: Estimate
    step_s: Estimate
    speedup: Estimate
    """Tokens per second relative to plain decoding."""

    @property
    def columns(self) -> Row:
        """The columns of a prediction in tables."""
        return {
            **self.tokens_per_step.row("tokens_per_step"),
            **self.step_s.row("step_s"),
            **self.speedup.row("speedup"),
        }

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a prediction in JSON."""
        return {
            **self.tokens_per_step.named_fields("tokens_per_step"),
            **self.step_s.named_fields("step_s"),
            **self.speedup.named_fields("speedup"),
        }


def predictions(observed: Sequence[Float64], drawn: Sequence[Float64]) -> list[Prediction]:
    """Return the prediction of each option.

    Args:
        observed: tokens per step, seconds of a step and speedups, (options,) each.
        drawn: draws of them, (draws, options) each.
    """
    columns = zip(*map(estimates, observed, drawn), strict=True)
    return [Prediction(tokens_per_step=tokens, step_s=seconds, speedup=speedup) for tokens, seconds, speedup in columns]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Option(ShortRepr):
    """A drafter with a tree or a setting of its own, and a rule, with the prediction for them."""

    _shown: ClassVar[tuple[str, ...]] = ("shape", "rule", "tokens_per_step", "step_s", "speedup")
    drafter: DrafterSetting = field(default=DRAFT_MODEL)
    tree: TokenTree
    """For a drafter that builds its own trees, a chain as long as its longest draft."""
    rule: str
    verify_tokens: int
    """Tokens of the verification pass: the tree's nodes, or more if a padded pass is faster."""
    prediction: Prediction

    @property
    def tokens_per_step(self) -> Estimate:
        return self.prediction.tokens_per_step

    @property
    def step_s(self) -> Estimate:
        return self.prediction.step_s

    @property
    def speedup(self) -> Estimate:
        return self.prediction.speedup

    @property
    def kind(self) -> str:
        """`plain`, `chain`, `tree`, or `setting` if the drafter builds its own trees."""
        return "setting" if self.drafter.builds_own_trees else kind_of(self.tree)

    @property
    def shape(self) -> str:
        """The tree or the drafter's parameters in words, with the size of its blocks."""
        shape = self.drafter.parameters_text if self.drafter.builds_own_trees else describe_tree(self.tree)
        block = self.drafter.block_draft_tokens
        return shape if block is None else f"{shape}, blocks of {block}"

    @property
    def max_nodes(self) -> int:
        """Nodes of the largest tree, root included."""
        return self.verify_tokens if self.drafter.builds_own_trees else self.tree.nodes

    @property
    def lossy(self) -> bool:
        """Whether the rule changes the output's distribution."""
        return self.rule in LOSSY_RULES

    @property
    def row(self) -> Row:
        """The columns of an option in tables."""
        return {"kind": self.kind, "nodes": self.tree.nodes, "depth": self.tree.max_depth, **self.prediction.columns}

    def to_dict(self) -> dict[str, Any]:
        """Return the tree and its prediction as JSON values."""
        return {
            "nodes": self.tree.nodes,
            "depth": self.tree.max_depth,
            "verify_tokens": self.verify_tokens,
            **self.prediction.fields,
            "parents": self.tree.parents.tolist(),
        }


OBJECTIVES: dict[str, Callable[[Option], float]] = {
    "speed": attrgetter("speedup.value"),
    "tokens": attrgetter("tokens_per_step.value"),
}
"""The number that each objective maximizes."""
