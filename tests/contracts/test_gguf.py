"""The contract of all drafters on GGUF models; drafters that read hidden states are refused."""

import contextlib

import pytest
import torch

pytest.importorskip("llama_cpp", reason="needs the gguf extra")

from tests.contracts.drafters import CASES
from tests.contracts.test_drafters import REPEATS, TestDrafts, decoder_of, interrupted, text_of
from tests.runtime.models.gguf.conftest import byte_folders, gguf_files, gguf_pair  # noqa: F401 - fixtures
from tests.support.decoded import PROMPT, joined
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.models.gguf.cache import GGUFCache
from treeopt.runtime.models.gguf.model import GGUFModel

pytestmark = pytest.mark.slow
HEADS = ("medusa", "dflash", "dspark", "ddtree", "redrafter", "eagle", "p-eagle")
NAMES = [name for name, case in CASES.items() if not name.startswith(HEADS) and not case.learns]
every_drafter = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def models(gguf_pair):  # noqa: F811
    return gguf_pair


@pytest.fixture(scope="module")
def plain(models):
    """Return a function that continues a prompt by plain decoding, in its own cache."""
    return lambda prompt, count: text_of(Decoder(models[0], None, temperature=0), prompt, count)


@every_drafter
def test_sampled_output_equals_that_of_the_built_in_transformer(models, byte_folders, name):  # noqa: F811
    built_in = [load_model(folder) for folder in byte_folders]
    expected, outputs = (
        [text_of(decoder_of(name, *pair, temperature=0.9), seed=seed) for seed in range(3)]
        for pair in (built_in, models)
    )
    assert len({*map(tuple, expected)}) == 3
    assert outputs == expected


@pytest.mark.parametrize("name", [name for name in NAMES if not CASES[name].history])
def test_drafts_are_those_of_a_fresh_decoder(models, name):
    assert TestDrafts.agreeing(name, *models)


@pytest.mark.parametrize("name", [name for name in NAMES if "tree" in name or name == "best first"])
def test_a_wrongly_committed_path_is_detected(models, plain, name, monkeypatch):
    """Negative control: the path of the last leaf is committed instead of the accepted one."""
    commit = GGUFCache._commit

    def wrong(self, path):
        lines = [line for line in self._lines if len(line.path) >= len(path)]
        commit(self, lines[-1].path[: len(path)])

    expected = plain(REPEATS, 40)
    monkeypatch.setattr(GGUFCache, "_commit", wrong)
    assert text_of(decoder_of(name, models[0], models[0]), REPEATS, 40) != expected


@every_drafter
def test_greedy_output_equals_plain_decoding(models, plain, name):
    decoder, longest = decoder_of(name, *models), PROMPT * 15
    for prompt, count in ((longest, 128 - len(longest)), *((REPEATS, count) for count in (0, 2, 20))):
        assert joined(decoder.stream(prompt, count)) == plain(prompt, count)
    expected = plain(REPEATS, 20)
    stop = expected[7:9]
    first = next(start for start in range(20) if expected[start : start + 2] == stop)
    assert text_of(decoder, REPEATS, 20, stop=[stop]) == expected[: first + 2]


@every_drafter
def test_an_interruption_of_a_pass_leaves_no_state(models, name, monkeypatch):
    decoder = decoder_of(name, *models, temperature=0.9)
    expected = text_of(decoder, count=12, seed=4)
    for method, calls_before in (("forward", 0), ("forward", 4), ("prefill", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(GGUFModel, method, interrupted(getattr(GGUFModel, method), calls_before))
            with contextlib.suppress(KeyboardInterrupt):
                text_of(decoder, [7, 8, 9], 20)
        assert text_of(decoder, count=12, seed=4) == expected, method


def test_a_drafter_that_reads_hidden_states_is_refused(models):
    class ReadsStates:
        from treeopt.runtime.models.model import RequestedStates

        max_tokens, sampled, requested_states = 2, False, RequestedStates(last=True)

        def begin(self, sequence, tokens, states): ...
        def propose(self, sequences, generators): ...
        def accept(self, sequences, steps): ...
        def end(self, sequence): ...

    with pytest.raises(InvalidValueError, match=r"^target: expected a drafter without hidden states"):
        text_of(Decoder(models[0], ReadsStates(), temperature=0), PROMPT, 5)
    assert torch.is_tensor(models[0].reference_logits(torch.tensor([PROMPT])))
