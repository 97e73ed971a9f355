"""A batched pass of a model of transformers equals one pass per sequence."""

from collections import Counter

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

from tests.contracts.test_batches import check_that_none_changes_another
from tests.support.hf_models import VOCABULARY, random_model
from tests.support.passes import COUNTS, LENGTHS, TREE, UNEQUAL, feed_tokens, new_cache
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.models.hf import load_adapter
from treeopt.runtime.models.hf.model import AdapterModel
from treeopt.runtime.models.model import NO_STATES, Outputs, RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.tree_check import EXACT, ROUNDED, why_separate_passes
from treeopt.trees import chain, level_widths

REQUESTED_STATES = RequestedStates(layer_ids=(0, 1), last=True)
PROMPTS = [[5, 3, 40], [1], [8, 8, 2, 60, 11, 4, 4], [9, 30], [2] * 12]
CLOSE = {"rtol": 1e-3, "atol": 1e-3}


def random_tokens(count, seed):
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


def prefill(model, caches, trees):
    """Commit a prompt and one node of each sequence; return the trees after them as inputs."""
    inputs = []
    for number, (length, cache, tree) in enumerate(zip(LENGTHS, caches, trees, strict=True)):
        cache.clear()
        model.prefill(random_tokens(length, number), cache)
        feed_tokens(model, cache, random_tokens(1, number))
        cache.commit([0])
        inputs.append(SequenceInput(cache, random_tokens(tree.nodes, number), PassNodes.whole(tree)))
    return inputs


def compare_batch(model, caches, trees, order=range(5)):
    """Compare outputs and cache entries of one pass over sequences with those of a pass over each."""
    inputs = [prefill(model, caches, trees)[number] for number in order]
    batched = model.forward(inputs, REQUESTED_STATES)
    batched_entries = [[entries[cache.index].clone() for entries in cache.store.entries] for cache in caches]
    last = model.forward(inputs, REQUESTED_STATES, last_only=True)
    for sequence, *outputs in zip(inputs, batched, last, strict=True):
        for output, last_only in zip(outputs, (False, True), strict=True):
            (expected,) = model.forward([sequence], REQUESTED_STATES, last_only=last_only)
            torch.testing.assert_close(output, expected, **CLOSE)
    for number in order:
        used, cache = LENGTHS[number] + 1 + trees[number].nodes, caches[number]
        for entries, expected in zip(batched_entries[number], cache.store.entries, strict=True):
            torch.testing.assert_close(entries[:, :used], expected[cache.index, :, :used], **CLOSE)


@pytest.fixture(scope="module")
def model():
    return AdapterModel(random_model("llama"), name="llama")


@pytest.mark.parametrize(
    ("trees", "order"),
    [
        ((chain(0),) * 5, range(5)),
        ((TREE,) * 5, [4, 2, 0, 1, 3]),
        (UNEQUAL, [4, 2, 0, 1, 3]),
        (UNEQUAL, [0, 2, 1, 3]),
        (UNEQUAL, [4, 1]),
        (UNEQUAL, [2]),
    ],
)
def test_sequences_in_any_order(model, trees, order):
    compare_batch(model, model.new_caches(40, 5), trees, order)


def test_caches_in_several_stores(model):
    store = model.new_caches(40, 3)
    compare_batch(model, [store[2], new_cache(model, 60), store[0], *model.new_caches(50, 1), store[1]], UNEQUAL)


def test_batch_of_empty_caches(model):
    caches = model.new_caches(20, 2)
    tokens = random_tokens(TREE.nodes, 1)
    inputs = [SequenceInput(cache, tokens, PassNodes.whole(TREE)) for cache in caches]
    batched = model.forward(inputs)
    caches[1].commit([0, 2])
    torch.testing.assert_close(batched[0].logits, model.forward(inputs[:1]).logits, **CLOSE)
    logits = feed_tokens(model, caches[1], [7]).logits
    sequence = torch.cat([tokens[[0, 2]], torch.tensor([7])])
    torch.testing.assert_close(logits, model.reference_logits(sequence[None])[0, -1:], **CLOSE)


