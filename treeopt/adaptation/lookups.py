"""Prompt lookup beside the draft model's trees: what each setting that was measured comes to along the text, and takes.

    step_s = what a step takes beside the target's pass, as measured
             + verify_s[1 + length] where there is something to draft, verify_s[1] where not

as `treeopt.planner.counted` has it, save that how often something is drafted is that of the text which is decoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log

from treeopt.adaptation.context_costs import ContextCosts
from treeopt.adaptation.rates import CHANGED, Rate, SettingRate
from treeopt.adaptation.times import ExpectedSeconds
from treeopt.adaptation.ways import LOOKUP, Rated, Way, shape_of
from treeopt.errors import InfeasibleError
from treeopt.planner.costs import StepCosts
from treeopt.planner.counted import mean_pass_s
from treeopt.planner.curves import LEAST_S
from treeopt.planner.drafted import decoded_at, pass_costs, relative_steps
from treeopt.records.measured_drafter import CountedDecodes, CountedSetting
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.lookup_replay import LookupReplay
from treeopt.trees.own_trees import PROMPT_LOOKUP_SETTINGS, PromptLookupSetting

LEAST_TOKENS = 64
"""Walked along before a setting is changed to."""
LEAST_WALKED = 32
"""Tokens that are worth a walk."""
MOVED = 0.1
"""Change of the fastest setting's tokens per second, as a logarithm, that matters."""
NEAR = 0.95
"""Of the speed of what is in use, the share from which on a setting may come to be faster."""
TIME_NOISE = 0.02
"""Standard error of what its steps take, as a logarithm: few texts were timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLookup:
    """One setting as a profile holds it."""

    setting: PromptLookupSetting
    tokens_per_step: float
    step_s: float
    beside_s: float
    """Of it, beside the target's pass."""

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens_per_step / self.step_s


def measured_lookups(
    profile: Profile, costs: ContextCosts, sampling: Sampling, max_nodes: int
) -> tuple[MeasuredLookup, ...]:
    """Return the settings that were measured with single texts sampled alike, and whose passes were timed.

    Of several context lengths that nearest to the one planned for counts: what is accepted is walked along anyway.

    Args:
        profile: what was measured.
        costs: of the target's passes.
        sampling: of the target.
        max_nodes: of the largest pass.
    """
    drafters = [each for each in profile.drafters if each.name == LOOKUP]
    found = drafters[0].decodes_at(sampling.temperature) if drafters and costs.batch_size == 1 else ()
    fitting = [each for each in found if each.sampling == sampling]
    if not fitting:
        return ()
    decodes = min(fitting, key=lambda each: abs(each.context_tokens - costs.rounded(None)))
    at = pass_costs(decoded_at(profile, sampling.temperature, decodes.context_tokens))
    most = min(max_nodes, costs.max_nodes, at.max_nodes)
    return tuple(_measured(each, decodes, at) for each in decodes.settings if each.max_tokens <= most)


def lookups_of_each_length(
    measured: Sequence[MeasuredLookup], most_nodes: int, first: PromptLookupSetting | None = None
) -> tuple[MeasuredLookup, ...]:
    """Return for every usual length of drafts one setting, and what drafts at first.

    Of a length that was measured it is the fastest: with other n-grams nearly the same is found, and walking along with
    each takes time.  Of others, which did not pay where it was measured, it is the fastest of all with that length: what
    it comes to is walked along, and beside the target's pass its steps do what the others' do.

    Args:
        measured: the settings.
        most_nodes: of the largest pass.
        first: what drafts at first.
    """
    by_speed = sorted(measured, key=lambda each: each.speed)
    found = {each.setting.length: each for each in by_speed}
    for length in sorted({each.length for each in PROMPT_LOOKUP_SETTINGS}) if measured else ():
        setting = replace(by_speed[-1].setting, length=length)
        if length not in found and setting.max_nodes <= most_nodes:
            found[length] = replace(by_speed[-1], setting=setting)
    return (*found.values(), *(each for each in measured if each.setting == first and each not in found.values()))


def _measured(each: CountedSetting, decodes: CountedDecodes, at: StepCosts) -> MeasuredLookup:
    relative = float(relative_steps(decodes.plain, [each.decoded])[0])
    beside_s = float(at.plain_s[0]) * relative - float(mean_pass_s(each, at))
    return MeasuredLookup(
        setting=PromptLookupSetting(**{value.name: value.value for value in each.values}),
        tokens_per_step=each.tokens_per_step,
        step_s=beside_s + float(mean_pass_s(each.replayed or each, at)),
        beside_s=beside_s,
    )


