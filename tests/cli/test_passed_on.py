"""Arguments that commands hand to the library: sampling, prompts, and stop sequences."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.cli.invented import call, invented, saved
from treeopt.cli import bench_common, identity
from treeopt.cli.options.pair import PairOptions
from treeopt.cli.options.prompts import PromptOptions
from treeopt.errors import TreeoptError
from treeopt.profiler.decoding import Decoding
from treeopt.records.identity import Identity
from treeopt.records.machine import Pair
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.model import ModelSizes
from treeopt.trees import TokenTree

BEGIN = 0
MEASURED = {"rule": "specinfer", "sampling": Sampling(0.7, 0.9, 5), "draft_sampling": Sampling(0.5, 0.8, 3)}
DECODING = Decoding(rule="specinfer", sampling=Sampling(0.7, 0.9, 5), draft_sampling=Sampling(0.5, 0.8, 3))
PROMPTS = [[number] for number in range(9)]
HELD_OUT = PROMPTS[::4]
SIZES = ModelSizes(vocabulary=9, max_positions=1000, end_tokens=())


class Tokenizer:
    """Each letter is a token; a prompt begins with BEGIN."""

    has_chat_template = False

    def encode(self, text: str) -> list[int]:
        return [BEGIN, *self.encode_without_special(text)]

    def encode_without_special(self, text: str) -> list[int]:
        return list(map(ord, text))


@pytest.fixture
def received(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Return the arguments of the library's next call, which fails; the folder has a tree and a profile."""
    profile = invented()
    pair = replace(profile.pair, target="bundled big", draft="bundled small")  # whose folders need no name
    saved(folder, replace(profile, pair=pair, acceptances=(replace(profile.acceptances[0], **MEASURED),)))
    TokenTree([-1, 0, 0, 1]).save("tree.json")
    model = SimpleNamespace(name="m", device=torch.device("cpu"), config=SIZES)
    described = Pair(target="m", draft="m", dtype="float32")
    models = SimpleNamespace(target=model, draft=model, draft_model=model, tokenizer=Tokenizer(), described=described)
    monkeypatch.setattr(PairOptions, "load", lambda _, **__: models)
    monkeypatch.setattr(PromptOptions, "load", lambda *_: PROMPTS)
    for module in (bench_common, identity):  # these models have no folder and no device
        monkeypatch.setattr(module, "identity_here", lambda _: Identity())
    monkeypatch.setattr(bench_common, "warn_of_other_programs", lambda _: None)
    values: dict = {}

    def fail(*arguments: object, **named: object) -> None:
        values.update(named, arguments=arguments)
        raise TreeoptError("enough")

    class Decoder:
        def __init__(self, *_: object, **named: object) -> None:
            values.update(named)

        stream = stream_all = staticmethod(fail)

    for module in ("treeopt.methods.grid", "treeopt.methods.build"):
        monkeypatch.setattr(import_module(module), "bench_trees", fail)
    monkeypatch.setattr(import_module("treeopt.profiler.decoding"), "Decoder", Decoder)
    return values


def run_until_library(*command: object) -> None:
    result = call(*command)
    assert (result.exit_code, *result.stderr.splitlines()[-1:]) == (1, "Error: enough"), repr(result.exception)


@pytest.mark.parametrize(
    ("command", "prompts"),
    [
        (("tree", "tree.json", "--repeats", 2), HELD_OUT),
        (("grid", "--repeats", 2), HELD_OUT),
        (("grid", "--repeats", 2, "--same-prompts"), [prompt for prompt in PROMPTS if prompt not in HELD_OUT]),
    ],
    ids=str,
)
def test_bench_decodes_as_the_profile_was_measured(received: dict, command: tuple, prompts: list):
    run_until_library("bench", *command)
    *_, workload, decoding = received["arguments"]
    assert decoding == DECODING
    assert (workload.repeats, workload.max_new_tokens) == (2, 999 // 9)  # positions and prompts of the profile
    assert workload.prompts == prompts


def test_stop_texts_are_encoded_as_within_a_text(received: dict):
    run_until_library("run", "tree.json", "--prompt", "ab", "--stop", "c", "--stop", "de", "--max-new-tokens", 7)
    assert received["arguments"] == ([BEGIN, ord("a"), ord("b")], 7)
    assert received["stop"] == [[ord("c")], [ord("d"), ord("e")]]


def test_sampling_options_reach_the_decoder(received: dict):
    options = ("--temperature", 0.6, "--top-p", 0.8, "--top-k", 4, "--draft-temperature", 0.9, "--draft-top-k", 2)
    run_until_library("run", "tree.json", "--prompt", "ab", "--seed", 3, "--rule", "traversal", *options)
    expected = {"rule": "traversal", "sampling": Sampling(0.6, 0.8, 4), "seed": 3}
    assert {name: received[name] for name in expected} == expected
    assert received["draft_sampling"] == Sampling(0.9, 1.0, 2)


@pytest.mark.parametrize("options", [("--prompt", "ab"), ("--prompts", "prompts.txt", "--batch-size", 2)])
def test_decoder_decides_on_cuda_graphs(received: dict, options: tuple):
    Path("prompts.txt").write_text("ab")
    run_until_library("run", "tree.json", *options)
    assert received.get("cuda_graphs") is None
