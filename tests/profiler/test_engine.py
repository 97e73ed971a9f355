"""Probing: what a fake engine does is what its profile says, every answer is kept, and what cannot be is refused."""

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
from treeopt.trees import chain

CONFIG = EngineConfig(target="t.gguf", draft="d.gguf", draft_tokens=0)
PROMPTS = ("a", "bb", "ccc", "dddd")
SETTINGS = ProbeSettings(lengths=(0, 1, 3, 7), prompts=PROMPTS, rounds=2, max_new_tokens=41)


def probed(engine, settings=SETTINGS, checkpoint=None):
    probe = Probe(engine, CONFIG, settings, checkpoint or Checkpoint(None, "x"))
    probe.measure()
    return engine_profile(engine, CONFIG, settings, probe)


def tokens_per_step(length, settings=SETTINGS):
    """Return the fake's, counted here."""
    steps = [each for prompt in settings.prompts for each in accepted_of(prompt, length, settings.max_new_tokens - 1)]
    return 1 + sum(steps) / len(steps)


class FewerAndFewer(FakeEngine):
    """An engine whose steps take a millisecond for every text that is still decoded."""

    def start(self, config):
        running = super().start(config)
        complete = running.complete

        def together(questions):
            found = complete(questions)
            left = sorted(each.steps for each in found)
            ends_s = np.cumsum(np.diff([0, *left]) * 0.001 * np.arange(len(left), 0, -1))
            return [each._replace(decode_s=float(ends_s[left.index(each.steps)])) for each in found]

        running.complete = together
        return running


class TestProfile:
    @pytest.mark.parametrize("batch", [1, 3])
    def test_it_says_what_the_engine_did(self, batch):
        settings = replace(SETTINGS, batch_sizes=(batch,)) if batch == 1 else replace(SETTINGS, batch_sizes=(1, batch))
        found = probed(FakeEngine(), settings)
        assert [each.batch_size for each in found.chain_latencies] == list(settings.batch_sizes)
        for latency in found.chain_latencies:
            for each in latency.chains:
                expected = 0.001 * (1 + each.length) * latency.batch_size
                np.testing.assert_allclose(each.steps.samples_s, expected)
        for each in found.acceptances[0].chains:
            assert each.tokens_per_step == pytest.approx(tokens_per_step(each.length), rel=1e-12)
        assert (found.engine.name, found.pair.target, found.pair.draft) == ("fake", "t.gguf", "d.gguf")

    def test_prompts_take_as_long_as_it_told_of_texts_asked_for_alone(self):
        settings = replace(SETTINGS, batch_sizes=(1, 3))
        found = probed(FakeEngine(token_s=0.02), settings)
        assert {each.prefill for each in found.chain_latencies[1].chains} == {None}
        for each in found.chain_latencies[0].chains:
            assert each.prefill.tokens.tolist() == [1, 2, 3, 4]
            np.testing.assert_allclose(each.prefill.medians_s, 0.02 * each.prefill.tokens)
            assert {len(timing.samples_s) for timing in each.prefill.timings} == {settings.rounds}
        assert {each.prefill for each in probed(FakeEngine()).chain_latencies[0].chains} == {None}

    def test_of_texts_decoded_together_the_first_to_end_tells_how_long_a_step_takes(self):
        """A step of n texts takes n ms here, so that those that go on alone take their last steps in less."""
        settings = replace(SETTINGS, lengths=(0, 3), batch_sizes=(1, 4), max_new_tokens=48)
        assert len({len(accepted_of(prompt, 3, 47)) for prompt in PROMPTS}) > 2  # else nobody would end first
        found = probed(FewerAndFewer(), settings)
        for latency in found.chain_latencies:
            for each in latency.chains:
                np.testing.assert_allclose(each.steps.samples_s, 0.001 * latency.batch_size)

    def test_plans_promise_what_was_counted(self):
        model = step_model(probed(FakeEngine()))
        for length in (1, 3, 7):
            assert model.tokens_per_step(chain(length)) == pytest.approx(tokens_per_step(length), rel=1e-9)
            assert model.step_s(chain(length)) == pytest.approx(0.001 * (1 + length), rel=1e-9)

    @pytest.mark.parametrize(("per_draft_token", "best"), [(0.0, 7), (0.3, 1), (5.0, 0)])
    def test_the_fastest_measured_length_is_the_planners(self, per_draft_token, best):
        def step_s(length, _):
            return 0.001 * (1 + per_draft_token * length**1.5)

        model = step_model(probed(FakeEngine(step_s=step_s)))
        rates = {length: (tokens_per_step(length) if length else 1) / step_s(length, 1) for length in (0, 1, 3, 7)}
        assert max(rates, key=rates.get) == best
        speedups = {length: model.speedup(chain(length)) for length in range(8)}
        assert max((0, 1, 3, 7), key=speedups.get) == best
        assert speedups[fastest_length(model)] == max(speedups.values())

    def test_it_is_saved_and_loaded(self, tmp_path):
        found = probed(FakeEngine())
        found.save(tmp_path / "p.yaml")
        again = Profile.load(tmp_path / "p.yaml")
        again.save(tmp_path / "again.yaml")
        assert (tmp_path / "again.yaml").read_bytes() == (tmp_path / "p.yaml").read_bytes()
        assert "version: 1" in (tmp_path / "p.yaml").read_text()
        assert (again.engine, again.pair, again.acceptances[0].chains) == (
            found.engine,
            found.pair,
            found.acceptances[0].chains,
        )

    def test_acceptance_is_of_every_position(self):
        found = probed(FakeEngine())
        table = found.acceptances[0].table
        for depth in (1, 2, 3):
            reached = accepted = 0
            for length in (1, 3, 7):
                steps = [n for prompt in PROMPTS for n in accepted_of(prompt, length, 40)]
                if length >= depth:
                    reached += sum(each >= depth - 1 for each in steps)
                    accepted += sum(each >= depth for each in steps)
            assert table.p[depth - 1, 0] == pytest.approx(accepted / reached, rel=1e-9)


