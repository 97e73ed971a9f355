"""A whole profile of small models: its content, resuming, refusals."""

import gc
from dataclasses import replace
from weakref import WeakSet

import numpy as np
import pytest

from tests.profiler.pretended import FakeClock, interrupt, measure_grid, measure_profile, undated
from treeopt import __version__
from treeopt.errors import InvalidValueError, TreeoptError, TreeoptWarning
from treeopt.profiler import Checkpoint, Measurement, MonotonicClock, RecordSize, Settings, profile_run
from treeopt.profiler.acceptance import incremental, per_prompt
from treeopt.profiler.acceptance.incremental import random_groups
from treeopt.profiler.latency.passes import PROBE_TREES
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.trees import chain

SETTINGS = Settings(context_tokens=(20,), max_tokens=8, rounds=2, positions=60, depth=3, branching=3)


def check_measurable(target, draft, prompts, settings=SETTINGS):
    Measurement(target, draft, prompts, settings, clock=FakeClock(), checkpoint=Checkpoint(None, ""))


class TestProfile:
    @pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (0.8, 0.9)])
    def test_real_measurements_save_and_load(self, target, draft, prompts, tmp_path, temperature, top_p):
        settings = replace(SETTINGS, samplings=(Sampling(temperature, top_p),))
        profile = measure_profile(target, draft, prompts, settings, clock=MonotonicClock())
        (latency,) = profile.latencies
        for table in (latency.verify, latency.draft):
            assert table.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
            assert {len(timing.samples_s) for timing in table.timings} == {2}
            assert 0 < table.medians_s.min() < table.medians_s.max() < 1
        assert (latency.context_tokens, latency.batch_size) == (20, 1)
        assert len(latency.overhead.samples_s) == 2 * 3  # three probe trees have up to 8 nodes
        (acceptance,) = profile.acceptances
        assert (acceptance.rule, acceptance.sampling) == ("sequoia", Sampling(temperature, top_p))
        assert (acceptance.prompts, acceptance.positions) == (6, 60)
        assert acceptance.table.branching == 3
        assert acceptance.sequences.reached.shape == (6, len(acceptance.table.p))
        assert acceptance.sequences.reached[:, 0].tolist() == [10] * 6
        assert acceptance.sequences.table().p.tolist() == acceptance.table.p.tolist()
        profile.save(tmp_path / "a.yaml")
        loaded = Profile.load(tmp_path / "a.yaml")
        assert (loaded.created, loaded.tool) == (profile.created, f"treeopt {__version__}")
        loaded.save(tmp_path / "b.yaml")
        assert (tmp_path / "b.yaml").read_bytes() == (tmp_path / "a.yaml").read_bytes()

    def test_profile_describes_machine_and_pair_and_overhead_is_steps_minus_passes(self, target, draft, prompts):
        profile = measure_profile(target, draft, prompts, SETTINGS)
        assert (profile.pair.target, profile.pair.draft) == ("large", "small")
        assert (profile.pair.dtype, profile.pair.vocabulary) == ("float32", 23)
        assert profile.pair.target_parameters == target.parameters
        machine = profile.machine
        assert machine.device == "cpu"
        assert all((machine.processor, machine.system, machine.python, machine.torch))
        # all calls take a second: a step has one, its passes one and one for each level
        expected = sorted(-tree.max_depth for tree in PROBE_TREES[:3] for _ in range(2))
        np.testing.assert_allclose(np.sort(profile.latencies[0].overhead.samples_s), expected)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_draft_equal_to_the_target_is_always_accepted(self, target, prompts, temperature):
        profile = measure_profile(target, target, prompts, replace(SETTINGS, samplings=(Sampling(temperature),)))
        np.testing.assert_allclose(profile.acceptance().table.p, [[1, 0, 0]] * 3, atol=1e-12)

    def test_every_sequence_has_its_own_seed_and_branching_ends_at_the_vocabulary(self, target, draft, prompts):
        settings = replace(SETTINGS, branching=99, samplings=(Sampling(1.0),))
        profile = measure_profile(target, draft, prompts[:1] * 6, settings)
        assert len({tuple(ranks.tolist()) for ranks in profile.acceptance().accepted_ranks.ranks}) == 6
        assert profile.acceptance().table.branching == 23
        np.testing.assert_allclose(profile.acceptance().table.p.sum(axis=-1), 1)

    def test_timed_calls_have_the_context_length_and_stay_below_the_trained_one(self, target, draft, monkeypatch):
        lengths, forward = set(), target.forward

        def record_lengths(inputs, *arguments, **options):
            lengths.update(sequence.cache.length for sequence in inputs)
            return forward(inputs, *arguments, **options)

        settings = replace(SETTINGS, context_tokens=(128 - 64,), rounds=20)
        measurement = Measurement(
            target, draft, [[1, 2, 3], [4]], settings, clock=FakeClock(), checkpoint=Checkpoint(None, "")
        )
        monkeypatch.setattr(target, "forward", record_lengths)
        (latency,) = measure_grid(measurement._latency_grid)
        assert min(lengths) == 63  # a step's root is fed again
        assert 64 in lengths
        assert max(lengths) <= 128
        assert len(latency.overhead.samples_s) == 20 * 3


