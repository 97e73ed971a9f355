"""Profiles of a subset of the measured sequences: those of one category of prompts, or the beginnings of all.

Times do not change: a pass takes as long in any sequence.  For sequences of N new tokens,

    P'[d, k] = P[d, k] * counted[d, k] in the first N positions of every sequence / counted[d, k] in all positions

because acceptance changes along a sequence: models repeat themselves in long outputs, which drafts predict well.  At
temperature 0, where P is what was counted, P' is what N positions of each sequence would have been profiled as.  Above
0, P is an expectation and accepted ranks are draws, whose ratio shows how acceptance changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from treeopt.arguments import check_integer
from treeopt.errors import InfeasibleError, InvalidValueError, Warning
from treeopt.planner.planning import select_acceptances
from treeopt.planner.request import PlanRequest
from treeopt.records.acceptance import SequenceSums
from treeopt.records.acceptance_counts import MIN_REACHED, combine_counts, scale_acceptance
from treeopt.records.accepted_ranks import AcceptedRanks, RootRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.measured_drafter import (
    MeasuredDrafter,
    MeasuredSetting,
    MeasuredSettings,
    MeasuredTrees,
    ReplayedSequences,
)
from treeopt.records.profile import Profile

MIN_SEQUENCES = 2
"""Sequences of a category: a single one has no spread, and so no interval."""


class _TooFewSequencesError(InfeasibleError):
    def __init__(self, category: str, expected: str, got: str) -> None:
        super().__init__(
            f"category {category}: expected {expected}. Got {got}: profile with more prompts of it, or a longer --time-budget."
        )


def for_sequences(profile: Profile, *, category: str | None, new_tokens: int | None) -> Profile:
    """Return the profile of the first `new_tokens` tokens of the sequences of one category; None stands for all.

    Raises as `for_category` and `for_new_tokens` do.
    """
    if new_tokens is not None:
        profile = for_new_tokens(profile, new_tokens)
    return profile if category is None else for_category(profile, category)


def for_category(profile: Profile, category: str) -> Profile:
    """Return the profile of the prompts of one category, for plans, schedules, exports and simulations.

    Depths that fewer than 20 positions of the category reached keep the acceptance of all prompts, so that trees may be
    as deep.  Drafters with fewer than two decoded sequences of the category are left out; the draft model then keeps its
    acceptance of all prompts, if other drafters remain.

    Raises InvalidValueError for an unknown category, InfeasibleError for a profile without categories and for too few
    sequences of the category.
    """
    categories = categories_of(profile)
    if not categories:
        raise InfeasibleError(
            "category: expected a profile of prompts that have a category. Got one without: give each prompt of a .jsonl "
            "file a category, and profile with --prompts.",
            field="category",
        )
    if category not in categories:
        raise InvalidValueError(
            f"category: expected one of {', '.join(categories)}. Got {category!r:.70}.", field="category"
        )
    restricted = [_drafter_of(drafter, category) for drafter in profile.drafters]
    drafters = tuple(drafter for drafter in restricted if drafter is not None)
    try:
        acceptances = tuple(_acceptance_of(acceptance, category) for acceptance in profile.acceptances)
    except _TooFewSequencesError:
        if not drafters:
            raise
        acceptances = profile.acceptances
    if not acceptances and not drafters:
        raise _TooFewSequencesError(category, f"{MIN_SEQUENCES} decoded sequences or more", "fewer")
    return replace(profile, acceptances=acceptances, drafters=drafters)


def categories_of(profile: Profile) -> tuple[str, ...]:
    """Return the categories of a profile's prompts, sorted; empty if no prompt has one."""
    return tuple(sorted({name for names in sequence_categories(profile) for name in names if name}))


def sequence_categories(profile: Profile) -> list[tuple[str, ...]]:
    """Return the categories of the sequences of each measurement."""
    trees = [trees.acceptance for drafter in profile.drafters for trees in drafter.trees]
    decodes = [decodes for drafter in profile.drafters for decodes in drafter.decodes]
    replayed = [setting.replayed for counted in decodes for setting in counted.settings if setting.replayed is not None]
    acceptances = [acceptance.categories for acceptance in (*profile.acceptances, *trees)]
    return acceptances + [counted.categories for counted in decodes] + [steps.categories for steps in replayed]


