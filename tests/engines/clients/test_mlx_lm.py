"""mlx-lm with a fake of its Python functions, and with the real package if it is installed."""

import importlib.util
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import ModuleType, SimpleNamespace

import pytest

from tests.engines.clients.tokens import copy_with_swapped_tokens
from treeopt.bundled import DRAFT, TARGET
from treeopt.engines.clients import client as client_module
from treeopt.engines.clients import mlx_lm
from treeopt.engines.clients.client import CompletionRequest, EngineConfig
from treeopt.engines.clients.registry import create_client
from treeopt.errors import EngineError, InvalidValueError

INSTALLED = importlib.util.find_spec("mlx_lm") is not None and importlib.util.find_spec("mlx") is not None
CONFIG = EngineConfig(target=str(TARGET), draft=str(DRAFT), draft_tokens=3)
REQUEST = CompletionRequest("abc", 12, 0.0)
PROMPT_S, STEP_S, TOKEN_S = 7.0, 1.0, 0.01
"""Seconds of the prefill, of a step, and between the tokens of a step."""


class FakeMlx:
    """A fake of mlx and mlx-lm whose steps accept `accepted` draft tokens in turn, on a clock of its own."""

    def __init__(self, accepted=(2, 0, 3, 1)):
        self.accepted = accepted
        self.now_s = 0.0
        self.loaded, self.seeds, self.temperatures, self.requests = [], [], [], []
        self.load_error = self.stream_error = None
        self.end_token_at = None
        self.own_length = None
        """Draft tokens instead of those requested."""

    def perf_counter(self):
        return self.now_s

    def load(self, folder):
        if self.load_error:
            raise self.load_error
        self.loaded.append(folder)
        return f"model {folder}", SimpleNamespace(eos_token_ids={0})

    def make_sampler(self, temp):
        self.temperatures.append(temp)
        return f"sampler {temp}"

    def stream_generate(self, model, tokenizer, prompt, max_tokens, sampler, draft_model=None, num_draft_tokens=None):
        self.requests.append((model, draft_model, num_draft_tokens, sampler))
        length = self.own_length or num_draft_tokens or 0
        done, turn = 0, 0
        while done < max_tokens:
            self.now_s += STEP_S if done else PROMPT_S
            if self.stream_error:
                raise self.stream_error
            drafted = min(self.accepted[turn % len(self.accepted)], length, max_tokens - done)
            turn += 1
            for from_draft in [True] * drafted + [False] * (done + drafted < max_tokens):
                done += 1
                self.now_s += TOKEN_S
                yield SimpleNamespace(text="x", from_draft=from_draft, prompt_tokens=len(prompt))
                if done == self.end_token_at and tokenizer.eos_token_ids:
                    return


@pytest.fixture
def mlx(monkeypatch):
    """Return the fake, installed as both packages and the clock."""
    fake = FakeMlx()
    packages = {name: ModuleType(name) for name in ("mlx", "mlx.core", "mlx_lm", "mlx_lm.sample_utils")}
    packages["mlx"].core = packages["mlx.core"]
    packages["mlx.core"].random = SimpleNamespace(seed=fake.seeds.append)
    packages["mlx.core"].default_device = lambda: "Device(cpu, 0)"
    packages["mlx_lm"].load, packages["mlx_lm"].stream_generate = fake.load, fake.stream_generate
    packages["mlx_lm.sample_utils"].make_sampler = fake.make_sampler
    for name, package in packages.items():
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setattr(client_module, "version", {"mlx-lm": "1.2", "mlx": "3.4"}.__getitem__)
    monkeypatch.setattr(mlx_lm, "time", SimpleNamespace(perf_counter=fake.perf_counter))
    return fake


def engine():
    return create_client("mlx-lm", url=None, timeout_s=60)


def complete(config=CONFIG, request=REQUEST):
    return engine().start(config).complete([request])[0]


