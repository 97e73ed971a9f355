"""One pass over several sequences in a context of llama.cpp equals a pass over each."""

import numpy as np
import pytest
import torch

pytest.importorskip("llama_cpp", reason="needs the gguf extra")

from tests.contracts.drafters import CASES
from tests.contracts.test_batches import check_that_none_changes_another
from tests.support.passes import COUNTS, LENGTHS, UNEQUAL
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.models.gguf.library import Context
from treeopt.runtime.models.gguf.model import SHARED_CACHES
from treeopt.runtime.models.model import RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.tree_check import EXACT, why_separate_passes
from treeopt.trees import level_widths

PROMPTS = [[100, 101, 102], [1], [8, 8, 2, 60, 11, 4, 4], [9, 30], [2] * 12]


def random_tokens(count, seed):
    return torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed))


def prefill(model, caches, trees):
    """Prefill each cache; return the trees after the prompts as inputs."""
    inputs = []
    for number, (length, cache, tree) in enumerate(zip(LENGTHS, caches, trees, strict=True)):
        model.prefill(random_tokens(length, number), cache)
        inputs.append(SequenceInput(cache, random_tokens(tree.nodes, number), PassNodes.whole(tree)))
    return inputs


@pytest.mark.parametrize("order", [range(5), [4, 2, 0, 1, 3], [4, 1]])
@pytest.mark.parametrize(("shared", "contexts"), [(5, 1), (2, 3)])
def test_batched_pass_equals_single_ones(gguf_pair, monkeypatch, order, shared, contexts):
    monkeypatch.setattr("treeopt.runtime.models.gguf.model.SHARED_CACHES", shared)
    model = gguf_pair[0]
    caches = model.new_caches(40, 5)
    assert len({id(cache.store) for cache in caches}) == contexts
    inputs = [prefill(model, caches, UNEQUAL)[number] for number in order]
    outputs = zip(inputs, model.forward(inputs), model.forward(inputs, last_only=True), strict=True)
    for sequence, output, last in outputs:
        expected = model.forward([sequence]).logits
        torch.testing.assert_close(output.logits, expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(last.logits, expected[-1:], rtol=1e-3, atol=1e-3)


def test_check_of_batches_detects_ids_of_a_neighbour(gguf_pair, monkeypatch):
    assert why_separate_passes(gguf_pair[0], tolerance=EXACT) is None
    run = Context.run

    def run_with_ids_of_a_neighbour(self, tokens, positions, counts, ids, *, logits):
        return run(self, tokens, positions, counts, np.where(ids == ids.max(), 0, ids).astype(np.int32), logits=logits)

    monkeypatch.setattr(Context, "run", run_with_ids_of_a_neighbour)
    reason = why_separate_passes(gguf_pair[0], tolerance=EXACT)
    assert reason is not None
    assert "inconsistent sequence positions" in reason  # llama.cpp's own check


def test_cleared_cache_leaves_the_others_unchanged(gguf_pair):
    model = gguf_pair[0]
    caches = model.new_caches(40, 5)
    inputs = prefill(model, caches, UNEQUAL)
    expected = model.forward(inputs[2:3]).logits
    caches[0].clear()
    model.prefill(random_tokens(30, 9), caches[3])
    torch.testing.assert_close(model.forward(inputs[2:3]).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "temperature"), [("static tree", 0.9), ("dynamic tree", 0.0), ("lookahead", 0.0)])
def test_batched_texts_equal_single_ones(gguf_pair, name, temperature):
    decoder = Decoder(gguf_pair[0], *CASES[name].make(*gguf_pair), temperature=temperature)
    requests = [GenerationRequest(prompt, count, seed=2) for prompt, count in zip(PROMPTS, COUNTS, strict=True)]
    check_that_none_changes_another(decoder, requests, (3,))


def test_step_is_one_pass_of_the_target_and_one_of_the_draft_per_level(gguf_pair, monkeypatch):
    tree, passes, run = level_widths([2, 2, 1]), [], Context.run
    decoder = Decoder(*gguf_pair, tree, temperature=0.0)

    def count_tokens(self, tokens, *arguments, logits):
        passes.extend([len(tokens)] if logits else [])
        return run(self, tokens, *arguments, logits=logits)

    requests = [GenerationRequest([3, 5, token], 12, ignore_end_tokens=True) for token in range(SHARED_CACHES)]
    monkeypatch.setattr(Context, "run", count_tokens)
    steps = decoder.stream_all(requests, batch_size=SHARED_CACHES)
    for _ in range(SHARED_CACHES):
        next(steps)
    assert passes == [SHARED_CACHES * count for count in (*tree.draft_widths, tree.nodes)]


def test_hidden_states_and_too_many_leaves_are_refused(gguf_pair):
    model = gguf_pair[0]
    caches = model.new_caches(80, SHARED_CACHES)
    for cache in caches:
        model.prefill(random_tokens(3, 1), cache)
    inputs = [SequenceInput(cache, random_tokens(71, 2), PassNodes.whole(level_widths([70]))) for cache in caches]
    with pytest.raises(InvalidValueError, match=r"^target: expected a drafter without hidden states"):
        model.forward(inputs, RequestedStates(last=True))
    with pytest.raises(InvalidValueError, match=r"^tree: expected at most 63 leaves, .* for a batch of 4"):
        model.forward(inputs)
