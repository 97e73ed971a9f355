"""Plans by category of prompt: against profiles of each category alone, and against sums made here."""

from dataclasses import replace

import numpy as np
import pytest

from tests.planner.test_dependence import measured
from tests.planner.test_drafters import heads, lookup, plain_s, sequences
from tests.support.invented_machines import latency, profile, seconds
from treeopt.adaptation.averages import Outcomes
from treeopt.adaptation.profile_update import update_acceptance
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner import (
    PlanRequest,
    categories_of,
    drafter_choices,
    for_category,
    plan,
    requested_plan,
)
from treeopt.planner.categories import category_plans
from treeopt.planner.subsets import left_out_drafters
from treeopt.records.acceptance import SequenceSums
from treeopt.records.acceptance_counts import MIN_REACHED, REJECTED
from treeopt.records.accepted_ranks import RootRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.measured_drafter import DecodedSequences, MeasuredDrafter, MeasuredSettings, ReplayedSequences
from treeopt.records.sampling import Sampling
from treeopt.trees.drafter_setting import drafter_setting

MACHINE = seconds(lambda n: 1 + 0.1 * n, lambda w: 0.1 + 0.01 * w, 0.05, nodes=16)
REQUEST = PlanRequest()


def ranks(p, sequences, positions=100, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.choice([0, 1, 2, REJECTED], size=positions, p=p) for _ in range(sequences)]


COPY, NEW = [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]
EASY, HARD = [0.9, 0.05, 0.02, 0.03], [0.4, 0.2, 0.1, 0.3]


def mixed(first, second, names=("copy", "new")):
    """Return the profile of two categories whose sequences alternate."""
    together = [text for pair in zip(first, second, strict=True) for text in pair]
    acceptance = replace(measured(together), categories=names * len(first))
    return profile([latency(MACHINE)], [acceptance])


def alone(sequences):
    return profile([latency(MACHINE)], [measured(sequences)])


EXTREMES = mixed(ranks(COPY, 6), ranks(NEW, 6))
UNLIKE = mixed(ranks(EASY, 8), ranks(HARD, 8, seed=1))


def plans_of(profile, **options):
    (for_all, *_) = drafter_choices(profile, REQUEST)
    return category_plans(profile, REQUEST, for_all.option, **options)


class TestAcceptance:
    @pytest.mark.parametrize(("name", "sequences"), [("copy", ranks(EASY, 8)), ("new", ranks(HARD, 8, seed=1))])
    def test_acceptance_is_that_of_the_category_alone(self, name, sequences):
        (result,), (expected,) = for_category(UNLIKE, name).acceptances, alone(sequences).acceptances
        often = expected.table.counts >= MIN_REACHED
        np.testing.assert_allclose(result.table.p[often], expected.table.p[often])
        np.testing.assert_allclose(result.table.standard_error[often], expected.table.standard_error[often])
        assert result.accepted_ranks == expected.accepted_ranks
        assert (result.prompts, result.positions) == (8, 800)
        assert result.categories == (name,) * 8

    def test_rarely_reached_depths_keep_the_acceptance_of_all(self):
        (result,), (whole,) = for_category(EXTREMES, "new").acceptances, EXTREMES.acceptances
        assert result.table.p[0].tolist() == [0, 0, 0]
        np.testing.assert_allclose(result.table.p[1:], whole.table.p[1:])

    def test_prompts_without_a_category_are_in_none(self):
        (acceptance,) = UNLIKE.acceptances
        partly = replace(UNLIKE, acceptances=(replace(acceptance, categories=("copy", "") * 8),))
        assert categories_of(partly) == ("copy",)
        assert for_category(partly, "copy") == for_category(UNLIKE, "copy")


