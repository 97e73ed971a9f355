"""Several texts in one context of llama.cpp: one pass over them gives what a pass over each does."""

import numpy as np
import pytest
import torch

pytest.importorskip("llama_cpp", reason="needs the gguf extra")

from tests.contracts.drafters import CASES
from tests.contracts.test_batches import check_that_none_changes_another
from tests.support.unlike_texts import COUNTS, LENGTHS, NAMES, TREE, UNLIKE
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.models.gguf.context import Context
from treeopt.runtime.models.gguf.model import SHARED_CACHES
from treeopt.runtime.models.hf.checks import EXACT, why_separate_passes
from treeopt.runtime.models.model import RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import chain, level_widths

PROMPTS = [[100, 101, 102], [1], [8, 8, 2, 60, 11, 4, 4], [9, 30], [2] * 12]


def tokens_of(count, seed):
    return torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed))


def inputs_after_prompts(model, caches, trees):
    """Return what is fed to each text after its prompt."""
    found = []
    for number, (length, cache, tree) in enumerate(zip(LENGTHS, caches, trees, strict=True)):
        model.prefill(tokens_of(length, number), cache)
        found.append(SequenceInput(cache, tokens_of(tree.nodes, number), PassNodes.whole(tree)))
    return found


@pytest.mark.parametrize("trees", [(chain(0),) * 5, (TREE,) * 5, UNLIKE], ids=["plain", "one tree", "unlike"])
@pytest.mark.parametrize("order", [range(5), [4, 2, 0, 1, 3], [4, 1]])
@pytest.mark.parametrize("shared", [5, 2], ids=["one context", "several"])
def test_one_pass_gives_what_passes_over_each_text_give(gguf_pair, monkeypatch, trees, order, shared):
    monkeypatch.setattr("treeopt.runtime.models.gguf.model.SHARED_CACHES", shared)
    model = gguf_pair[0]
    caches = model.new_caches(40, 5)
    assert len({id(cache.context) for cache in caches}) == (1 if shared == 5 else 3)
    inputs = [inputs_after_prompts(model, caches, trees)[number] for number in order]
    for sequence, found, last in zip(inputs, model.forward(inputs), model.forward(inputs, last_only=True), strict=True):
        alone = model.forward([sequence]).logits
        torch.testing.assert_close(found.logits, alone, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(last.logits, alone[-1:], rtol=1e-3, atol=1e-3)


def test_passes_are_shared_by_the_check_of_transformers_models_too(gguf_pair, monkeypatch):
    assert why_separate_passes(gguf_pair[0], tolerance=EXACT) is None
    run = Context.run

    def of_a_neighbour(self, tokens, positions, counts, ids, *, logits):
        return run(self, tokens, positions, counts, np.where(ids == ids.max(), 0, ids).astype(np.int32), logits=logits)

    monkeypatch.setattr(Context, "run", of_a_neighbour)
    assert why_separate_passes(gguf_pair[0], tolerance=EXACT) is not None


def test_a_text_that_is_begun_anew_leaves_the_others_alone(gguf_pair):
    model = gguf_pair[0]
    caches = model.new_caches(40, 5)
    inputs = inputs_after_prompts(model, caches, UNLIKE)
    expected = model.forward(inputs[2:3]).logits
    caches[0].clear()
    model.prefill(tokens_of(30, 9), caches[3])
    torch.testing.assert_close(model.forward(inputs[2:3]).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", NAMES)
def test_texts_that_join_and_leave_are_those_decoded_alone(gguf_pair, name, temperature):
    decoder = Decoder(gguf_pair[0], *CASES[name].make(*gguf_pair), temperature=temperature)
    wanted = [GenerationRequest(*each, seed=2) for each in zip(PROMPTS, COUNTS, strict=True)]
    check_that_none_changes_another(decoder, wanted, (2, 3, 8))


def test_a_step_is_one_pass_of_the_target_and_one_of_the_draft_for_each_level(gguf_pair, monkeypatch):
    tree, passes, run = level_widths([2, 2, 1]), [], Context.run
    decoder = Decoder(*gguf_pair, tree, temperature=0.0)

    def counted(self, tokens, *arguments, logits):
        passes.extend([len(tokens)] if logits else [])
        return run(self, tokens, *arguments, logits=logits)

    requests = [GenerationRequest([3, 5, each], 12, ignore_end_tokens=True) for each in range(SHARED_CACHES)]
    monkeypatch.setattr(Context, "run", counted)
    steps = decoder.stream_all(requests, batch_size=SHARED_CACHES)
    for _ in range(SHARED_CACHES):
        next(steps)
    assert passes == [SHARED_CACHES * count for count in (*tree.draft_widths, tree.nodes)]


def test_hidden_states_and_too_many_leaves_are_refused_in_one_line(gguf_pair):
    model = gguf_pair[0]
    caches = model.new_caches(80, SHARED_CACHES)
    for cache in caches:
        model.prefill(tokens_of(3, 1), cache)
    inputs = [SequenceInput(cache, tokens_of(71, 2), PassNodes.whole(level_widths([70]))) for cache in caches]
    with pytest.raises(InvalidValueError, match=r"^target: expected a drafter without hidden states"):
        model.forward(inputs, RequestedStates(last=True))
    with pytest.raises(InvalidValueError, match=r"^tree: expected at most 63 leaves, .* for a batch of 4"):
        model.forward(inputs)
