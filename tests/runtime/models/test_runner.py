"""Replayed passes equal the passes that they replace, whatever they were captured with: see `tests.support.recorded`."""

from functools import partial
from itertools import cycle
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import recorded
from tests.support.decoded import decoded_step, joined
from tests.support.drawn import examples
from tests.support.passes import level_of, new_cache
from treeopt.errors import InvalidValueError, TreeoptWarning
from treeopt.runtime import Decoder, Sampling, distribution, load_model
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.models import runner
from treeopt.runtime.models.kv_cache import KVStore
from treeopt.runtime.models.model import SequenceInput
from treeopt.runtime.models.nodes import PassNodes, build_device_mask
from treeopt.runtime.models.padded_batch import PaddedBatch
from treeopt.runtime.models.runner import GraphPool, PassBuffers, Runner, padded_kv_lengths, padded_tokens
from treeopt.trees import TokenTree, chain, chains, k_ary, level_widths
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting

CPU = torch.device("cpu")
PROMPT = [3, 14, 15, 9, 2, 6, 5]
TREES = [level_widths([3, 3, 2, 1]), chain(4), chain(0), level_widths([1, 2, 6]), chains(2, 3), chain(0), k_ary(2, 3)]

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


@pytest.fixture(autouse=True, scope="module")
def replayed():
    with pytest.MonkeyPatch.context() as patch:
        recorded.replay_on_cpu(patch)
        yield


def random_tokens(length, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(23, size=length))


def random_tree(picks):
    return TokenTree.ordered([-1, *(pick % (node + 1) for node, pick in enumerate(picks))])


def nodes_by_level(tree):
    return [level_of(tree, level.start, level.stop) for level in tree.levels]


def garbage_cache(model, prompt, capacity=128):
    """Return a cache with random numbers after the prompt, which no token may see."""
    cache = new_cache(model, capacity)
    for entries in cache.layers:
        for tensor in entries:
            tensor.normal_(std=100.0, generator=torch.Generator().manual_seed(0))
    model.prefill(prompt, cache)
    return cache


def graph_runner(model, max_nodes=12):
    return Runner(model, max_nodes=max_nodes, pool=GraphPool(CPU))


def run_nodes(runner, cache, nodes, tokens):
    """Return the logits (n, V) of a tree that is fed pass by pass."""
    inputs = [SequenceInput(cache, tokens[part.start : part.start + part.rows], part) for part in nodes]
    return torch.cat([runner.forward([sequence]).logits.clone() for sequence in inputs])


def replayed_logits(model, prompt, nodes, tokens, capacity=128):
    """Return the logits of replayed passes, captured and replayed before with other tokens."""
    runner = graph_runner(model)
    cache = garbage_cache(model, prompt, capacity)
    for _ in range(2):
        run_nodes(runner, cache, nodes, (tokens + 1) % 23)
    logits = run_nodes(runner, cache, nodes, tokens)
    assert {shape.tokens for shape in runner.captured} == {padded_tokens(part.rows) for part in nodes}
    return logits


def eager_logits(model, prompt, nodes, tokens, capacity=128):
    return run_nodes(Runner(model, max_nodes=12), garbage_cache(model, prompt, capacity), nodes, tokens)


class TestMask:
    @settings(max_examples=examples(50), deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 9), max_size=9), st.integers(0, 8), st.integers(0, 5), st.integers(0, 3))
    def test_other_slots_are_hidden(self, picks, length, room, padding):
        visible = torch.from_numpy(random_tree(picks).ancestor_mask)
        nodes = len(visible)
        expected = torch.full((nodes, length + nodes + room), float("-inf"))
        expected[:, :length] = 0
        expected[:, length : length + nodes][visible] = 0
        padded = torch.nn.functional.pad(visible, (0, padding))
        both = torch.stack([padded, padded])
        mask = build_device_mask(both, torch.tensor([length, 0]), expected.shape[1], torch.float32)
        assert torch.equal(mask[0, 0], expected)

    def test_kv_length_may_end_within_the_committed_tokens(self):
        mask = build_device_mask(torch.eye(2, dtype=torch.bool)[None], torch.tensor([9]), 4, torch.bfloat16)
        assert torch.equal(mask, torch.zeros(1, 1, 2, 4, dtype=torch.bfloat16))


