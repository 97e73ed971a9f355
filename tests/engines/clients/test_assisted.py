"""transformers' assisted generation on the bundled pair, with the whole distribution and fixed lengths."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.invented import call
from tests.engines.clients.tokens import swap_tokens
from treeopt import bundled
from treeopt.engines.clients.client import NGRAM, CompletionRequest, EngineConfig
from treeopt.engines.clients.registry import create_client
from treeopt.errors import EngineError
from treeopt.profiler.engine_profile import machine_of, pair_of
from treeopt.records.profile import Profile

pytest.importorskip("transformers", reason="needs the hf extra")
PROMPT = "def add(first, second):\n    return"
NEW_TOKENS = 16
GREEDY = CompletionRequest(PROMPT, NEW_TOKENS, 0.0)


@pytest.fixture
def make_folder(tmp_path):
    """Return the function that copies the bundled target, with a generation_config.json."""

    def make(**generation):
        folder = shutil.copytree(bundled.TARGET, tmp_path / f"target{len(list(tmp_path.iterdir()))}")
        (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")
        return folder

    return make


def make_config(target=bundled.TARGET, draft=bundled.DRAFT, draft_tokens=3, **options):
    options = {"threads": 1, **options}
    return EngineConfig(target=str(target), draft=draft and str(draft), draft_tokens=draft_tokens, **options)


def new_client():
    return create_client("transformers", url=None, timeout_s=60)


def start(config):
    return new_client().start(config)


@pytest.fixture(scope="module")
def client():
    """Return a client that has loaded the bundled pair."""
    return new_client()


@pytest.fixture(scope="module")
def greedy(client):
    """Return the greedy completions of the bundled pair by draft length."""
    return {length: client.start(make_config(draft_tokens=length)).complete([GREEDY])[0] for length in (0, 3)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_run_in_the_dtype_that_is_named(dtype):
    client, config = new_client(), make_config(device="cpu", dtype=dtype)
    running = client.start(config)
    assert {running._target.dtype, running._draft.dtype} == {getattr(torch, dtype)}
    assert (pair_of(config).dtype, machine_of(client, config).device) == (dtype, "cpu")


def test_settings_of_the_folder_do_not_change_outputs(make_folder, client, greedy):
    """Chat models set top_p and penalties; profiles record top_p 1."""
    folder, other = make_folder(do_sample=True, top_p=0.05, repetition_penalty=3.0), new_client()
    requests = [CompletionRequest(PROMPT, NEW_TOKENS, 1.0, seed) for seed in range(2)]
    for length in (0, 3):
        changed = other.start(make_config(folder, draft_tokens=length))
        plain = client.start(make_config(draft_tokens=length))
        texts = [completion.text for completion in changed.complete(requests)]
        assert texts == [completion.text for completion in plain.complete(requests)]
        assert texts[0] != texts[1]
        assert changed.complete([GREEDY])[0].text == greedy[length].text


def test_end_token_does_not_shorten_the_text(make_folder, greedy):
    """The end token is the first of the greedy text."""
    text, client = greedy[0].text, new_client()
    folder = make_folder(eos_token_id=ord(text[0]), pad_token_id=0)
    for running in (
        client.start(make_config(folder, draft_tokens=0)),
        client.start(make_config(folder)),
        start(make_config(folder, None, method=NGRAM)),
    ):
        assert running.complete([GREEDY])[0].text == text
    assert len(text) == NEW_TOKENS  # a token of this pair is a byte


@pytest.fixture
def make_padded(tmp_path):
    """Return the function that copies a bundled model, with more logits and other tokens."""

    def make(source, rows=0, fill=0.0, edit_tokens=None):
        folder = shutil.copytree(source, tmp_path / f"padded{len(list(tmp_path.iterdir()))}")
        weights = load_file(folder / "model.safetensors")
        for name in {"model.embed_tokens.weight", "lm_head.weight"} & weights.keys():
            more = torch.full((rows, weights[name].shape[1]), fill, dtype=weights[name].dtype)
            weights[name] = torch.cat([weights[name], more])
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text("utf-8"))
        config["vocab_size"] += rows
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        if edit_tokens is not None:
            tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
            edit_tokens(tokenizer)
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
        return folder

    return make


def add_token(tokenizer):
    more = {"id": 256, "content": "<one-more>", "special": True, "normalized": False}
    tokenizer["added_tokens"].append({**more, "single_word": False, "lstrip": False, "rstrip": False})


def test_truncated_weights_are_refused(make_folder):
    folder = make_folder()
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:1000])
    with pytest.raises(EngineError, match="transformers: expected models that it can load"):
        start(make_config(folder))


class TestOtherNumbersOfLogits:
    @pytest.mark.parametrize(
        ("target", "draft"),
        [
            ({"rows": 64, "edit_tokens": add_token}, {}),
            ({}, {"rows": 128, "fill": 3.0}),
            ({"rows": 64}, {"rows": 128, "fill": 3.0}),
        ],
        ids=["target has one more token", "draft has more", "both have padding"],
    )
    def test_only_shared_tokens_are_drafted(self, make_padded, greedy, target, draft):
        """The same tokens are drafted and accepted as without padding, which no draft model may propose."""
        padded = start(make_config(make_padded(bundled.TARGET, **target), make_padded(bundled.DRAFT, **draft)))
        completion, plain = padded.complete([GREEDY])[0], greedy[3]
        assert (completion.text, completion.accepted, completion.steps) == (plain.text, plain.accepted, plain.steps)
        assert sum(padded.complete([CompletionRequest(PROMPT, NEW_TOKENS, 1.0, seed=3)])[0].accepted) > 0

    def test_probe_measures_a_padded_pair_and_refuses_another_tokenizer(self, make_padded, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        quick = ("--prompts", str(bundled.PROMPTS), "--max-prompts", "3", "--rounds", "1", "--max-new-tokens", "8")
        target = str(make_padded(bundled.TARGET, 64))
        swapped = make_padded(bundled.DRAFT, edit_tokens=swap_tokens)
        start = ("probe", "transformers", *quick, "--lengths", "0,1", "--threads", "1", "--target", target, "--draft")
        probed = call(*start, str(bundled.DRAFT))
        assert probed.exit_code == 0, probed.output
        settings = {setting.name: setting.value for setting in Profile.load("profile.yaml").engine.settings}
        assert settings["logits"] == "320, of the draft model 256"
        refused = call(*start, str(swapped), "--force")
        assert refused.exit_code == 2
        (line,) = [line for line in refused.stderr.splitlines() if line.startswith("Error")]
        assert "--draft: expected the target's tokenizer" in line


def test_failure_while_decoding_is_one_line(monkeypatch, client):
    running = client.start(make_config())

    def fail(*_, **__):
        raise ValueError("cannot\nassist")

    monkeypatch.setattr(running._target, "generate", fail)
    with pytest.raises(EngineError, match=r"expected models that it can decode with\. Got: cannot assist"):
        running.complete([GREEDY])


def test_greedy_decoding_takes_the_likeliest_reported_token(client, greedy):
    running, text = client.start(make_config(draft_tokens=0)), greedy[0].text
    for length in range(0, NEW_TOKENS, 4):
        logprobs = running.next_logprobs(PROMPT + text[:length])
        assert max(logprobs, key=logprobs.get) == text[length]
        assert sum(map(math.exp, logprobs.values())) <= 1 + 1e-5
