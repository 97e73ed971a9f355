"""OpenVINO GenAI with a fake of its Python API, and with the real one if it is installed."""

import importlib.util
import os
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tests.support.fake_openvino import DRAFT_S, PROMPT_S, STEP_S, VERIFY_S, FakeOpenVino
from treeopt.engines.clients import client as client_module
from treeopt.engines.clients import openvino_genai, registry
from treeopt.engines.clients.client import CompletionRequest, EngineConfig
from treeopt.errors import EngineError
from treeopt.profiler.engine_profile import machine_of

REAL = importlib.util.find_spec("openvino_genai") is not None
PAIR = Path(os.environ.get("TREEOPT_OPENVINO_PAIR", "build/engines/openvino"))
"""Folder with the pair's IR, `target` and `draft`, as `make engines-openvino` makes it."""


@pytest.fixture
def fake(monkeypatch):
    fake = FakeOpenVino()
    monkeypatch.setitem(sys.modules, "openvino_genai", fake)
    monkeypatch.setattr(client_module, "version", lambda _: "2026.4.1.0")
    monkeypatch.setattr(openvino_genai.time, "perf_counter", lambda: fake.now_s)
    return fake


@pytest.fixture
def config(tmp_path):
    for name in ("target", "draft", "broken"):
        (tmp_path / name).mkdir()
        (tmp_path / name / openvino_genai.MODEL_FILE).touch()
    return EngineConfig(target=str(tmp_path / "target"), draft=str(tmp_path / "draft"), draft_tokens=3)


def client():
    return registry.create_client("openvino", url=None, timeout_s=9)


@pytest.mark.usefixtures("fake")
class TestPasses:
    @pytest.mark.parametrize("length", [0, 1, 5])
    def test_prefill_is_subtracted(self, config, length):
        running = client().start(replace(config, draft_tokens=length))
        passes = running.measure_passes([CompletionRequest("abc", 20, 0.0)] * 2)
        assert passes == pytest.approx((VERIFY_S, length * DRAFT_S))

    def test_single_steps_are_refused(self, config):
        with pytest.raises(EngineError, match="max-new-tokens"):
            client().start(config).measure_passes([CompletionRequest("abc", openvino_genai.SHORT_TOKENS, 0.0)])