def test_positions_are_clamped_to_the_last_one(model):
    longest = model.config.max_positions
    for cache in (caches := model.new_caches(longest + 3, 2)):
        model.prefill(random_tokens(longest - 1, 3), cache)
    inputs = [SequenceInput.causal(cache, random_tokens(3, 1)) for cache in caches]
    mask = torch.full((1, 1, longest + 2, longest + 2), float("-inf")).triu(1)
    positions = torch.arange(longest + 2).clamp(max=longest - 1)[None]
    with torch.inference_mode():
        tokens = torch.cat([random_tokens(longest - 1, 3), random_tokens(3, 1)])[None]
        expected = model._model(input_ids=tokens, attention_mask=mask, position_ids=positions).logits[0, -3:]
    for output in model.forward(inputs):
        torch.testing.assert_close(output.logits, expected, **CLOSE)


def test_batched_texts_equal_single_ones():
    # in float64 no rounding depends on the batch
    pair = [AdapterModel(random_model(name, seed=1).double(), name=name) for name in ("llama", "gpt2")]
    decoder = Decoder(*pair, TREE, temperature=0.9)
    requests = [GenerationRequest(prompt, count, seed=2) for prompt, count in zip(PROMPTS, COUNTS, strict=True)]
    check_that_none_changes_another(decoder, requests, (3,))


def test_step_is_one_pass_of_the_target_and_one_of_the_draft_per_level(monkeypatch):
    passes, run = Counter(), AdapterModel._run

    def count_passes(self, inputs, *, requested_states):
        passes[self.name, len(inputs) > 1] += 1
        return run(self, inputs, requested_states=requested_states)

    target, draft = (AdapterModel(random_model("llama", seed=seed), name=f"{seed}") for seed in range(2))
    decoder = Decoder(target, draft, level_widths([2, 2, 1]), temperature=0.0)
    monkeypatch.setattr(AdapterModel, "_run", count_passes)
    requests = [GenerationRequest([3, 5, token], 12, ignore_end_tokens=True) for token in range(4)]
    steps = Counter(step.request for step in decoder.stream_all(requests, batch_size=4))
    assert passes["0", False] + passes["0", True] == max(steps.values())
    assert passes["1", False] + passes["1", True] == 3 * max(steps.values())
    assert passes["0", True] >= min(steps.values())


class WithPositionsOfTheFirst(AdapterModel):
    """Gives every sequence the positions of the first."""

    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        wrong = []
        for cache, tokens, nodes, features in inputs:
            depth = nodes.depth + inputs[0].cache.length - cache.length
            moved = PassNodes(depth=depth, visible=nodes.visible, start=nodes.start)
            wrong.append(SequenceInput(cache, tokens, moved, features))
        return super().forward(wrong, requested_states, last_only=last_only)


class WithoutMask(AdapterModel):
    """Shows every sequence all slots."""

    def _build_mask(self, inputs, batch, numbers):
        mask = super()._build_mask(inputs, batch, numbers)
        return torch.zeros_like(mask) if len(inputs) > 1 else mask


class Raising(AdapterModel):
    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        if len(inputs) > 1:
            raise KeyError("a sequence")
        return super().forward(inputs, requested_states, last_only=last_only)


class NotFinite(AdapterModel):
    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        outputs = super().forward(inputs, requested_states, last_only=last_only)
        if len(inputs) == 1:
            return outputs
        return Outputs(outputs.whole.map(lambda values: values * float("nan")), outputs.sizes)


@pytest.mark.parametrize(
    ("name", "dtype"), [("llama", torch.float32), ("gpt2", torch.bfloat16), ("gemma2", torch.float32)]
)
class TestCheck:
    @pytest.mark.parametrize("kind", [WithPositionsOfTheFirst, WithoutMask, Raising, NotFinite])
    def test_wrong_model_needs_separate_passes(self, name, dtype, kind):
        model = kind(random_model(name).to(dtype), name="wrong")
        assert why_separate_passes(model, tolerance=EXACT if dtype == torch.float32 else ROUNDED) is not None

    def test_right_model_does_not(self, name, dtype):
        model = AdapterModel(random_model(name).to(dtype), name="right")
        assert why_separate_passes(model, tolerance=EXACT if dtype == torch.float32 else ROUNDED) is None


def test_model_that_fails_the_check_runs_separate_passes(adapter_folder, monkeypatch):
    monkeypatch.setattr("treeopt.runtime.models.hf.model.build_mask", lambda *_, **__: None)
    model = load_adapter(adapter_folder("llama"))
    assert not model.batches
    assert any("decodes the sequences of a batch one after the other" in note for note in model.notes)
    compare_batch(model, model.new_caches(40, 5), UNEQUAL)
