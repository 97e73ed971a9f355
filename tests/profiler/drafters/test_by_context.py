"""Drafters measured at several context lengths, against counts of whole sequences and greedy loops."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.profiler.drafters.test_measuring import SETTINGS
from tests.profiler.pretended import FakeClock, measure_profile
from tests.support.head_acceptance import plain_sequences
from tests.support.passes import logits_after
from treeopt.errors import TreeoptError
from treeopt.planner import drafter_choices
from treeopt.planner.request import PlanRequest
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.acceptance.contexts import DecodingPoint, LongSequences, PromptsAtContext
from treeopt.profiler.drafters import decodes as decodes_module
from treeopt.profiler.drafters.acceptance import count_roots, measure_trees
from treeopt.profiler.drafters.candidates import select_settings
from treeopt.profiler.drafters.plain_sequences import generate_sequences
from treeopt.profiler.latency.rounds import Recorder
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime import Decoder
from treeopt.trees.drafter_setting import drafter_setting

CONTEXTS = (20, 40, 60)
BY_CONTEXT = replace(SETTINGS, context_tokens=CONTEXTS, positions=6 * 20)

pytestmark = pytest.mark.usefixtures("few_trials")


def decode_greedily(target, prompt, tokens):
    """Return the target's sequence of some length, from a separate pass for every token."""
    sequence = list(prompt)
    while len(sequence) < tokens:
        sequence.append(int(logits_after(target, sequence, prefilled=0).argmax()))
    return sequence


@pytest.mark.parametrize("name", ["medusa", "eagle"])
def test_ranks_are_those_of_the_positions_around_each_context(name, target, draft, prompts, loaded):
    """Against the ranks at all positions after the prompt."""
    drafter = loaded(name)
    (measured,) = measure_profile(target, draft, prompts, BY_CONTEXT, drafters=[drafter]).drafters
    by_context = measured.trees_at(0.0)
    assert [trees.context_tokens for trees in by_context] == list(CONTEXTS)
    rows = [trees.root_ranks.rows for trees in by_context]
    assert rows[0] != rows[1] != rows[2] != rows[0]  # negative control
    sequences = plain_sequences(target, prompts, 80)
    for number, prompt in enumerate(prompts):
        all_ranks, before = (
            count_roots(drafter, sequences, number, 3, 3).ranks,
            len(prompt) - 1 + (name == "eagle" and len(prompt) == 1),
        )
        for trees, context in zip(by_context, CONTEXTS, strict=True):
            first = context - 10 - before  # roots by the tokens in the cache before them
            ranks = trees.root_ranks.ranks[number]
            assert len(ranks) == 20
            expected = all_ranks[first : first + 20, : ranks.shape[1]]
            for row, (one, other) in enumerate(zip(ranks.tolist(), expected.tolist(), strict=True)):
                inside = other[: 20 - row]  # after it the window ends
                reached = list(itertools.takewhile(lambda rank: rank >= 0, inside))
                assert [rank for rank in one if rank >= 0] == reached


def test_decoding_continues_the_targets_sequences(target, draft, prompts, loaded, monkeypatch):
    runs, decode_run = [], decodes_module.decode_run

    def record(decoder, prompt, positions, seed, clock):
        runs.append((list(prompt), positions))
        return decode_run(decoder, prompt, positions, seed, clock)

    monkeypatch.setattr(decodes_module, "decode_run", record)
    (measured,) = measure_profile(target, draft, prompts, BY_CONTEXT, drafters=[loaded("prompt-lookup")]).drafters
    assert {len(prompt) for prompt, tokens in runs if tokens == 20} == {context - 9 for context in CONTEXTS}
    sequences = [decode_greedily(target, prompt, 60) for prompt in prompts]
    assert all(any(prompt == sequence[: len(prompt)] for sequence in sequences) for prompt, _ in runs)
    by_context = measured.decodes_at(0.0)
    assert [decodes.context_tokens for decodes in by_context] == list(CONTEXTS)
    values = [[setting.values for setting in decodes.settings] for decodes in by_context]
    assert values[0] == values[1] == values[2]
    tokens = [n for decodes in by_context for setting in decodes.settings for n in setting.decoded.tokens]
    assert all(20 <= n < 28 for n in tokens)


