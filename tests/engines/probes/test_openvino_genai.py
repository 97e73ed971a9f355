"""OpenVINO GenAI's steps to answers, on a fake of its Python API; and on the real one where it is installed."""

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fake_openvino import DRAFT_S, PROMPT_S, STEP_S, VERIFY_S, FakeOpenVino
from treeopt.engines.probes import named, openvino_genai, started
from treeopt.engines.probes.client import Launch, Question
from treeopt.errors import EngineError
from treeopt.profiler import Journal
from treeopt.profiler.engine import Probe, ProbeSettings
from treeopt.profiler.engine_profile import engine_profile

REAL = importlib.util.find_spec("openvino_genai") is not None
PAIR = Path(os.environ.get("TREEOPT_OPENVINO_PAIR", "build/engines/openvino"))
"""Folder with the pair's IR, `target` and `draft`, as `make engines-openvino` makes it."""


@pytest.fixture
def fake(monkeypatch):
    found = FakeOpenVino()
    monkeypatch.setitem(sys.modules, "openvino_genai", found)
    monkeypatch.setattr(started, "version", lambda _: "2026.4.1.0")
    monkeypatch.setattr(openvino_genai.time, "perf_counter", lambda: found.now_s)
    return found


@pytest.fixture
def launch(tmp_path):
    for name in ("target", "draft", "broken"):
        (tmp_path / name).mkdir()
        (tmp_path / name / openvino_genai.MODEL_FILE).touch()
    return Launch(target=str(tmp_path / "target"), draft=str(tmp_path / "draft"), draft_tokens=3)


def client(threads=None):
    return named.engine_client("openvino", url=None, threads=threads, timeout_s=9)


@pytest.mark.usefixtures("fake")
class TestPasses:
    @pytest.mark.parametrize("length", [0, 1, 5])
    def test_what_reads_the_prompt_does_not_count(self, launch, length):
        running = client().start(replace(launch, draft_tokens=length))
        found = running.passes([Question("abc", 20, 0.0)] * 2)
        assert found == pytest.approx((VERIFY_S, length * DRAFT_S))

    def test_texts_of_one_step_tell_nothing(self, launch):
        with pytest.raises(EngineError, match="max-new-tokens"):
            client().start(launch).passes([Question("abc", openvino_genai.FEW_TOKENS, 0.0)])


@pytest.mark.usefixtures("fake")
class TestAnswers:
    def test_steps_tokens_seconds_and_positions(self, launch):
        """Steps accept 0 (with the prompt), then 1, 2, 3, 0, 1 and 2, of which one is cut off by the text's end."""
        (answer,) = client().start(launch).answers([Question("abc", 16, 0.0)])
        sizes = [2, 3, 4, 1, 2, 3]
        assert answer == (
            "x" * 16,
            1 + sum(sizes),
            pytest.approx(4 * STEP_S * len(sizes)),
            len(sizes),
            3,
            (5, 3, 1),
            pytest.approx(PROMPT_S),
            3,
            False,
        )
        assert answer.after_first == len(sizes) + sum(answer.accepted)

    def test_what_comes_with_the_prompt_is_one_token_however_many(self, fake, launch):
        """Its seconds are the prompt's, so that its accepted tokens may not count either."""
        fake.accepts = lambda step, length: length if step == 0 else 0
        (answer,) = client().start(launch).answers([Question("abc", 10, 0.0)])
        assert (answer.tokens, answer.steps, answer.accepted) == (7, 6, (0, 0, 0))

    def test_plain_decoding_has_a_pipeline_without_a_draft(self, fake, launch):
        (answer,) = client().start(replace(launch, draft_tokens=0)).answers([Question("abc", 10, 0.0)])
        assert (answer.tokens, answer.steps, answer.accepted) == (10, 9, ())
        assert answer.decode_s == pytest.approx(9 * STEP_S)
        assert "draft_model" not in fake.loaded[0][3]

    def test_texts_of_a_batch_have_their_own_steps(self, launch):
        questions = [Question("a", 16, 0.0), Question("bb", 16, 0.0), Question("ccc", 9, 0.0)]
        found = client().start(replace(launch, slots=3)).answers(questions)
        assert [each.prompt_tokens for each in found] == [1, 2, 3]
        assert [(each.tokens, each.steps, each.accepted) for each in found] == [
            (16, 6, (5, 3, 1)),
            (15, 6, (4, 3, 1)),
            (7, 3, (1, 1, 1)),
        ]

    def test_a_request_says_what_is_asked(self, fake, launch):
        running = client().start(launch)
        running.answers([Question("a", 8, 0.0)])
        running.answers([Question("a", 8, 0.7, 5)])
        greedy, sampled = (config for _, config in fake.asked)
        assert (greedy.do_sample, greedy.num_assistant_tokens, greedy.ignore_eos) == (False, 3, True)
        assert (sampled.do_sample, sampled.temperature, sampled.rng_seed) == (True, 0.7, 5)

    def test_each_pipeline_is_loaded_once_with_the_threads(self, fake, launch):
        engine = client(threads=2)
        for length in (0, 1, 7, 0):
            engine.start(replace(launch, draft_tokens=length)).close()
        threads = {openvino_genai.THREADS: 2}
        assert [each[3] for each in fake.loaded] == [
            threads,
            {**threads, "draft_model": (launch.draft, "CPU", threads)},
        ]
        assert [(each.name, each.value) for each in engine.settings] == [("threads", "2")]
        assert fake.loaded[0][2] >= 1024  # a prompt of the context's length is read in one step