@pytest.mark.usefixtures("fake")
class TestCompletions:
    def test_steps_tokens_seconds_and_positions(self, config):
        """Steps accept 0 in the prefill, then 1, 2, 3, 0, 1 and 2; the end of the text cuts one token off."""
        (completion,) = client().start(config).complete([CompletionRequest("abc", 16, 0.0)])
        sizes = [2, 3, 4, 1, 2, 3]
        assert completion == (
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
        assert completion.after_first == len(sizes) + sum(completion.accepted)

    def test_drafts_accepted_in_the_prefill_do_not_count(self, fake, config):
        fake.accepts = lambda step, length: length if step == 0 else 0
        (completion,) = client().start(config).complete([CompletionRequest("abc", 10, 0.0)])
        assert (completion.tokens, completion.steps, completion.accepted) == (7, 6, (0, 0, 0))

    def test_plain_decoding_has_a_pipeline_without_a_draft(self, fake, config):
        (completion,) = client().start(replace(config, draft_tokens=0)).complete([CompletionRequest("abc", 10, 0.0)])
        assert (completion.tokens, completion.steps, completion.accepted) == (10, 9, ())
        assert completion.decode_s == pytest.approx(9 * STEP_S)
        assert "draft_model" not in fake.loaded[0][3]

    def test_sequences_of_a_batch_have_their_own_steps(self, config):
        requests = [CompletionRequest("a", 16, 0.0), CompletionRequest("bb", 16, 0.0), CompletionRequest("ccc", 9, 0.0)]
        completions = client().start(replace(config, slots=3)).complete(requests)
        assert [completion.prompt_tokens for completion in completions] == [1, 2, 3]
        assert [(completion.tokens, completion.steps, completion.accepted) for completion in completions] == [
            (16, 6, (5, 3, 1)),
            (15, 6, (4, 3, 1)),
            (7, 3, (1, 1, 1)),
        ]

    def test_requests_contain_their_sampling(self, fake, config):
        running = client().start(config)
        running.complete([CompletionRequest("a", 8, 0.0)])
        running.complete([CompletionRequest("a", 8, 0.7, 5)])
        greedy, sampled = (config for _, config in fake.asked)
        assert (greedy.do_sample, greedy.num_assistant_tokens, greedy.ignore_eos) == (False, 3, True)
        assert (sampled.do_sample, sampled.temperature, sampled.rng_seed) == (True, 0.7, 5)

    def test_each_pipeline_is_loaded_once_with_the_threads(self, fake, config):
        engine = client()
        for length in (0, 1, 7, 0):
            engine.start(replace(config, draft_tokens=length, threads=2)).close()
        threads = {openvino_genai.THREADS: 2}
        assert [properties for *_, properties in fake.loaded] == [
            threads,
            {**threads, "draft_model": (config.draft, "CPU", threads)},
        ]
        assert machine_of(engine, replace(config, threads=2)).threads == 2
        assert fake.loaded[0][2] >= 1024  # a prompt of the context's length is read in one step


@pytest.mark.usefixtures("fake")
class TestRefusals:
    """Each error is one line with the engine's name."""

    def refused(self, call):
        with pytest.raises(EngineError) as caught:
            call()
        message = str(caught.value)
        assert message.startswith("openvino: expected")
        assert message.isprintable()
        return message

    def test_not_installed(self, monkeypatch):
        def none(name):
            raise PackageNotFoundError(name)

        monkeypatch.setattr(client_module, "version", none)
        assert "not installed: pip install openvino-genai" in self.refused(client)
        assert openvino_genai.describe_engine().version is None

    def test_address(self):
        url = "0=http://localhost:1"
        assert "--url" in self.refused(
            lambda: registry.create_client("openvino", url=url, timeout_s=9),
        )

    def test_models(self, config, tmp_path):
        broken, missing = str(tmp_path / "broken"), str(tmp_path / "none")
        for wrong, reason in (
            (replace(config, draft=None), "give --target and --draft"),
            (replace(config, target=missing), "optimum-cli export openvino"),
            (replace(config, draft=missing), "optimum-cli export openvino"),
            (replace(config, target=broken), "Check 'false' failed"),
        ):
            assert reason in self.refused(lambda wrong=wrong: client().start(wrong))

    def test_completion_beyond_the_time_limit_is_cancelled(self, fake, config):
        running = client().start(replace(config, timeout_s=1.02))
        assert "within 1.02 s" in self.refused(lambda: running.complete([CompletionRequest("a", 64, 0.0)]))
        assert not fake.pipelines[0].has_non_finished_requests()
        (completion,) = running.complete([CompletionRequest("a", 4, 0.0)])
        assert completion.tokens == 4

    def test_failed_step(self, fake, config):
        fake.fault = "Exception from src/a.cpp:1:\nout of memory\n"
        assert "out of memory" in self.refused(
            lambda: client().start(config).complete([CompletionRequest("a", 64, 0.0)])
        )


@pytest.mark.slow
def test_real_engine_gives_the_same_text_with_all_lengths():
    """Greedy texts are plain decoding's, and tokens, steps and positions agree."""
    if not REAL or not (PAIR / "target" / openvino_genai.MODEL_FILE).is_file():
        pytest.skip("OpenVINO GenAI or the pair's IR folders are missing: make engines-openvino")
    engine = client()
    pair = EngineConfig(target=str(PAIR / "target"), draft=str(PAIR / "draft"), draft_tokens=0, threads=1)
    requests = [CompletionRequest("def mean(values):\n", 48, 0.0), CompletionRequest("class Parser:\n", 48, 0.0)]
    plain = engine.start(pair).complete(requests)
    assert [(completion.tokens, completion.steps) for completion in plain] == [(48, 47)] * 2
    for length in (1, 4):
        completions = engine.start(replace(pair, draft_tokens=length, slots=2)).complete(requests)
        assert [completion.text for completion in completions] == [completion.text for completion in plain]
        for completion in completions:
            assert completion.after_first == completion.steps + sum(completion.accepted)
            assert len(completion.accepted) == length
        assert sum(completion.steps for completion in completions) < 94
