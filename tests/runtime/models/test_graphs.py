"""Passes in fixed shapes are the passes they stand for; on a CPU all of it runs but the capture itself."""

from functools import partial
from itertools import cycle, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.decoded import decoded_step
from tests.support.drawn import examples
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, Sampling, distribution
from treeopt.runtime.models import graphs
from treeopt.runtime.models.graphs import GraphPool, PassGraphs, extents
from treeopt.runtime.models.mask import TreeMask, static_mask
from treeopt.runtime.models.passes import PassNodes, TreePasses
from treeopt.trees import TokenTree, chain, chains, k_ary, level_widths

CPU = torch.device("cpu")
PROMPT = [3, 14, 15, 9, 2, 6, 5]
TREES = [level_widths([3, 3, 2, 1]), chain(4), chain(0), level_widths([1, 2, 6]), chains(2, 3), chain(0), k_ary(2, 3)]

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


@pytest.fixture(autouse=True, scope="module")
def short_extents():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "FIRST_EXTENT", 16)
        yield


def random_text(length, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(23, size=length))


def random_tree(picks):
    return TokenTree.ordered([-1, *(pick % (node + 1) for node, pick in enumerate(picks))])


def whole(tree):
    return [PassNodes(visible=tree.ancestor_mask, depth=tree.depth)]


def by_level(tree):
    visible, depth = tree.ancestor_mask, tree.depth
    return [
        PassNodes(visible=visible[level, : level.stop], depth=depth[level], start=level.start) for level in tree.levels
    ]


def garbage_cache(model, text, capacity):
    """Return a cache whose slots behind the text hold what must not be seen."""
    cache = model.new_cache(capacity)
    for entries in cache.layers:
        for each in entries:
            each.normal_(std=100.0, generator=torch.Generator().manual_seed(0))
    model.prefill(text, cache)
    return cache


def pass_graphs(model, text, *, columns=12, capacity=128):
    return PassGraphs(model, garbage_cache(model, text, capacity), columns=columns, pool=GraphPool(CPU))


def fed(passes, nodes, tokens):
    """Return the logits (n, V) of a tree that is fed pass after pass."""
    starts = [*(each.start for each in nodes), len(tokens)]
    runs = passes.make(nodes)
    return torch.cat(
        [run(tokens[start:stop]).logits.clone() for run, (start, stop) in zip(runs, pairwise(starts), strict=True)]
    )


def eager(model, text, nodes, tokens, capacity=128):
    return fed(TreePasses(model, garbage_cache(model, text, capacity), 100), nodes, tokens)


class TestMask:
    @settings(max_examples=examples(50), deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 9), max_size=9), st.integers(0, 8), st.integers(0, 5), st.integers(0, 3))
    def test_it_is_the_mask_behind_the_text_with_all_else_hidden(self, picks, length, room, padding):
        tree = random_tree(picks)
        visible = torch.from_numpy(tree.ancestor_mask)
        expected = torch.full((tree.nodes, length + tree.nodes + room), float("-inf"))
        behind = TreeMask(visible, 8, dtype=torch.float32, device=CPU).behind(length)
        expected[:, : length + tree.nodes] = 0 if behind is None else behind
        padded = torch.nn.functional.pad(visible, (0, padding))
        mask = static_mask(padded, torch.tensor(length), expected.shape[1], torch.float32)
        assert torch.equal(mask, expected)

    def test_an_extent_may_end_within_the_text(self):
        mask = static_mask(torch.eye(2, dtype=torch.bool), torch.tensor(9), 4, torch.bfloat16)
        assert torch.equal(mask, torch.zeros(2, 4, dtype=torch.bfloat16))


class TestExtents:
    @pytest.mark.parametrize(
        ("capacity", "expected"), [(1, [1]), (16, [16]), (17, [16, 17]), (32, [16, 32]), (100, [16, 32, 64, 100])]
    )
    def test_they_double_up_to_the_capacity(self, capacity, expected):
        assert extents(capacity) == expected


