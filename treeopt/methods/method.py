"""A method of speculative decoding with its fastest setting, and the inputs that it is planned from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from treeopt.methods.build import build_decoder
from treeopt.planner import Option, Plan, PlanRequest, StepModel, requested_plan, step_model
from treeopt.profiler.decoding import Decoding
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.runtime.models.pair import ModelPair
from treeopt.trees import TreeFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method with its fastest setting."""

    name: str
    """In the table: `plain`, `chain`, `medusa`, …"""
    option: Option
    """With its prediction; at temperature 0 all rules are equivalent."""
    build: Callable[[], Decoder]
    model: StepModel | None = None
    """Predicts the step from passes; None if passes were not timed separately."""
    assumed: tuple[str, ...] = ()
    """Assumptions of the prediction that were not measured."""
    chosen: str | None = None
    """Name of the method that `treeopt` selected."""

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
    """Token ids of the prompts for measuring drafters; benchmarks use others."""
    positions: int
    """New tokens per prompt for measuring drafters."""
    rounds: int
    """Samples of each time of drafters."""

    @property
    def request(self) -> PlanRequest:
        return PlanRequest(temperature=self.sampling.temperature)

    @cached_property
    def plan(self) -> Plan:
        """Of the draft model, under the best rule."""
        return requested_plan(self.profile, self.request)

    def step_model(self, rule: str | None = None) -> StepModel:
        """Return the step model of a rule, by default of the first measured; at temperature 0 all rules are equivalent.

        Raises InfeasibleError without a draft model if `rule` is not None, and above temperature 0 for an unmeasured rule.
        """
        if rule is not None:
            _ = self.pair.draft_model  # raises without a draft model
        temperature = self.sampling.temperature
        measured = self.profile.acceptances_of(rule=rule, temperature=temperature)
        rule = None if self.sampling.greedy and not measured else rule
        return step_model(self.profile, PlanRequest(rule=rule, temperature=temperature))

    def build_method(
        self,
        name: str,
        option: Option,
        *,
        model: StepModel | None,
        loaded: LoadedDrafter | None = None,
    ) -> Method:
        """Return an option as a method."""
        planned = TreeFile(tree=option.tree, drafter=option.drafter)
        decoding = Decoding(rule=option.rule, sampling=self.sampling)
        build = partial(build_decoder, self.pair, planned, decoding, loaded=loaded)
        return Method(name=name, option=option, build=build, model=model)
