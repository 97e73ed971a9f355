"""Prompt lookup as a candidate: its steps are replayed along the decoded sequence, whatever drafted it.

    step_s = overhead of lookup steps in the profile + verify_s[1] + drafted * (verify_s[1 + length] - verify_s[1])

`drafted` is the fraction of the steps in which the last tokens occurred before, so that there is a draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treeopt.adaptation.candidates import ContextCosts
from treeopt.adaptation.strategy import LOOKUP, PredictedRate, Strategy, describe_strategy
from treeopt.errors import InfeasibleError
from treeopt.planner.curves import MIN_S
from treeopt.planner.drafter_costs import mean_pass_s, pass_costs, point_of_decoding, predict_settings
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.lookup_replay import LookupReplay, ReplayedSteps
from treeopt.trees.drafter_parameters import PROMPT_LOOKUP_SETTINGS, PromptLookupSetting

HALF_LIFE_TOKENS = 128
PROFILE_TOKENS = 64.0
"""Weight of the profile in the average, in tokens."""
MIN_TOKENS = 64
"""Replayed tokens before a setting is a candidate."""
MIN_REPLAYED = 32
"""Fewest new tokens per replay."""


@dataclass(eq=False, kw_only=True)
class Lookup:
    """One setting: its measurement in a profile, and the exponential average of its tokens and drafts per step."""

    setting: PromptLookupSetting
    tokens_per_step: float
    """In the profile, as the next two."""
    step_s: float
    overhead_s: float
    """The part of `step_s` outside the target's pass."""

    def __post_init__(self) -> None:
        self.forget()

    @property
    def tokens_per_s(self) -> float:
        """In the profile."""
        return self.tokens_per_step / self.step_s

    def forget(self) -> None:
        self.replayed = 0
        """Tokens since the start."""
        self.tokens = PROFILE_TOKENS
        self.steps = self.drafted = PROFILE_TOKENS / self.tokens_per_step

    def add(self, replayed: ReplayedSteps) -> None:
        keep = 0.5 ** (replayed.tokens / HALF_LIFE_TOKENS)
        self.replayed += replayed.tokens
        before = self.tokens, self.steps, self.drafted
        self.tokens, self.steps, self.drafted = (keep * old + new for old, new in zip(before, replayed, strict=True))


def measured_lookups(profile: Profile, costs: ContextCosts, sampling: Sampling, max_nodes: int) -> tuple[Lookup, ...]:
    """Return the settings that were measured with single sequences and this sampling, at the nearest context."""
    drafters = [drafter for drafter in profile.drafters if drafter.name == LOOKUP]
    decodes = drafters[0].decodes_at(sampling.temperature) if drafters and costs.batch_size == 1 else ()
    fitting = [item for item in decodes if item.sampling == sampling]
    if not fitting:
        return ()
    nearest = min(fitting, key=lambda item: abs(item.context_tokens - costs.planned))
    point = point_of_decoding(profile, sampling, nearest.context_tokens)
    options = predict_settings(profile, drafters[0], [nearest], point, max_nodes=min(max_nodes, costs.max_nodes))
    passes, measured = pass_costs(point), {item.values: item for item in nearest.settings}

    lookups = []
    for option, _ in options:
        setting, step_s = option.drafter.parameters, option.step_s.value
        assert isinstance(setting, PromptLookupSetting)  # those of prompt lookup
        pass_s = float(mean_pass_s(measured[option.drafter.values].sequences, passes))
        lookups.append(
            Lookup(
                setting=setting,
                tokens_per_step=option.tokens_per_step.value,
                step_s=step_s,
                overhead_s=step_s - pass_s,
            )
        )
    return tuple(lookups)


def one_of_each_length(
    measured: Sequence[Lookup], max_nodes: int, first: PromptLookupSetting | None = None
) -> tuple[Lookup, ...]:
    """Return the fastest setting of each default draft length, and the one in use.

    Other n-grams find nearly the same drafts.  Lengths that were not measured take n-gram and overhead of the fastest.
    """
    by_speed = sorted(measured, key=lambda lookup: lookup.tokens_per_s)
    lookups = {lookup.setting.length: lookup for lookup in by_speed}
    for length in sorted({setting.length for setting in PROMPT_LOOKUP_SETTINGS}) if measured else ():
        setting = replace(by_speed[-1].setting, length=length)
        if length not in lookups and setting.max_nodes <= max_nodes:
            lookups[length] = replace(by_speed[-1], setting=setting)
    in_use = [lookup for lookup in measured if lookup.setting == first and lookup not in lookups.values()]
    return (*lookups.values(), *in_use)


class Lookups:
    """The settings of prompt lookup, replayed along the decoded sequence."""

    def __init__(self, measured: Sequence[Lookup], costs: ContextCosts) -> None:
        self._costs = costs
        self._replay = LookupReplay([lookup.setting for lookup in measured])
        self._averages = {lookup.setting: lookup for lookup in measured}

    def check(self, setting: PromptLookupSetting) -> None:
        """Raise InfeasibleError for a setting that was not measured."""
        if setting not in self._averages:
            raise InfeasibleError(
                f"{describe_strategy(setting)}: the profile has no measurement of it for single sequences with this sampling. "
                "Profile with --drafter prompt-lookup, and decode with --batch-size 1."
            )

    def add(self, sequence: int, before: Sequence[int], tokens: Sequence[int]) -> None:
        """Add the committed tokens of a step after the tokens before it."""
        if self._averages:
            self._replay.add(sequence, before, tokens)

    def replay(self) -> None:
        """Count what each setting would have drafted along the new tokens, if there are enough of them."""
        if not self._averages or self._replay.pending_tokens < MIN_REPLAYED:
            return
        for setting, replayed in zip(self._replay.settings, self._replay.replay(), strict=True):
            if replayed.steps:
                self._averages[setting].add(replayed)

    def forget(self) -> None:
        for average in self._averages.values():
            average.forget()

    def predict(self, context: int, current: Strategy) -> list[PredictedRate]:
        """Return the predictions for the settings with enough replayed tokens, and for the one in use."""
        return [
            self.prediction(setting, context)
            for setting, average in self._averages.items()
            if setting == current or average.replayed >= MIN_TOKENS
        ]

    def prediction(self, setting: PromptLookupSetting, context: int) -> PredictedRate:
        average = self._averages[setting]
        plain_s, pass_s = self._costs.pass_s(context)[[1, setting.max_nodes]]
        step_s = average.overhead_s + plain_s + average.drafted / average.steps * (pass_s - plain_s)
        return PredictedRate(setting, average.tokens / average.steps, max(MIN_S, float(step_s)))