class TestPasses:
    @settings(max_examples=examples(40), deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 11), max_size=11), st.integers(0, 70), st.integers(0, 1000))
    def test_logits_are_those_of_the_eager_pass(self, target, picks, length, seed):
        tree, text = random_tree(picks), random_text(length, seed)
        tokens = random_text(tree.nodes, seed + 1)
        for nodes in (whole(tree), by_level(tree)):
            assert_close(fed(pass_graphs(target, text), nodes, tokens), eager(target, text, nodes, tokens))

    @pytest.mark.parametrize("length", [*range(24, 34), 56, 57, 58, 63, 64, 65])
    def test_lengths_at_the_border_of_an_extent(self, target, length):
        tree, text = level_widths([3, 2, 1]), random_text(length)
        tokens = random_text(tree.nodes, seed=1)
        for nodes in (whole(tree), by_level(tree)):
            assert_close(fed(pass_graphs(target, text), nodes, tokens), eager(target, text, nodes, tokens))

    def test_a_cache_that_is_full(self, target):
        tree, text = level_widths([3, 2, 1]), random_text(41)
        tokens = random_text(tree.nodes, seed=1)
        full = pass_graphs(target, text, columns=7, capacity=48)
        assert_close(fed(full, whole(tree), tokens), eager(target, text, whole(tree), tokens, capacity=48))

    def test_keys_and_values_lie_in_the_same_slots(self, target):
        tree, text = level_widths([3, 2, 1]), random_text(14)
        tokens = random_text(tree.nodes, seed=1)
        caches = [garbage_cache(target, text, 40) for _ in range(2)]
        fed(PassGraphs(target, caches[0], columns=9, pool=GraphPool(CPU)), by_level(tree), tokens)
        fed(TreePasses(target, caches[1], 20), by_level(tree), tokens)
        for static, expected in zip(caches[0].layers, caches[1].layers, strict=True):
            for each, wanted in zip(static, expected, strict=True):
                assert_close(each[:, :, : 14 + tree.nodes], wanted[:, :, : 14 + tree.nodes])

    def test_the_text_may_grow_between_two_runs(self, target):
        cache = target.new_cache(64)
        (run,) = PassGraphs(target, cache, columns=1, pool=GraphPool(CPU)).make(whole(chain(0)))
        text = random_text(50)
        expected = eager(target, text[:0], whole(chain(49)), text)
        for position in range(50):
            assert_close(run(text[position : position + 1]).logits[0], expected[position])
            cache.length += 1

    def test_in_half_precision(self, target_folder):
        from treeopt.runtime import load_model

        model, tree, text = load_model(target_folder, dtype=torch.bfloat16), level_widths([3, 2]), random_text(20)
        tokens = random_text(tree.nodes, seed=1)
        logits = fed(pass_graphs(model, text), whole(tree), tokens)
        assert logits.dtype == torch.bfloat16
        expected = eager(model, text, whole(tree), tokens)
        assert (logits - expected).float().norm() < 0.03 * expected.float().norm()

    def test_more_tokens_than_the_cache_has_room_for(self, target):
        passes = pass_graphs(target, random_text(30), capacity=32)
        (run,) = passes.make(whole(chain(2)))
        with pytest.raises(InvalidValueError, match=r"cache: expected room for 33 tokens. Got 32"):
            run(random_text(3))

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda visible, length, extent, dtype: static_mask(visible | True, length, extent, dtype),
            lambda visible, length, extent, dtype: static_mask(visible, length + 1, extent, dtype),
            lambda visible, length, extent, dtype: static_mask(visible, length - 1, extent, dtype),
        ],
        ids=["siblings are seen", "one slot too many", "one slot too few"],
    )
    def test_a_wrong_mask_is_found(self, target, wrong, monkeypatch):
        monkeypatch.setattr(graphs, "static_mask", wrong)
        tree, text = level_widths([3, 2, 1]), random_text(20)
        tokens = random_text(tree.nodes, seed=1)
        difference = fed(pass_graphs(target, text), whole(tree), tokens) - eager(target, text, whole(tree), tokens)
        assert not difference.abs().max() < 1e-2