@pytest.mark.parametrize(("capacity", "expected"), [(1, [1]), (16, [16]), (17, [16, 17]), (100, [16, 32, 64, 100])])
def test_padded_kv_lengths_double_up_to_the_capacity(capacity, expected):
    assert padded_kv_lengths(capacity) == expected


class TestPasses:
    @settings(max_examples=examples(30, fast=10), deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 11), max_size=11), st.integers(0, 70), st.integers(0, 1000))
    def test_logits_equal_eager_passes(self, target, picks, length, seed):
        tree, prompt = random_tree(picks), random_tokens(length, seed)
        tokens = random_tokens(tree.nodes, seed + 1)
        for nodes in ([PassNodes.whole(tree)], nodes_by_level(tree)):
            logits = replayed_logits(target, prompt, nodes, tokens)
            assert_close(logits, eager_logits(target, prompt, nodes, tokens))

    @pytest.mark.parametrize("length", [25, 26, 31, 32, 33, 58])
    def test_lengths_at_the_border_of_a_kv_length(self, target, length):
        tree, prompt = level_widths([3, 2, 1]), random_tokens(length)
        tokens = random_tokens(tree.nodes, seed=1)
        for nodes in ([PassNodes.whole(tree)], nodes_by_level(tree)):
            logits = replayed_logits(target, prompt, nodes, tokens)
            assert_close(logits, eager_logits(target, prompt, nodes, tokens))

    def test_full_cache(self, target):
        tree, prompt = level_widths([3, 2, 1]), random_tokens(41)
        tokens, nodes = random_tokens(tree.nodes, seed=1), [PassNodes.whole(tree)]
        logits = replayed_logits(target, prompt, nodes, tokens, capacity=48)
        assert_close(logits, eager_logits(target, prompt, nodes, tokens, capacity=48))

    def test_sequence_may_grow_between_passes(self, target):
        cache, runs = new_cache(target, 64), graph_runner(target)
        tokens = random_tokens(50)
        expected = eager_logits(target, tokens[:0], [PassNodes.chain(50)], tokens)
        for position in range(50):
            logits = runs.forward([SequenceInput.causal(cache, tokens[position : position + 1])]).logits
            assert_close(logits[0], expected[position])
            cache.length += 1
        assert runs.captured == [PaddedBatch(1, 1, 16), PaddedBatch(1, 1, 32), PaddedBatch(1, 1, 64)]

    def test_half_precision(self, target_folder):
        model, tree, prompt = load_model(target_folder, dtype=torch.bfloat16), level_widths([3, 2]), random_tokens(20)
        tokens, nodes = random_tokens(tree.nodes, seed=1), [PassNodes.whole(tree)]
        logits = replayed_logits(model, prompt, nodes, tokens)
        assert logits.dtype == torch.bfloat16
        expected = eager_logits(model, prompt, nodes, tokens)
        assert (logits - expected).float().norm() < 0.03 * expected.float().norm()

    def test_more_tokens_than_slots_are_refused(self, target):
        cache = garbage_cache(target, random_tokens(30), 32)
        with pytest.raises(InvalidValueError, match=r"cache: expected room for 33 tokens. Got 32"):
            graph_runner(target).forward([SequenceInput.causal(cache, random_tokens(3))])

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("visible", lambda visible: visible | True),
            ("lengths", lambda lengths: lengths + 1),
            ("lengths", lambda lengths: lengths - 1),
            ("lengths", lambda lengths: lengths.clone().fill_(19)),
        ],
        ids=["siblings are visible", "one slot too many", "one slot too few", "the length of the capture"],
    )
    def test_wrong_mask_is_detected(self, target, name, change, monkeypatch):
        def build_wrong_mask(visible, lengths, kv_length, dtype):
            arguments = {"visible": visible, "lengths": lengths}
            arguments[name] = change(arguments[name])
            return build_device_mask(**arguments, kv_length=kv_length, dtype=dtype)

        monkeypatch.setattr(runner, "build_device_mask", build_wrong_mask)
        tree, prompt = level_widths([3, 2, 1]), random_tokens(20)
        tokens, nodes = random_tokens(tree.nodes, seed=1), [PassNodes.whole(tree)]
        difference = replayed_logits(target, prompt, nodes, tokens) - eager_logits(target, prompt, nodes, tokens)
        assert not difference.abs().max() < 1e-2

    @pytest.mark.parametrize("stale", ["tokens", "_numbers", "_visible"])
    def test_buffer_that_is_not_written_is_detected(self, target, stale, monkeypatch):
        load = PassBuffers.load

        def load_all_but_one(buffers, inputs):
            before = getattr(buffers, stale).clone()
            places = load(buffers, inputs)
            if runs.captured:
                getattr(buffers, stale).copy_(before)
            return places

        monkeypatch.setattr(PassBuffers, "load", load_all_but_one)
        runs = graph_runner(target)
        trees = [TokenTree([-1, 0, 0, 1]), TokenTree([-1, 0, 1, 1])]
        differences = []
        for number, tree in enumerate([trees[0], trees[0], trees[1]]):
            prompt, tokens = random_tokens(17 + number, seed=number), random_tokens(4, seed=number)
            cache = runs._store().caches()[0] if runs._store() else garbage_cache(target, prompt)
            cache.clear()
            target.prefill(prompt, cache)
            logits, nodes = run_nodes(runs, cache, [PassNodes.whole(tree)], tokens), [PassNodes.whole(tree)]
            differences.append(float((logits - eager_logits(target, prompt, nodes, tokens)).abs().max()))
        assert max(differences) > 1e-2


