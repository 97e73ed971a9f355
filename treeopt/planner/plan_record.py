"""A plan: what to run, beside what it was chosen from, and why."""

from dataclasses import dataclass
from typing import Any, ClassVar

from treeopt.array_record import ShortRepr
from treeopt.files.record_form import written_record
from treeopt.planner.draws import Confidence
from treeopt.planner.fastest import Fastest
from treeopt.planner.model import Candidate, StepModel
from treeopt.planner.plan_content import (
    CandidateReport,
    CandidatesReport,
    CertificateReport,
    ConditionReport,
    OriginsReport,
    PlanContent,
    RuleReport,
    SmoothingReport,
)
from treeopt.planner.request import OBJECTIVES
from treeopt.planner.rule_choice import RuleChoice
from treeopt.records.profile import origins
from treeopt.records.rules import LOSSY_RULES, rule_label
from treeopt.solver import Solution
from treeopt.tabular import Row, Tabular


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Plan(ShortRepr, Tabular):
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
        return max((self.plain, self.chain, self.tree), key=OBJECTIVES[self.objective])

    @property
    def merit(self) -> float:
        """What the objective asks for: the choice's speedup, or its tokens per step."""
        return OBJECTIVES[self.objective](self.choice)

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

    @property
    def content(self) -> PlanContent:
        """All of it in plain numbers, texts and lists."""
        model, solution = self.model, self.solution
        one = CandidateReport.of
        return PlanContent(
            condition=self._condition,
            origins=OriginsReport(**origins([latency for _, latency in model.condition.parts], model.acceptance)),
            objective=self.objective,
            max_nodes=solution.max_nodes,
            max_depth=solution.max_depth,
            choice=self.choice.kind,
            rules=tuple(map(RuleReport.of, self.rules)),
            candidates=CandidatesReport(plain=one(self.plain), chain=one(self.chain), tree=one(self.tree)),
            budgets=tuple(map(one, self.budgets)),
            certificate=CertificateReport.of(solution.certificate, self.fastest),
            confidence=self.confidence,
            smoothing=None if model.smoothing is None else SmoothingReport.of(model.smoothing),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON takes it, with the keys of `treeopt solve --json` (docs/planning.md)."""
        return written_record(self.content, nulls=True)

    def to_records(self) -> list[Row]:
        """Return a row for plain decoding, the best chain and the best tree, and for every budget."""
        best = self.choice
        three = ((each.kind, each) for each in (self.plain, self.chain, self.tree))
        return [
            {"candidate": name, "chosen": each is best, **each.row}
            for name, each in (*three, *(("budget", each) for each in self.budgets))
        ]

    @property
    def _condition(self) -> ConditionReport:
        return ConditionReport(
            rule=self.rule,
            lossy=self.lossy,
            temperature=self.temperature,
            context_tokens=self.context_tokens,
            batch_size=self.model.condition.batch_size,
            extrapolated=self.extrapolated,
        )