class TestCaptures:
    def test_each_shape_once_and_the_largest_first(self, target):
        passes = pass_graphs(target, random_text(5), columns=21, capacity=40)
        passes.make(by_level(level_widths([3, 2, 3, 12])))
        assert set(passes.captured) == {(rows, extent) for rows in (1, 2, 3, 12) for extent in (16, 32, 40)}
        sizes = [rows * extent for rows, extent in passes.captured]
        assert sizes == sorted(sizes, reverse=True)

    def test_none_for_fewer_slots_than_rows(self, target):
        passes = pass_graphs(target, random_text(5), columns=20, capacity=40)
        passes.make(whole(chain(16)))
        assert passes.captured == [(17, 40), (17, 32)]

    def test_another_tree_takes_what_there_is(self, target):
        trees = [
            TokenTree([-1, 0, 0, 0, 1, 1, 3]),
            TokenTree([-1, 0, 0, 0, 1, 2, 3]),
            TokenTree([-1, 0, 0, 0, 2, 2, 2]),
        ]
        text, tokens = random_text(13), random_text(7, seed=1)
        passes = pass_graphs(target, text)
        logits = [fed(passes, nodes, tokens) for tree in trees for nodes in (whole(tree), by_level(tree))]
        captured = passes.captured
        assert len(captured) == len({rows for rows, _ in captured}) * len(extents(128)) == 3 * 4
        for tree, (at_once, level_by_level) in zip(trees, zip(logits[::2], logits[1::2], strict=True), strict=True):
            expected = eager(target, text, whole(tree), tokens)
            assert_close(at_once, expected)
            assert_close(level_by_level, expected)
        assert (logits[0] - logits[2]).abs().max() > 0.1

    def test_only_new_shapes_are_captured(self, target):
        passes = pass_graphs(target, random_text(5), capacity=16)
        passes.make(whole(chain(2)))
        passes.make([*whole(chain(4)), *whole(chain(2)), *whole(level_widths([2]))])
        assert passes.captured == [(3, 16), (5, 16)]

    def test_passes_of_several_trees_may_alternate(self, target):
        text, tokens = random_text(13), random_text(5, seed=1)
        trees = [chain(4), level_widths([4]), k_ary(2, 1), level_widths([2, 2])]
        runs = pass_graphs(target, text).make([nodes for tree in trees for nodes in whole(tree)])
        for index in (0, 1, 0, 3, 2, 1, 3):
            expected = eager(target, text, whole(trees[index]), tokens[: trees[index].nodes])
            assert_close(runs[index](tokens[: trees[index].nodes]).logits, expected)

    def test_a_capture_leaves_the_text_as_it_is(self, target):
        cache = target.new_cache(64)
        target.prefill(random_text(20), cache)
        before = cache._store.clone()
        PassGraphs(target, cache, columns=12, pool=GraphPool(CPU)).make(by_level(level_widths([3, 2])))
        assert torch.equal(cache._store[:, :, :, :, :20], before[:, :, :, :, :20])
        assert cache._store.isfinite().all()
        assert cache.length == 20


both_forms = pytest.mark.parametrize("cuda_graphs", [False, True], ids=["eager", "static"])


def changing(target, draft, **arguments):
    return Decoder(target, draft, TREES[0], max_nodes=16, **arguments)


def text_with_changes(decoder, count, every=2):
    """Return tokens that are decoded with another tree after every few steps."""
    tokens: list[int] = []
    trees = cycle(TREES)
    for number, step in enumerate(decoder.steps(PROMPT, count)):
        tokens += step
        if number % every == every - 1:
            decoder.change_tree(next(trees))
    return tokens


