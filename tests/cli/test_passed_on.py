"""What commands hand to the library: nothing that was measured or asked for is lost on the way."""

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
from treeopt.trees import TokenTree

BEGIN = 0
MEASURED = {"rule": "specinfer", "temperature": 0.7, "top_p": 0.9, "top_k": 5, "draft_sampling": Sampling(0.5, 0.8, 3)}
HOW = Sampling(0.7, 0.9, 5)
PROMPTS = [[number] for number in range(9)]


class Tokenizer:
    """A letter is a token; a text of its own begins with BEGIN."""

    has_chat_template = False

    def encode(self, text: str) -> list[int]:
        return [BEGIN, *self.encode_without_special(text)]

    def encode_without_special(self, text: str) -> list[int]:
        return list(map(ord, text))


@pytest.fixture
def given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Return what the library is given by the next command, which goes no further; there is a tree and a profile."""
    profile = invented()
    pair = replace(profile.pair, target="bundled big", draft="bundled small")  # whose folders need no name
    saved(folder, replace(profile, pair=pair, acceptances=(replace(profile.acceptances[0], **MEASURED),)))
    TokenTree([-1, 0, 0, 1]).save("tree.json")
    model = SimpleNamespace(name="m", device=torch.device("cpu"), config=SimpleNamespace(max_positions=1000))
    described = Pair(target="m", draft="m", dtype="float32")
    models = SimpleNamespace(target=model, draft=model, draft_model=model, tokenizer=Tokenizer(), described=described)
    monkeypatch.setattr(PairOptions, "load", lambda _, **__: models)
    monkeypatch.setattr(PromptOptions, "load", lambda *_: PROMPTS)
    for module in (bench_common, identity):  # such models are of no folder and no device
        monkeypatch.setattr(module, "identity_here", lambda _: Identity())
    monkeypatch.setattr(bench_common, "warn_of_other_programs", lambda _: None)
    seen: dict = {}

    def stop_there(*arguments: object, **named: object) -> None:
        seen.update(named, arguments=arguments)
        raise TreeoptError("enough")

    class Decoder:
        def __init__(self, *_: object, **named: object) -> None:
            seen.update(named)

        stream = stream_all = staticmethod(stop_there)

    for module in ("treeopt.methods.grid", "treeopt.methods.build"):
        monkeypatch.setattr(import_module(module), "bench_trees", stop_there)
    monkeypatch.setattr(import_module("treeopt.profiler.decoding"), "Decoder", Decoder)
    return seen


def ends(*command: object) -> None:
    result = call(*command)
    assert (result.exit_code, *result.stderr.splitlines()[-1:]) == (1, "Error: enough"), repr(result.exception)


def test_bench_decodes_held_out_prompts_as_the_profile_was_measured(given: dict):
    ends("bench", "tree", "tree.json", "--repeats", 2)
    *_, workload, decoding = given["arguments"]
    assert decoding == Decoding(rule="specinfer", sampling=HOW, draft_sampling=MEASURED["draft_sampling"])
    assert (workload.repeats, workload.max_new_tokens) == (2, 999 // 9)  # positions and prompts of the profile
    assert workload.prompts == PROMPTS[::4]


@pytest.mark.parametrize(("options", "expected"), [((), PROMPTS[::4]), (("--same-prompts",), None)])
def test_so_does_bench_with_a_grid(given: dict, options: tuple[str, ...], expected: list | None):
    ends("bench", "grid", *options)
    *_, workload, decoding = given["arguments"]
    assert decoding == Decoding(rule="specinfer", sampling=HOW, draft_sampling=MEASURED["draft_sampling"])
    held_out = PROMPTS[::4]
    assert workload.prompts == (expected or [prompt for prompt in PROMPTS if prompt not in held_out])


def test_run_looks_for_stop_texts_as_they_stand_within_a_text(given: dict):
    ends("run", "tree.json", "--prompt", "ab", "--stop", "c", "--stop", "de", "--max-new-tokens", 7)
    assert given["arguments"] == ([BEGIN, ord("a"), ord("b")], 7)
    assert given["stop"] == [[ord("c")], [ord("d"), ord("e")]]


def test_run_samples_as_it_is_asked_to(given: dict):
    options = ("--temperature", 0.6, "--top-p", 0.8, "--top-k", 4, "--draft-temperature", 0.9, "--draft-top-k", 2)
    ends("run", "tree.json", "--prompt", "ab", "--seed", 3, "--rule", "traversal", *options)
    expected = {"rule": "traversal", "sampling": Sampling(0.6, 0.8, 4), "seed": 3}
    assert {name: given[name] for name in expected} == expected
    assert given["draft_sampling"] == Sampling(0.9, 1.0, 2)


@pytest.mark.parametrize("options", [("--prompt", "ab"), ("--prompts", "prompts.txt", "--batch-size", 2)])
def test_run_captures_passes_where_the_device_can(given: dict, options: tuple):
    """Passes over one sequence and over several: the decoder's default decides."""
    Path("prompts.txt").write_text("ab")
    ends("run", "tree.json", *options)
    assert given.get("cuda_graphs") is None
