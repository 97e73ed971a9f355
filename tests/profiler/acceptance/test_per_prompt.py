"""Several temperatures and prompts in shared passes: each has the acceptance that it has alone."""

from dataclasses import replace

import numpy as np
import pytest

from tests.profiler.pretended import measure_profile
from tests.support.slow import slow
from treeopt.errors import OutOfMemoryError
from treeopt.planner import for_new_tokens
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.acceptance.contexts import WholePrompts
from treeopt.profiler.acceptance.per_prompt import AcceptanceCounter
from treeopt.profiler.acceptance.positions import PositionSampler, continue_prompts
from treeopt.profiler.decoding import Decoding
from treeopt.profiler.processes.processes import Processes
from treeopt.records.acceptance_counts import MIN_REACHED
from treeopt.records.sampling import GREEDY, Sampling

WARM, HOT = Sampling(0.6, 0.95), Sampling(1.3, 1.0, 12)
SETTINGS = Settings(
    rules=("sequoia", "target"),
    samplings=(WARM, GREEDY, HOT),
    context_tokens=(20,),
    max_tokens=3,
    rounds=1,
    positions=120,
    depth=3,
    branching=3,
)


@pytest.mark.parametrize("draft_sampling", [*slow([None]), Sampling(0.9, 0.9, 5)])
def test_each_acceptance_equals_the_one_measured_alone(target, draft, prompts, draft_sampling):
    settings, checkpoint = replace(SETTINGS, draft_sampling=draft_sampling), Checkpoint(None, "")
    profile = measure_profile(target, draft, prompts, settings, checkpoint=checkpoint)
    assert sorted(checkpoint.rows("acceptance on 20 positions, target 1.3")) == list(range(len(prompts)))
    points = [(acceptance.rule, acceptance.temperature) for acceptance in profile.acceptances]
    assert points == [("sequoia", 0.6), ("target", 0.6), ("sequoia", 0.0), ("sequoia", 1.3), ("target", 1.3)]
    for acceptance in profile.acceptances:
        (sampling,) = [each for each in SETTINGS.samplings if each.temperature == acceptance.temperature]
        own_draft = None if sampling.greedy else draft_sampling
        own = replace(SETTINGS, rules=(acceptance.rule,), samplings=(sampling,), draft_sampling=own_draft)
        (alone,) = measure_profile(target, draft, prompts, own).acceptances
        assert acceptance.sampling == sampling
        assert acceptance.draft_sampling == alone.draft_sampling == own_draft
        np.testing.assert_allclose(acceptance.table.p, alone.table.p, atol=1e-5)  # batches round differently
        np.testing.assert_array_equal(acceptance.sequences.reached, alone.sequences.reached)
    by_temperature = {acceptance.temperature: acceptance.table.p[0, 0] for acceptance in profile.acceptances}
    assert min(np.diff(sorted(by_temperature.values()))) > 1e-3  # negative control
    for temperature, sampled in ((0.0, False), (0.6, True), (1.3, True)):
        point = profile.at(sampling=Sampling(temperature))
        assert (point.weights, [latency.sampled for latency in point.latencies]) == ((1.0,), [sampled])


class TestEnds:
    """Sequences of one prompt that end at different positions."""

    SAMPLINGS = (GREEDY, Sampling(0.7), Sampling(1.0), Sampling(1.6))

    @pytest.fixture
    def models(self, make_model):
        return tuple(make_model(seed=1, noise=noise, end_tokens=(3, 7)) for noise in (0.0, 0.15))

    def count(self, models, prompt, seed, samplings=SAMPLINGS):
        decodings = [Decoding(sampling=sampling) for sampling in samplings]
        samplers = [PositionSampler(models[0], decoding, branching=3, seed=seed) for decoding in decodings]
        return continue_prompts(*models, samplers, [prompt] * len(samplers), 40)

    def test_sequence_that_ended_does_not_change_the_others(self, models, prompts):
        lengths = set()
        for seed, prompt in enumerate(prompts):
            counted = self.count(models, prompt, seed)
            for sampling, positions in zip(self.SAMPLINGS, counted, strict=True):
                (alone,) = self.count(models, prompt, seed, (sampling,))
                assert positions.accepted_rank.tolist() == alone.accepted_rank.tolist()
                np.testing.assert_allclose(positions.expected, alone.expected, atol=1e-5)
            lengths.add(tuple(len(positions.expected) for positions in counted))
        assert any(len(set(each)) > 2 for each in lengths)
        assert any(max(each) == 40 for each in lengths)
        assert any(min(each) < 20 for each in lengths)

    def test_passes_end_when_all_sequences_have_ended(self, models, prompts, monkeypatch):
        passes, forward = [], models[0].forward
        monkeypatch.setattr(
            models[0], "forward", lambda *inputs, **options: passes.append(1) or forward(*inputs, **options)
        )
        (length,) = {len(positions.expected) for positions in self.count(models, prompts[0], 0, [Sampling(1.6)] * 3)}
        assert length <= len(passes) <= length + 1  # prefill may be a pass

    def test_sequence_that_ends_at_once_counts_one_position(self, make_markov):
        model = make_markov(np.where(np.arange(5) == 2, 50.0, 0.0), end_tokens=(2,))
        counted = self.count((model, model), [1, 4], 0, (GREEDY, Sampling(1.0)))
        assert [positions.accepted_rank.tolist() for positions in counted] == [[0], [0]]
        assert [len(positions.expected) for positions in counted] == [1, 1]


