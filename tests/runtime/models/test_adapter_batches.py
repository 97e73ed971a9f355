"""One pass of a model of transformers over several texts gives what a pass over each of them does."""

from collections import Counter

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

from tests.contracts.drafters import CASES
from tests.contracts.test_batches import check_that_none_changes_another
from tests.support.hf_models import ARCHITECTURES, VOCABULARY, random_model
from tests.support.passes import feed_tokens, new_cache
from tests.support.unlike_texts import COUNTS, LENGTHS, NAMES, TREE, UNLIKE
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.models.hf import load_adapter
from treeopt.runtime.models.hf.checks import EXACT, ROUNDED, why_separate_passes
from treeopt.runtime.models.hf.model import AdapterModel
from treeopt.runtime.models.model import NO_STATES, Outputs, RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import chain, level_widths

REQUESTED_STATES = RequestedStates(layer_ids=(0, 1), last=True)
PROMPTS = [[5, 3, 40], [1], [8, 8, 2, 60, 11, 4, 4], [9, 30], [2] * 12]
close = {"rtol": 1e-3, "atol": 1e-3}


def tokens_of(count, seed):
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


def inputs_after_texts(model, caches, trees):
    """Return what is fed to each text, which has a prompt and a node after it that was kept."""
    found = []
    for number, (length, cache, tree) in enumerate(zip(LENGTHS, caches, trees, strict=True)):
        cache.clear()
        model.prefill(tokens_of(length, number), cache)
        feed_tokens(model, cache, tokens_of(1, number))
        cache.commit([0])
        found.append(SequenceInput(cache, tokens_of(tree.nodes, number), PassNodes.whole(tree)))
    return found


def check(model, caches, trees, order=range(5)):
    """Compare what one pass gives with what passes over each text give, and what both leave in the caches."""
    inputs = [inputs_after_texts(model, caches, trees)[number] for number in order]
    together = model.forward(inputs, REQUESTED_STATES)
    left = [[entries.clone() for entries in cache.store.entries(cache.index)] for cache in caches]
    for sequence, found in zip(inputs, together, strict=True):
        torch.testing.assert_close(found, model.forward([sequence], REQUESTED_STATES)[0], **close)
    for sequence, found in zip(inputs, model.forward(inputs, REQUESTED_STATES, last_only=True), strict=True):
        torch.testing.assert_close(found, model.forward([sequence], REQUESTED_STATES, last_only=True)[0], **close)
    for number in order:
        seen, cache = LENGTHS[number] + 1 + trees[number].nodes, caches[number]
        for one, other in zip(left[number], cache.store.entries(cache.index), strict=True):
            torch.testing.assert_close(one[:, :seen], other[:, :seen], **close)


@pytest.fixture(scope="module")
def model():
    return AdapterModel(random_model("llama"), name="llama")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_shares_passes(name, tmp_path):
    random_model(name).save_pretrained(tmp_path / name)
    model = load_adapter(tmp_path / name)
    assert model.batches
    check(model, model.new_caches(40, 5), UNLIKE)


@pytest.mark.parametrize("trees", [(chain(0),) * 5, (TREE,) * 5, UNLIKE], ids=["plain", "one tree", "unlike"])
@pytest.mark.parametrize("order", [range(5), [4, 2, 0, 1, 3], [0, 2, 1, 3], [4, 1], [2]])
def test_any_texts_in_any_order(model, trees, order):
    check(model, model.new_caches(40, 5), trees, order)


def test_caches_that_lie_apart(model):
    side_by_side = model.new_caches(40, 3)
    check(
        model,
        [side_by_side[2], new_cache(model, 60), side_by_side[0], *model.new_caches(50, 1), side_by_side[1]],
        UNLIKE,
    )


def test_a_text_of_one_token_is_not_read_before_its_first_pass(model):
    caches = model.new_caches(20, 2)
    tokens = tokens_of(TREE.nodes, 1)
    inputs = [SequenceInput(cache, tokens, PassNodes.whole(TREE)) for cache in caches]
    together = model.forward(inputs)
    caches[1].commit([0, 2])
    torch.testing.assert_close(together[0].logits, model.forward(inputs[:1]).logits, **close)
    after = feed_tokens(model, caches[1], [7]).logits
    text = torch.cat([tokens[[0, 2]], torch.tensor([7])])
    torch.testing.assert_close(after, model.reference_logits(text[None])[0, -1:], **close)


