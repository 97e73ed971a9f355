"""A method: one way to decode, set as well as its measurements allow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treeopt.planner import StepModel, step_model
from treeopt.records.latency import Estimate
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.models.pair import ModelPair
from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to decode."""

    name: str
    """As in the table: `plain`, `chain`, `medusa`, …"""
    rule: str
    """Verification rule; at temperature 0 all are one."""
    setting: str
    """The tree or the budget, in words."""
    predicted: Estimate
    """Tokens per second over those of plain decoding."""
    make: Callable[[int], Decoder]
    """From a seed to the decoder."""
    assumed: tuple[str, ...] = ()
    """What the prediction rests on beside measurements, a sentence each."""
    model: StepModel | None = None
    """Predicts it from passes; None where they were not timed apart from the rest of a step."""
    tree: TokenTree | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What methods are planned from, at one temperature."""

    pair: ModelPair
    profile: Profile
    sampling: Sampling
    prompts: Sequence[Sequence[int]]
    """Token ids of the prompts that may be measured on; benchmarks take others."""
    positions: int
    """New tokens of a text that a drafter is measured on."""

    def model(self, rule: str | None = None) -> StepModel:
        """Return the step model of a rule, by default of the first measured; at temperature 0 all rules are one.

        Raises InfeasibleError for a rule without a draft model, and one that was not measured at a temperature above 0.
        """
        if rule is not None:
            _ = self.pair.draft_model  # refuse now what no draft model can fill
        temperature = self.sampling.temperature
        known = self.profile.acceptances_of(rule=rule, temperature=temperature)
        return step_model(
            self.profile, rule=None if self.sampling.greedy and not known else rule, temperature=temperature
        )
