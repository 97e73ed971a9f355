"""Profiles of prompts with categories: each category equals the profile of its prompts alone."""

from dataclasses import replace

import numpy as np
import pytest

from tests.profiler.pretended import FakeClock
from tests.profiler.test_engine import CONFIG, PROMPTS, probed
from tests.profiler.test_engine import SETTINGS as PROBE
from tests.support.fake_engine import FakeEngine
from treeopt.planner import for_category
from treeopt.profiler import Checkpoint, Measurement, Settings
from treeopt.profiler.acceptance.contexts import PromptSet
from treeopt.profiler.acceptance.per_prompt import AcceptanceCounter
from treeopt.profiler.drafters import one_drafter
from treeopt.profiler.drafters.by_category import add_category_settings
from treeopt.profiler.drafters.plain_sequences import replay_lookups
from treeopt.profiler.engine import Probe
from treeopt.profiler.engine_profile import engine_profile
from treeopt.profiler.processes.processes import OneProcess
from treeopt.records.acceptance_counts import MIN_REACHED
from treeopt.records.measured_drafter import ReplayedSequences
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.trees.drafter_parameters import PromptLookupSetting
from treeopt.trees.drafter_setting import drafter_setting

SETTINGS = Settings(context_tokens=(20,), max_tokens=8, rounds=2, positions=180, depth=3, branching=3)
NAMES = ("loops", "", "other", "loops", "other", "loops")


def measured(target, draft, prompts, categories=(), checkpoint=None, drafters=(), settings=SETTINGS):
    measurement = Measurement(
        target,
        draft,
        prompts,
        settings,
        clock=FakeClock(lambda: 1.0),
        checkpoint=checkpoint or Checkpoint(None, ""),
        drafters=drafters,
        categories=categories,
    )
    return measurement.profile(show_progress=False)


def of(name, prompts):
    return [prompt for prompt, category in zip(prompts, NAMES, strict=True) if category == name]


@pytest.mark.parametrize("name", ["loops", "other"])
def test_a_category_is_what_its_prompts_alone_are_measured_as(target, draft, prompts, name):
    own = of(name, prompts)
    whole = measured(target, draft, prompts, NAMES)
    alone = measured(target, draft, own, settings=replace(SETTINGS, positions=30 * len(own)))
    (found,), (expected,) = for_category(whole, name).acceptances, alone.acceptances
    assert whole.acceptances[0].categories == NAMES
    assert (found.prompts, found.positions) == (expected.prompts, expected.positions)
    np.testing.assert_array_equal(found.texts.reached, expected.texts.reached)
    np.testing.assert_allclose(found.table.p, expected.table.p, atol=1e-5)  # batches round otherwise
    assert found.accepted_ranks == expected.accepted_ranks


def test_categories_differ(target, draft, prompts):
    """Negative control."""
    whole = measured(target, draft, prompts, NAMES)
    loops, other = (for_category(whole, name).acceptances[0].table.p for name in ("loops", "other"))
    assert np.abs(loops - other).max() > 0.01


def test_prompts_without_categories_leave_no_trace(target, draft, prompts):
    assert measured(target, draft, prompts, ("",) * 6).acceptances[0].categories == ()


def test_every_rule_and_temperature_has_them(target, draft, prompts):
    settings = replace(SETTINGS, rules=("sequoia", "target"), samplings=(Sampling(0.7), Sampling(0.0)))
    whole = measured(target, draft, prompts, NAMES, settings=settings)
    assert [each.categories for each in whole.acceptances] == [NAMES] * 3
    (loops, *_) = for_category(whole, "loops").acceptances
    assert loops.prompts == 3


def test_acceptance_at_several_contexts_has_them(target, draft, prompts):
    whole = measured(target, draft, prompts, NAMES, settings=replace(SETTINGS, context_tokens=(20, 40)))
    assert [each.categories for each in whole.acceptances] == [NAMES] * 2
    assert [each.context_tokens for each in for_category(whole, "other").acceptances] == [20, 40]


def test_prompts_counted_under_a_time_budget_have_their_own(target, draft, prompts):
    counting = AcceptanceCounter(
        target,
        draft,
        prompts,
        SETTINGS,
        checkpoint=Checkpoint(None, ""),
        processes=OneProcess(),
        categories=NAMES,
    )
    for number in (4, 1, 3):
        counting.count(number, 30)
    (found,) = counting.acceptances([30])
    assert found.categories == ("", "loops", "other")