class TestBatches:
    @pytest.mark.parametrize(
        ("indices", "one_tree"),
        [((0, 1, 2, 3), False), ((2, 0), False), ((3, 1, 0), True), ((1,), False), ((4,), True)],
    )
    def test_sequences_of_unequal_lengths_and_trees(self, target, indices, one_tree):
        runs, store_caches = graph_runner(target), target.new_caches(128, 5)
        prompts = [random_tokens(9 + 4 * index, seed=index) for index in range(5)]
        for prompt, cache in zip(prompts, store_caches, strict=True):
            target.prefill(prompt, cache)
        for round_number in range(3):
            inputs, expected = [], []
            for index in indices:
                nodes = PassNodes.whole(TREES[0] if one_tree else TREES[(index + round_number) % len(TREES)])
                tokens = random_tokens(nodes.rows, seed=round_number)
                inputs.append(SequenceInput(store_caches[index], tokens, nodes))
                expected.append(eager_logits(target, prompts[index], [nodes], tokens))
            for last_only in (False, True):
                outputs = runs.forward(inputs, last_only=last_only)
                for output, logits in zip(outputs, expected, strict=True):
                    assert_close(output.logits, logits[-1:] if last_only else logits)
        assert runs.captured

    def test_absent_sequences_keep_their_entries(self, target):
        runs, caches = graph_runner(target), target.new_caches(64, 4)
        for cache in caches:
            target.prefill(random_tokens(20), cache)
        before = caches[0].store.entries[0][..., :64, :].clone()
        for _ in range(3):
            sequence = SequenceInput(caches[2], random_tokens(4), PassNodes.whole(level_widths([3])))
            runs.forward(
                [sequence, sequence._replace(cache=caches[0], tokens=random_tokens(1), nodes=PassNodes.chain(1))]
            )
        assert runs.captured == [PaddedBatch(4, 4, 32)]
        after = caches[0].store.entries[0][..., :64, :]
        assert torch.equal(after[:, :, [1, 3]], before[:, :, [1, 3]])
        assert torch.equal(after[:, :, 0, :, 21:], before[:, :, 0, :, 21:])
        assert after.isfinite().all()

    def test_sequences_of_several_stores_are_not_captured(self, target):
        runs = graph_runner(target)
        inputs = [SequenceInput.causal(garbage_cache(target, random_tokens(5)), random_tokens(1)) for _ in range(2)]
        for _ in range(3):
            assert_close(runs.forward(inputs).logits, target.forward(inputs).logits)
        assert not runs.captured