class Lookups:
    """Some settings of prompt lookup, walked along the text that is decoded.

    Args:
        measured: the settings.
        costs: of the target's passes.
    """

    def __init__(self, measured: Sequence[MeasuredLookup], costs: ContextCosts) -> None:
        self._costs = costs
        self.measured = {each.setting: each for each in measured}
        self._replay = LookupReplay(list(self.measured))
        self._walked: dict[Way, SettingRate] = {
            setting: SettingRate(self.measured[setting].tokens_per_step) for setting in self._replay.settings
        }
        self._solved_speed = 0.0
        """Tokens per second of the fastest setting when it was solved last."""

    def check(self, setting: PromptLookupSetting) -> None:
        """Raise InfeasibleError for a setting that is none of them."""
        if setting not in self.measured:
            raise InfeasibleError(
                f"{shape_of(setting)}: nothing was measured of it that suits re-calibration of single texts sampled so. "
                "Profile with --drafter prompt-lookup, and decode with --batch-size 1."
            )

    @property
    def waiting(self) -> bool:
        """Whether there is so much new text that it is worth a walk."""
        return bool(self.measured) and self._replay.waiting >= LEAST_WALKED

    def note(self, text: int, before: Sequence[int], tokens: Sequence[int]) -> None:
        """Remember a step that committed some tokens behind a text."""
        if self.measured:
            self._replay.note(text, before, tokens)

    def walk(self) -> None:
        """Count what every setting would have come to in the text that is new."""
        for setting, found in zip(self._replay.settings, self._replay.walk(), strict=True):
            if found.steps:
                self._walked[setting].add(found)

    def end_text(self) -> None:
        """Have the next step be of another text."""
        for each in self._walked.values():
            each.end_text()

    def end_stretch(self) -> str | None:
        """Count this text, or so much of it, among all, and return in words what changed for good, None where nothing did."""
        off = {setting: each.end_stretch() for setting, each in self._walked.items()}
        farthest = max(off, key=lambda setting: abs(off[setting]), default=None)
        if farthest is None or abs(off[farthest]) <= CHANGED:
            return None
        return f"{self._walked[farthest].all_texts.tokens_per_step:.2f} tokens a step with {shape_of(farthest)}"

    def forget(self) -> None:
        """Have what was walked along before say nothing of what comes."""
        for each in self._walked.values():
            each.forget()

    def in_all_texts(self, context_tokens: int | None) -> list[Rated]:
        """Return what each setting comes to at a context over all texts."""
        return [
            self._rated(each, self._walked[each.setting].all_texts, context_tokens) for each in self.measured.values()
        ]

    def in_this_text(self, context_tokens: int | None) -> list[Rated]:
        """Return what each setting comes to at a context in this text."""
        return [
            self._rated(each, self._walked[each.setting].this_text, context_tokens) for each in self.measured.values()
        ]

    def known(self, setting: Way) -> bool:
        """Return whether so much was walked along that a setting may be changed to."""
        return self._walked[setting].walked >= LEAST_TOKENS

    def expected(self, setting: PromptLookupSetting, context_tokens: int | None) -> ExpectedSeconds:
        """Return what a step with a setting is expected to take."""
        rate = self._walked[setting].this_text
        return ExpectedSeconds(0.0, self._rated(self.measured[setting], rate, context_tokens).step_s)

    def solved(self, context_tokens: int | None) -> None:
        """Note what was solved with, to notice what differs from it."""
        self._solved_speed = max((each.speed for each in self.in_this_text(context_tokens)), default=0.0)

    def moved(self, context_tokens: int | None, speed: float) -> str | None:
        """Return in words how the fastest setting differs from when it was solved, None where that does not matter.

        Args:
            context_tokens: tokens in the cache.
            speed: tokens per second of the tree in use; 0 where a setting is in use, of which every move matters.
        """
        known = [each for each in self.in_this_text(context_tokens) if self.known(each.way)]
        if not known:
            return None
        fastest = max(known, key=lambda each: each.speed)
        near = self._solved_speed >= speed or fastest.speed > NEAR * speed * exp(fastest.noise or 0.0)
        if not near or abs(log(fastest.speed / self._solved_speed)) < MOVED:
            return None
        return (
            f"text: {fastest.tokens_per_step:.2f} tokens a step along it with {shape_of(fastest.way)}, "
            f"{fastest.speed / self._solved_speed:.2f} times as fast as before"
        )

    def _rated(self, each: MeasuredLookup, rate: Rate, context_tokens: int | None) -> Rated:
        plain_s, pass_s = self._costs.passes_s(context_tokens)[[1, each.setting.max_nodes]]
        return Rated(
            way=each.setting,
            tokens_per_step=rate.tokens_per_step,
            noise=hypot(rate.noise, TIME_NOISE),
            step_s=max(LEAST_S, float(each.beside_s + plain_s + rate.drafted * (pass_s - plain_s))),
        )