class TestResuming:
    @pytest.mark.parametrize(("temperature", "call"), [(0.0, 3), (0.8, 17), (0.0, 36)])
    def test_resumed_profile_times_only_what_is_missing(
        self, target, draft, prompts, tmp_path, monkeypatch, temperature, call
    ):
        settings = replace(SETTINGS, samplings=(Sampling(temperature),))
        whole = measure_profile(target, draft, prompts, settings)
        calls, path = interrupt(monkeypatch, FakeClock, "time_s", call), tmp_path / "checkpoint"
        with pytest.raises(KeyboardInterrupt):
            measure_profile(target, draft, prompts, settings, checkpoint=Checkpoint(path, "h"))
        resumed = measure_profile(target, draft, prompts, settings, checkpoint=Checkpoint(path, "h", resume=True))
        assert len(calls) - 1 == 2 * (8 + 8 + 1 + 3 + 2 * 2)  # passes, steps, plain steps too, two prompt lengths
        assert undated(resumed) == undated(whole)

    def test_resumed_acceptance_generates_only_what_is_missing(self, target, draft, prompts, tmp_path, monkeypatch):
        settings = replace(SETTINGS, samplings=(Sampling(0.8),))
        whole = measure_profile(target, draft, prompts, settings)
        calls, path = interrupt(monkeypatch, per_prompt, "continue_prompts", 1), tmp_path / "checkpoint"
        with pytest.raises(KeyboardInterrupt):
            measure_profile(target, draft, prompts, settings, checkpoint=Checkpoint(path, "h"))
        resumed = measure_profile(
            target,
            draft,
            prompts,
            settings,
            clock=FakeClock(lambda: pytest.fail("timed again")),
            checkpoint=Checkpoint(path, "h", resume=True),
        )
        first, second = ([prompts[number] for number in group] for group in random_groups(len(prompts)))
        assert [counted for _, _, _, counted, _ in calls] == [first, second, second]
        assert undated(resumed) == undated(whole)