class TestCaptures:
    def test_shape_is_captured_once(self, target):
        runs, cache = graph_runner(target, 20), garbage_cache(target, random_tokens(5), 40)
        for nodes in (PassNodes.chain(2), PassNodes.chain(3), PassNodes.chain(2), PassNodes.whole(level_widths([1]))):
            runs.forward([SequenceInput(cache, random_tokens(nodes.rows), nodes)])
        assert runs.captured == [PaddedBatch(1, 2, 16), PaddedBatch(1, 4, 16)]

    def test_trees_of_one_shape_share_a_graph(self, target):
        parents = ([-1, 0, 0, 0, 1, 1, 3], [-1, 0, 0, 0, 1, 2, 3], [-1, 0, 0, 0, 2, 2, 2])
        prompt, tokens, runs = random_tokens(13), random_tokens(7, seed=1), graph_runner(target)
        cache = garbage_cache(target, prompt)
        for tree in map(TokenTree, parents):
            for nodes in ([PassNodes.whole(tree)], nodes_by_level(tree)):
                logits = run_nodes(runs, cache, nodes, tokens)
                assert_close(logits, eager_logits(target, prompt, nodes, tokens))
        assert {shape.tokens for shape in runs.captured} == {8, 1, 4}

    def test_number_of_graphs_is_limited(self, target, monkeypatch):
        monkeypatch.setattr(runner, "MOST_GRAPHS", 2)
        runs, cache = graph_runner(target), garbage_cache(target, random_tokens(5), 40)
        for count in (1, 2, 3, 4) * 2:
            tokens = random_tokens(count, seed=count)
            expected = eager_logits(target, random_tokens(5), [PassNodes.chain(count)], tokens)
            assert_close(runs.forward([SequenceInput.causal(cache, tokens)]).logits, expected)
        assert len(runs.captured) == 2

    def test_new_caches_are_captured_again(self, target):
        runs, tokens = graph_runner(target), random_tokens(3)
        for length in (5, 9):
            cache = garbage_cache(target, random_tokens(length), 40)
            for _ in range(2):
                expected = eager_logits(target, random_tokens(length), [PassNodes.chain(3)], tokens)
                assert_close(runs.forward([SequenceInput.causal(cache, tokens)]).logits, expected)
            assert runs.captured == [PaddedBatch(1, 4, 16)]

    def test_pass_that_cannot_be_captured_runs_eagerly(self, target, monkeypatch):
        def fail(*_):
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr(GraphPool, "capture", fail)
        runs, cache = graph_runner(target), garbage_cache(target, random_tokens(5), 40)
        inputs = [SequenceInput.causal(cache, random_tokens(2))]
        expected = target.forward(inputs).logits
        with pytest.warns(TreeoptWarning, match=r"can be captured as a CUDA graph. Got 'operation not permitted"):
            assert torch.equal(runs.forward(inputs).logits, expected)
        assert torch.equal(runs.forward(inputs).logits, expected)

    def test_capture_changes_no_committed_entry(self, target):
        cache = new_cache(target, 64)
        target.prefill(random_tokens(20), cache)
        (entries,) = cache.store.entries
        before = entries.clone()
        run_nodes(graph_runner(target), cache, nodes_by_level(level_widths([3, 2])) * 3, random_tokens(6))
        assert torch.equal(entries[..., :20, :], before[..., :20, :])
        assert entries.isfinite().all()
        assert cache.length == 20