class TestRefusals:
    def test_unknown_category_raises_with_the_known_ones(self):
        with pytest.raises(InvalidValueError, match=r"category: expected one of copy, new\. Got 'code'\."):
            for_category(EXTREMES, "code")

    def test_profile_without_categories_raises(self):
        with pytest.raises(InfeasibleError, match="expected a profile of prompts that have a category"):
            for_category(alone(ranks(EASY, 4)), "copy")

    @pytest.mark.parametrize(("count", "positions"), [(1, 100), (2, 9)])
    def test_too_few_sequences_of_a_category_raise(self, count, positions):
        sequences = [*ranks(EASY, 8), *ranks(EASY, count, positions)]
        acceptance = replace(measured(sequences), categories=("copy",) * 8 + ("rare",) * count)
        result = profile([latency(MACHINE)], [acceptance])
        with pytest.raises(
            InfeasibleError,
            match=rf"category rare: expected 2 sequences or more, of 20 .* Got {count} of {count * positions} .*: profile with",
        ):
            for_category(result, "rare")
        plans = plans_of(result)
        assert [item.category for item in plans.plans] == ["copy"]
        assert plans.gap is None
        assert "all drafters in rare" in plans.warnings[0].problem

    def test_one_acceptance_without_categories_raises(self):
        first = UNLIKE.acceptances[0]
        result = replace(UNLIKE, acceptances=(first, replace(first, rule="target", categories=())))
        with pytest.raises(InfeasibleError, match="target at temperature 0 without"):
            for_category(result, "copy")


class TestOneForAll:
    def test_numbers_are_those_of_each_category_alone(self):
        result, whole = plans_of(UNLIKE), requested_plan(UNLIKE, REQUEST)
        assert result.for_all.tree == whole.choice.tree
        for item in result.plans:
            own = requested_plan(for_category(UNLIKE, item.category), REQUEST)
            assert item.best.tree == own.choice.tree
            assert item.best.speedup == own.choice.speedup
            assert item.for_all.value == pytest.approx(own.model.speedup(whole.choice.tree))
            assert item.gap == pytest.approx(1 - item.for_all.value / item.best.speedup.value)
            assert item.prompts == 8

    def test_speedups_over_all_are_of_equally_many_tokens(self):
        result = plans_of(EXTREMES)
        best = [item.best.speedup.value for item in result.plans]
        for_all = [item.for_all.value for item in result.plans]
        tokens = 1000
        assert result.best_speedup == pytest.approx(2 * tokens / sum(tokens / speedup for speedup in best))
        assert result.for_all_speedup == pytest.approx(2 * tokens / sum(tokens / speedup for speedup in for_all))
        assert result.gap == pytest.approx(1 - result.for_all_speedup / result.best_speedup)
        assert result.gap > 0.1

    def test_each_category_has_its_fastest_rule(self):
        (sequoia,) = mixed(ranks(EASY, 8), ranks(HARD, 8, seed=1)).acceptances
        (target,) = mixed(ranks(HARD, 8, seed=2), ranks(EASY, 8, seed=3)).acceptances
        two = (replace(sequoia, sampling=Sampling(0.6)), replace(target, sampling=Sampling(0.6), rule="target"))
        result = plans_of(profile([latency(MACHINE)], two))
        assert [item.best.rule for item in result.plans] == ["sequoia", "target"]
        for item in result.plans:
            own = replace(REQUEST, rule=result.for_all.rule)
            model = requested_plan(for_category(profile([latency(MACHINE)], two), item.category), own).model
            assert item.for_all.value == pytest.approx(model.speedup(result.for_all.tree))

    def test_shuffled_categories_make_the_gap_vanish(self):
        """Negative control."""
        unlike = mixed(ranks(EASY, 40), ranks(HARD, 40, seed=1))
        (acceptance,) = unlike.acceptances
        names = np.random.default_rng(0).permutation(acceptance.categories)
        shuffled = replace(unlike, acceptances=(replace(acceptance, categories=tuple(names.tolist())),))
        assert plans_of(unlike).gap > 0.03
        assert plans_of(shuffled).gap < 0.01