@pytest.mark.parametrize("name", ["prompt-lookup", "lookahead"])
def test_decoded_settings_are_those_of_the_category_alone(target, draft, prompts, name, monkeypatch):
    monkeypatch.setattr(one_drafter, "TRIAL_PROMPTS", 1)
    monkeypatch.setattr(one_drafter, "TRIAL_POSITIONS", 4)
    drafter = LoadedDrafter(name=name, source=None, digest=None, target=target, draft=draft, heads=None, capacity=128)
    whole = measured(target, draft, prompts, NAMES, drafters=[drafter])
    assert whole.drafters[0].decodes[0].categories == NAMES
    own = of("loops", prompts)
    alone = measured(target, draft, own, drafters=[drafter], settings=replace(SETTINGS, positions=90))
    (found,), (expected,) = for_category(whole, "loops").drafters[0].decodes, alone.drafters[0].decodes
    compared = 0
    for setting in found.settings:
        for other in expected.settings:
            if other.values == setting.values:
                compared += 1
                steps = other.replayed or other
                assert setting.replayed.tokens == other.sequences.tokens
                assert setting.replayed.steps == other.sequences.steps
                assert (setting.replayed.pass_tokens, setting.replayed.passes) == (steps.pass_tokens, steps.passes)
    assert compared


def test_static_trees_have_the_categories_of_counted_texts(target, draft, prompts, loaded):
    whole = measured(target, draft, prompts, NAMES, drafters=[loaded("medusa")])
    (trees,) = whole.drafters[0].trees
    assert trees.acceptance.categories == NAMES
    own = of("loops", prompts)
    settings = replace(SETTINGS, positions=90)
    alone = measured(target, draft, own, drafters=[loaded("medusa")], settings=settings)
    (found,), (expected,) = for_category(whole, "loops").drafters[0].trees, alone.drafters[0].trees
    often = expected.acceptance.table.counts >= MIN_REACHED
    np.testing.assert_allclose(found.acceptance.table.p[often], expected.acceptance.table.p[often], atol=1e-5)
    assert found.ranks.rows == expected.ranks.rows


def test_texts_too_short_to_replay_are_left_out_with_their_category():
    stretch = PromptSet({0: [1, 2, 1, 2], 3: [5], 4: [3, 4, 3, 4]}, 30)
    texts = {0: [1, 2] * 10, 3: [6], 4: [3, 4] * 10}
    (found,) = replay_lookups([PromptLookupSetting(2, 2)], stretch, texts, NAMES)
    assert found.categories == ("loops", "other")
    assert len(found.passes_by_text) == 2


def test_an_engine_s_profile_has_those_of_prompts_that_took_a_step():
    categories = ("one", "two", "one", "two")
    settings = replace(PROBE, categories=categories)
    assert probed(FakeEngine(), settings).acceptances[0].categories == categories
    engine = FakeEngine(ends_at_once=frozenset([PROMPTS[1]]))
    probe = Probe(engine, CONFIG, settings, Checkpoint(None, "x"))
    probe.measure()
    assert engine_profile(engine, CONFIG, settings, probe).acceptances[0].categories == ("one", "one", "two")


def test_an_engine_s_counts_are_those_of_the_category():
    whole = probed(FakeEngine(), replace(PROBE, categories=("one", "two", "one", "two"), rounds=3))
    alone = probed(FakeEngine(), replace(PROBE, prompts=PROMPTS[::2], rounds=3))
    (found,), (expected,) = for_category(whole, "one").acceptances, alone.acceptances
    assert [(each.steps, each.tokens) for each in found.chains] == [
        (each.steps, each.tokens) for each in expected.chains
    ]
    often = int((expected.table.counts >= MIN_REACHED).cumprod().sum())
    assert often > 1
    np.testing.assert_allclose(found.table.p[:often], expected.table.p[:often])


def lookups(*lengths):
    return [drafter_setting("prompt-lookup", length=length, ngram=2) for length in lengths]


def along(tokens, max_tokens):
    """Return the steps of a setting along a text that copies and one that does not, all of them drafted."""
    return ReplayedSequences(
        tokens=tokens,
        steps=(10, 10),
        pass_tokens=(max_tokens,),
        passes=(20,),
        passes_by_text=((10,), (10,)),
        categories=("copy", "new"),
    )


def test_a_setting_that_one_category_needs_is_decoded_with_too():
    """On both texts together the middle setting is the fastest, in neither category alone."""
    short, middle, long = lookups(1, 4, 16)
    replayed = {short: along((20, 20), 2), middle: along((48, 20), 5), long: along((150, 10), 17)}
    found = add_category_settings([middle], replayed, lambda sizes: 1.0 + 0.1 * sizes)
    assert found == [middle, long, short]
    assert add_category_settings([long, short], replayed, lambda sizes: 1.0 + 0.1 * sizes) == [long, short]


def test_one_that_is_hardly_faster_is_not():
    short, long = lookups(2, 4)
    replayed = {short: along((100, 100), 3), long: along((101, 100), 3)}
    assert add_category_settings([short], replayed, lambda sizes: 1.0 * sizes) == [short]
