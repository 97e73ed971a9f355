"""What every drafter keeps, kept over GGUF models too: drafters that want hidden states are refused in one line."""

import contextlib

import pytest
import torch

pytest.importorskip("llama_cpp", reason="needs the gguf extra")

from tests.contracts.drafters import CASES
from tests.contracts.test_drafters import REPEATS, TestDrafts, decoder_of, text_of
from tests.runtime.models.gguf.conftest import byte_folders, gguf_files, gguf_pair  # noqa: F401 - fixtures
from tests.support.decoded import PROMPT, joined
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.models.gguf.cache import SequenceLines
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
    """Return the function that continues a text by plain decoding, in a cache of its own."""
    return lambda prompt, count: text_of(Decoder(models[0], None, temperature=0), prompt, count)


@every_drafter
def test_a_text_may_be_as_long_as_the_models_allow(models, plain, name):
    prompt = PROMPT * 15
    room = 128 - len(prompt)
    assert text_of(decoder_of(name, *models), prompt, room) == plain(prompt, room)


@every_drafter
def test_sampled_texts_are_those_of_the_same_weights_in_the_built_in_transformer(models, byte_folders, name):  # noqa: F811
    built_in = [load_model(folder) for folder in byte_folders]
    expected, found = (
        [text_of(decoder_of(name, *each, temperature=0.9), seed=seed) for seed in range(4)]
        for each in (built_in, models)
    )
    assert len({*map(tuple, expected)}) == 4
    assert found == expected


@pytest.mark.parametrize("name", [name for name in NAMES if not CASES[name].history])
def test_drafts_are_those_of_a_fresh_decoder(models, name):
    assert TestDrafts.agreeing(name, *models)


@pytest.mark.parametrize("name", [name for name in NAMES if "tree" in name or name == "best first"])
def test_a_path_kept_wrongly_is_found(models, plain, name, monkeypatch):
    """Negative control: the last leaf's path is committed in place of the one that was accepted."""
    commit = SequenceLines.commit

    def wrong(self, path, length):
        lines = [line for line in self._lines if len(line.path) >= len(path)]
        commit(self, lines[-1].path[: len(path)], length)

    expected = plain(REPEATS, 40)
    monkeypatch.setattr(SequenceLines, "commit", wrong)
    assert text_of(decoder_of(name, models[0], models[0]), REPEATS, 40) != expected


@every_drafter
def test_greedy_text_has_exactly_as_many_tokens_as_asked_for_and_stops(models, plain, name):
    decoder, expected = decoder_of(name, *models), plain(REPEATS, 20)
    for count in (0, 2, 20):
        assert joined(decoder.stream(REPEATS, count)) == expected[:count]
    stop = expected[7:9]
    first = next(at for at in range(20) if expected[at : at + 2] == stop)
    assert text_of(decoder, REPEATS, 20, stop=[stop]) == expected[: first + 2]


@every_drafter
def test_an_error_within_any_pass_leaves_no_state(models, name, monkeypatch):
    decoder = decoder_of(name, *models, temperature=0.9)
    expected = text_of(decoder, count=12, seed=4)
    for method in ("forward", "prefill"):
        run = getattr(GGUFModel, method)
        for calls_before in (0, 4):
            left = [calls_before]

            def broken_off(*arguments, run=run, left=left, **keywords):
                found = run(*arguments, **keywords)
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return found

            with monkeypatch.context() as patched:
                patched.setattr(GGUFModel, method, broken_off)
                with contextlib.suppress(KeyboardInterrupt):
                    text_of(decoder, [7, 8, 9], 40)
            assert text_of(decoder, count=12, seed=4) == expected


def test_a_drafter_that_wants_hidden_states_is_refused(models):
    class Wanting:
        from treeopt.runtime.models.model import RequestedStates

        max_tokens, sampled, requested_states = 2, False, RequestedStates(last=True)

        def begin(self, sequence, tokens, states): ...
        def propose(self, sequences, generators): ...
        def accept(self, sequences, steps): ...
        def end(self, sequence): ...

    with pytest.raises(InvalidValueError, match=r"^target: expected a drafter without hidden states"):
        text_of(Decoder(models[0], Wanting(), temperature=0), PROMPT, 5)
    assert torch.is_tensor(models[0].reference_logits(torch.tensor([PROMPT])))