@pytest.fixture(scope="module")
def plain_text(target):
    return list(Decoder(target, None, chain(0), temperature=0.0).generate(PROMPT, 100))


class TestDecoding:
    @pytest.mark.parametrize("tree", TREES)
    @pytest.mark.parametrize("drafts_like_target", [False, True])
    def test_the_greedy_text_of_static_passes_is_that_of_plain_decoding(
        self, target, draft, tree, drafts_like_target, plain_text
    ):
        decoder = Decoder(target, target if drafts_like_target else draft, tree, temperature=0.0, cuda_graphs=True)
        assert list(decoder.generate(PROMPT, 100)) == plain_text

    @pytest.mark.parametrize("rule", ["sequoia", "target"])
    def test_a_sampled_text_is_the_same_in_both_forms(self, target, draft, rule):
        texts = [
            text_with_changes(changing(target, draft, rule=rule, temperature=0.8, seed=4, cuda_graphs=form), 60)
            for form in (False, True)
        ]
        assert texts[0] == texts[1]

    def test_on_a_cpu_no_form_is_static_unless_asked_for(self, target, draft, monkeypatch):
        def static(*_):
            raise NotImplementedError

        monkeypatch.setattr(target, "forward_static", static)
        assert len(list(Decoder(target, draft, chain(2)).generate(PROMPT, 9))) == 9
        with pytest.raises(NotImplementedError):
            Decoder(target, draft, chain(2), cuda_graphs=True)

    @both_forms
    def test_logits_may_be_asked_for_outside_inference_mode(self, target, draft, cuda_graphs):
        decoder = Decoder(target, draft, chain(2), cuda_graphs=cuda_graphs)
        decoder.start(PROMPT)
        for _ in range(3):
            drafted = decoder.draft()
            decoded_step(decoder, drafted)