def test_another_quantisation_under_the_same_name_is_another_pair(tmp_path):
    identities = []
    for content in (b"f16", b"q8_0"):
        for name in ("t.gguf", "d.gguf"):
            (tmp_path / name).write_bytes(content)
        config = replace(CONFIG, target=str(tmp_path / "t.gguf"), draft=str(tmp_path / "d.gguf"))
        identities.append(Identity.of(pair_of(config), machine_of(FakeEngine(), config)))
    assert identities[0].same_pair(identities[0])
    assert not identities[0].same_pair(identities[1])


def test_an_engine_of_which_nobody_knows_where_it_runs_is_on_an_unknown_machine(tmp_path):
    found = probed(FakeEngine(device=UNKNOWN))
    found.save(tmp_path / "p.yaml")
    machine = Profile.load(tmp_path / "p.yaml").machine
    assert (machine.device, machine.processor, machine.system) == (UNKNOWN, UNKNOWN, UNKNOWN)
    unknown = Identity.of(found.pair, found.machine)
    for device, processor in (("cpu", "A"), ("cuda:0", "B")):
        other = Identity.of(found.pair, replace(found.machine, device=device, processor=processor))
        assert unknown.differences(other) == other.differences(unknown) == ()
    here = machine_of(FakeEngine(), CONFIG)
    assert here.device == "cpu"
    assert UNKNOWN not in (here.processor, here.system)


class TellingEngine(FakeEngine):
    """Tells its passes: 1 ms to verify a token, 2 ms to draft one."""

    def start(self, config):
        running = super().start(config)
        running.measure_passes = lambda questions: PassTimes(
            0.001 * (1 + config.draft_tokens) * len(questions), 0.002 * config.draft_tokens
        )
        return running


def test_passes_that_an_engine_tells_are_in_the_profile(tmp_path):
    found = probed(TellingEngine())
    for each in found.chain_latencies[0].chains:
        np.testing.assert_allclose(each.verify.samples_s, 0.001 * (1 + each.length))
        assert (each.draft is None) == (each.length == 0)
        if each.draft is not None:
            np.testing.assert_allclose(each.draft.samples_s, 0.002 * each.length)
    found.save(tmp_path / "p.yaml")
    assert Profile.load(tmp_path / "p.yaml").chain_latencies == found.chain_latencies
    assert all(each.verify is None for each in probed(FakeEngine()).chain_latencies[0].chains)


