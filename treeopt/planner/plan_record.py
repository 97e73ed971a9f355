"""A plan: what to run, with the alternatives and the reasons."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from treeopt.array_record import ShortRepr
from treeopt.errors import Warning
from treeopt.files.serialization import serialize_record
from treeopt.planner.fastest import Fastest
from treeopt.planner.model import Confidence, StepModel, confidence
from treeopt.planner.options import OBJECTIVES, Option
from treeopt.planner.request import Memory
from treeopt.records.profile import trace_origins
from treeopt.records.rules import LOSSY_RULES, rule_label
from treeopt.solver import Solution
from treeopt.tabular import Row, Tabular
from treeopt.trees import TokenTree


@dataclass(frozen=True, repr=False, kw_only=True)
class Plan(ShortRepr, Tabular):
    """The best tree, the best chain and plain decoding under the best rule; the best of the three is the choice."""

    _shown: ClassVar[tuple[str, ...]] = ("conditions", "choice")
    tree: Option
    """The best tree of all budgets and depths."""
    chain: Option
    plain: Option
    """One token per pass."""
    budgets: tuple[Option, ...]
    """For 2, 4, 8, … nodes: the fastest of the trees with the most tokens that have exactly that size."""
    objective: str
    """`speed`, or `tokens` per step."""
    fastest: Fastest
    """The tree with the largest speedup by the acceptance table alone, and a bound on all others."""
    rivals: tuple[TokenTree, ...]
    """The fastest trees by the acceptance table, in the order of their predicted speedups."""
    model: StepModel
    solution: Solution
    memory: Memory | None = None
    """That trees have to fit in; None for no limit."""
    rules: tuple[Option, ...] = ()
    """The best option of every rule that was planned, in the order measured; the plan is for the best of them."""
    warnings: tuple[Warning, ...] = ()
    """About a request that exceeds what was measured."""

    @cached_property
    def confidence(self) -> Confidence:
        """In the fastest of `rivals`."""
        return confidence(self.model, self.rivals)

    @property
    def candidates(self) -> dict[str, Option]:
        """The options by name, the simplest first."""
        return {"plain": self.plain, "chain": self.chain, "tree": self.tree}

    @property
    def choice_name(self) -> str:
        """The name of the best candidate, in a tie of the simplest."""
        merit = OBJECTIVES[self.objective]
        return max(self.candidates, key=lambda name: merit(self.candidates[name]))

    @property
    def choice(self) -> Option:
        """The best candidate."""
        return self.candidates[self.choice_name]

    @property
    def rule(self) -> str:
        return self.model.acceptance.rule

    @property
    def lossy(self) -> bool:
        """Whether the rule changes the output's distribution."""
        return self.rule in LOSSY_RULES

    @property
    def temperature(self) -> float:
        return self.model.acceptance.temperature

    @property
    def context_tokens(self) -> int:
        return self.model.point.context_tokens

    @property
    def extrapolated(self) -> bool:
        """Whether the operating point, or some of the budgets, lie outside what was measured."""
        return self.model.point.extrapolated or self.solution.max_nodes > self.model.point.max_nodes

    @property
    def conditions(self) -> str:
        """Rule, temperature, context and batch size in words."""
        point = self.model.point
        batch = f", batch of {point.batch_size}" if point.batch_size > 1 else ""
        extrapolated = " (extrapolated)" if self.extrapolated else ""
        return (
            f"{rule_label(self.rule)} at temperature {self.temperature:g}, "
            f"{point.context_tokens} tokens of context{batch}{extrapolated}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values, with the keys of `treeopt solve --json` (docs/guides/plan.md)."""
        model, solution, certificate = self.model, self.solution, self.solution.certificate
        smoothing = model.tokens.smoothing
        return {
            "rule": self.rule,
            "lossy": self.lossy,
            "temperature": self.temperature,
            "context_tokens": self.context_tokens,
            "batch_size": model.point.batch_size,
            "extrapolated": self.extrapolated,
            "origins": trace_origins(model.point.latencies, model.acceptance),
            "objective": self.objective,
            "max_nodes": solution.max_nodes,
            "max_depth": solution.max_depth,
            "choice": self.choice_name,
            "rules": [
                {"rule": option.rule, "lossy": option.lossy, "choice": {"kind": option.kind, **option.to_dict()}}
                for option in self.rules
            ],
            "candidates": {name: option.to_dict() for name, option in self.candidates.items()},
            "budgets": [option.to_dict() for option in self.budgets],
            "certificate": {
                "method": certificate.method,
                "compared": certificate.compared,
                "ruled_out": certificate.ruled_out,
                "statement": certificate.statement,
                "fastest_speedup": self.fastest.speedup,
                "bound_on_speedup": self.fastest.bound,
                "loss": self.fastest.loss,
            },
            "confidence": self.confidence.to_dict(),
            "memory": self.memory
            and {
                **serialize_record(self.memory),
                "sequences": self.memory.sequences(self.context_tokens, self.choice.tree.nodes),
                "sequences_plain": self.memory.sequences(self.context_tokens),
            },
            "smoothing": smoothing
            and {
                "changed": smoothing.changed,
                "largest_change": smoothing.largest_change,
                "kept": smoothing.kept,
            },
        }

    def to_records(self) -> list[Row]:
        """Return a row for plain decoding, the best chain and the best tree, and for every budget."""
        budgets = [("budget", option) for option in self.budgets]
        return [
            {"candidate": name, "chosen": option is self.choice, **option.row}
            for name, option in (*self.candidates.items(), *budgets)
        ]