class TestTreeChange:
    @both_forms
    @pytest.mark.parametrize("every", [1, 2, 5])
    @pytest.mark.parametrize("drafts_like_target", [False, True])
    def test_the_greedy_text_does_not_change(self, target, draft, cuda_graphs, every, drafts_like_target, plain_text):
        decoder = changing(target, target if drafts_like_target else draft, temperature=0.0, cuda_graphs=cuda_graphs)
        assert text_with_changes(decoder, 100, every) == plain_text
        assert text_with_changes(decoder, 30, every) == plain_text[:30]

    @both_forms
    def test_a_draft_like_the_target_is_accepted_after_every_change(self, target, cuda_graphs):
        decoder = Decoder(target, target, chain(3), temperature=0.0, max_nodes=8, cuda_graphs=cuda_graphs)
        steps = decoder.steps(PROMPT, 100)
        for depth in (3, 0, 0, 0, 0, 4, 1, 0, 0, 7, 2):
            decoder.change_tree(chain(depth))
            assert len(next(steps)) == depth + 1

    @both_forms
    def test_every_distribution_is_that_of_a_fresh_pass(self, target, draft, cuda_graphs, logits_after):
        decoder = changing(target, draft, temperature=0.7, seed=3, cuda_graphs=cuda_graphs)
        decoder.start(PROMPT)
        text = list(PROMPT)
        for tree in [*TREES, *TREES[::-1]]:
            decoder.change_tree(tree)
            drafted = decoder.draft()
            output = decoder.verify(drafted)
            tokens, logits = drafted.tokens.tolist(), output.logits
            assert tokens[0] == text[-1]
            for node in range(tree.nodes):
                path = [*text[:-1], *(tokens[above] for above in np.flatnonzero(tree.ancestor_mask[node]))]
                torch.testing.assert_close(logits[node], logits_after(target, path), rtol=1e-4, atol=1e-4)
                if len(tree.children(node)) > 0:
                    probs = distribution(logits_after(draft, path)[None], Sampling(0.7))[0]
                    torch.testing.assert_close(drafted.probs[node], probs, rtol=1e-3, atol=1e-5)
            text += decoded_step(decoder, drafted, output)

    @pytest.mark.parametrize("rule", ["sequoia", "specinfer", "target", "traversal"])
    def test_a_sampled_text_is_that_of_a_decoder_made_with_the_tree(self, target, draft, rule):
        trees = [chain(4), level_widths([1, 3]), TokenTree([-1, 0, 0, 1, 1]), level_widths([4])]  # of 5 nodes all
        decoder = Decoder(target, draft, trees[-1], rule=rule, temperature=0.8)
        for tree in trees:
            decoder.change_tree(tree)
            made = Decoder(target, draft, tree, rule=rule, temperature=0.8)
            assert list(decoder.generate(PROMPT, 20, seed=5)) == list(made.generate(PROMPT, 20, seed=5))

    def test_what_is_captured_is_used_again(self, target, draft, monkeypatch):
        captured = []
        capture = GraphPool.capture
        monkeypatch.setattr(GraphPool, "capture", lambda pool, work: captured.append(pool) or capture(pool, work))
        decoder = changing(target, draft, temperature=0.0, cuda_graphs=True)
        text_with_changes(decoder, 60)
        count = len(captured)
        assert count > 0
        text_with_changes(decoder, 60)
        decoder.change_tree(TokenTree([-1, 0, 0, 0, 0, 0, 0, 0, 0, 1]))  # as many nodes as TREES[0], one level of one
        assert len(captured) == count
        assert len(set(captured)) == 1

    @both_forms
    def test_a_change_after_the_longest_text(self, target, cuda_graphs, plain_text):
        prompt = [*PROMPT, *plain_text, *PROMPT, *PROMPT[:4]]
        decoder = Decoder(target, target, chain(6), temperature=0.0, max_nodes=11, cuda_graphs=cuda_graphs)
        assert [len(step) for step in decoder.steps(prompt, 128 - len(prompt))] == [7, 3]
        decoder.change_tree(chain(10))
        assert list(decoder.generate(PROMPT, 100)) == plain_text

    @both_forms
    def test_a_tree_that_cannot_be_used_changes_nothing(self, target, draft, cuda_graphs, plain_text):
        decoder = Decoder(target, draft, chain(2), temperature=0.0, max_nodes=30, cuda_graphs=cuda_graphs)
        steps = decoder.steps(PROMPT, 40)
        tokens = next(steps)
        for tree, reason in [
            (chain(30), r"tree: expected at most 30 nodes, the decoder's max_nodes. Got 31"),
            (level_widths([24]), r"tree: expected at most 23 children per node, the vocabulary. Got 24"),
        ]:
            with pytest.raises(InvalidValueError, match=reason):
                decoder.change_tree(tree)
        assert decoder.tree == chain(2)
        assert [*tokens, *(token for step in steps for token in step)] == plain_text[:40]

    def test_by_default_there_is_room_for_the_first_tree_only(self, target, draft):
        decoder = Decoder(target, draft, chain(2))
        decoder.change_tree(level_widths([2]))
        with pytest.raises(InvalidValueError, match=r"tree: expected at most 3 nodes"):
            decoder.change_tree(chain(3))

    def test_a_first_tree_larger_than_the_largest(self, target, draft):
        with pytest.raises(InvalidValueError, match=r"tree: expected at most 2 nodes.*Got 4"):
            Decoder(target, draft, chain(3), max_nodes=2)

    def test_a_decoder_without_a_drafter_has_no_other_tree(self, target):
        decoder = Decoder(target, None, chain(0), max_nodes=8)
        decoder.change_tree(chain(0))
        with pytest.raises(InvalidValueError, match=r"drafter: expected a draft model for a tree of 2 nodes"):
            decoder.change_tree(chain(1))

    def test_a_tree_deeper_than_the_trained_length(self, target, draft):
        decoder = Decoder(target, draft, chain(2), max_nodes=200)
        with pytest.raises(InvalidValueError, match=r"tree: expected a depth of at most 128"):
            decoder.change_tree(chain(129))