class TestGroups:
    """Prompts that are counted together."""

    def counter(self, target, draft, prompts, checkpoint):
        options = {"checkpoint": checkpoint, "processes": Processes()}
        return AcceptanceCounter(target, draft, WholePrompts(prompts), SETTINGS, **options)

    def test_prompts_counted_together_equal_those_counted_alone(self, target, draft, prompts):
        checkpoints = Checkpoint(None, ""), Checkpoint(None, "")
        together, alone = (self.counter(target, draft, prompts, checkpoint) for checkpoint in checkpoints)
        together.count([4, 0, 2], 20)
        for number in (4, 0, 2):
            alone.count([number], 20)
        for ours, theirs in zip(together.acceptances([20]), alone.acceptances([20]), strict=True):
            assert ours.prompts == 3
            assert ours.accepted_ranks == theirs.accepted_ranks
            np.testing.assert_allclose(ours.table.p, theirs.table.p, atol=1e-5)  # batches round differently

    def test_together_they_need_fewer_passes(self, target, draft, monkeypatch):
        passes, forward = [], draft.forward
        monkeypatch.setattr(
            draft, "forward", lambda *inputs, **options: passes.append(1) or forward(*inputs, **options)
        )
        counter = self.counter(target, draft, [[1, 2], [3, 4], [5, 6]], Checkpoint(None, ""))
        counts = []
        for group in ([0], [1, 2]):
            passes.clear()
            counter.count(group, 20)
            counts.append(len(passes))
        assert counts[1] - counts[0] <= 3 * len(SETTINGS.samplings)  # prompts are read one by one

    def test_what_does_not_fit_together_is_counted_one_by_one(self, target, draft, prompts, monkeypatch):
        new_caches, sizes = target.new_caches, []

        def limited(max_tokens, batch_size):
            sizes.append(batch_size)
            if batch_size > len(SETTINGS.rule_samplings):
                raise OutOfMemoryError("too much")
            return new_caches(max_tokens, batch_size)

        monkeypatch.setattr(target, "new_caches", limited)
        checkpoint = Checkpoint(None, "")
        counter = self.counter(target, draft, prompts, checkpoint)
        counter.count([0, 1], 20)
        assert (len(sizes), sizes[0]) == (3, 2 * sizes[1])
        assert all(counter.has_counted(number, 20) for number in (0, 1))


def test_profile_cut_to_new_tokens_equals_a_profile_of_shorter_sequences(target, draft, prompts):
    settings = replace(SETTINGS, rules=("sequoia", "specinfer"), samplings=(GREEDY, Sampling(1.0)), positions=240)
    whole = measure_profile(target, draft, prompts, settings)
    short = measure_profile(target, draft, prompts, replace(settings, positions=10 * len(prompts)))
    cut = for_new_tokens(whole, 10)
    assert cut.latencies is whole.latencies
    for ours, theirs, before in zip(cut.acceptances, short.acceptances, whole.acceptances, strict=True):
        assert (ours.rule, ours.temperature) == (theirs.rule, theirs.temperature)
        assert (ours.prompts, ours.positions) == (theirs.prompts, theirs.positions) == (len(prompts), 60)
        assert ours.accepted_ranks == theirs.accepted_ranks
        np.testing.assert_array_equal(ours.sequences.reached, theirs.sequences.reached)
        if ours.temperature == 0:
            np.testing.assert_allclose(ours.table.p, theirs.table.p, atol=1e-5)  # batches round differently
            np.testing.assert_allclose(ours.sequences.accepted, theirs.sequences.accepted, atol=1e-4)
            assert np.abs(ours.table.p - before.table.p).max() > 0.01  # negative control
        else:
            often = ours.table.counts >= MIN_REACHED
            error = np.maximum(np.hypot(ours.table.standard_error, theirs.table.standard_error), 0.02)
            assert np.all(np.abs(ours.table.p - theirs.table.p)[often] < 4 * error[often])
    for tokens in (40, 1000):
        assert for_new_tokens(whole, tokens).acceptances == whole.acceptances
