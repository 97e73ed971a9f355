"""Passes that are replayed are the passes they stand for, whatever they were captured with: see `tests.support.recorded`."""

from functools import partial
from itertools import cycle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import recorded
from tests.support.decoded import decoded_step
from tests.support.drawn import examples
from tests.support.passes import level_of, new_cache
from treeopt.errors import InvalidValueError, TreeoptWarning
from treeopt.runtime import Decoder, Sampling, distribution
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.models import runner
from treeopt.runtime.models.model import SequenceInput
from treeopt.runtime.models.nodes import PassNodes, TreeMask, build_device_mask
from treeopt.runtime.models.runner import GraphPool, GraphShape, PassBuffers, Runner, padded_kv_lengths, padded_tokens
from treeopt.trees import TokenTree, chain, chains, k_ary, level_widths
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting

CPU = torch.device("cpu")
PROMPT = [3, 14, 15, 9, 2, 6, 5]
TREES = [level_widths([3, 3, 2, 1]), chain(4), chain(0), level_widths([1, 2, 6]), chains(2, 3), chain(0), k_ary(2, 3)]

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


@pytest.fixture(autouse=True, scope="module")
def replayed():
    """Record and replay on the CPU, with short KV lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "SHORTEST_KV_LENGTH", 16)
        patch.setattr(GraphPool, "capture", recorded.capture)
        yield


def random_text(length, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(23, size=length))


def random_tree(picks):
    return TokenTree.ordered([-1, *(pick % (node + 1) for node, pick in enumerate(picks))])


def by_level(tree):
    return [level_of(tree, level.start, level.stop) for level in tree.levels]


def garbage_cache(model, text, capacity=128):
    """Return a cache whose slots after the text hold what must not be seen."""
    cache = new_cache(model, capacity)
    for entries in cache.layers:
        for each in entries:
            each.normal_(std=100.0, generator=torch.Generator().manual_seed(0))
    model.prefill(text, cache)
    return cache


def graph_runner(model, max_nodes=12):
    return Runner(model, max_nodes=max_nodes, pool=GraphPool(CPU))


def run_nodes(runner, cache, nodes, tokens):
    """Return the logits (n, V) of a tree that is fed pass after pass."""
    parts = [tokens[each.start : each.start + each.rows] for each in nodes]
    return torch.cat(
        [runner.forward([SequenceInput(cache, *each)]).logits.clone() for each in zip(parts, nodes, strict=True)]
    )


def replayed_logits(model, text, nodes, tokens, capacity=128, runner=None):
    """Return the logits of passes that are replayed, after passes of the same shapes over another text and other tokens."""
    runner = runner or graph_runner(model)
    cache = garbage_cache(model, text, capacity)
    for _ in range(2):
        run_nodes(runner, cache, nodes, (tokens + 1) % 23)
    found = run_nodes(runner, cache, nodes, tokens)
    assert {shape.tokens for shape in runner.captured} == {padded_tokens(each.rows) for each in nodes}
    return found


def eager(model, text, nodes, tokens, capacity=128):
    return run_nodes(Runner(model, max_nodes=12), garbage_cache(model, text, capacity), nodes, tokens)


class TestMask:
    @settings(max_examples=examples(50), deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 9), max_size=9), st.integers(0, 8), st.integers(0, 5), st.integers(0, 3))
    def test_it_is_the_mask_after_the_text_with_all_else_hidden(self, picks, length, room, padding):
        tree = random_tree(picks)
        visible = torch.from_numpy(tree.ancestor_mask)
        expected = torch.full((tree.nodes, length + tree.nodes + room), float("-inf"))
        expected[:, : length + tree.nodes] = TreeMask(visible, 8, dtype=torch.float32, device=CPU).after(length)
        padded = torch.nn.functional.pad(visible, (0, padding))
        both = torch.stack([padded, padded])
        mask = build_device_mask(both, torch.tensor([length, 0]), expected.shape[1], torch.float32)
        assert torch.equal(mask[0, 0], expected)

    def test_a_kv_length_may_end_within_the_committed_tokens(self):
        mask = build_device_mask(torch.eye(2, dtype=torch.bool)[None], torch.tensor([9]), 4, torch.bfloat16)
        assert torch.equal(mask, torch.zeros(1, 1, 2, 4, dtype=torch.bfloat16))


class TestPaddedKvLengths:
    @pytest.mark.parametrize(
        ("capacity", "expected"), [(1, [1]), (16, [16]), (17, [16, 17]), (32, [16, 32]), (100, [16, 32, 64, 100])]
    )
    def test_they_double_up_to_the_capacity(self, capacity, expected):
        assert padded_kv_lengths(capacity) == expected


class TestPasses:
    @settings(max_examples=examples(30), deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 11), max_size=11), st.integers(0, 70), st.integers(0, 1000))
    def test_logits_are_those_of_the_eager_pass(self, target, picks, length, seed):
        tree, text = random_tree(picks), random_text(length, seed)
        tokens = random_text(tree.nodes, seed + 1)
        for nodes in ([PassNodes.whole(tree)], by_level(tree)):
            assert_close(replayed_logits(target, text, nodes, tokens), eager(target, text, nodes, tokens))

    @pytest.mark.parametrize("length", [*range(25, 34), 57, 58, 64])
    def test_lengths_at_the_border_of_a_kv_length(self, target, length):
        tree, text = level_widths([3, 2, 1]), random_text(length)
        tokens = random_text(tree.nodes, seed=1)
        for nodes in ([PassNodes.whole(tree)], by_level(tree)):
            assert_close(replayed_logits(target, text, nodes, tokens), eager(target, text, nodes, tokens))

    def test_a_cache_that_is_full(self, target):
        tree, text = level_widths([3, 2, 1]), random_text(41)
        tokens, nodes = random_text(tree.nodes, seed=1), [PassNodes.whole(tree)]
        found = replayed_logits(target, text, nodes, tokens, capacity=48)
        assert_close(found, eager(target, text, nodes, tokens, capacity=48))

    def test_the_text_may_grow_between_two_runs(self, target):
        cache, runs = new_cache(target, 64), graph_runner(target)
        text = random_text(50)
        expected = eager(target, text[:0], [PassNodes.chain(50)], text)
        for position in range(50):
            logits = runs.forward([SequenceInput.causal(cache, text[position : position + 1])]).logits
            assert_close(logits[0], expected[position])
            cache.length += 1
        assert runs.captured == [GraphShape(1, 1, 16), GraphShape(1, 1, 32), GraphShape(1, 1, 64)]

    def test_in_half_precision(self, target_folder):
        from treeopt.runtime import load_model

        model, tree, text = load_model(target_folder, dtype=torch.bfloat16), level_widths([3, 2]), random_text(20)
        tokens, nodes = random_text(tree.nodes, seed=1), [PassNodes.whole(tree)]
        logits = replayed_logits(model, text, nodes, tokens)
        assert logits.dtype == torch.bfloat16
        expected = eager(model, text, nodes, tokens)
        assert (logits - expected).float().norm() < 0.03 * expected.float().norm()

    def test_more_tokens_than_the_cache_has_room_for(self, target):
        cache = garbage_cache(target, random_text(30), 32)
        with pytest.raises(InvalidValueError, match=r"cache: expected room for 33 tokens. Got 32"):
            graph_runner(target).forward([SequenceInput.causal(cache, random_text(3))])

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda visible, lengths, kv_length, dtype: build_device_mask(visible | True, lengths, kv_length, dtype),
            lambda visible, lengths, kv_length, dtype: build_device_mask(visible, lengths + 1, kv_length, dtype),
            lambda visible, lengths, kv_length, dtype: build_device_mask(visible, lengths - 1, kv_length, dtype),
            lambda visible, lengths, kv_length, dtype: build_device_mask(
                visible, lengths.clone().fill_(19), kv_length, dtype
            ),
        ],
        ids=["siblings are seen", "one slot too many", "one slot too few", "the length of the capture"],
    )
    def test_a_wrong_mask_is_found(self, target, wrong, monkeypatch):
        monkeypatch.setattr(runner, "build_device_mask", wrong)
        tree, text = level_widths([3, 2, 1]), random_text(20)
        tokens, nodes = random_text(tree.nodes, seed=1), [PassNodes.whole(tree)]
        difference = replayed_logits(target, text, nodes, tokens) - eager(target, text, nodes, tokens)
        assert not difference.abs().max() < 1e-2

    @pytest.mark.parametrize("stale", ["tokens", "_numbers", "_visible"])
    def test_a_buffer_that_is_not_written_is_found(self, target, stale, monkeypatch):
        load = PassBuffers.load

        def leaves_one(buffers, inputs):
            before = getattr(buffers, stale).clone()
            found = load(buffers, inputs)
            if shapes.captured:
                getattr(buffers, stale).copy_(before)
            return found

        monkeypatch.setattr(PassBuffers, "load", leaves_one)
        shapes = graph_runner(target)
        trees = [TokenTree([-1, 0, 0, 1]), TokenTree([-1, 0, 1, 1])]
        differences = []
        for number, tree in enumerate([trees[0], trees[0], trees[1]]):
            text, tokens = random_text(17 + number, seed=number), random_text(4, seed=number)
            cache = shapes._store.caches()[0] if shapes._store else garbage_cache(target, text)
            cache.clear()
            target.prefill(text, cache)
            logits = run_nodes(shapes, cache, [PassNodes.whole(tree)], tokens)
            differences.append(float((logits - eager(target, text, [PassNodes.whole(tree)], tokens)).abs().max()))
        assert max(differences) > 1e-2


class TestBatches:
    @pytest.mark.parametrize("places", [(0, 1, 2, 3), (2, 0), (3, 1, 0), (1,), (4,)])
    @pytest.mark.parametrize("alike", [True, False], ids=["one tree", "trees of their own"])
    def test_sequences_of_other_lengths_and_trees(self, target, places, alike):
        runs, store_caches = graph_runner(target), target.new_caches(128, 5)
        for place, cache in enumerate(store_caches):
            target.prefill(random_text(9 + 4 * place, seed=place), cache)
        for round_number in range(3):
            inputs, expected = [], []
            for place in places:
                tree = TREES[0] if alike else TREES[(place + round_number) % len(TREES)]
                tokens = random_text(tree.nodes, seed=round_number)
                inputs.append(SequenceInput(store_caches[place], tokens, PassNodes.whole(tree)))
                text = random_text(9 + 4 * place, seed=place)
                expected.append(eager(target, text, [PassNodes.whole(tree)], tokens))
            for last_only in (False, True):
                outputs = runs.forward(inputs, last_only=last_only)
                for output, wanted in zip(outputs, expected, strict=True):
                    assert_close(output.logits, wanted[-1:] if last_only else wanted)
        assert runs.captured

    def test_sequences_without_tokens_keep_what_they_have(self, target):
        runs, caches = graph_runner(target), target.new_caches(64, 4)
        for cache in caches:
            target.prefill(random_text(20), cache)
        before = caches[0].store.entries[..., :64, :].clone()
        for _ in range(3):
            sequence = SequenceInput(caches[2], random_text(4), PassNodes.whole(level_widths([3])))
            runs.forward(
                [sequence, sequence._replace(cache=caches[0], tokens=random_text(1), nodes=PassNodes.chain(1))]
            )
        assert runs.captured == [GraphShape(4, 4, 32)]
        after = caches[0].store.entries[..., :64, :]
        assert torch.equal(after[:, :, [1, 3]], before[:, :, [1, 3]])
        assert torch.equal(after[:, :, 0, :, 21:], before[:, :, 0, :, 21:])
        assert after.isfinite().all()

    def test_sequences_in_memory_of_their_own_are_not_captured(self, target):
        runs = graph_runner(target)
        inputs = [SequenceInput.causal(garbage_cache(target, random_text(5)), random_text(1)) for _ in range(2)]
        for _ in range(3):
            assert_close(runs.forward(inputs).logits, target.forward(inputs).logits)
        assert not runs.captured


class TestCaptures:
    def test_a_shape_is_captured_once(self, target):
        runs, cache = graph_runner(target, 20), garbage_cache(target, random_text(5), 40)
        for nodes in (PassNodes.chain(2), PassNodes.chain(3), PassNodes.chain(2), PassNodes.whole(level_widths([1]))):
            runs.forward([SequenceInput(cache, random_text(nodes.rows), nodes)])
        assert runs.captured == [GraphShape(1, 2, 16), GraphShape(1, 4, 16)]

    def test_another_tree_takes_what_there_is(self, target):
        trees = [
            TokenTree([-1, 0, 0, 0, 1, 1, 3]),
            TokenTree([-1, 0, 0, 0, 1, 2, 3]),
            TokenTree([-1, 0, 0, 0, 2, 2, 2]),
        ]
        text, tokens, runs = random_text(13), random_text(7, seed=1), graph_runner(target)
        cache = garbage_cache(target, text)
        for tree in trees * 2:
            for nodes in ([PassNodes.whole(tree)], by_level(tree)):
                assert_close(run_nodes(runs, cache, nodes, tokens), eager(target, text, nodes, tokens))
        assert {shape.tokens for shape in runs.captured} == {8, 1, 4}

    def test_there_is_a_most(self, target, monkeypatch):
        monkeypatch.setattr(runner, "MOST_GRAPHS", 2)
        runs, cache = graph_runner(target), garbage_cache(target, random_text(5), 40)
        for count in (1, 2, 3, 4) * 3:
            tokens = random_text(count, seed=count)
            expected = eager(target, random_text(5), [PassNodes.chain(count)], tokens)
            assert_close(runs.forward([SequenceInput.causal(cache, tokens)]).logits, expected)
        assert len(runs.captured) == 2

    def test_new_caches_are_captured_anew(self, target):
        runs, tokens = graph_runner(target), random_text(3)
        for length in (5, 9):
            cache = garbage_cache(target, random_text(length), 40)
            for _ in range(3):
                expected = eager(target, random_text(length), [PassNodes.chain(3)], tokens)
                assert_close(runs.forward([SequenceInput.causal(cache, tokens)]).logits, expected)
            assert runs.captured == [GraphShape(1, 4, 16)]

    def test_a_pass_that_cannot_be_captured_runs_without(self, target, monkeypatch):
        def fails(*_):
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr(GraphPool, "capture", fails)
        runs, cache = graph_runner(target), garbage_cache(target, random_text(5), 40)
        inputs = [SequenceInput.causal(cache, random_text(2))]
        expected = target.forward(inputs).logits
        with pytest.warns(TreeoptWarning, match=r"can be captured as a CUDA graph. Got 'operation not permitted"):
            assert torch.equal(runs.forward(inputs).logits, expected)
        assert torch.equal(runs.forward(inputs).logits, expected)

    def test_a_capture_leaves_the_text_as_it_is(self, target):
        cache = new_cache(target, 64)
        target.prefill(random_text(20), cache)
        before = cache.store.entries.clone()
        run_nodes(graph_runner(target), cache, by_level(level_widths([3, 2])) * 3, random_text(6))
        assert torch.equal(cache.store.entries[..., :20, :], before[..., :20, :])
        assert cache.store.entries.isfinite().all()
        assert cache.length == 20


both_forms = pytest.mark.parametrize("cuda_graphs", [False, True], ids=["eager", "static"])


def changing(target, draft, **arguments):
    return Decoder(target, draft, TREES[0], max_nodes=16, **arguments)


def text_with_changes(decoder, count, every=2):
    """Return tokens that are decoded with another tree after every few steps."""
    tokens: list[int] = []
    trees = cycle(TREES)
    for number, step in enumerate(decoder.stream(PROMPT, count)):
        tokens += step
        if number % every == every - 1:
            decoder.change_tree(next(trees))
    return tokens


@pytest.fixture
def captured(monkeypatch):
    """Return the pools of everything that is captured."""
    pools = []
    monkeypatch.setattr(GraphPool, "capture", lambda pool, work: pools.append(pool) or recorded.capture(pool, work))
    return pools


@pytest.fixture(scope="module")
def plain_text(target):
    return list(Decoder(target, None, chain(0), temperature=0.0).generate(PROMPT, 100))


class TestDecoding:
    @pytest.mark.parametrize("tree", [TREES[0], TREES[1], TREES[2], TREES[4]])
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

    @pytest.mark.parametrize(
        "own", [DynamicTree(top_k=2, depth=3, nodes=8), SpecExecSetting(budget=8, branching=2, batch=3, max_passes=4)]
    )
    def test_trees_that_grow_and_batches(self, target, draft, own, plain_text, captured):
        def decoder():
            drafter = ExpandingDrafter(draft, own, capacity=128, cuda_graphs=True)
            return Decoder(target, drafter, temperature=0.0, cuda_graphs=True)

        assert list(decoder().generate(PROMPT, 60)) == plain_text[:60]
        assert captured
        count = len(captured)
        prompts = [PROMPT[:number] for number in (2, 5, 7, 3)]
        alone = [list(decoder().generate(prompt, 20)) for prompt in prompts]
        together = [[] for _ in prompts]
        for text, tokens in decoder().generate_all(prompts, 20, batch_size=3):
            together[text] += tokens
        assert together == alone
        assert len(captured) > count

    def test_on_a_cpu_nothing_is_captured_unless_asked_for(self, target, draft, captured):
        list(Decoder(target, draft, chain(2)).generate(PROMPT, 19))
        assert not captured
        list(Decoder(target, draft, chain(2), cuda_graphs=True).generate(PROMPT, 19))
        assert captured

    @both_forms
    def test_logits_may_be_asked_for_outside_inference_mode(self, target, draft, cuda_graphs):
        decoder = Decoder(target, draft, chain(2), cuda_graphs=cuda_graphs)
        decoder.start(PROMPT)
        for _ in range(3):
            drafted = decoder.draft()
            decoded_step(decoder, drafted)


class TestTreeChange:
    @both_forms
    @pytest.mark.parametrize("every", [1, 3])
    @pytest.mark.parametrize("drafts_like_target", [False, True])
    def test_the_greedy_text_does_not_change(self, target, draft, cuda_graphs, every, drafts_like_target, plain_text):
        decoder = changing(target, target if drafts_like_target else draft, temperature=0.0, cuda_graphs=cuda_graphs)
        assert text_with_changes(decoder, 60, every) == plain_text[:60]
        assert text_with_changes(decoder, 20, every) == plain_text[:20]

    @both_forms
    def test_a_draft_like_the_target_is_accepted_after_every_change(self, target, cuda_graphs):
        decoder = Decoder(target, target, chain(3), temperature=0.0, max_nodes=8, cuda_graphs=cuda_graphs)
        steps = decoder.stream(PROMPT, 100)
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

    def test_what_is_captured_is_used_again(self, target, draft, captured):
        decoder = changing(target, draft, temperature=0.0, cuda_graphs=True)
        text_with_changes(decoder, 60)
        text_with_changes(decoder, 60)
        count = len(captured)
        assert count > 0
        text_with_changes(decoder, 60)
        assert len(captured) == count
        assert len(set(captured)) == 1

    @both_forms
    def test_a_change_after_the_longest_text(self, target, cuda_graphs, plain_text):
        prompt = [*PROMPT, *plain_text, *PROMPT, *PROMPT[:4]]
        decoder = Decoder(target, target, chain(6), temperature=0.0, max_nodes=11, cuda_graphs=cuda_graphs)
        assert [len(step) for step in decoder.stream(prompt, 128 - len(prompt))] == [7, 3]
        decoder.change_tree(chain(10))
        assert list(decoder.generate(PROMPT, 100)) == plain_text

    @both_forms
    def test_a_tree_that_cannot_be_used_changes_nothing(self, target, draft, cuda_graphs, plain_text):
        decoder = Decoder(target, draft, chain(2), temperature=0.0, max_nodes=30, cuda_graphs=cuda_graphs)
        steps = decoder.stream(PROMPT, 40)
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