eager_and_replayed = pytest.mark.parametrize("cuda_graphs", [False, True], ids=["eager", "replayed"])


def changing_decoder(target, draft, **options):
    return Decoder(target, draft, TREES[0], max_nodes=16, **options)


def decode_with_changes(decoder, count, every=2):
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
    """Return the pool of each capture."""
    pools = []
    monkeypatch.setattr(GraphPool, "capture", lambda pool, work: pools.append(pool) or recorded.capture(pool, work))
    return pools


@pytest.fixture(scope="module")
def plain_tokens(target):
    return list(Decoder(target, None, chain(0), temperature=0.0).generate(PROMPT, 100))


class TestDecoding:
    def test_sampled_text_is_the_same_in_eager_and_replayed(self, target, draft):
        options = {"rule": "sequoia", "temperature": 0.8, "seed": 4}
        outputs = [
            decode_with_changes(changing_decoder(target, draft, cuda_graphs=cuda_graphs, **options), 30, every=1)
            for cuda_graphs in (False, True)
        ]
        assert outputs[0] == outputs[1]

    @pytest.mark.parametrize(
        "setting",
        [DynamicTree(top_k=2, depth=3, nodes=8), SpecExecSetting(budget=8, branching=2, batch=3, max_passes=4)],
    )
    def test_dynamic_trees_and_batches(self, target, draft, setting, plain_tokens, captured):
        def decoder():
            drafter = ExpandingDrafter(draft, setting, capacity=128, cuda_graphs=True)
            return Decoder(target, drafter, temperature=0.0, cuda_graphs=True)

        assert list(decoder().generate(PROMPT, 30)) == plain_tokens[:30]
        assert captured
        count = len(captured)
        prompts = [PROMPT, PROMPT[:2], PROMPT[:5]]
        batched = [[] for _ in prompts]
        for number, tokens in decoder().generate_all(prompts, 10, batch_size=2):
            batched[number] += tokens
        assert batched == [list(Decoder(target, None, temperature=0.0).generate(prompt, 10)) for prompt in prompts]
        assert len(captured) > count

    def test_cpu_captures_only_on_request(self, target, draft, captured):
        list(Decoder(target, draft, chain(2)).generate(PROMPT, 19))
        assert not captured
        list(Decoder(target, draft, chain(2), cuda_graphs=True).generate(PROMPT, 19))
        assert captured