class TestCompletions:
    def test_first_step_is_the_prefill(self, mlx):
        """Steps of 3, 1, 4, 2 and 2 tokens: the last has room for 2 of its 3, and ends on a drafted token."""
        completion = complete()
        assert (completion.tokens, completion.steps, completion.accepted) == (1 + 9, 4, (3, 2, 1))
        assert completion.decode_s == pytest.approx(4 * STEP_S + 9 * TOKEN_S)
        assert (completion.text, completion.prompt_tokens) == ("x" * 12, 3)
        assert mlx.requests[0][1:3] == (f"model {DRAFT}", 3)

    def test_plain_decoding_has_no_draft_model(self, mlx):
        completion = complete(replace(CONFIG, draft_tokens=0))
        assert (completion.tokens, completion.steps, completion.accepted) == (12, 11, ())
        assert completion.decode_s == pytest.approx(11 * (STEP_S + TOKEN_S))
        assert mlx.requests == [(f"model {TARGET}", None, None, "sampler 0.0")]

    def test_end_token_does_not_shorten_the_text(self, mlx):
        mlx.end_token_at = 1
        assert complete().tokens == 10

    def test_seed_and_temperature_reach_the_sampler(self, mlx):
        complete(request=CompletionRequest("abc", 12, 0.7, 5))
        assert (mlx.seeds, mlx.temperatures) == ([5], [0.7])

    def test_models_are_loaded_once_for_all_lengths(self, mlx):
        client = engine()
        assert (client.name, client.version, client.device) == ("mlx-lm", "1.2 on mlx 3.4", "cpu")
        assert [(setting.name, setting.value) for setting in client.settings] == [("device", "Device(cpu, 0)")]
        for length in (0, 1, 3):
            client.start(replace(CONFIG, draft_tokens=length))
        assert mlx.loaded == [str(TARGET), str(DRAFT)]


class TestRefusals:
    @pytest.mark.usefixtures("mlx")
    def test_unsupported_options(self):
        with pytest.raises(EngineError, match="no --url"):
            create_client("mlx-lm", url="0=http://a:1", timeout_s=1)
        with pytest.raises(EngineError, match="no --threads"):
            engine().start(replace(CONFIG, threads=2))

    def test_missing_package(self, monkeypatch):
        def missing(name):
            raise PackageNotFoundError(name)

        monkeypatch.setattr(client_module, "version", missing)
        assert mlx_lm.describe_engine().version is None
        with pytest.raises(EngineError, match=r"not installed: pip install 'mlx-lm\[cpu\]'"):
            engine()

    @pytest.mark.usefixtures("mlx")
    def test_mlx_without_a_backend(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "mlx.core", None)
        monkeypatch.delattr(sys.modules["mlx"], "core")
        with pytest.raises(EngineError, match="expected mlx with a backend"):
            engine()

    @pytest.mark.usefixtures("mlx")
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"slots": 2}, "expected a batch of 1"),
            ({"draft": None}, "expected two models"),
            ({"target": "someone/model"}, "expected folders in Hugging Face's layout. Got 'someone/model'"),
        ],
    )
    def test_unsupported_configurations(self, changes, reason):
        with pytest.raises(EngineError, match=reason):
            engine().start(replace(CONFIG, **changes))

    @pytest.mark.parametrize("error", [FileNotFoundError, ValueError, KeyError, TypeError])
    def test_models_that_do_not_load(self, mlx, error):
        mlx.load_error = error("no\nsuch weights")
        with pytest.raises(EngineError, match="models that it can load") as caught:
            engine().start(CONFIG)
        assert "\n" not in str(caught.value)

    def test_another_tokenizer(self, mlx, tmp_path):
        draft = copy_with_swapped_tokens(DRAFT, tmp_path / "draft")
        with pytest.raises(InvalidValueError, match="2 ids stand for other tokens"):
            engine().start(replace(CONFIG, draft=str(draft)))
        assert mlx.loaded == []

    def test_models_that_do_not_decode(self, mlx):
        mlx.stream_error = ValueError("not trimmable")
        with pytest.raises(EngineError, match="Got: not trimmable"):
            complete()

    def test_completion_beyond_the_time_limit(self, mlx):
        assert complete(replace(CONFIG, timeout_s=PROMPT_S + 5)).tokens == 10
        with pytest.raises(EngineError, match=r"within 9\.5 s"):
            complete(replace(CONFIG, timeout_s=PROMPT_S + 2.5))
        assert mlx.now_s < 2 * (PROMPT_S + 5)

    def test_more_drafted_tokens_than_requested(self, mlx):
        mlx.own_length = 3
        with pytest.raises(EngineError, match=r"at most 1 drafted tokens in a step\. Got 3"):
            complete(replace(CONFIG, draft_tokens=1))


@pytest.mark.slow
def test_real_engine_gives_the_same_text_with_all_lengths():
    """Outputs equal plain decoding's, and tokens are steps plus accepted drafts."""
    if not INSTALLED:
        pytest.skip("mlx-lm is not installed: make engines-mlx, and run this test with build/engines/mlx-lm/bin/python")
    client = engine()
    request = CompletionRequest("class Parser:\n    def parse(self", 24, 0.0)
    plain, *drafted = (
        client.start(replace(CONFIG, draft_tokens=length)).complete([request])[0] for length in (0, 1, 3)
    )
    assert (plain.tokens, plain.steps) == (24, 23)
    for completion in drafted:
        assert completion.text == plain.text
        assert completion.steps + sum(completion.accepted) - completion.after_first in (0, 1)  # 1 if cut short
        assert completion.decode_s > 0
