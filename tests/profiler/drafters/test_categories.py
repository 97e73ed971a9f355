"""Profiles of prompts with categories: each category equals the profile of its prompts alone."""

from dataclasses import replace

import numpy as np
import pytest

from tests.profiler.pretended import measure_profile
from tests.profiler.test_engine import CONFIG, PROMPTS, measure, run_probe
from tests.profiler.test_engine import SETTINGS as PROBE
from tests.support.fake_engine import FakeEngine
from treeopt.planner import for_category
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.acceptance.contexts import DecodingPoint, WholePrompts
from treeopt.profiler.acceptance.per_prompt import AcceptanceCounter
from treeopt.profiler.drafters.candidates import add_category_settings
from treeopt.profiler.drafters.plain_sequences import PlainSequences
from treeopt.profiler.drafters.replays import replay_lookups
from treeopt.profiler.engine_profile import engine_profile
from treeopt.profiler.processes.processes import Processes
from treeopt.records.acceptance_counts import MIN_REACHED
from treeopt.records.measured_drafter import ReplayedSequences
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.trees.drafter_parameters import PromptLookupSetting
from treeopt.trees.drafter_setting import drafter_setting

POSITIONS = 30
"""Of each prompt."""
SETTINGS = Settings(context_tokens=(20,), max_tokens=8, rounds=1, positions=6 * POSITIONS, depth=3, branching=3)
NAMES = ("loops", "", "other", "loops", "other", "loops")


def measure_alone(target, draft, prompts, category, **options):
    """Return the profile of the prompts of a category alone."""
    own = [prompt for prompt, name in zip(prompts, NAMES, strict=True) if name == category]
    return measure_profile(target, draft, own, replace(SETTINGS, positions=POSITIONS * len(own)), **options)


def test_category_equals_the_profile_of_its_prompts_alone(target, draft, prompts):
    whole = measure_profile(target, draft, prompts, SETTINGS, categories=NAMES)
    assert whole.acceptances[0].categories == NAMES
    tables = []
    for category in ("loops", "other"):
        (selected,) = for_category(whole, category).acceptances
        (alone,) = measure_alone(target, draft, prompts, category).acceptances
        assert (selected.prompts, selected.positions) == (alone.prompts, alone.positions)
        np.testing.assert_array_equal(selected.sequences.reached, alone.sequences.reached)
        np.testing.assert_allclose(selected.table.p, alone.table.p, atol=1e-5)  # batches round differently
        assert selected.accepted_ranks == alone.accepted_ranks
        tables.append(selected.table.p)
    assert np.abs(tables[0] - tables[1]).max() > 0.01  # negative control


def test_every_acceptance_has_the_categories_of_its_prompts(target, draft, prompts):
    def make_counter(categories, **changes):
        options = {"checkpoint": Checkpoint(None, ""), "processes": Processes(), "categories": categories}
        return AcceptanceCounter(target, draft, WholePrompts(prompts), replace(SETTINGS, **changes), **options)

    samplings = (Sampling(0.7), Sampling(0.0))
    counter = make_counter(NAMES, rules=("sequoia", "target"), samplings=samplings)
    counter.count(range(len(NAMES)), POSITIONS)
    assert [acceptance.categories for acceptance in counter.acceptances([POSITIONS])] == [NAMES] * 3
    counter = make_counter(NAMES)
    for number in (4, 1, 3):
        counter.count([number], POSITIONS)
    assert counter.acceptances([POSITIONS])[0].categories == ("", "loops", "other")
    counter = make_counter(("",) * 6)
    counter.count(range(6), POSITIONS)
    assert counter.acceptances([POSITIONS])[0].categories == ()


def test_every_context_has_categories(target, draft, prompts):
    profile = measure_profile(target, draft, prompts, replace(SETTINGS, context_tokens=(20, 40)), categories=NAMES)
    assert [acceptance.prompts for acceptance in for_category(profile, "other").acceptances] == [2, 2]


