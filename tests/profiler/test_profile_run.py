"""A whole profile of small models: what is in it, how it resumes, what it refuses."""

import json
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from tests.profiler.pretended import FakeClock
from treeopt import __version__
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.profiler import Checkpoint, Measurement, MonotonicClock, Settings
from treeopt.profiler.acceptance import per_prompt
from treeopt.profiler.latency.passes import PROBE_TREES
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling

SETTINGS = Settings(context_tokens=(20,), max_tokens=8, rounds=2, positions=60, depth=3, branching=3)
ONE_SECOND = FakeClock(lambda: 1.0)


def measurement(target, draft, prompts, settings=SETTINGS, *, clock=ONE_SECOND, checkpoint=None):
    return Measurement(target, draft, prompts, settings, clock=clock, checkpoint=checkpoint or Checkpoint(None, ""))


def measured(*arguments, **keywords):
    return measurement(*arguments, **keywords).profile(show_progress=False)


def content(profile, folder):
    """Return a profile as it is written, without the time it was made."""
    replace(profile, created="").save(folder / "profile.yaml")
    return (folder / "profile.yaml").read_text()


class TestProfile:
    @pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (0.8, 0.9)])
    def test_real_measurements_save_and_load(self, target, draft, prompts, tmp_path, temperature, top_p):
        settings = replace(SETTINGS, samplings=(Sampling(temperature, top_p),))
        profile = measured(target, draft, prompts, settings, clock=MonotonicClock())
        (latency,) = profile.latencies
        for table in (latency.verify, latency.draft):
            assert table.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
            assert {len(timing.samples_s) for timing in table.timings} == {2}
            assert 0 < table.medians_s.min() < table.medians_s.max() < 1
        assert (latency.context_tokens, latency.batch_size) == (20, 1)
        assert len(latency.overhead.samples_s) == 2 * 3  # of five probe trees three have up to 8 nodes
        (acceptance,) = profile.acceptances
        assert (acceptance.rule, acceptance.temperature, acceptance.top_p) == ("sequoia", temperature, top_p)
        assert (acceptance.prompts, acceptance.positions) == (6, 60)
        assert 1 <= len(acceptance.table.p) <= 3
        assert acceptance.table.branching == 3
        assert acceptance.texts.reached.shape == (6, len(acceptance.table.p))
        assert acceptance.texts.reached[:, 0].tolist() == [10] * 6
        own = acceptance.texts.table()
        for name in ("p", "counts", "standard_error"):
            assert getattr(own, name).tolist() == getattr(acceptance.table, name).tolist()
        profile.save(tmp_path / "a.yaml")
        loaded = Profile.load(tmp_path / "a.yaml")
        assert (loaded.created, loaded.tool) == (profile.created, f"treeopt {__version__}")
        assert content(loaded, tmp_path) == content(profile, tmp_path)

    def test_machine_and_pair(self, target, draft, prompts):
        profile = measured(target, draft, prompts)
        assert (profile.pair.target, profile.pair.draft) == ("large", "small")
        assert (profile.pair.dtype, profile.pair.vocabulary) == ("float32", 23)
        assert profile.pair.target_parameters == target.parameters
        assert profile.machine.device == "cpu"
        assert all((profile.machine.processor, profile.machine.system, profile.machine.python, profile.machine.torch))

    def test_the_overhead_is_what_passes_do_not_explain(self, target, draft, prompts):
        (latency,) = measured(target, draft, prompts).latencies
        # all calls take a second: a step has one, its passes one and one for each level
        expected = sorted(-tree.max_depth for tree in PROBE_TREES[:3] for _ in range(2))
        np.testing.assert_allclose(np.sort(latency.overhead.samples_s), expected)

    def test_a_draft_like_the_target(self, target, prompts):
        for temperature in (0.0, 1.0):
            profile = measured(target, target, prompts, replace(SETTINGS, samplings=(Sampling(temperature),)))
            np.testing.assert_allclose(profile.acceptance().table.p, [[1, 0, 0]] * 3, atol=1e-12)

    def test_every_text_has_noise_of_its_own(self, target, draft, prompts):
        checkpoint = Checkpoint(None, "")
        measured(target, draft, prompts[:1] * 6, replace(SETTINGS, samplings=(Sampling(1.0),)), checkpoint=checkpoint)
        assert len({entry.values for entry in checkpoint.entries("acceptance")}) == 6

    def test_branching_ends_at_the_vocabulary(self, target, draft, prompts):
        profile = measured(target, draft, prompts, replace(SETTINGS, branching=99, samplings=(Sampling(1.0),)))
        assert profile.acceptance().table.branching == 23
        np.testing.assert_allclose(profile.acceptance().table.p.sum(axis=-1), 1)

    def test_the_context_is_as_long_as_asked_for(self, target, draft, monkeypatch):
        lengths = set()
        forward = target.forward

        def spy(inputs, *arguments, **keywords):
            lengths.update(sequence.cache.length for sequence in inputs)
            return forward(inputs, *arguments, **keywords)

        measuring = measurement(target, draft, [[1, 2, 3], [4]], replace(SETTINGS, context_tokens=(50,)))
        monkeypatch.setattr(target, "forward", spy)
        measuring._latency_grid.measure(lambda: None)
        assert min(lengths) == 49  # a step's root is fed again
        assert 50 in lengths
        assert max(lengths) <= 50 + 64

    def test_steps_stay_below_the_trained_length(self, target, draft, prompts):
        profile = measured(target, draft, prompts, replace(SETTINGS, context_tokens=(128 - 64,), rounds=40))
        assert len(profile.latency().overhead.samples_s) == 40 * 3