class TestTreeChange:
    @eager_and_replayed
    @pytest.mark.parametrize(("every", "target_drafts"), [(1, False), (3, True)])
    def test_greedy_text_equals_plain_decoding(self, target, draft, cuda_graphs, every, target_drafts, plain_tokens):
        drafter = target if target_drafts else draft
        decoder = changing_decoder(target, drafter, temperature=0.0, cuda_graphs=cuda_graphs)
        for count in (30, 10):
            assert decode_with_changes(decoder, count, every) == plain_tokens[:count]

    @eager_and_replayed
    def test_distributions_equal_fresh_passes(self, target, draft, cuda_graphs, logits_after):
        decoder = changing_decoder(target, draft, temperature=0.7, seed=3, cuda_graphs=cuda_graphs)
        decoder.start(PROMPT)
        text = list(PROMPT)
        for tree in [*TREES, TREES[0]]:
            decoder.change_tree(tree)
            proposal = decoder.draft()
            output = decoder.verify(proposal)
            tokens = proposal.tokens.tolist()
            assert tokens[0] == text[-1]
            for node in range(tree.nodes):
                path = [*text[:-1], *(tokens[above] for above in np.flatnonzero(tree.ancestor_mask[node]))]
                torch.testing.assert_close(output.logits[node], logits_after(target, path), rtol=1e-4, atol=1e-4)
                if tree.child_counts[node]:
                    probs = distribution(logits_after(draft, path)[None], Sampling(0.7))[0]
                    torch.testing.assert_close(proposal.probs[node], probs, rtol=1e-3, atol=1e-5)
            text += decoded_step(decoder, proposal, output)

    @pytest.mark.parametrize("rule", ["sequoia", "traversal"])
    def test_sampled_text_equals_that_of_a_decoder_made_with_the_tree(self, target, draft, rule):
        trees = [chain(4), level_widths([1, 3]), TokenTree([-1, 0, 0, 1, 1]), level_widths([4])]  # of 5 nodes
        decoder = Decoder(target, draft, trees[-1], rule=rule, temperature=0.8)
        for tree in trees:
            decoder.change_tree(tree)
            expected = Decoder(target, draft, tree, rule=rule, temperature=0.8)
            assert list(decoder.generate(PROMPT, 20, seed=5)) == list(expected.generate(PROMPT, 20, seed=5))

    def test_caches_of_a_smaller_batch_are_freed_before_those_of_a_larger_one(self, target, draft, monkeypatch):
        made, alive, empty = [], [], KVStore.empty

        def count_alive(*args, **options):
            alive.append(sum(store() is not None for store in made))
            store = empty(*args, **options)
            made.append(ref(store))
            return store

        monkeypatch.setattr(KVStore, "empty", count_alive)
        decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.0, cuda_graphs=True)
        for batch_size in (2, 5):
            list(decoder.generate_all([PROMPT] * batch_size, 8, batch_size=batch_size))
        assert alive == [0, 1, 1, 1, 1, 1]  # of target and draft, only the other's

    def test_graphs_are_reused(self, target, draft, captured):
        decoder = changing_decoder(target, draft, temperature=0.0, cuda_graphs=True)
        decode_with_changes(decoder, 24, every=1)
        count = len(captured)
        assert count > 0
        decode_with_changes(decoder, 24, every=1)
        assert len(captured) == count
        assert len(set(captured)) == 1

    @eager_and_replayed
    def test_change_after_the_longest_sequence(self, target, cuda_graphs, plain_tokens):
        prompt = [*PROMPT, *plain_tokens, *PROMPT, *PROMPT[:4]]
        decoder = Decoder(target, target, chain(6), temperature=0.0, max_nodes=11, cuda_graphs=cuda_graphs)
        assert [len(step) for step in decoder.stream(prompt, 128 - len(prompt))] == [7, 3]
        decoder.change_tree(chain(10))
        assert list(decoder.generate(PROMPT, 100)) == plain_tokens

    @eager_and_replayed
    def test_refused_tree_changes_nothing(self, target, draft, cuda_graphs, plain_tokens):
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
        assert [*tokens, *joined(steps)] == plain_tokens[:40]

    def test_default_limit_is_the_first_tree(self, target, draft):
        decoder = Decoder(target, draft, chain(2))
        decoder.change_tree(level_widths([2]))
        with pytest.raises(InvalidValueError, match=r"tree: expected at most 3 nodes"):
            decoder.change_tree(chain(3))
        with pytest.raises(InvalidValueError, match=r"tree: expected at most 2 nodes.*Got 4"):
            Decoder(target, draft, chain(3), max_nodes=2)

    def test_decoder_without_drafter_takes_the_root_alone(self, target):
        decoder = Decoder(target, None, chain(0), max_nodes=8)
        decoder.change_tree(chain(0))
        with pytest.raises(InvalidValueError, match=r"drafter: expected a draft model for a tree of 2 nodes"):
            decoder.change_tree(chain(1))

    def test_tree_deeper_than_the_trained_length_is_refused(self, target, draft):
        decoder = Decoder(target, draft, chain(2), max_nodes=200)
        with pytest.raises(InvalidValueError, match=r"tree: expected a depth of at most 128"):
            decoder.change_tree(chain(129))