def test_profile_is_saved_planned_between_contexts_and_not_measured_again(
    target, draft, prompts, loaded, tmp_path, monkeypatch
):
    drafters = [loaded("medusa"), loaded("prompt-lookup")]
    settings = replace(BY_CONTEXT, samplings=(Sampling(0.8),), rules=("target",), context_tokens=(20, 60))
    checkpoint = Checkpoint(tmp_path / "checkpoint", "")
    profile = measure_profile(target, draft, prompts, settings, drafters=drafters, checkpoint=checkpoint)
    profile.save(tmp_path / "p.yaml")
    for context in (20, 31, 60):
        choices = drafter_choices(Profile.load(tmp_path / "p.yaml"), PlanRequest(context_tokens=context))
        assert [choice.option.drafter.name for choice in choices] == ["model", "medusa", "prompt-lookup"]
    monkeypatch.setattr(Decoder, "decode_steps", None)
    checkpoint = Checkpoint(tmp_path / "checkpoint", "", resume=True)
    resumed = measure_profile(target, draft, prompts, settings, drafters=drafters, checkpoint=checkpoint)
    assert resumed.drafters == profile.drafters


def test_sequences_that_end_before_a_context_are_left_out(target, prompts, loaded, monkeypatch):
    sequences, sequence = LongSequences(target, prompts, 61, Checkpoint(None, "")), LongSequences.sequence
    monkeypatch.setattr(
        LongSequences, "sequence", lambda self, number, sampling: sequence(self, number, sampling)[: 20 + 8 * number]
    )
    sources = [PromptsAtContext(sequences=sequences, context_tokens=context, max_tokens=128) for context in CONTEXTS]
    points = [DecodingPoint(GREEDY, source) for source in sources]
    numbers = [sorted(point.prompt_set(20).prompts) for point in points]
    assert numbers == [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5], [4, 5]]
    assert sorted(points[1].prompt_set(20, 3).prompts) == [2, 3, 4]
    checkpoint, settings = Checkpoint(None, ""), Settings(branching=3, depth=3)
    generated = generate_sequences(target, points[1], points[1].prompt_set(20), checkpoint)
    recorder = Recorder(FakeClock(), checkpoint)
    measured = measure_trees(loaded("medusa"), generated, settings, recorder)
    assert measured.acceptance.prompts == 4
    assert measured.acceptance.sequences.reached[:2].sum() == 0
    assert list(map(len, measured.root_ranks.ranks)) == [0, 0, 20, 20, 20, 20]
    distant = PromptsAtContext(sequences=sequences, context_tokens=107, max_tokens=128)
    with pytest.raises(TreeoptError, match="acceptance at 107 tokens of context: expected two sequences"):
        DecodingPoint(GREEDY, distant).prompt_set(20)


def test_prompts_as_long_as_the_models_are_cut(target, draft, loaded):
    prompts = [np.random.default_rng(seed).integers(23, size=127).tolist() for seed in range(3)]
    settings = replace(BY_CONTEXT, context_tokens=(20, 60))
    (measured,) = measure_profile(target, draft, prompts, settings, drafters=[loaded("specexec")]).drafters
    assert [decodes.context_tokens for decodes in measured.decodes] == [20, 60]


def test_selected_settings_are_the_fastest_of_every_context():
    a, b, c, d = (drafter_setting("prompt-lookup", length=length, ngram=2) for length in (1, 2, 3, 4))
    assert select_settings([[a, b, c]]) == [a, b]
    assert select_settings([[a]]) == [a]
    assert select_settings([[a, b, c], [a, c, b]]) == [a, b]
    assert select_settings([[a, b], [c, a], [d, a]]) == [a, c, d]