@pytest.mark.usefixtures("few_trials")
@pytest.mark.parametrize("name", ["prompt-lookup", "lookahead"])
def test_decoded_settings_of_a_category_equal_those_of_its_prompts_alone(target, draft, prompts, loaded, name):
    drafters = [loaded(name)]
    whole = measure_profile(target, draft, prompts, SETTINGS, categories=NAMES, drafters=drafters)
    alone = measure_alone(target, draft, prompts, "loops", drafters=drafters)
    assert whole.drafters[0].decodes[0].categories == NAMES
    (selected,), (expected,) = for_category(whole, "loops").drafters[0].decodes, alone.drafters[0].decodes
    pairs = [(one, other) for one in selected.settings for other in expected.settings if one.values == other.values]
    assert pairs
    for one, other in pairs:
        steps = other.sequences
        assert (one.replayed.tokens, one.replayed.steps) == (steps.tokens, steps.steps)
        assert (one.replayed.pass_tokens, one.replayed.passes) == (steps.pass_tokens, steps.passes)


def test_static_trees_of_a_category_equal_those_of_its_prompts_alone(target, draft, prompts, loaded):
    drafters = [loaded("medusa")]
    whole = measure_profile(target, draft, prompts, SETTINGS, categories=NAMES, drafters=drafters)
    alone = measure_alone(target, draft, prompts, "loops", drafters=drafters)
    assert whole.drafters[0].trees[0].acceptance.categories == NAMES
    (selected,), (expected,) = for_category(whole, "loops").drafters[0].trees, alone.drafters[0].trees
    often = expected.acceptance.table.counts >= MIN_REACHED
    np.testing.assert_allclose(
        selected.acceptance.table.p[: len(often)][often], expected.acceptance.table.p[often], atol=1e-5
    )
    assert selected.root_ranks.rows == expected.root_ranks.rows


def test_sequences_too_short_to_replay_are_left_out_with_their_category():
    prompts, tokens = {0: [1, 2, 1, 2], 3: [5], 4: [3, 4, 3, 4]}, {0: [1, 2] * 10, 3: [6], 4: [3, 4] * 10}
    sequences = PlainSequences(DecodingPoint(GREEDY, WholePrompts([])), prompts, 30, tokens)
    (replayed,) = replay_lookups([PromptLookupSetting(2, 2)], sequences, NAMES)
    assert replayed.categories == ("loops", "other")
    assert len(replayed.passes) == 2


def test_engine_profile_has_the_categories_and_counts_of_its_prompts():
    categories = ("one", "two", "one", "two")
    whole = measure(FakeEngine(), replace(PROBE, categories=categories, rounds=3))
    alone = measure(FakeEngine(), replace(PROBE, prompts=PROMPTS[::2], rounds=3))
    assert whole.acceptances[0].categories == categories
    (selected,), (expected,) = for_category(whole, "one").acceptances, alone.acceptances
    assert [(chain.steps, chain.tokens) for chain in selected.chains] == [
        (chain.steps, chain.tokens) for chain in expected.chains
    ]
    often = int((expected.table.counts >= MIN_REACHED).cumprod().sum())
    assert often > 1
    np.testing.assert_allclose(selected.table.p[:often], expected.table.p[:often])
    engine, settings = FakeEngine(ends_at_once=frozenset([PROMPTS[1]])), replace(PROBE, categories=categories)
    profile = engine_profile(engine, CONFIG, settings, run_probe(engine, settings))
    assert profile.acceptances[0].categories == ("one", "one", "two")  # of the prompts that took a step


def replayed_steps(tokens, max_tokens):
    """Return ten steps of a setting along a sequence that copies, and ten along one that does not."""
    return ReplayedSequences(
        tokens=tokens,
        pass_tokens=(max_tokens,),
        passes=((10,), (10,)),
        categories=("copy", "new"),
    )


def test_settings_that_are_faster_in_one_category_are_added():
    """The middle setting is the fastest on both sequences together, but in neither category."""
    short, middle, long = (drafter_setting("prompt-lookup", length=length, ngram=2) for length in (1, 4, 16))
    replayed = {
        short: replayed_steps((20, 20), 2),
        middle: replayed_steps((48, 20), 5),
        long: replayed_steps((150, 10), 17),
    }

    def pass_s(sizes):
        return 1.0 + 0.1 * sizes

    assert add_category_settings([middle], replayed, pass_s) == [middle, long, short]
    assert add_category_settings([long, short], replayed, pass_s) == [long, short]
    replayed = {short: replayed_steps((100, 100), 3), long: replayed_steps((101, 100), 3)}
    assert add_category_settings([short], replayed, pass_s) == [short]  # 1 % faster is not enough