def test_positions_after_the_longest_text_count_as_its_last(model):
    longest = model.config.max_positions
    for cache in (caches := model.new_caches(longest + 3, 2)):
        model.prefill(tokens_of(longest - 1, 3), cache)
    inputs = [SequenceInput.causal(cache, tokens_of(3, 1)) for cache in caches]
    mask = torch.full((1, 1, longest + 2, longest + 2), float("-inf")).triu(1)
    places = torch.arange(longest + 2).clamp(max=longest - 1)[None]
    with torch.inference_mode():
        text = torch.cat([tokens_of(longest - 1, 3), tokens_of(3, 1)])[None]
        expected = model._model(input_ids=text, attention_mask=mask, position_ids=places).logits[0, -3:]
    for found in model.forward(inputs):
        torch.testing.assert_close(found.logits, expected, **close)


def counted(monkeypatch):
    """Return how many passes of one and of several sequences each model runs."""
    counts, run = Counter(), AdapterModel._run

    def counting(self, inputs, *, requested_states):
        counts[self.name, len(inputs) > 1] += 1
        return run(self, inputs, requested_states=requested_states)

    monkeypatch.setattr(AdapterModel, "_run", counting)
    return counts


@pytest.fixture(scope="module")
def pair():
    """Return target and draft in float64, whose texts are the same whatever shares a pass."""
    return [AdapterModel(random_model(name, seed=1).double(), name=name) for name in ("llama", "gpt2")]


@pytest.mark.parametrize("name", NAMES)
def test_texts_that_join_and_leave_are_those_decoded_alone(pair, name):
    decoder = Decoder(pair[0], *CASES[name].make(*pair), temperature=0.9)
    wanted = [GenerationRequest(*each, seed=2) for each in zip(PROMPTS, COUNTS, strict=True)]
    check_that_none_changes_another(decoder, wanted, (2, 3, 8))


def test_a_step_is_one_pass_of_the_target_and_one_of_the_draft_for_each_level(monkeypatch):
    target, draft = (AdapterModel(random_model("llama", seed=seed), name=f"{seed}") for seed in range(2))
    decoder = Decoder(target, draft, level_widths([2, 2, 1]), temperature=0.0)
    counts = counted(monkeypatch)
    requests = [GenerationRequest([3, 5, each], 12, ignore_end_tokens=True) for each in range(4)]
    steps = Counter(step.request for step in decoder.stream_all(requests, batch_size=4))
    most = max(steps.values())
    assert counts["0", False] + counts["0", True] == most
    assert counts["1", False] + counts["1", True] == 3 * most
    assert counts["0", True] >= min(steps.values())


class OfTheFirstText(AdapterModel):
    """Gives every text the positions of the first."""

    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        wrong = []
        for cache, tokens, nodes, features in inputs:
            depth = nodes.depth + inputs[0].cache.length - cache.length
            moved = PassNodes(depth=depth, visible=nodes.visible, start=nodes.start)
            wrong.append(SequenceInput(cache, tokens, moved, features))
        return super().forward(wrong, requested_states, last_only=last_only)


class WithoutMask(AdapterModel):
    """Shows every text all slots."""

    def _build_mask(self, inputs, batch, layouts):
        mask = super()._build_mask(inputs, batch, layouts)
        return torch.zeros_like(mask) if len(inputs) > 1 else mask


class Swapped(AdapterModel):
    """Confuses two texts."""

    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        if len(inputs) > 1:
            first, second, *others = inputs
            inputs = [first._replace(cache=second.cache), second._replace(cache=first.cache), *others]
        return super().forward(inputs, requested_states, last_only=last_only)


class Raising(AdapterModel):
    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        if len(inputs) > 1:
            raise KeyError("a text")
        return super().forward(inputs, requested_states, last_only=last_only)


class NotFinite(AdapterModel):
    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        outputs = super().forward(inputs, requested_states, last_only=last_only)
        if len(inputs) == 1:
            return outputs
        return Outputs(outputs.whole.map(lambda values: values * float("nan")), outputs.sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
class TestCheck:
    @pytest.mark.parametrize("wrong", [OfTheFirstText, WithoutMask, Swapped, Raising, NotFinite])
    def test_a_model_that_mixes_texts_shares_no_pass(self, name, dtype, wrong):
        model = wrong(random_model(name).to(dtype), name="wrong")
        assert why_separate_passes(model, tolerance=EXACT if dtype == torch.float32 else ROUNDED) is not None

    def test_one_that_does_not_is_found(self, name, dtype):
        model = AdapterModel(random_model(name).to(dtype), name="right")
        assert why_separate_passes(model, tolerance=EXACT if dtype == torch.float32 else ROUNDED) is None


def test_a_model_that_fails_the_check_is_run_in_turn(tmp_path, monkeypatch):
    random_model("llama").save_pretrained(tmp_path)
    monkeypatch.setattr("treeopt.runtime.models.hf.model.build_mask", lambda *_, **__: None)
    model = load_adapter(tmp_path)
    assert not model.batches
    assert any("decodes the sequences of a batch one after the other" in note for note in model.notes)
    check(model, model.new_caches(40, 5), UNLIKE)