def counted(profile, names, rows, tokens=(80, 90, 30, 31), steps=(20, 20, 25, 25)):
    """Return prompt lookup with one setting, decoded along sequences with categories."""
    (decodes,) = lookup(profile, [({"length": 3, "ngram": 2}, 4, 2.0, 3e-4)]).decodes
    places = range(len(names))
    tokens, steps = ([of[place] for place in places] for of in (tokens, steps))
    plain = sequences(1, plain_s(profile), steps=tuple(steps), sequences=len(names))
    (setting,) = decodes.settings
    decoded = DecodedSequences(
        tokens=tuple(tokens),
        pass_tokens=(1, 4),
        passes=tuple((row, step - row) for row, step in zip(rows, steps, strict=True)),
        seconds=sequences(1, 1.1 * plain_s(profile), steps=steps, sequences=len(names)).seconds,
    )
    return replace(decodes, plain=plain, settings=(replace(setting, decoded=decoded),), categories=tuple(names))


def with_lookup(profile, decodes, name="prompt-lookup"):
    return replace(profile, drafters=(MeasuredDrafter(setting=drafter_setting(name), decodes=(decodes,)),))


NAMES = ("copy", "new", "copy", "new")
"""The categories of decoded sequences."""
ROWS = (2, 15, 3, 25)
"""Passes of one token of each sequence."""


class TestDrafters:
    def test_steps_are_those_of_the_category_and_times_those_of_all(self):
        rows = (0, 15, 0, 25)
        decodes = counted(UNLIKE, NAMES, rows)
        whole = with_lookup(UNLIKE, decodes)
        for name, places in (("copy", (0, 2)), ("new", (1, 3))):
            (result,) = for_category(whole, name).drafters[0].decodes
            (setting,) = result.settings
            assert (result.plain, setting.decoded) == (decodes.plain, decodes.settings[0].decoded)
            assert setting.sequences.tokens == tuple((80, 90, 30, 31)[place] for place in places)
            assert setting.sequences.steps == tuple((20, 20, 25, 25)[place] for place in places)
            drafted = sum((20, 20, 25, 25)[place] - rows[place] for place in places)
            if name == "copy":
                assert (setting.replayed.pass_tokens, setting.replayed.total_passes) == ((4,), (drafted,))
            else:
                assert (setting.replayed.pass_tokens, setting.replayed.total_passes) == ((1, 4), (40, drafted))

    def test_a_step_takes_longer_where_larger_passes_are_more_frequent(self):
        whole = with_lookup(UNLIKE, counted(UNLIKE, NAMES, (0, 15, 0, 25)))
        _, all_sequences = drafter_choices(whole, REQUEST)
        _, copy = drafter_choices(for_category(whole, "copy"), REQUEST)
        small, large = 1 + 0.1 * 1, 1 + 0.1 * 4  # seconds of the machine's passes
        shares = (40 / 90, 50 / 90)
        assert copy.option.step_s.value - all_sequences.option.step_s.value == pytest.approx(
            large - shares[0] * small - shares[1] * large
        )

    def test_replayed_sequences_count_instead_of_decoded_ones(self):
        decodes = counted(UNLIKE, ("copy", "new"), (2, 15))
        replayed = ReplayedSequences(
            tokens=(30, 10, 40, 12),
            pass_tokens=(1, 4),
            passes=((1, 9), (10, 0), (1, 9), (9, 1)),
            categories=NAMES,
        )
        (setting,) = decodes.settings
        whole = with_lookup(UNLIKE, replace(decodes, settings=(replace(setting, replayed=replayed),)))
        (result,) = for_category(whole, "copy").drafters[0].decodes
        assert result.plain == decodes.plain
        assert result.settings[0].decoded == setting.decoded
        kept = result.settings[0].replayed
        assert (kept.tokens, kept.steps, kept.passes) == ((30, 40), (10, 10), ((1, 9), (1, 9)))

    def test_drafter_with_one_sequence_of_a_category_is_left_out(self):
        whole = with_lookup(UNLIKE, counted(UNLIKE, ("copy", "copy", "new"), (2, 15, 3)))
        assert [item.name for item in for_category(whole, "copy").drafters] == ["prompt-lookup"]
        assert for_category(whole, "new").drafters == ()
        assert left_out_drafters(whole, for_category(whole, "new")) == ("prompt-lookup",)
        assert left_out_drafters(whole, for_category(whole, "copy")) == ()
        _, choice = drafter_choices(whole, REQUEST)
        plans = category_plans(whole, REQUEST, choice.option)
        assert [item.for_all is None for item in plans.plans] == [False, True]
        assert plans.gap is None
        assert "prompt-lookup in new" in plans.warnings[0].problem

    def test_a_draft_model_with_too_few_sequences_of_a_category_keeps_its_acceptance_of_all(self):
        (acceptance,) = UNLIKE.acceptances
        few = replace(UNLIKE, acceptances=(replace(acceptance, categories=("copy",) * 15 + ("new",)),))
        whole = with_lookup(few, counted(UNLIKE, NAMES, ROWS))
        restricted = for_category(whole, "new")
        assert restricted.acceptances == few.acceptances
        assert restricted.drafters == for_category(with_lookup(UNLIKE, counted(UNLIKE, NAMES, ROWS)), "new").drafters
        _, choice = drafter_choices(whole, REQUEST)
        assert [plan.category for plan in category_plans(whole, REQUEST, choice.option).plans] == ["copy", "new"]

    def test_static_trees_have_the_acceptance_of_the_category(self):
        medusa = heads(UNLIKE)
        (trees,) = medusa.trees
        sums = SequenceSums([[50.0] * 3] * 4, [[[40.0, 5.0]] * 3, [[5.0, 5.0]] * 3] * 2)
        root_ranks = RootRanks([[[0, 0]] * 5, [[1]] * 5, [[0]] * 5, [[]] * 5])
        acceptance = MeasuredAcceptance(
            rule="target",
            sampling=Sampling(),
            prompts=4,
            positions=200,
            table=sums.table(),
            sequences=sums,
            categories=NAMES,
        )
        trees = replace(trees, acceptance=acceptance, root_ranks=root_ranks)
        whole = replace(UNLIKE, drafters=(replace(medusa, trees=(trees,)),))
        (drafter,) = for_category(whole, "copy").drafters
        (result,) = drafter.trees
        np.testing.assert_allclose(result.acceptance.table.p[0], [0.8, 0.1])
        assert result.root_ranks.rows == [root_ranks.rows[0], root_ranks.rows[2]]
        assert drafter.latencies == medusa.latencies


