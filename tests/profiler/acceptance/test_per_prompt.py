"""Several temperatures in one pass over the prompts: each as if it were alone, and each with times of its own."""

from dataclasses import replace

import numpy as np
import pytest

from tests.profiler.pretended import FakeClock
from treeopt.profiler import Checkpoint, Measurement, Settings
from treeopt.profiler.acceptance.positions import AcceptanceSequence, continue_prompt
from treeopt.profiler.decoding import Decoding
from treeopt.records.sampling import GREEDY, Sampling

WARM, HOT = Sampling(0.6, 0.95), Sampling(1.3, 1.0, 12)
OWN_DISTRIBUTION = Sampling(0.9, 0.9, 5)
SETTINGS = Settings(
    rules=("sequoia", "target"),
    samplings=(WARM, GREEDY, HOT),
    context_tokens=(20,),
    max_tokens=3,
    rounds=1,
    positions=180,
    depth=3,
    branching=3,
)


def measured(target, draft, prompts, settings=SETTINGS, checkpoint=None):
    measurement = Measurement(
        target, draft, prompts, settings, clock=FakeClock(lambda: 1.0), checkpoint=checkpoint or Checkpoint(None, "")
    )
    return measurement.profile(show_progress=False)


def text_of(models, sampling, *, rule="sequoia", draft_sampling=None, seed=0):
    return AcceptanceSequence(
        *models, Decoding(rule=rule, sampling=sampling, draft_sampling=draft_sampling), branching=3, depth=3, seed=seed
    )


class TestTogether:
    @pytest.mark.parametrize(
        "draft_sampling", [None, OWN_DISTRIBUTION], ids=["target's distribution", "own distribution"]
    )
    def test_each_acceptance_is_the_one_measured_alone(self, target, draft, prompts, draft_sampling):
        settings = replace(SETTINGS, draft_sampling=draft_sampling)
        together = measured(target, draft, prompts, settings)
        places = [(each.rule, each.temperature) for each in together.acceptances]
        assert places == [("sequoia", 0.6), ("target", 0.6), ("sequoia", 0.0), ("sequoia", 1.3), ("target", 1.3)]
        for found in together.acceptances:
            (sampling,) = [each for each in SETTINGS.samplings if each.temperature == found.temperature]
            alone_with = None if sampling.greedy else draft_sampling
            own = replace(SETTINGS, rules=(found.rule,), samplings=(sampling,), draft_sampling=alone_with)
            (alone,) = measured(target, draft, prompts, own).acceptances
            assert (found.top_p, found.top_k) == (sampling.top_p, sampling.top_k)
            assert found.draft_sampling == alone.draft_sampling == alone_with
            np.testing.assert_allclose(found.table.p, alone.table.p, atol=1e-5)  # batches round otherwise
            np.testing.assert_array_equal(found.texts.reached, alone.texts.reached)

    def test_temperatures_differ(self, target, draft, prompts):
        """Negative control: an acceptance under another temperature's name would be found out."""
        first = {each.temperature: each.table.p[0, 0] for each in measured(target, draft, prompts).acceptances}
        values = sorted(first.values())
        assert min(np.diff(values)) > 1e-3

    def test_every_prompt_is_passed_over_once(self, target, draft, prompts):
        checkpoint = Checkpoint(None, "")
        measured(target, draft, prompts, checkpoint=checkpoint)
        assert [entry.key for entry in checkpoint.entries("acceptance")] == list(range(len(prompts)))
        assert len({len(entry.values) for entry in checkpoint.entries("acceptance")}) == 1


class TestTimes:
    def test_a_plan_takes_the_times_of_its_way(self, target, draft, prompts):
        profile = measured(target, draft, prompts)
        assert [each.sampled for each in profile.latencies] == [True, False]
        for temperature, sampled in ((0.0, False), (0.6, True), (1.3, True)):
            point = profile.at(sampling=Sampling(temperature))
            (share,), (latency,) = point.weights, point.latencies
            assert (share, latency.sampled) == (1.0, sampled)


@pytest.fixture(scope="module")
def models(make_model):
    return tuple(make_model(seed=1, noise=noise, end_tokens=(3, 7)) for noise in (0.0, 0.15))


class TestEnds:
    """Texts of one prompt that end at different positions."""

    DISTRIBUTIONS = (GREEDY, Sampling(0.7), Sampling(1.0), Sampling(1.6))

    def together(self, models, prompt, seed, distributions=DISTRIBUTIONS):
        return continue_prompt(
            *models, [text_of(models, distribution, seed=seed) for distribution in distributions], prompt, 40
        )

    def test_a_row_that_ended_does_not_touch_the_others(self, models, prompts):
        lengths = set()
        for seed, prompt in enumerate(prompts):
            found = self.together(models, prompt, seed)
            for distribution, text in zip(self.DISTRIBUTIONS, found, strict=True):
                (alone,) = self.together(models, prompt, seed, (distribution,))
                assert text.accepted_rank.tolist() == alone.accepted_rank.tolist()
                np.testing.assert_allclose(text.expected, alone.expected, atol=1e-5)
            lengths.add(tuple(len(text.expected) for text in found))
        assert any(len(set(each)) > 2 for each in lengths)
        assert any(max(each) == 40 for each in lengths)
        assert any(min(each) < 20 for each in lengths)

    def test_rows_that_all_end_end_the_pass(self, models, prompts):
        passes, forward = [], models[0].forward

        def counted(*arguments, **keywords):
            passes.append(1)
            return forward(*arguments, **keywords)

        distributions = [Sampling(1.6)] * 3
        lengths = [len(text.expected) for text in self.together(models, prompts[0], 0, distributions)]
        models[0].forward = counted
        try:
            self.together(models, prompts[0], 0, distributions)
        finally:
            del models[0].forward
        assert len(set(lengths)) == 1  # one seed, one text
        assert len(passes) == lengths[0] + 1 or len(passes) == lengths[0]  # with the prefill, where it is a pass

    def test_a_text_that_ends_at_once_counts_one_position(self, make_markov):
        logits = np.zeros(5)
        logits[2] = 50.0
        models = (make_markov(logits, end_tokens=(2,)), make_markov(logits, end_tokens=(2,)))
        found = continue_prompt(
            *models, [text_of(models, distribution) for distribution in (GREEDY, Sampling(1.0))], [1, 4], 30
        )
        assert [len(text.expected) for text in found] == [1, 1]
        assert [text.accepted_rank.tolist() for text in found] == [[0], [0]]