class TestAsking:
    @pytest.mark.parametrize(
        ("concurrent", "together", "most_open", "order"),
        [
            (False, False, 1, [0, 1, 3, 7, 1, 3, 7, 0]),
            (False, True, 4, [0, 1, 3, 7] * 2),
            (True, False, 4, [0, 1, 3, 7] * 2),
        ],
    )
    def test_an_engine_that_loads_models_again_runs_one_length_at_a_time(self, concurrent, together, most_open, order):
        """A GPU holds one copy of the models; each round begins with another length, so that drift hits all."""
        engine, settings = FakeEngine(concurrent=concurrent), replace(SETTINGS, together=together)
        found = probed(engine, settings)
        assert engine.most_open == most_open
        assert [each.draft_tokens for each in engine.started] == order
        assert engine.closed == len(order)
        assert found.acceptances == probed(FakeEngine()).acceptances
        assert found.chain_latencies == probed(FakeEngine()).chain_latencies

    @pytest.mark.parametrize("batch", [1, 2])
    def test_a_text_that_ends_at_once_is_left_out_and_counted(self, batch):
        settings = replace(SETTINGS, prompts=("a", "bb", "ends", "ccc"), batch_sizes=(1, batch)[-batch:])
        probe = Probe(FakeEngine(ends_at_once=frozenset(["ends"])), CONFIG, settings, Checkpoint(None, "x"))
        probe.measure()
        found = engine_profile(FakeEngine(), CONFIG, settings, probe)
        assert probe.ended_at_once() == batch * settings.rounds * len(settings.lengths)
        left = replace(settings, prompts=("a", "bb", "ccc"))
        for each in found.acceptances[0].chains:
            assert each.tokens_per_step == pytest.approx(tokens_per_step(each.length, left), rel=1e-12)
        for each in found.chain_latencies[-1].chains:
            np.testing.assert_allclose(each.steps.samples_s, 0.001 * (1 + each.length) * batch)

    def test_texts_that_all_end_at_once_are_refused(self):
        with pytest.raises(EngineError, match="All end at once with 0 draft tokens: give other --prompts"):
            probed(FakeEngine(ends_at_once=frozenset(PROMPTS)))
        settings = replace(SETTINGS, batch_sizes=(1, 2))
        with pytest.raises(InfeasibleError, match="2 texts at a time that all have several tokens"):
            probed(FakeEngine(ends_at_once=frozenset(["a", "ccc"])), settings)

    def test_every_round_starts_the_engine_anew_since_starts_differ(self):
        engine = FakeEngine()
        engine.step_s = lambda length, _: 0.001 * (1 + length) * (1 if len(engine.started) <= 4 else 2)
        (latency,) = probed(engine).chain_latencies
        for each in latency.chains:
            factors = each.steps.samples_s / (0.001 * (1 + each.length))
            np.testing.assert_allclose(np.unique(factors.round(6)), [1, 2])

    @pytest.mark.parametrize(
        ("prompt", "new_tokens", "least"), [("é" * 900, 40, 1840), ("a", 3000, 3001), ("a", 8, 1024)]
    )
    def test_the_engine_gets_room_for_the_longest_text(self, prompt, new_tokens, least):
        """A token stands for at least one byte of UTF-8, so a prompt of n bytes has at most n."""
        engine, settings = FakeEngine(), replace(SETTINGS, prompts=("b", prompt), max_new_tokens=new_tokens, rounds=1)
        probed(engine, settings)
        assert {config.draft_tokens for config in engine.started} == set(settings.lengths)
        assert all(config.context_tokens >= least + config.draft_tokens * (least > 1024) for config in engine.started)

    def test_an_engine_that_dies_loses_nothing(self, tmp_path):
        whole = probed(FakeEngine())
        path = tmp_path / "j.partial"
        with pytest.raises(EngineError, match="gone"):
            probed(FakeEngine(dies_after=17), checkpoint=Checkpoint(path, "x"))
        engine = FakeEngine()
        found = probed(engine, checkpoint=Checkpoint(path, "x", resume=True))
        warm_ups_before, warm_ups = 4, 1 + len(SETTINGS.lengths)
        assert engine.asked == warm_ups + SETTINGS.batches - (17 - warm_ups_before)
        assert found.chain_latencies == whole.chain_latencies
        assert found.acceptances == whole.acceptances

    def test_a_resumed_probe_skips_nothing_where_the_batch_does_not_divide_the_prompts(self, tmp_path):
        settings = replace(SETTINGS, lengths=(0, 3), prompts=(*PROMPTS, "eeeee"), batch_sizes=(2,), rounds=2)
        whole = Probe(FakeEngine(), CONFIG, settings, Checkpoint(None, "x"))
        whole.measure()
        path, one_round = tmp_path / "j.partial", 6  # samples: 3 waves of 2 texts
        Probe(FakeEngine(), CONFIG, replace(settings, rounds=1), Checkpoint(path, "x")).measure()
        probe = Probe(FakeEngine(), CONFIG, settings, Checkpoint(path, "x", resume=True))
        assert len(probe.samples(3, 2)) == one_round
        probe.measure()
        assert len(probe.samples(3, 2)) == 2 * one_round
        assert [probe.samples(each, 2) for each in (0, 3)] == [whole.samples(each, 2) for each in (0, 3)]

    def test_other_clients_are_noticed(self):
        with pytest.raises(EngineError, match="do other clients use it"):
            probed(FakeEngine(others=1))

    @pytest.mark.parametrize(
        ("counted", "reason"),
        [
            (Counters(10, 30, -1, (4, 2)), "was it restarted"),
            (Counters(10, 20, 21, (12, 9)), "another length"),
            (Counters(10, 40, 6, (4, 2)), "another length"),
            (Counters(11, 30, 6, (4, 2)), "other clients"),
            (Counters(10, 30, 10, (5, 5)), "other clients"),
            (Counters(10, 30, 6, (4, 1)), "update the engine"),
        ],
    )
    def test_counters_that_cannot_be_are_refused(self, counted, reason):
        _check_counters("fake", Counters(10, 30, 6, (4, 2, 0)), 10, 16, 3)  # these can
        _check_counters("fake", Counters(10, 30, 9, (4, 3, 2)), 10, 16, 3)  # 3 accepted at the end that had no room
        with pytest.raises(EngineError, match=reason):
            _check_counters("fake", counted, 10, 16, 3)

    def test_a_server_with_another_length_is_noticed(self):
        class Longer(FakeEngine):
            def start(self, config):
                return super().start(replace(config, draft_tokens=config.draft_tokens * 3))

        with pytest.raises(EngineError, match=r"expected 1 to 2 tokens a step with 1 draft tokens.*another length"):
            probed(Longer(tells_positions=False))

        class Drafts(FakeEngine):
            def start(self, config):
                return super().start(replace(config, draft_tokens=3))

        with pytest.raises(EngineError, match=r"expected 1 token a step\..*another length"):
            probed(Drafts(tells_positions=False))

    def test_a_text_without_a_duration_is_no_other_length(self):
        with pytest.raises(EngineError, match="expected a time above 0 s"):
            probed(FakeEngine(step_s=lambda *_: 0.0))

    def test_steps_follow_from_counters_where_no_text_tells_them(self):
        found = probed(FakeEngine(tells_steps=False), replace(SETTINGS, lengths=(0, 3)))
        assert found.acceptances[0].chains == tuple(
            each for each in probed(FakeEngine()).acceptances[0].chains if each.length == 3
        )

    def test_counters_are_believed_where_chunks_hold_several_steps(self):
        assert probed(FakeEngine(steps_per_chunk=2)).acceptances == probed(FakeEngine()).acceptances

    def test_several_steps_in_a_chunk_are_refused_without_counters(self):
        class Coalesces(FakeEngine):
            def start(self, config):
                running = super().start(config)
                complete = running.complete
                running.complete = lambda asked: [each._replace(steps=None, coalesced=True) for each in complete(asked)]
                return running

        with pytest.raises(EngineError, match=r"several steps at once.*--stream-interval 1"):
            probed(Coalesces(tells_positions=False))

    @pytest.mark.parametrize("lengths", [(), (0, 3, 3), (0, 3, 1)])
    def test_lengths_that_do_not_rise_are_refused(self, lengths):
        with pytest.raises(InvalidValueError, match="lengths: expected numbers that rise"):
            replace(SETTINGS, lengths=lengths)

    def test_lengths_measured_in_runs_of_their_own_are_those_measured_together(self, tmp_path):
        """Each run goes on with the checkpoint of those before; a length that was cut short is not there yet."""
        together, path = probed(FakeEngine()), tmp_path / "j.partial"
        for run, length in enumerate((3, 0, 7)):
            probe = Probe(
                FakeEngine(), CONFIG, replace(SETTINGS, lengths=(length,)), Checkpoint(path, "x", resume=run > 0)
            )
            probe.measure()
        assert probe.measured() == (0, 3, 7)
        cut = Probe(
            FakeEngine(dies_after=3), CONFIG, replace(SETTINGS, lengths=(1,)), Checkpoint(path, "x", resume=True)
        )
        with pytest.raises(EngineError, match="gone"):
            cut.measure()
        assert cut.measured() == (0, 3, 7)
        last = Probe(FakeEngine(), CONFIG, replace(SETTINGS, lengths=(1,)), Checkpoint(path, "x", resume=True))
        last.measure()
        found = engine_profile(FakeEngine(), CONFIG, replace(SETTINGS, lengths=last.measured()), last)
        assert found.chain_latencies == together.chain_latencies
        assert found.acceptances == together.acceptances

    def test_what_was_accepted_beyond_a_texts_end_is_no_other_client(self):
        """VLLM counts it: with the steps of the chunks, and with none, tokens per step are those of the texts."""

        class Beyond(FakeEngine):
            def start(self, config):
                running = super().start(config)
                counters = running.counters
                if config.draft_tokens:
                    running.counters = lambda: _more(counters(), running.engine.asked)
                return running

        def _more(counted, texts):
            first, *others = counted.accepted_per_position
            return counted._replace(
                accepted_tokens=counted.accepted_tokens + texts, accepted_per_position=(first + texts, *others)
            )

        for tells_steps in (True, False):
            found = probed(Beyond(tells_steps=tells_steps), replace(SETTINGS, lengths=(0, 3)))
            assert found.acceptances[0].chains[0].tokens_per_step == pytest.approx(tokens_per_step(3))