@pytest.mark.usefixtures("fake")
class TestProfile:
    def test_it_holds_what_the_engine_did(self, launch):
        settings = ProbeSettings(lengths=(0, 1, 3), prompts=("a", "b"), rounds=2, max_new_tokens=17, batch_sizes=(1, 2))
        engine = client()
        probe = Probe(engine, launch, settings, Journal(None, "x"))
        probe.measure()
        profile = engine_profile(engine, launch, settings, probe)
        for latency in profile.chain_latencies:
            for each in latency.chains:
                assert each.steps.samples_s == pytest.approx([STEP_S * (1 + each.length)] * len(each.steps.samples_s))

    def test_more_tokens_than_the_length_allows_are_refused(self, fake, launch):
        """Negative control: an engine that drafts with another length than it is asked for."""
        config = fake.GenerationConfig

        class Deaf(config):
            __slots__ = ()

            def __setattr__(self, name, value):
                super().__setattr__(name, 7 if name == "num_assistant_tokens" and value else value)

        fake.GenerationConfig = Deaf
        settings = ProbeSettings(lengths=(0, 1), prompts=("a", "b"), rounds=1, max_new_tokens=33)
        with pytest.raises(EngineError, match="does it run with another length"):
            Probe(client(), launch, settings, Journal(None, "x")).measure()


@pytest.mark.usefixtures("fake")
class TestRefusals:
    """Each is one line that names the engine and what to do, or what the engine said."""

    def refused(self, call):
        with pytest.raises(EngineError) as found:
            call()
        message = str(found.value)
        assert message.startswith("openvino: expected")
        assert message.isprintable()
        return message

    def test_not_installed(self, monkeypatch):
        def none(name):
            raise started.PackageNotFoundError(name)

        monkeypatch.setattr(started, "version", none)
        assert "not installed: pip install openvino-genai" in self.refused(client)
        assert openvino_genai.available().version is None

    def test_an_address(self):
        url = "0=http://localhost:1"
        assert "--url" in self.refused(
            lambda: named.engine_client("openvino", url=url, threads=None, timeout_s=9),
        )

    def test_models(self, launch, tmp_path):
        broken, missing = str(tmp_path / "broken"), str(tmp_path / "none")
        for wrong, reason in (
            (replace(launch, draft=None), "give --target and --draft"),
            (replace(launch, target=missing), "optimum-cli export openvino"),
            (replace(launch, draft=missing), "optimum-cli export openvino"),
            (replace(launch, target=broken), "Check 'false' failed"),
        ):
            assert reason in self.refused(lambda wrong=wrong: client().start(wrong))

    def test_an_answer_that_takes_too_long_leaves_nothing_behind(self, fake, launch):
        running = client().start(replace(launch, timeout_s=1.02))
        assert "within 1.02 s" in self.refused(lambda: running.answers([Question("a", 64, 0.0)]))
        assert not fake.pipelines[0].has_non_finished_requests()
        (answer,) = running.answers([Question("a", 4, 0.0)])
        assert answer.tokens == 4

    def test_a_step_that_fails(self, fake, launch):
        fake.fault = "Exception from src/a.cpp:1:\nout of memory\n"
        assert "out of memory" in self.refused(lambda: client().start(launch).answers([Question("a", 64, 0.0)]))


@pytest.mark.slow
def test_the_real_one_answers_alike_with_every_length():
    """Greedy texts are plain decoding's, and tokens, steps and positions agree."""
    if not REAL or not (PAIR / "target" / openvino_genai.MODEL_FILE).is_file():
        pytest.skip("OpenVINO GenAI or the pair's IR folders are missing: make engines-openvino")
    engine = client(threads=1)
    known = Launch(target=str(PAIR / "target"), draft=str(PAIR / "draft"), draft_tokens=0)
    asked = [Question("def mean(values):\n", 48, 0.0), Question("class Parser:\n", 48, 0.0)]
    plain = engine.start(known).answers(asked)
    assert [(each.tokens, each.steps) for each in plain] == [(48, 47)] * 2
    for length in (1, 4):
        found = engine.start(replace(known, draft_tokens=length, slots=2)).answers(asked)
        assert [each.text for each in found] == [each.text for each in plain]
        for each in found:
            assert each.after_first == each.steps + sum(each.accepted)
            assert len(each.accepted) == length
        assert sum(each.steps for each in found) < 94