def left_out_drafters(profile: Profile, restricted: Profile) -> tuple[str, ...]:
    """Return the names of the drafters that `for_category` left out of a profile when it returned `restricted`."""
    labels = [drafter.label for drafter in restricted.drafters]
    return tuple(drafter.label for drafter in profile.drafters if drafter.label not in labels)


def left_out_warning(categories_by_drafter: Mapping[str, Sequence[str]]) -> Warning:
    parts = [f"{drafter} in {', '.join(categories)}" for drafter, categories in categories_by_drafter.items()]
    return Warning(
        f"not compared, for lack of prompts: {'; '.join(parts)}.",
        "Profile with more prompts of each category, or a longer --time-budget.",
    )


def for_new_tokens(profile: Profile, new_tokens: int) -> Profile:
    """Return the profile of sequences of `new_tokens` new tokens, as far as accepted ranks along sequences were kept.

    Acceptances that were measured by context length do not change, because they already depend on it; neither do those
    of whole sequences only, or with too few positions so close to the beginnings.

    Args:
        profile: what was measured.
        new_tokens: of each sequence, without the prompt; shorter measured sequences count whole.

    Raises InvalidValueError for less than one.
    """
    count = check_integer("new_tokens", new_tokens, 1)
    return replace(profile, acceptances=tuple(_beginnings(acceptance, count) for acceptance in profile.acceptances))


def check_new_tokens(profile: Profile, request: PlanRequest, new_tokens: int) -> Warning | None:
    """Return a warning if the measured sequences are shorter than `new_tokens`, else None.

    Raises InfeasibleError if a requested acceptance does not show how it changes along sequences.
    """
    measured = []
    for acceptance in select_acceptances(profile, request):
        what = f"new_tokens: acceptance of {acceptance.rule} at temperature {acceptance.temperature:g}"
        if acceptance.context_tokens is not None:
            raise InfeasibleError(
                f"{what} was measured by context length, which already includes how it changes. Use --context-tokens instead.",
                field="new_tokens",
            )
        if acceptance.accepted_ranks is None:
            raise InfeasibleError(
                f"{what} was measured for whole sequences only. Leave it out, or profile again.", field="new_tokens"
            )
        if acceptance.accepted_ranks.first(new_tokens).positions < MIN_REACHED:
            raise InfeasibleError(
                f"{what}: expected {MIN_REACHED:g} positions or more. Ask for more tokens.", field="new_tokens"
            )
        measured.append(acceptance.accepted_ranks)
    longest = min(max(map(len, ranks.ranks)) for ranks in measured)
    sequences = max(len(ranks.ranks) for ranks in measured)
    if longest >= new_tokens:
        return None
    return Warning(
        f"acceptance was measured up to token {longest} of a sequence, and may differ beyond it.",
        f"Profile with --positions {new_tokens * sequences}.",
    )


def _with_sums(acceptance: MeasuredAcceptance, sums: SequenceSums, **changes: Any) -> MeasuredAcceptance:
    return replace(
        acceptance,
        **changes,
        prompts=sums.prompts,
        positions=sums.positions,
        table=sums.table(),
        sequences=sums,
    )


def _beginnings(acceptance: MeasuredAcceptance, positions: int) -> MeasuredAcceptance:
    """Return the acceptance of the first positions of every sequence; depths with too few counts stay as measured."""
    all_ranks, all_sums, p = acceptance.accepted_ranks, acceptance.sequences, acceptance.table.p
    by_context = acceptance.context_tokens is not None
    if all_ranks is None or all_sums is None or by_context or max(map(len, all_ranks.ranks)) <= positions:
        return acceptance
    ranks, counted = all_ranks.first(positions), all_ranks.table(*p.shape).p
    if ranks.positions < MIN_REACHED:
        return acceptance
    sums = combine_counts(ranks.counts(*p.shape))
    depths = sums.reached.shape[1]
    gain = np.divide(p, counted, out=np.full(p.shape, np.nan), where=counted > 0)
    sums = scale_acceptance(sums, gain[:depths])
    sums = SequenceSums(
        np.concatenate([sums.reached, all_sums.reached[:, depths:]], axis=1),
        np.concatenate([sums.accepted, all_sums.accepted[:, depths:]], axis=1),
    )
    return _with_sums(acceptance, sums, accepted_ranks=ranks)


