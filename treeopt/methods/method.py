"""A method: one way to decode, set as well as its measurements allow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from treeopt.methods.make_drafter import planned_decoder
from treeopt.planner import Option, Plan, PlanRequest, StepModel, requested_plan, step_model
from treeopt.profiler.decoding import Decoding
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.loaded import LoadedDrafter
from treeopt.runtime.models.pair import ModelPair
from treeopt.trees import TreeFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to decode."""

    name: str
    """As in the table: `plain`, `chain`, `medusa`, …"""
    option: Option
    """What decodes, with its prediction; at temperature 0 all its rules are one."""
    make: Callable[[], Decoder]
    model: StepModel | None = None
    """Predicts it from passes; None if they were not timed apart from the host overhead."""
    assumed: tuple[str, ...] = ()
    """What the prediction rests on besides measurements, a sentence each."""
    chosen: str | None = None
    """Name of the method that `treeopt` chose."""

    @property
    def setting(self) -> str:
        """The tree or the drafter's parameters in words."""
        return self.option.shape if self.chosen is None else f"{self.chosen}: {self.option.shape}"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What methods are planned from, at one temperature."""

    pair: ModelPair
    profile: Profile
    sampling: Sampling
    prompts: Sequence[Sequence[int]]
    """Token ids of the prompts that may be measured on; benchmarks take others."""
    positions: int
    """New tokens of each prompt that a drafter is measured on."""

    @property
    def request(self) -> PlanRequest:
        return PlanRequest(temperature=self.sampling.temperature)

    @cached_property
    def plan(self) -> Plan:
        """That of the draft model, under the best rule."""
        return requested_plan(self.profile, self.request)

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

    def method(
        self,
        name: str,
        option: Option,
        *,
        model: StepModel | None = None,
        loaded: LoadedDrafter | None = None,
    ) -> Method:
        """Return an option as a method."""
        planned = TreeFile(tree=option.tree, drafter=option.drafter)
        decoding = Decoding(rule=option.rule, sampling=self.sampling)
        make = partial(planned_decoder, self.pair, planned, decoding, loaded=loaded)
        return Method(name=name, option=option, make=make, model=model)
