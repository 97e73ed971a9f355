"""The bundled pair is what it says: small, loadable by anybody, of one vocabulary, with prompts it never saw."""

import json

import pytest
import torch

from treeopt import pair
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.pair import bench_prompts, load_pair, load_prompts, profile_prompts
from treeopt.runtime.tokenizer import Tokenizer
from treeopt.trees import level_widths

MOST_BYTES = 16_000_000


@pytest.mark.parametrize("folder", [pair.TARGET, pair.DRAFT], ids=["target", "draft"])
def test_transformers_loads_the_same_folder_and_gives_the_same_logits(folder) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the hf extra")
    text = load_prompts()[0]
    tokens = torch.tensor(Tokenizer(folder).encode(text))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_model(folder)
    cache = ours.new_cache(len(tokens))
    causal = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)
    with torch.inference_mode():
        expected = theirs(tokens[None]).logits[0]
    logits = ours.forward(tokens, torch.arange(len(tokens)), cache, causal)

    assert tokenizer(text, add_special_tokens=False)["input_ids"] == tokens.tolist()
    torch.testing.assert_close(logits, expected, atol=2e-3, rtol=1e-4)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def test_all_files_together_are_small() -> None:
    total = sum(
        file.stat().st_size for file in pair.FOLDER.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    )

    assert total <= MOST_BYTES


def test_tokens_are_bytes() -> None:
    text = "def é(x):\n\t…\x00"

    tokenizer = load_pair().tokenizer

    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(text.encode()) == text
    assert "".join(tokenizer.stream(text.encode())) == text


def test_stream_never_yields_half_a_character() -> None:
    pieces = list(load_pair().tokenizer.stream("aé…".encode()))

    assert pieces == ["a", "é", "…"]


def test_prompts_are_from_files_that_training_held_out() -> None:
    entries = json.loads(pair.PROMPTS.read_text())

    import zlib

    assert len(entries) == 32
    assert all(zlib.crc32(entry["source"].encode()) < 2**32 / 32 for entry in entries)


def test_profiles_and_benchmarks_use_different_prompts() -> None:
    prompts = load_prompts()

    assert set(profile_prompts(prompts)).isdisjoint(bench_prompts(prompts))
    assert len(profile_prompts(prompts)) + len(bench_prompts(prompts)) == len(prompts)


def test_draft_agrees_with_the_target_on_its_own_text() -> None:
    models = load_pair()
    decoder = Decoder(models.target, models.draft, level_widths([1, 1, 1]), temperature=0)
    steps = [
        len(tokens)
        for prompt in bench_prompts(load_prompts())
        for tokens in decoder.steps(models.tokenizer.encode(prompt), 64)
    ]

    assert sum(steps) / len(steps) > 2.0