class TestRace:
    def test_rows_are_what_the_engine_did_and_regret_is_by_hand(self):
        model = step_model(probed(FakeEngine()))
        slower_now = FakeEngine(step_s=lambda length, _: 0.001 * (1 + 3 * length))
        found = bench_engine(slower_now, CONFIG, replace(SETTINGS, lengths=(0, 1, 3, 7, 9)), model, 7)
        rates = {
            length: (tokens_per_step(length) if length else 1) / (0.001 * (1 + 3 * length))
            for length in (0, 1, 3, 7, 9)
        }
        for row in found.rows:
            assert row.tokens_per_s == pytest.approx(rates[row.length])
            assert row.speedup == pytest.approx(rates[row.length] / rates[0])
            assert row.chosen == (row.length == 7)
            assert row.identical
        assert found.rows[-1].predicted_speedup is None  # beyond what was probed
        assert found.rows[3].predicted_speedup == pytest.approx(tokens_per_step(7) / 8)
        assert found.gap_to_best == pytest.approx(max(rates.values()) / rates[7] - 1)

    def test_another_text_is_seen(self):
        class Differs(FakeEngine):
            def start(self, config):
                running = super().start(config)
                if config.draft_tokens == 3:
                    answer = running._answer
                    running._answer = lambda *asked: answer(*asked)._replace(text="something else")
                return running

        model = step_model(probed(FakeEngine()))
        found = bench_engine(Differs(), CONFIG, SETTINGS, model, 1)
        assert [row.identical for row in found.rows] == [True, True, False, True]
