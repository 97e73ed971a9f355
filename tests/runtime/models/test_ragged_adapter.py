"""One pass of a model of transformers over several texts gives what a pass over each of them does."""

from collections import Counter

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

from tests.contracts.drafters import CASES
from tests.contracts.test_batches import check_that_none_changes_another
from tests.support.hf_models import ARCHITECTURES, VOCABULARY, random_model
from tests.support.ragged_texts import COUNTS, LENGTHS, NAMES, TREE, UNLIKE
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import TextRequest
from treeopt.runtime.models.hf import load_adapter
from treeopt.runtime.models.hf.model import AdapterModel
from treeopt.runtime.models.hf.ragged import RaggedAdapter
from treeopt.runtime.models.hf.ragged_check import why_separate_passes
from treeopt.runtime.models.hf.tree_check import EXACT, ROUNDED
from treeopt.runtime.models.model import TextRows, Wants
from treeopt.runtime.models.passes import PassNodes, TreePass
from treeopt.trees import chain, level_widths

WANTS = Wants(boundaries=(0, 1), last=True)
PROMPTS = [[5, 3, 40], [1], [8, 8, 2, 60, 11, 4, 4], [9, 30], [2] * 12]
close = {"rtol": 1e-3, "atol": 1e-3}


def tokens_of(count, seed):
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


def texts_behind(model, caches, trees):
    """Return a pass over each text, which has a prompt and a kept node behind it, and the tokens that it is fed."""
    found = []
    for number, (length, cache, tree) in enumerate(zip(LENGTHS, caches, trees, strict=True)):
        cache.clear()
        model.prefill(tokens_of(length, number), cache)
        model.forward(tokens_of(1, number), torch.tensor([length]), cache, None)
        cache.keep(0, [0])
        found.append(
            (TreePass(model, cache, PassNodes.whole(tree), capacity=64, wants=WANTS), tokens_of(tree.nodes, number))
        )
    return found


def check(model, caches, trees, order=range(5)):
    """Compare what one pass gives with what passes over each text give, and what both leave in the caches."""
    fed = [texts_behind(model, caches, trees)[number] for number in order]
    together = model.forward_ragged([run.rows(tokens) for run, tokens in fed], WANTS)
    left = [[entries.clone() for entries in cache.stores.entries(cache.place)] for cache in caches]
    for (run, tokens), found in zip(fed, together, strict=True):
        torch.testing.assert_close(found, run(tokens), **close)
    for number in order:
        seen, cache = LENGTHS[number] + 1 + trees[number].nodes, caches[number]
        for one, other in zip(left[number], cache.stores.entries(cache.place), strict=True):
            torch.testing.assert_close(one[:, :seen], other[:, :seen], **close)


@pytest.fixture(scope="module")
def model():
    return RaggedAdapter(random_model("llama"), name="llama")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_shares_passes(name, tmp_path):
    random_model(name).save_pretrained(tmp_path / name)
    model = load_adapter(tmp_path / name)
    assert type(model) is RaggedAdapter
    check(model, model.new_caches(40, 5), UNLIKE)


@pytest.mark.parametrize("trees", [(chain(0),) * 5, (TREE,) * 5, UNLIKE], ids=["plain", "one tree", "unlike"])
@pytest.mark.parametrize("order", [range(5), [4, 2, 0, 1, 3], [0, 2, 1, 3], [4, 1], [2]])
def test_any_texts_in_any_order(model, trees, order):
    check(model, model.new_caches(40, 5), trees, order)


def test_caches_that_lie_apart(model):
    side_by_side = model.new_caches(40, 3)
    check(
        model,
        [side_by_side[2], model.new_cache(60), side_by_side[0], *model.new_caches(50, 1), side_by_side[1]],
        UNLIKE,
    )


def test_a_text_of_one_token_is_not_read_before_its_first_pass(model):
    caches = model.new_caches(20, 2)
    fed = [(TreePass(model, cache, PassNodes.whole(TREE), capacity=0), tokens_of(TREE.nodes, 1)) for cache in caches]
    together = model.forward_ragged([run.rows(tokens) for run, tokens in fed])
    caches[1].keep(0, [0, 2])
    torch.testing.assert_close(together[0].logits, fed[0][0](fed[0][1]).logits, **close)
    after = model.forward(torch.tensor([7]), torch.tensor([2]), caches[1], None).logits
    text = torch.cat([fed[1][1][[0, 2]], torch.tensor([7])])
    torch.testing.assert_close(after, model.text_logits(text[None])[0, -1:], **close)