def test_a_target_alone_is_planned_by_category():
    decodes: MeasuredSettings = counted(UNLIKE, NAMES, ROWS)
    targets = [replace(item, draft=None, overhead=None) for item in UNLIKE.latencies]
    whole = replace(
        with_lookup(UNLIKE, decodes),
        pair=replace(UNLIKE.pair, draft=None, draft_parameters=None),
        latencies=tuple(targets),
        acceptances=(),
    )
    assert categories_of(whole) == ("copy", "new")
    for name, tokens in (("copy", 110 / 45), ("new", 121 / 45)):
        _, choice = drafter_choices(for_category(whole, name), REQUEST)
        assert choice.option.tokens_per_step.value == pytest.approx(tokens)


def test_contexts_between_measured_ones_are_planned_by_category():
    (acceptance,) = UNLIKE.acceptances
    latencies = [latency(MACHINE, context_tokens=context) for context in (64, 256)]
    whole = profile(latencies, [replace(acceptance, context_tokens=context) for context in (64, 256)])
    for part in (whole, for_category(whole, "copy")):
        assert plan(part, context_tokens=128).context_tokens == 128
    for_copy = for_category(whole, "copy")
    assert [item.categories for item in for_copy.acceptances] == [("copy",) * 8] * 2


def test_what_decoding_counted_has_no_categories():
    (before,) = UNLIKE.acceptances
    counts = Outcomes(np.full((2, 3), 100.0), np.full((2, 3), 20.0))
    assert update_acceptance(counts, before, sequences=3).categories == ()