def test_caches_of_finished_decoders_are_freed_at_once(target, draft, prompts, monkeypatch):
    """Decoders refer to themselves, so without `release_memory` only the garbage collector frees their caches."""
    new_caches, live, most = target.new_caches, WeakSet(), []

    def counted_caches(capacity, sequences):
        caches = new_caches(capacity, sequences)
        live.update(caches)
        most.append(len(live))
        return caches

    monkeypatch.setattr(target, "new_caches", counted_caches)
    monkeypatch.setattr(incremental, "GROUP_PROMPTS", 1)
    settings = replace(
        SETTINGS, samplings=(Sampling(0.8),), rules=("sequoia", "traversal"), context_tokens=(20, 40), positions=20
    )
    gc.collect()
    gc.disable()
    try:
        measure_profile(target, draft, prompts, settings, fastest_tree=lambda _: chain(2))
    finally:
        gc.enable()
    assert len(most) > 50
    assert max(most) == 2  # of steps with a tree, and of plain ones


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            *[({name: 0}, f"{name}: expected at least 1. Got 0") for name in ("rounds", "positions", "branching")],
            ({"max_tokens": 1}, "max_tokens: expected at least 2. Got 1"),
            *[({"batch_sizes": sizes}, "batch_sizes: expected one or more, each once") for sizes in ((), (0,), (1, 1))],
            ({"context_tokens": (8, 8)}, "context_tokens: expected one or more, each once and at least 1"),
            ({"batch_sizes": (2, 4)}, "batch_sizes: expected 1 among them"),
            ({"samplings": (Sampling(0.5), Sampling(0.5, 0.9))}, "temperature: expected one or more, each once"),
        ],
    )
    def test_settings_out_of_range_are_refused(self, changes, reason):
        with pytest.raises(InvalidValueError, match=reason):
            Settings(**changes)

    @pytest.mark.parametrize("few", [[[1, 2]], [[1, 2], []]])
    def test_too_few_prompts_are_refused(self, target, draft, few):
        with pytest.raises(InvalidValueError, match="prompts: expected at least two, none empty"):
            check_measurable(target, draft, few)

    def test_prompts_of_another_tokenizer_are_refused(self, target, draft):
        with pytest.raises(InvalidValueError, match=r"prompts: expected tokens from 0 to 22, .* Got 23: use its own"):
            check_measurable(target, draft, [[1], [2, 23]])

    def test_context_longer_than_the_models_is_refused(self, target, make_model, draft, prompts):
        check_measurable(target, draft, prompts, replace(SETTINGS, context_tokens=(64,)))
        with pytest.raises(InvalidValueError, match=r"context_tokens: expected at most 64.*takes 128 tokens.*Got 65"):
            check_measurable(target, draft, prompts, replace(SETTINGS, context_tokens=(65,)))
        short = make_model(seed=3, max_positions=100)
        with pytest.raises(InvalidValueError, match=r"context_tokens: expected at most 36.*takes 100 tokens.*Got 64"):
            check_measurable(target, short, prompts, replace(SETTINGS, context_tokens=(64,)))
        with pytest.raises(InvalidValueError, match=r"expected models that take more than 64 tokens.*takes 64 tokens"):
            check_measurable(target, make_model(seed=3, max_positions=64), prompts)

    def test_sequences_longer_than_the_models_are_refused(self, target, draft, prompts):
        with pytest.raises(InvalidValueError, match=r"prompts: expected at most 127 tokens before a new one.*Got 128"):
            check_measurable(target, draft, [*prompts, [1] * 128])
        most = (128 - max(map(len, prompts))) * len(prompts)
        with pytest.raises(InvalidValueError, match=rf"positions: expected at most {most}.*Got {most + 1}"):
            check_measurable(target, draft, prompts, replace(SETTINGS, positions=most + 1))
        profile = measure_profile(target, draft, prompts, replace(SETTINGS, positions=most))
        assert profile.acceptance().positions == most

    def test_prompts_longer_than_the_models_are_refused_only_with_a_record_if_there_are_several_contexts(
        self, target, draft, monkeypatch
    ):
        prompts, settings = [[1, 2, 3] * 50] * 2, replace(SETTINGS, context_tokens=(20, 40), positions=20)
        calls = interrupt(monkeypatch, profile_run, "logits_after", -1)
        profile = measure_profile(target, draft, prompts, settings)
        assert [len(tokens) for _, tokens in calls] == [128, 128]
        assert [acceptance.positions for acceptance in profile.acceptances] == [20, 20]
        with pytest.raises(InvalidValueError, match=r"prompts: expected at most 127 tokens before a new one.*Got 150"):
            check_measurable(target, draft, prompts, replace(settings, record=RecordSize()))

    def test_contexts_beyond_the_memory_are_left_out_with_a_warning(self, target, draft, monkeypatch):
        new_caches, live = target.new_caches, WeakSet()

        def limited_caches(capacity, sequences):
            if capacity * sequences + sum(cache.capacity for cache in live) > 120:
                raise RuntimeError("CUDA out of memory")
            caches = new_caches(capacity, sequences)
            live.update(caches)
            return caches

        monkeypatch.setattr(target, "new_caches", limited_caches)
        settings = replace(SETTINGS, context_tokens=(10, 60), positions=20)
        prompts = [[1, 2, 3] * length for length in (1, 40)]
        with pytest.warns(TreeoptWarning, match="times: memory ran out at 60 tokens of context, which are left out"):
            profile = measure_profile(target, draft, prompts, settings)
        assert [latency.context_tokens for latency in profile.latencies] == [10]
        assert [(each.context_tokens, each.positions) for each in profile.acceptances] == [(10, 20)]
        assert profile.prefill.target.max_tokens == 11

    def test_too_few_positions_are_refused(self, target, draft, prompts):
        with pytest.raises(TreeoptError, match="acceptance: expected two sequences or more"):
            measure_profile(target, draft, prompts, replace(SETTINGS, positions=6))
