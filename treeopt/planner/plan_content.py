"""All of a plan in plain numbers, texts and lists: what `Plan.to_dict` returns, and the greater part of `solve --json`."""

from dataclasses import dataclass, field

from treeopt.files.record_form import in_file
from treeopt.planner.draws import Confidence
from treeopt.planner.fastest import Fastest
from treeopt.planner.model import Candidate
from treeopt.planner.rule_choice import RuleChoice
from treeopt.planner.smoothing import Smoothing
from treeopt.records.latency import Estimate
from treeopt.solver.certificate import Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateReport:
    """One way to decode, and what is predicted of it."""

    nodes: int
    depth: int
    verify_tokens: int
    tokens_per_step: Estimate
    step_s: Estimate
    speedup: Estimate
    parents: list[int]

    @classmethod
    def of(cls, candidate: Candidate) -> "CandidateReport":
        """Return that of a candidate."""
        return cls(
            nodes=candidate.tree.nodes,
            depth=candidate.tree.max_depth,
            verify_tokens=candidate.verify_tokens,
            tokens_per_step=candidate.tokens_per_step,
            step_s=candidate.step_s,
            speedup=candidate.speedup,
            parents=candidate.tree.parents.tolist(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceReport:
    """What was chosen, with its kind."""

    kind: str
    candidate: CandidateReport = field(metadata=in_file(inline=True))

    @classmethod
    def of(cls, choice: Candidate) -> "ChoiceReport":
        """Return that of a candidate."""
        return cls(kind=choice.kind, candidate=CandidateReport.of(choice))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReport:
    """The best way to decode under one rule."""

    rule: str
    lossy: bool
    choice: ChoiceReport

    @classmethod
    def of(cls, best: RuleChoice) -> "RuleReport":
        """Return that of one rule."""
        return cls(rule=best.rule, lossy=best.lossy, choice=ChoiceReport.of(best.choice))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionReport:
    """What was planned for."""

    rule: str
    lossy: bool
    temperature: float
    context_tokens: int
    batch_size: int
    extrapolated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginsReport:
    """Where the numbers of each part come from."""

    verify: str
    draft: str
    overhead: str
    acceptance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesReport:
    """The three kinds that are compared."""

    plain: CandidateReport
    chain: CandidateReport
    tree: CandidateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateReport:
    """Why no tree has more tokens, and the bound on the speed of every tree."""

    method: str
    compared: int
    ruled_out: int
    statement: str
    fastest_speedup: float
    bound_on_speedup: float
    loss: float

    @classmethod
    def of(cls, certificate: Certificate, fastest: Fastest) -> "CertificateReport":
        """Return that of a solution's certificate and the bound on the fastest tree."""
        return cls(
            method=certificate.method,
            compared=certificate.compared,
            ruled_out=certificate.ruled_out,
            statement=certificate.statement,
            fastest_speedup=fastest.speedup,
            bound_on_speedup=fastest.bound,
            loss=fastest.loss,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothingReport:
    """What was done to the acceptance as measured."""

    changed: int
    largest_change: float
    kept: int

    @classmethod
    def of(cls, smoothing: Smoothing) -> "SmoothingReport":
        """Return that of what smoothing did."""
        return cls(changed=smoothing.changed, largest_change=smoothing.largest_change, kept=smoothing.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContent:
    """A plan; docs/planning.md lists the keys."""

    condition: ConditionReport = field(metadata=in_file(inline=True))
    origins: OriginsReport
    objective: str
    max_nodes: int
    max_depth: int
    choice: str
    rules: tuple[RuleReport, ...]
    candidates: CandidatesReport
    budgets: tuple[CandidateReport, ...]
    certificate: CertificateReport
    confidence: Confidence
    smoothing: SmoothingReport | None
