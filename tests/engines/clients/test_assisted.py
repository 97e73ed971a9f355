"""transformers' assisted generation on the bundled pair: the whole distribution is sampled, whatever the folder sets."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.invented import call
from treeopt import bundled
from treeopt.engines.clients.client import NGRAM, CompletionRequest, EngineConfig
from treeopt.engines.clients.registry import create_client
from treeopt.errors import EngineError, InvalidValueError
from treeopt.profiler.engine_profile import machine_of, pair_of
from treeopt.records.profile import Profile

pytest.importorskip("transformers", reason="needs the hf extra")
PROMPT = "def add(first, second):\n    return"
NEW_TOKENS = 24
GREEDY = CompletionRequest(PROMPT, NEW_TOKENS, 0.0)


@pytest.fixture
def make_folder(tmp_path):
    """Return the function that copies the bundled target, with a generation_config.json."""

    def make(**generation):
        folder = shutil.copytree(bundled.TARGET, tmp_path / f"target{len(list(tmp_path.iterdir()))}")
        (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")
        return folder

    return make


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_run_in_the_dtype_that_is_named(dtype):
    client = create_client("transformers", url=None, threads=1, timeout_s=60)
    config = EngineConfig(
        target=str(bundled.TARGET), draft=str(bundled.DRAFT), draft_tokens=3, device="cpu", dtype=dtype
    )
    running = client.start(config)
    assert {running._target.dtype, running._draft.dtype} == {getattr(torch, dtype)}
    assert running.complete([GREEDY])[0].steps > 0
    assert (pair_of(config).dtype, machine_of(client, config).device) == (dtype, "cpu")


def answer(target, request, draft=bundled.DRAFT, draft_tokens=3, method=None):
    client = create_client("transformers", url=None, threads=1, timeout_s=60)
    config = EngineConfig(
        target=str(target), draft=None if method else str(draft), draft_tokens=draft_tokens, method=method
    )
    return client.start(config).complete([request])[0]


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_the_whole_distribution_is_sampled(make_folder, draft_tokens):
    """Folders of chat models set top_p and penalties; profiles record top_p 1."""
    request = CompletionRequest(PROMPT, NEW_TOKENS, 1.0)
    plain, narrow = make_folder(), make_folder(do_sample=True, top_p=0.05, repetition_penalty=1.5)
    texts = [
        [answer(folder, request._replace(seed=seed), draft_tokens=draft_tokens).text for seed in range(3)]
        for folder in (plain, narrow)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3


def test_a_penalty_of_the_folder_does_not_change_greedy_text(make_folder):
    assert answer(make_folder(repetition_penalty=3.0), GREEDY).text == answer(make_folder(), GREEDY).text


@pytest.mark.parametrize(("draft_tokens", "method"), [(0, None), (3, None), (3, NGRAM)])
def test_an_end_token_does_not_shorten_the_text(make_folder, draft_tokens, method):
    """The end token is the first that greedy decoding writes, so that a text that heeds it ends at once."""
    text = answer(bundled.TARGET, GREEDY, draft_tokens=0).text
    folder = make_folder(eos_token_id=ord(text[0]), pad_token_id=0)
    assert answer(folder, GREEDY, draft_tokens=draft_tokens, method=method).text == text
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


def swap_tokens(tokenizer):
    ids = tokenizer["model"]["vocab"]
    first, second = (token for token, number in ids.items() if number in (97, 98))
    ids[first], ids[second] = ids[second], ids[first]


def test_weights_that_are_cut_off_are_one_line(make_folder):
    folder = make_folder()
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:1000])
    with pytest.raises(EngineError, match="transformers: expected models that it can load"):
        answer(folder, GREEDY)


class TestOtherNumbersOfLogits:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize(
        ("target", "draft"),
        [
            ({"rows": 64}, {}),
            ({"rows": 64, "edit_tokens": add_token}, {}),
            ({}, {"rows": 128, "fill": 3.0}),
            ({"rows": 64}, {"rows": 128, "fill": 3.0}),
        ],
        ids=["target has more", "target has one more token", "draft has more", "both have padding"],
    )
    def test_only_shared_tokens_are_drafted(self, make_padded, target, draft, temperature):
        """The same tokens are drafted and accepted as without padding, which no draft model may propose."""
        request = CompletionRequest(PROMPT, NEW_TOKENS, temperature, seed=3)
        padded = answer(make_padded(bundled.TARGET, **target), request, make_padded(bundled.DRAFT, **draft))
        if temperature == 0:
            plain = answer(bundled.TARGET, request)
            assert (padded.text, padded.accepted, padded.steps) == (plain.text, plain.accepted, plain.steps)
        assert sum(padded.accepted) > 0

    @pytest.mark.parametrize("rows", [0, 64])
    def test_another_tokenizer_is_refused(self, make_padded, rows):
        draft = make_padded(bundled.DRAFT, edit_tokens=swap_tokens)
        with pytest.raises(InvalidValueError, match=r"draft: expected the target's tokenizer\. 2 ids stand for other"):
            answer(make_padded(bundled.TARGET, rows), GREEDY, draft)

    def test_the_command_line_measures_a_padded_pair_and_refuses_another_tokenizer(
        self, make_padded, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        quick = ("--prompts", str(bundled.PROMPTS), "--max-prompts", "3", "--rounds", "1", "--max-new-tokens", "8")
        target = str(make_padded(bundled.TARGET, 64))
        swapped = make_padded(bundled.DRAFT, edit_tokens=swap_tokens)
        start = ("probe", "transformers", *quick, "--lengths", "0,1", "--threads", "1", "--target", target, "--draft")
        probed = call(*start, str(bundled.DRAFT))
        assert probed.exit_code == 0, probed.output
        settings = {each.name: each.value for each in Profile.load("profile.yaml").engine.settings}
        assert settings["logits"] == "320, of the draft model 256"
        refused = call(*start, str(swapped), "--force")
        assert refused.exit_code == 1
        (line,) = [each for each in refused.stderr.splitlines() if each.startswith("Error")]
        assert "--draft: expected the target's tokenizer" in line

    def test_a_failure_while_decoding_is_one_line(self, monkeypatch):
        client = create_client("transformers", url=None, threads=1, timeout_s=60)
        running = client.start(EngineConfig(target=str(bundled.TARGET), draft=str(bundled.DRAFT), draft_tokens=3))

        def fail(*_, **__):
            raise ValueError("cannot\nassist")

        monkeypatch.setattr(running._target, "generate", fail)
        with pytest.raises(EngineError, match=r"expected models that it can decode with\. Got: cannot assist"):
            running.complete([GREEDY])


def test_plain_decoding_takes_the_likeliest_token_that_it_tells():
    client = create_client("transformers", url=None, threads=1, timeout_s=60)
    running = client.start(EngineConfig(target=str(bundled.TARGET), draft=str(bundled.DRAFT), draft_tokens=0))
    text = running.complete([GREEDY])[0].text
    for place in range(NEW_TOKENS):
        told = running.next_logprobs(PROMPT + text[:place])
        assert max(told, key=told.get) == text[place]
        assert sum(map(math.exp, told.values())) <= 1 + 1e-5