def _acceptance_of(acceptance: MeasuredAcceptance, category: str) -> MeasuredAcceptance:
    all_sums, indices = acceptance.sequences, _indices(acceptance.categories, category)
    if all_sums is None or not acceptance.categories:
        raise InfeasibleError(
            f"category: expected an acceptance of sequences with categories. Got {acceptance.rule} at temperature "
            f"{acceptance.temperature:g} without: profile again with --prompts.",
            field="category",
        )
    ranks = acceptance.accepted_ranks
    return _with_sums(
        acceptance,
        _sums_of(all_sums, indices, category),
        accepted_ranks=None if ranks is None else AcceptedRanks([ranks.ranks[index] for index in indices]),
        categories=(category,) * len(indices),
        chains=tuple(
            replace(
                counts,
                steps=tuple(counts.steps[index] for index in indices),
                tokens=tuple(counts.tokens[index] for index in indices),
            )
            for counts in acceptance.chains
        ),
    )


def _sums_of(sums: SequenceSums, indices: Sequence[int], category: str) -> SequenceSums:
    """Return the sums of some sequences; depths with too few counts take the acceptance of all sequences."""
    reached, accepted = sums.reached[indices], sums.accepted[indices]
    positions = reached.sum(axis=0)
    if np.count_nonzero(reached[:, :1]) < MIN_SEQUENCES or positions[0] < MIN_REACHED:
        raise _TooFewSequencesError(
            category,
            f"{MIN_SEQUENCES} sequences or more, of {MIN_REACHED:g} positions together",
            f"{len(indices)} of {positions[0]:g} positions",
        )
    depths = int(np.cumprod(positions >= MIN_REACHED).sum())
    counts = np.broadcast_to(sums.reached.sum(axis=0)[depths:] / len(indices), reached[:, depths:].shape)
    return SequenceSums(
        np.concatenate([reached[:, :depths], counts], axis=1),
        np.concatenate([accepted[:, :depths], counts[:, :, None] * sums.p[depths:]], axis=1),
    )


def _drafter_of(drafter: MeasuredDrafter, category: str) -> MeasuredDrafter | None:
    """Return a drafter's measurements on one category; None if one of them has too few sequences."""
    try:
        return replace(
            drafter,
            trees=tuple(_trees_of(trees, category) for trees in drafter.trees),
            decodes=tuple(_decodes_of(decodes, category) for decodes in drafter.decodes),
        )
    except InfeasibleError:
        return None


def _trees_of(trees: MeasuredTrees, category: str) -> MeasuredTrees:
    ranks, indices = trees.root_ranks, _indices(trees.acceptance.categories, category)
    return replace(
        trees,
        acceptance=_acceptance_of(trees.acceptance, category),
        root_ranks=None if ranks is None else RootRanks([ranks.ranks[index] for index in indices]),
    )


def _decodes_of(decodes: MeasuredSettings, category: str) -> MeasuredSettings:
    """Return tokens, steps and passes of one category; seconds outside the passes stay those of all sequences."""
    return replace(
        decodes,
        settings=tuple(
            replace(setting, replayed=_steps_of(setting, decodes.categories, category)) for setting in decodes.settings
        ),
        categories=(),
    )


def _steps_of(setting: MeasuredSetting, categories: Sequence[str], category: str) -> ReplayedSequences:
    """Return the replayed steps of a category, or the decoded ones if none were replayed."""
    sequences = setting.sequences
    indices = _indices(categories if setting.replayed is None else setting.replayed.categories, category)
    if len(indices) < MIN_SEQUENCES:
        raise _TooFewSequencesError(
            category, f"{MIN_SEQUENCES} sequences or more decoded with each drafter", str(len(indices))
        )
    rows = np.array(sequences.passes)[indices]
    sizes = np.flatnonzero(rows.sum(axis=0))
    return ReplayedSequences(
        tokens=tuple(sequences.tokens[index] for index in indices),
        pass_tokens=tuple(sequences.pass_tokens[size] for size in sizes),
        passes=tuple(map(tuple, rows[:, sizes].tolist())),
        categories=(category,) * len(indices),
    )


def _indices(categories: Sequence[str], category: str) -> list[int]:
    return [index for index, name in enumerate(categories) if name == category]
