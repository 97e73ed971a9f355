"""Probing a fake engine: the profile shows what the engine did, samples are kept, contradictions are refused."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.fake_engine import FakeEngine, accepted_of
from treeopt.engines.clients.client import Counters, EngineConfig, PassTimes
from treeopt.errors import EngineError, InfeasibleError, InvalidValueError
from treeopt.planner import step_model
from treeopt.planner.segments import fastest_length
from treeopt.profiler import Checkpoint
from treeopt.profiler.bench.engine import bench_engine
from treeopt.profiler.engine import Probe, ProbeSettings, _check_counters
from treeopt.profiler.engine_profile import engine_profile, machine_of, pair_of
from treeopt.records.identity import Identity
from treeopt.records.profile import UNKNOWN, Profile
from treeopt.records.results import NO_PREDICTION
from treeopt.trees import chain

CONFIG = EngineConfig(target="t.gguf", draft="d.gguf", draft_tokens=0)
PROMPTS = ("a", "bb", "ccc", "dddd")
SETTINGS = ProbeSettings(lengths=(0, 1, 3, 7), prompts=PROMPTS, rounds=2, max_new_tokens=41)


def run_probe(engine, settings=SETTINGS, checkpoint=None):
    probe, ticks = Probe(engine, CONFIG, settings, checkpoint or Checkpoint(None, "x")), []
    probe.measure(lambda: ticks.append(1))
    assert len(ticks) == settings.batches
    return probe


def measure(engine, settings=SETTINGS, checkpoint=None):
    return engine_profile(engine, CONFIG, settings, run_probe(engine, settings, checkpoint))


def tokens_per_step(length, settings=SETTINGS):
    """Count the tokens per step of the fake engine."""
    steps = [n for prompt in settings.prompts for n in accepted_of(prompt, length, settings.max_new_tokens - 1)]
    return 1 + sum(steps) / len(steps)


class ChangedEngine(FakeEngine):
    """An engine whose configurations or completions are changed."""

    change_config = staticmethod(lambda config: config)
    change_completions = staticmethod(lambda completions, config: completions)  # noqa: ARG005

    def start(self, config):
        running = super().start(self.change_config(config))
        complete = running.complete
        running.complete = lambda requests: self.change_completions(complete(requests), config)
        return running


def changed_engine(config=None, completions=None, **options):
    engine = ChangedEngine(**options)
    engine.change_config = config or engine.change_config
    engine.change_completions = completions or engine.change_completions
    return engine


class TestProfile:
    @pytest.mark.parametrize("batch_sizes", [(1,), (1, 3)])
    def test_profile_has_the_steps_and_tokens_of_the_engine(self, batch_sizes):
        profile = measure(FakeEngine(), replace(SETTINGS, batch_sizes=batch_sizes))
        assert [latency.batch_size for latency in profile.chain_latencies] == list(batch_sizes)
        for latency in profile.chain_latencies:
            for timed in latency.chains:
                np.testing.assert_allclose(timed.steps.samples_s, 0.001 * (1 + timed.length) * latency.batch_size)
                assert timed.prefill is timed.verify is None  # not reported
        for chain_counts in profile.acceptances[0].chains:
            assert chain_counts.tokens_per_step == pytest.approx(tokens_per_step(chain_counts.length), rel=1e-12)
        assert (profile.engine.name, profile.pair.target, profile.pair.draft) == ("fake", "t.gguf", "d.gguf")
        for depth in (1, 2, 3):
            steps = [n for length in (1, 3, 7) if length >= depth for p in PROMPTS for n in accepted_of(p, length, 40)]
            reached, accepted = (sum(n >= least for n in steps) for least in (depth - 1, depth))
            assert profile.acceptances[0].table.p[depth - 1, 0] == pytest.approx(accepted / reached, rel=1e-9)

    def test_prefill_is_that_of_single_sequences(self):
        settings = replace(SETTINGS, batch_sizes=(1, 3))
        profile = measure(FakeEngine(token_s=0.02), settings)
        assert {timed.prefill for timed in profile.chain_latencies[1].chains} == {None}
        for timed in profile.chain_latencies[0].chains:
            assert timed.prefill.tokens.tolist() == [1, 2, 3, 4]
            np.testing.assert_allclose(timed.prefill.medians_s, 0.02 * timed.prefill.tokens)
            assert {len(timing.samples_s) for timing in timed.prefill.timings} == {settings.rounds}

    def test_step_time_of_a_batch_is_that_of_the_sequence_that_ends_first(self):
        """A step of n sequences takes n ms here, so the last steps of longer sequences take less."""

        def shrink(completions, _):
            steps = sorted(completion.steps for completion in completions)
            ends_s = np.cumsum(np.diff([0, *steps]) * 0.001 * np.arange(len(steps), 0, -1))
            return [each._replace(decode_s=float(ends_s[steps.index(each.steps)])) for each in completions]

        settings = replace(SETTINGS, lengths=(0, 3), batch_sizes=(1, 4), max_new_tokens=48)
        assert len({len(accepted_of(prompt, 3, 47)) for prompt in PROMPTS}) > 2  # they end at different times
        for latency in measure(changed_engine(completions=shrink), settings).chain_latencies:
            for timed in latency.chains:
                np.testing.assert_allclose(timed.steps.samples_s, 0.001 * latency.batch_size)

    @pytest.mark.parametrize(("per_draft_token", "best"), [(0.0, 7), (0.3, 1), (5.0, 0)])
    def test_plan_predicts_what_was_counted_and_chooses_the_fastest_length(self, per_draft_token, best):
        def step_s(length, _):
            return 0.001 * (1 + per_draft_token * length**1.5)

        model = step_model(measure(FakeEngine(step_s=step_s)))
        for length in (1, 3, 7):
            assert model.tokens_per_step(chain(length)) == pytest.approx(tokens_per_step(length), rel=1e-9)
            assert model.step_s(chain(length)) == pytest.approx(step_s(length, 1), rel=1e-9)
        speedups = {length: model.speedup(chain(length)) for length in range(8)}
        assert max((0, 1, 3, 7), key=speedups.get) == best
        assert speedups[fastest_length(model)] == max(speedups.values())

    def test_reported_passes_are_saved_and_loaded(self, tmp_path):
        class Reporting(FakeEngine):
            def start(self, config):
                running = super().start(config)
                running.measure_passes = lambda requests: PassTimes(
                    0.001 * (1 + config.draft_tokens) * len(requests), 0.002 * config.draft_tokens
                )
                return running

        profile = measure(Reporting())
        for timed in profile.chain_latencies[0].chains:
            np.testing.assert_allclose(timed.verify.samples_s, 0.001 * (1 + timed.length))
            assert (timed.draft is None) == (timed.length == 0)
            if timed.draft is not None:
                np.testing.assert_allclose(timed.draft.samples_s, 0.002 * timed.length)
        profile.save(tmp_path / "p.yaml")
        loaded = Profile.load(tmp_path / "p.yaml")
        assert (loaded.engine, loaded.pair, loaded.acceptances[0].chains, loaded.chain_latencies) == (
            profile.engine,
            profile.pair,
            profile.acceptances[0].chains,
            profile.chain_latencies,
        )


def test_models_with_one_name_and_different_content_are_different_pairs(tmp_path):
    identities = []
    for content in (b"f16", b"q8_0"):
        for name in ("t.gguf", "d.gguf"):
            (tmp_path / name).write_bytes(content)
        config = replace(CONFIG, target=str(tmp_path / "t.gguf"), draft=str(tmp_path / "d.gguf"))
        identities.append(Identity.of(pair_of(config), machine_of(FakeEngine(), config)))
    assert identities[0].same_pair(identities[0])
    assert not identities[0].same_pair(identities[1])


def test_engine_on_an_unknown_device_matches_any_machine(tmp_path):
    profile = measure(FakeEngine(device=UNKNOWN))
    profile.save(tmp_path / "p.yaml")
    machine = Profile.load(tmp_path / "p.yaml").machine
    assert (machine.device, machine.processor, machine.system) == (UNKNOWN, UNKNOWN, UNKNOWN)
    unknown = Identity.of(profile.pair, profile.machine)
    for device, processor in (("cpu", "A"), ("cuda:0", "B")):
        other = Identity.of(profile.pair, replace(profile.machine, device=device, processor=processor))
        assert unknown.differences(other) == other.differences(unknown) == ()
    local = machine_of(FakeEngine(), CONFIG)
    assert local.device == "cpu"
    assert UNKNOWN not in (local.processor, local.system)


class TestRounds:
    @pytest.mark.parametrize(
        ("concurrent", "together", "most_open", "order"),
        [
            (False, False, 1, [0, 1, 3, 7, 1, 3, 7, 0]),
            (False, True, 4, [0, 1, 3, 7] * 2),
            (True, False, 4, [0, 1, 3, 7] * 2),
        ],
    )
    def test_one_length_runs_at_a_time_unless_models_are_shared(self, concurrent, together, most_open, order):
        """A GPU holds one copy of the models; each round begins with another length, so that drift affects all."""
        engine, settings = FakeEngine(concurrent=concurrent), replace(SETTINGS, together=together)
        profile, expected = measure(engine, settings), measure(FakeEngine())
        assert engine.most_open == most_open
        assert [config.draft_tokens for config in engine.started] == order
        assert engine.closed == len(order)
        assert (profile.acceptances, profile.chain_latencies) == (expected.acceptances, expected.chain_latencies)

    def test_every_round_starts_the_engine_again(self):
        engine = FakeEngine()
        engine.step_s = lambda length, _: 0.001 * (1 + length) * (1 if len(engine.started) <= 4 else 2)
        (latency,) = measure(engine).chain_latencies
        for timed in latency.chains:
            factors = timed.steps.samples_s / (0.001 * (1 + timed.length))
            np.testing.assert_allclose(np.unique(factors.round(6)), [1, 2])

    @pytest.mark.parametrize("batch", [1, 2])
    def test_sequences_that_end_at_once_are_left_out_and_counted(self, batch):
        settings = replace(SETTINGS, prompts=("a", "bb", "ends", "ccc"), batch_sizes=(1, batch)[-batch:])
        engine = FakeEngine(ends_at_once=frozenset(["ends"]))
        probe = run_probe(engine, settings)
        profile = engine_profile(engine, CONFIG, settings, probe)
        assert probe.ended_at_once() == batch * settings.rounds * len(settings.lengths)
        others = replace(settings, prompts=("a", "bb", "ccc"))
        for counts in profile.acceptances[0].chains:
            assert counts.tokens_per_step == pytest.approx(tokens_per_step(counts.length, others), rel=1e-12)
        for timed in profile.chain_latencies[-1].chains:
            np.testing.assert_allclose(timed.steps.samples_s, 0.001 * (1 + timed.length) * batch)

    def test_sequences_that_all_end_at_once_are_refused(self):
        with pytest.raises(EngineError, match="All end at once with 0 draft tokens: give other --prompts"):
            measure(FakeEngine(ends_at_once=frozenset(PROMPTS)))
        with pytest.raises(InfeasibleError, match="2 completions of several tokens in a batch"):
            measure(FakeEngine(ends_at_once=frozenset(["a", "ccc"])), replace(SETTINGS, batch_sizes=(1, 2)))

    @pytest.mark.parametrize(
        ("prompt", "new_tokens", "least"), [("é" * 900, 40, 1840), ("a", 3000, 3001), ("a", 8, 1024)]
    )
    def test_engine_has_room_for_the_longest_sequence(self, prompt, new_tokens, least):
        """A token has at least one byte of UTF-8, so a prompt of n bytes has at most n tokens."""
        engine, settings = FakeEngine(), replace(SETTINGS, prompts=("b", prompt), max_new_tokens=new_tokens, rounds=1)
        run_probe(engine, settings)
        assert all(config.context_tokens >= least + config.draft_tokens * (least > 1024) for config in engine.started)

    def test_lengths_that_do_not_ascend_are_refused(self):
        for lengths in ((), (0, 3, 3), (0, 3, 1)):
            with pytest.raises(InvalidValueError, match="lengths: expected numbers that rise"):
                replace(SETTINGS, lengths=lengths)


class TestResuming:
    def test_resumed_probe_decodes_only_what_is_missing(self, tmp_path):
        whole, path, engine = measure(FakeEngine()), tmp_path / "j.partial", FakeEngine()
        with pytest.raises(EngineError, match="gone"):
            measure(FakeEngine(dies_after=17), checkpoint=Checkpoint(path, "x"))
        profile = measure(engine, checkpoint=Checkpoint(path, "x", resume=True))
        warm_ups_before, warm_ups = 4, 1 + len(SETTINGS.lengths)
        assert engine.asked == warm_ups + SETTINGS.batches - (17 - warm_ups_before)
        assert (profile.chain_latencies, profile.acceptances) == (whole.chain_latencies, whole.acceptances)

    def test_resumed_probe_skips_no_batch_if_the_last_one_is_filled_up(self, tmp_path):
        settings = replace(SETTINGS, lengths=(0, 3), prompts=(*PROMPTS, "eeeee"), batch_sizes=(2,))
        whole, path = run_probe(FakeEngine(), settings), tmp_path / "j.partial"
        first = run_probe(FakeEngine(), replace(settings, rounds=1), Checkpoint(path, "x"))
        assert len(first.samples(3, 2)) == 3 * 2
        resumed = run_probe(FakeEngine(), settings, Checkpoint(path, "x", resume=True))
        assert [resumed.samples(length, 2) for length in (0, 3)] == [whole.samples(length, 2) for length in (0, 3)]

    def test_resumed_probe_completes_a_batch_of_which_only_the_beginning_was_stored(self, tmp_path):
        settings, path = replace(SETTINGS, lengths=(0, 3), batch_sizes=(2,)), tmp_path / "j.partial"
        whole = run_probe(FakeEngine(), settings, Checkpoint(path, "x"))
        path.write_text("".join(path.read_text().splitlines(True)[:6]))  # the heading, two batches, half a batch
        resumed = run_probe(FakeEngine(), settings, Checkpoint(path, "x", resume=True))
        assert [resumed.samples(length, 2) for length in (0, 3)] == [whole.samples(length, 2) for length in (0, 3)]

    def test_lengths_measured_in_separate_runs_equal_those_of_one_run(self, tmp_path):
        whole, path = measure(FakeEngine()), tmp_path / "j.partial"

        def settings_of(*lengths):
            return replace(SETTINGS, lengths=lengths)

        for number, length in enumerate((3, 0, 7)):
            probe = run_probe(FakeEngine(), settings_of(length), Checkpoint(path, "x", resume=number > 0))
        assert probe.measured() == (0, 3, 7)
        cut = Probe(FakeEngine(dies_after=3), CONFIG, settings_of(1), Checkpoint(path, "x", resume=True))
        with pytest.raises(EngineError, match="gone"):
            cut.measure()
        assert cut.measured() == (0, 3, 7)  # a length without all prompts is not complete
        last = run_probe(FakeEngine(), settings_of(1), Checkpoint(path, "x", resume=True))
        profile = engine_profile(FakeEngine(), CONFIG, settings_of(*last.measured()), last)
        assert (profile.chain_latencies, profile.acceptances) == (whole.chain_latencies, whole.acceptances)


class TestCounters:
    @pytest.mark.parametrize(
        ("counters", "reason"),
        [
            (Counters(10, 30, -1, (4, 2)), "was it restarted"),
            (Counters(10, 20, 21, (12, 9)), "another length"),
            (Counters(10, 40, 6, (4, 2)), "another length"),
            (Counters(11, 30, 6, (4, 2)), "other clients"),
            (Counters(10, 30, 10, (5, 5)), "other clients"),
            (Counters(10, 30, 6, (4, 1)), "update the engine"),
        ],
    )
    def test_impossible_counters_are_refused(self, counters, reason):
        _check_counters("fake", Counters(10, 30, 6, (4, 2, 0)), 10, 16, 3)
        _check_counters("fake", Counters(10, 30, 9, (4, 3, 2)), 10, 16, 3)  # 3 more were accepted after the end
        with pytest.raises(EngineError, match=reason):
            _check_counters("fake", counters, 10, 16, 3)

    @pytest.mark.parametrize(
        ("engine", "reason"),
        [
            (FakeEngine(others=1), "do other clients use it"),
            (FakeEngine(step_s=lambda *_: 0.0), "expected a time above 0 s"),
            (
                changed_engine(
                    lambda config: replace(config, draft_tokens=3 * config.draft_tokens), tells_positions=False
                ),
                r"expected 1 to 2 tokens a step with 1 draft tokens.*another length",
            ),
            (
                changed_engine(lambda config: replace(config, draft_tokens=3), tells_positions=False),
                r"expected 1 token a step\..*another length",
            ),
            (
                changed_engine(
                    completions=lambda found, _: [each._replace(steps=None, coalesced=True) for each in found],
                    tells_positions=False,
                ),
                r"several steps at once.*--stream-interval 1",
            ),
        ],
        ids=["other clients", "no time", "three times the length", "plain decoding drafts", "coalesced steps"],
    )
    def test_contradictory_completions_are_refused(self, engine, reason):
        with pytest.raises(EngineError, match=reason):
            measure(engine)

    @pytest.mark.parametrize("options", [{"tells_steps": False}, {"steps_per_chunk": 2}])
    def test_steps_follow_from_counters_if_completions_lack_them(self, options):
        assert measure(FakeEngine(**options)).acceptances == measure(FakeEngine()).acceptances

    @pytest.mark.parametrize("tells_steps", [True, False])
    def test_drafts_accepted_after_the_end_are_not_those_of_another_client(self, tells_steps):
        """VLLM counts them; tokens per step are those of the sequences."""

        class Beyond(FakeEngine):
            def start(self, config):
                running = super().start(config)
                counters = running.counters

                def count_beyond():
                    counted, texts = counters(), running.engine.asked
                    first, *others = counted.accepted_per_position
                    return counted._replace(
                        accepted_tokens=counted.accepted_tokens + texts, accepted_per_position=(first + texts, *others)
                    )

                if config.draft_tokens:
                    running.counters = count_beyond
                return running

        (counts,) = measure(Beyond(tells_steps=tells_steps), replace(SETTINGS, lengths=(0, 3))).acceptances[0].chains
        assert counts.tokens_per_step == pytest.approx(tokens_per_step(3))


def test_bench_has_measured_and_predicted_speeds():
    model = step_model(measure(FakeEngine()))
    lengths = (0, 1, 3, 7, 9)
    slower = FakeEngine(step_s=lambda length, _: 0.001 * (1 + 3 * length))
    result = bench_engine(slower, CONFIG, replace(SETTINGS, lengths=lengths), model, 7)
    rates = {n: (tokens_per_step(n) if n else 1) / (0.001 * (1 + 3 * n)) for n in lengths}
    for row in result.rows:
        assert row.tokens_per_s == pytest.approx(rates[row.length])
        assert row.speedup == pytest.approx(rates[row.length] / rates[0])
        assert row.chosen == (row.length == 7)
        assert row.identical
    assert result.rows[-1].predicted == NO_PREDICTION  # longer than what was probed
    assert result.rows[3].predicted.speedup == pytest.approx(tokens_per_step(7) / 8)
    assert result.gap_to_best == pytest.approx(max(rates.values()) / rates[7] - 1)

    def differ(completions, config):
        return [each._replace(text="something else") if config.draft_tokens == 3 else each for each in completions]

    result = bench_engine(changed_engine(completions=differ), CONFIG, SETTINGS, model, 1)
    assert [row.identical for row in result.rows] == [True, True, False, True]