def test_positions_behind_the_longest_text_count_as_its_last(model):
    longest = model.config.max_positions
    for cache in (caches := model.new_caches(longest + 3, 2)):
        model.prefill(tokens_of(longest - 1, 3), cache)
    rows = [TextRows(tokens_of(3, 1), np.arange(3), cache, np.tri(3, dtype=np.bool_)) for cache in caches]
    mask = torch.zeros(3, longest + 2).masked_fill_(
        ~torch.tril(torch.ones(3, longest + 2, dtype=bool), longest - 1), -torch.inf
    )
    expected = model.forward(rows[0].tokens, longest - 1 + torch.arange(3), caches[0], mask).logits
    for found in model.forward_ragged(rows):
        torch.testing.assert_close(found.logits, expected, **close)


def counted(monkeypatch):
    counts = Counter()
    for method in ("forward", "forward_ragged"):
        original = getattr(RaggedAdapter, method)

        def run(self, *arguments, method=method, original=original, **keywords):
            counts[self.name, method] += 1
            return original(self, *arguments, **keywords)

        monkeypatch.setattr(RaggedAdapter, method, run)
    return counts


@pytest.fixture(scope="module")
def pair():
    """Return target and draft in float64, whose texts are the same whatever shares a pass."""
    return [RaggedAdapter(random_model(name, seed=1).double(), name=name) for name in ("llama", "gpt2")]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", NAMES)
def test_texts_that_join_and_leave_are_those_decoded_alone(pair, name, temperature):
    decoder = Decoder(pair[0], *CASES[name].make(*pair), temperature=temperature)
    wanted = [TextRequest(*each, seed=2) for each in zip(PROMPTS, COUNTS, strict=True)]
    check_that_none_changes_another(decoder, wanted, (2, 3, 8))


def test_a_step_is_one_pass_of_the_target_and_one_of_the_draft_for_each_level(monkeypatch):
    target, draft = (RaggedAdapter(random_model("llama", seed=seed), name=f"{seed}") for seed in range(2))
    decoder = Decoder(target, draft, level_widths([2, 2, 1]), temperature=0.0)
    counts = counted(monkeypatch)
    requests = [TextRequest([3, 5, each], 12, ignore_end_tokens=True) for each in range(4)]
    steps = Counter(step.text for step in decoder.steps_of_all(requests, batch_size=4))
    most = max(steps.values())
    assert counts["0", "forward"] + counts["0", "forward_ragged"] == most
    assert counts["1", "forward"] + counts["1", "forward_ragged"] == 3 * most
    assert counts["0", "forward_ragged"] >= min(steps.values())


class OfTheFirstText(RaggedAdapter):
    """Gives every text the positions of the first."""

    def forward_ragged(self, parts):
        wrong = [part._replace(depth=part.depth + parts[0].cache.length - part.cache.length) for part in parts]
        return super().forward_ragged(wrong)


class WithoutMask(RaggedAdapter):
    """Shows every text all slots."""

    def _ragged_mask(self, grid, spans):
        return torch.zeros_like(super()._ragged_mask(grid, spans))


class Swapped(RaggedAdapter):
    """Confuses two texts."""

    def forward_ragged(self, parts):
        first, *others = parts
        return super().forward_ragged(
            [first._replace(cache=others[0].cache), others[0]._replace(cache=first.cache), *others[1:]]
        )


class Raising(RaggedAdapter):
    def forward_ragged(self, *_):
        raise KeyError("a text")


class NotFinite(RaggedAdapter):
    def forward_ragged(self, parts):
        return [each._replace(logits=each.logits * float("nan")) for each in super().forward_ragged(parts)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
class TestCheck:
    @pytest.mark.parametrize("wrong", [OfTheFirstText, WithoutMask, Swapped, Raising, NotFinite])
    def test_a_model_that_mixes_texts_shares_no_pass(self, name, dtype, wrong):
        model = wrong(random_model(name).to(dtype), name="wrong")
        assert why_separate_passes(model, tolerance=EXACT if dtype == torch.float32 else ROUNDED) is not None

    def test_one_that_does_not_is_found(self, name, dtype):
        model = RaggedAdapter(random_model(name).to(dtype), name="right")
        assert why_separate_passes(model, tolerance=EXACT if dtype == torch.float32 else ROUNDED) is None


def test_a_model_that_fails_the_check_is_run_in_turn(tmp_path, monkeypatch):
    random_model("llama").save_pretrained(tmp_path)
    monkeypatch.setattr(RaggedAdapter, "_ragged_mask", WithoutMask._ragged_mask)
    monkeypatch.setattr("treeopt.runtime.models.hf.ragged.mask_of", lambda *_, **__: None)
    assert type(load_adapter(tmp_path)) is AdapterModel
