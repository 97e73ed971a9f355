"""Prompt lookup as a candidate: its steps are replayed along the committed text, whatever really drafted it.

    step_s = overhead of lookup steps in the profile + verify_s[1] + drafted * (verify_s[1 + length] - verify_s[1])

`drafted` is the share of the steps in which the last tokens occurred before, so that there is something to draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treeopt.adaptation.candidates import ContextCosts
from treeopt.adaptation.strategy import LOOKUP, PredictedRate, Strategy, shape_of
from treeopt.errors import InfeasibleError
from treeopt.planner.curves import LEAST_S
from treeopt.planner.drafter_costs import decoded_at, mean_pass_s, pass_costs, relative_steps
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.lookup_replay import LookupReplay, Walked
from treeopt.trees.own_trees import PROMPT_LOOKUP_SETTINGS, PromptLookupSetting

HALF_LIFE_TOKENS = 128
PROFILE_TOKENS = 64.0
"""Tokens that the profile counts for in the average."""
LEAST_TOKENS = 64
"""Replayed tokens before lookup is a candidate."""
LEAST_REPLAYED = 32
"""New tokens that are worth a replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLookup:
    """One setting as a profile contains it."""

    setting: PromptLookupSetting
    tokens_per_step: float
    step_s: float
    overhead_s: float
    """Of `step_s`, outside the target's pass."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens_per_step / self.step_s


def measured_lookups(
    profile: Profile, costs: ContextCosts, sampling: Sampling, max_nodes: int
) -> tuple[MeasuredLookup, ...]:
    """Return the settings that were measured with single sequences and this sampling, at the nearest context."""
    drafters = [each for each in profile.drafters if each.name == LOOKUP]
    decodes = drafters[0].decodes_at(sampling.temperature) if drafters and costs.batch_size == 1 else ()
    fitting = [each for each in decodes if each.sampling == sampling]
    if not fitting:
        return ()
    nearest = min(fitting, key=lambda each: abs(each.context_tokens - costs.planned))
    passes = pass_costs(decoded_at(profile, sampling, nearest.context_tokens))
    lookups = []
    for each in nearest.settings:
        if each.max_tokens <= min(max_nodes, costs.max_nodes, passes.max_nodes):
            relative = float(relative_steps(nearest.plain, [each.decoded])[0])
            overhead_s = float(passes.plain_s[0]) * relative - float(mean_pass_s(each, passes))
            lookups.append(
                MeasuredLookup(
                    setting=PromptLookupSetting(**{value.name: value.value for value in each.values}),
                    tokens_per_step=each.tokens_per_step,
                    step_s=overhead_s + float(mean_pass_s(each.replayed or each, passes)),
                    overhead_s=overhead_s,
                )
            )
    return tuple(lookups)


def one_of_each_length(
    measured: Sequence[MeasuredLookup], max_nodes: int, first: PromptLookupSetting | None = None
) -> tuple[MeasuredLookup, ...]:
    """Return the fastest setting of each usual draft length, and the one in use.

    Other n-grams find nearly the same drafts.  A length that was not measured takes n-gram and overhead of the fastest.
    """
    by_speed = sorted(measured, key=lambda each: each.tokens_per_s)
    lookups = {each.setting.length: each for each in by_speed}
    for length in sorted({each.length for each in PROMPT_LOOKUP_SETTINGS}) if measured else ():
        setting = replace(by_speed[-1].setting, length=length)
        if length not in lookups and setting.max_nodes <= max_nodes:
            lookups[length] = replace(by_speed[-1], setting=setting)
    return (*lookups.values(), *(each for each in measured if each.setting == first and each not in lookups.values()))


class LookupAverage:
    """Exponential average of tokens and drafts per step of one setting."""

    def __init__(self, measured: MeasuredLookup) -> None:
        self.measured = measured
        self.forget()

    def forget(self) -> None:
        self.replayed = 0
        """Tokens since the start."""
        self.tokens = PROFILE_TOKENS
        self.steps = self.drafted = PROFILE_TOKENS / self.measured.tokens_per_step

    def add(self, walked: Walked) -> None:
        keep = 0.5 ** (walked.tokens / HALF_LIFE_TOKENS)
        self.replayed += walked.tokens
        before = self.tokens, self.steps, self.drafted
        self.tokens, self.steps, self.drafted = (keep * old + new for old, new in zip(before, walked, strict=True))


class Lookups:
    """The settings of prompt lookup, replayed along the sequence that is decoded."""

    def __init__(self, measured: Sequence[MeasuredLookup], costs: ContextCosts) -> None:
        self._costs = costs
        self._replay = LookupReplay([each.setting for each in measured])
        self._averages = {each.setting: LookupAverage(each) for each in measured}

    def check(self, setting: PromptLookupSetting) -> None:
        """Raise InfeasibleError for a setting that was not measured."""
        if setting not in self._averages:
            raise InfeasibleError(
                f"{shape_of(setting)}: the profile has no measurement of it for single sequences with this sampling. "
                "Profile with --drafter prompt-lookup, and decode with --batch-size 1."
            )

    def note(self, text: int, before: Sequence[int], tokens: Sequence[int]) -> None:
        if self._averages:
            self._replay.note(text, before, tokens)

    def replay(self) -> None:
        """Count what each setting would have drafted along the new tokens, once there are enough of them."""
        if not self._averages or self._replay.waiting < LEAST_REPLAYED:
            return
        for setting, walked in zip(self._replay.settings, self._replay.walk(), strict=True):
            if walked.steps:
                self._averages[setting].add(walked)

    def forget(self) -> None:
        for each in self._averages.values():
            each.forget()

    def predict(self, context: int, current: Strategy) -> list[PredictedRate]:
        """Return the predictions for the settings replayed long enough, and for the one in use."""
        return [
            self.prediction(setting, context)
            for setting, average in self._averages.items()
            if setting == current or average.replayed >= LEAST_TOKENS
        ]

    def prediction(self, setting: PromptLookupSetting, context: int) -> PredictedRate:
        average = self._averages[setting]
        plain_s, pass_s = self._costs.pass_s(context)[[1, setting.max_nodes]]
        step_s = average.measured.overhead_s + plain_s + average.drafted / average.steps * (pass_s - plain_s)
        return PredictedRate(setting, average.tokens / average.steps, max(LEAST_S, float(step_s)))