class TestResuming:
    def checkpoint(self, path, target, draft, *, resume=False, settings=SETTINGS):
        return Checkpoint(path, settings.conditions(target, draft, [[1]]), resume=resume)

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    @pytest.mark.parametrize("stop_after", [0, 3, 15, 17, 33, 36])
    def test_an_interrupted_profile_measures_only_what_is_missing(
        self, target, draft, prompts, tmp_path, temperature, stop_after
    ):
        settings = replace(SETTINGS, samplings=(Sampling(temperature),))
        whole = measured(target, draft, prompts, settings)
        timed = count()

        def until_interrupted():
            if next(timed) == stop_after:
                raise KeyboardInterrupt
            return 1.0

        path = tmp_path / "checkpoint"
        checkpoint = self.checkpoint(path, target, draft, settings=settings)
        with pytest.raises(KeyboardInterrupt):
            measured(target, draft, prompts, settings, clock=FakeClock(until_interrupted), checkpoint=checkpoint)
        timed = []
        checkpoint = self.checkpoint(path, target, draft, resume=True, settings=settings)
        clock = FakeClock(lambda: timed.append(1) or 1.0)
        resumed = measured(target, draft, prompts, settings, clock=clock, checkpoint=checkpoint)
        assert stop_after + len(timed) == 2 * (8 + 8 + 1 + 3 + 2 * 2)  # passes, steps, plain too, two prompts
        assert content(resumed, tmp_path) == content(whole, tmp_path)

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_an_interrupted_acceptance_generates_only_what_is_missing(
        self, target, draft, prompts, tmp_path, temperature, monkeypatch
    ):
        settings = replace(SETTINGS, samplings=(Sampling(temperature),))
        whole = measured(target, draft, prompts, settings)
        counted = []
        true_texts = per_prompt.continue_prompt

        def until_interrupted(target, draft, texts, prompt, positions):
            counted.append(prompt)
            if len(counted) == 3:
                raise KeyboardInterrupt
            return true_texts(target, draft, texts, prompt, positions)

        monkeypatch.setattr(per_prompt, "continue_prompt", until_interrupted)
        path = tmp_path / "checkpoint"
        with pytest.raises(KeyboardInterrupt):
            measured(
                target, draft, prompts, settings, checkpoint=self.checkpoint(path, target, draft, settings=settings)
            )
        checkpoint = self.checkpoint(path, target, draft, resume=True, settings=settings)
        resumed = measured(
            target, draft, prompts, settings, clock=FakeClock(lambda: pytest.fail("timed again")), checkpoint=checkpoint
        )
        assert counted == [*prompts[:3], *prompts[2:]]
        assert content(resumed, tmp_path) == content(whole, tmp_path)

    def test_a_torn_last_line_is_measured_again(self, target, draft, prompts, tmp_path):
        path = tmp_path / "checkpoint"
        whole = measured(target, draft, prompts, checkpoint=self.checkpoint(path, target, draft))
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:20]) + lines[20][:-5])
        for _ in range(2):
            checkpoint = self.checkpoint(path, target, draft, resume=True)
            resumed = measured(target, draft, prompts, checkpoint=checkpoint)
            assert content(resumed, tmp_path) == content(whole, tmp_path)
        assert len(path.read_text().splitlines()) == len(lines)
        assert all(map(json.loads, path.read_text().splitlines()))

    @pytest.mark.parametrize("changes", [{"rounds": 3}, {"samplings": (Sampling(0.5),)}, {"context_tokens": (21,)}])
    def test_other_settings_are_refused(self, target, draft, tmp_path, changes):
        self.checkpoint(tmp_path / "checkpoint", target, draft)
        with pytest.raises(TreeoptError, match="other conditions"):
            self.checkpoint(tmp_path / "checkpoint", target, draft, resume=True, settings=replace(SETTINGS, **changes))

    def test_other_models_are_refused(self, target, draft, tmp_path):
        self.checkpoint(tmp_path / "checkpoint", target, draft)
        with pytest.raises(TreeoptError, match="other conditions"):
            self.checkpoint(tmp_path / "checkpoint", target, target, resume=True)


