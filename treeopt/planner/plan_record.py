"""A plan: what to run, beside what it was chosen from, and why."""

from dataclasses import dataclass
from typing import Any, ClassVar

from treeopt.array_record import ShortRepr
from treeopt.files.record_form import written_record
from treeopt.planner.fastest import Fastest
from treeopt.planner.memory import Memory
from treeopt.planner.model import Confidence, StepModel
from treeopt.planner.options import OBJECTIVES, Option
from treeopt.records.profile import origins
from treeopt.records.rules import LOSSY_RULES, rule_label
from treeopt.solver import Solution
from treeopt.tabular import Row, Tabular


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Plan(ShortRepr, Tabular):
    """What to run: under the best rule, the best of the best tree, the best chain and plain decoding, with all three."""

    _shown: ClassVar[tuple[str, ...]] = ("conditions", "choice")
    tree: Option
    """The best tree, over every budget and depth."""
    chain: Option
    """The best single sequence."""
    plain: Option
    """One token per pass."""
    budgets: tuple[Option, ...]
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
    memory: Memory | None = None
    """What trees have to fit in; None for no limit."""
    rules: tuple[Option, ...] = ()
    """The best option of every rule that was planned, in the order measured; the plan is that of the best of them."""

    @property
    def candidates(self) -> dict[str, Option]:
        """The options that are compared, by name, the simplest first."""
        return {"plain": self.plain, "chain": self.chain, "tree": self.tree}

    @property
    def choice_name(self) -> str:
        """`plain`, `chain` or `tree`: which candidate is the best; in a tie the simplest."""
        merit = OBJECTIVES[self.objective]
        return max(self.candidates, key=lambda name: merit(self.candidates[name]))

    @property
    def choice(self) -> Option:
        """The best candidate."""
        return self.candidates[self.choice_name]

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
        return self.model.point.context_tokens

    @property
    def extrapolated(self) -> bool:
        """Whether the conditions, or some of the budgets, lie outside what was measured."""
        return self.model.point.extrapolated or self.solution.max_nodes > self.model.point.max_nodes

    @property
    def conditions(self) -> str:
        """The conditions planned for, in words."""
        where = self.model.point
        batch = f", batch of {where.batch_size}" if where.batch_size > 1 else ""
        beyond = " (extrapolated)" if self.extrapolated else ""
        return (
            f"{rule_label(self.rule)} at temperature {self.temperature:g}, "
            f"{where.context_tokens} tokens of context{batch}{beyond}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON takes it, with the keys of `treeopt solve --json` (docs/guides/plan.md)."""
        model, solution, certificate = self.model, self.solution, self.solution.certificate
        smoothing = model.smoothing
        return {
            "rule": self.rule,
            "lossy": self.lossy,
            "temperature": self.temperature,
            "context_tokens": self.context_tokens,
            "batch_size": model.point.batch_size,
            "extrapolated": self.extrapolated,
            "origins": origins(model.point.latencies, model.acceptance),
            "objective": self.objective,
            "max_nodes": solution.max_nodes,
            "max_depth": solution.max_depth,
            "choice": self.choice_name,
            "rules": [
                {"rule": each.rule, "lossy": each.lossy, "choice": {"kind": each.kind, **each.to_dict()}}
                for each in self.rules
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
            "confidence": written_record(self.confidence),
            "memory": self.memory
            and {
                **written_record(self.memory),
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
        best = self.choice
        return [
            {"candidate": name, "chosen": each is best, **each.row}
            for name, each in (*self.candidates.items(), *(("budget", each) for each in self.budgets))
        ]