class TestRefusals:
    @pytest.mark.parametrize("name", ["rounds", "positions", "branching", "depth"])
    def test_settings_of_zero(self, name):
        with pytest.raises(InvalidValueError, match=f"{name}: expected at least 1. Got 0"):
            Settings(**{name: 0})

    @pytest.mark.parametrize("name", ["context_tokens", "batch_sizes"])
    @pytest.mark.parametrize("values", [(), (0,), (1, 1)])
    def test_conditions_that_are_none(self, name, values):
        with pytest.raises(InvalidValueError, match=f"{name}: expected one or more, each once and at least 1"):
            Settings(**{name: values})

    def test_batches_without_a_single_text(self):
        with pytest.raises(InvalidValueError, match="batch_sizes: expected 1 among them"):
            Settings(batch_sizes=(2, 4))

    def test_one_temperature_twice(self):
        with pytest.raises(InvalidValueError, match="temperature: expected one or more, each once"):
            Settings(samplings=(Sampling(0.5), Sampling(0.5, 0.9)))

    def test_a_single_token(self):
        with pytest.raises(InvalidValueError, match=r"max_tokens: expected at least 2. Got 1"):
            Settings(max_tokens=1)

    @pytest.mark.parametrize("few", [[], [[1, 2]], [[1, 2], []]])
    def test_too_few_prompts(self, target, draft, few):
        with pytest.raises(InvalidValueError, match="prompts: expected at least two, none empty"):
            measurement(target, draft, few)

    def test_a_context_that_does_not_fit(self, target, make_model, draft, prompts):
        measurement(target, draft, prompts, replace(SETTINGS, context_tokens=(64,)))
        with pytest.raises(InvalidValueError, match=r"context_tokens: expected at most 64.*takes 128 tokens.*Got 65"):
            measurement(target, draft, prompts, replace(SETTINGS, context_tokens=(65,)))
        short = make_model(seed=3, max_positions=100)
        with pytest.raises(InvalidValueError, match=r"context_tokens: expected at most 36.*takes 100 tokens.*Got 64"):
            measurement(target, short, prompts, replace(SETTINGS, context_tokens=(64,)))

    def test_models_in_which_no_context_fits(self, target, make_model, prompts):
        with pytest.raises(InvalidValueError, match=r"expected models that take more than 64 tokens.*takes 64 tokens"):
            measurement(target, make_model(seed=3, max_positions=64), prompts)

    def test_prompts_that_leave_no_room(self, target, draft, prompts):
        with pytest.raises(InvalidValueError, match=r"prompts: expected at most 127 tokens before a new one.*Got 128"):
            measurement(target, draft, [*prompts, [1] * 128])

    def test_texts_that_do_not_fit(self, target, draft, prompts):
        most = (128 - max(map(len, prompts))) * len(prompts)
        with pytest.raises(InvalidValueError, match=rf"positions: expected at most {most}.*Got {most + 1}"):
            measurement(target, draft, prompts, replace(SETTINGS, positions=most + 1))
        profile = measured(target, draft, prompts, replace(SETTINGS, positions=most))
        assert profile.acceptance().positions == most

    def test_too_little_text(self, target, draft, prompts):
        with pytest.raises(TreeoptError, match="acceptance: expected two sequences or more"):
            measured(target, draft, prompts, replace(SETTINGS, positions=6))
