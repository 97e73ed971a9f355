"""Trees filled by a head: children by rank, paths by probability, and batches whose caches fit into memory."""

import numpy as np
import pytest
import torch

from tests.runtime.drafters.eagle.test_head import rows_of, states_of
from tests.support import eagle_heads as layouts
from tests.support import recorded
from tests.support.decoded import PROMPT
from tests.support.eagle_heads import make_head, save_head
from tests.support.slow_eagle import SlowEagle
from treeopt.errors import InvalidValueError, OutOfMemoryError
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.runtime.models.runner import GraphPool
from treeopt.runtime.rules.rule import RULES
from treeopt.trees import TokenTree, chain
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting

KNOWN = [1, 2, 5, 6, 9, 11, 14, 15]
TREE = TokenTree([-1, 0, 0, 0, 1, 1, 3, 4, 6])
DYNAMIC = DynamicTree(top_k=2, depth=3, nodes=6)


def made_head(target, ids=KNOWN):
    return make_head(target, layer_ids=(2, 4, 5), ids=ids, embedding=True, scale=0.2)


def load(made, folder, target):
    return load_eagle(save_head(layouts.specforge, folder, made, target), target)


@pytest.fixture(scope="module")
def head(deep, tmp_path_factory):
    return load(made_head(deep), tmp_path_factory.mktemp("head"), deep)


@pytest.fixture(scope="module")
def twin_logits(deep, head):
    """Return a function from a path below the prompt's root to the slow twin's logits."""
    twin, states = SlowEagle(made_head(deep), None, None), rows_of(states_of(deep, PROMPT[:-1], head.requested_states))
    return lambda path=(): twin.logits_after(states, PROMPT, path)


def propose(drafter, target, text=PROMPT):
    drafter.begin(0, text, states_of(target, text[:-1], drafter.requested_states))
    return drafter.propose([0], [torch.Generator()])[0]


class TestRefusals:
    def test_trees_deeper_than_the_longest_sequence(self, head):
        longest = head.config.max_positions
        with pytest.raises(InvalidValueError, match=f"tree: expected at most {longest} levels.*Got {longest + 1}"):
            StaticTreeDrafter(head, chain(longest + 1), capacity=40)

    def test_trees_that_feed_nodes_of_earlier_passes(self, head):
        setting = SpecExecSetting(budget=6, branching=2, batch=2, max_passes=3)
        with pytest.raises(InvalidValueError, match="policy: expected a dynamic tree"):
            ExpandingDrafter(head, setting, capacity=40)


def test_the_pass_after_a_whole_accepted_chain_is_captured(deep, head, monkeypatch):
    monkeypatch.setattr(GraphPool, "capture", recorded.capture)
    drafter = ExpandingDrafter(head, DynamicTree.chain(4), capacity=40, cuda_graphs=True)
    eager, forward = [], type(head).forward
    monkeypatch.setattr(type(head), "forward", lambda *args, **options: eager.append(args) or forward(*args, **options))
    propose(drafter, deep)
    states = states_of(deep, [1, 2, 3, 4, 5], head.requested_states)
    drafter.accept([0], [Step((0, 1, 2, 3, 4), [1, 2, 3, 4, 5], torch.empty(0), states)])
    drafter.propose([0])
    assert eager == []


class TestStaticTrees:
    def test_the_child_of_rank_k_has_the_kth_likeliest_token(self, deep, head, twin_logits):
        proposal = propose(StaticTreeDrafter(head, TREE, capacity=40), deep)
        tokens, expected = proposal.tokens.tolist(), [PROMPT[-1]]
        for node in range(1, TREE.nodes):
            path = np.flatnonzero(TREE.ancestor_mask[node])[1:-1]
            logits = twin_logits([tokens[ancestor] for ancestor in path])
            expected.append(int(np.argsort(-logits)[TREE.rank[node]]))
        assert tokens == expected
        assert proposal.tree == TREE

    def test_children_are_sampled_from_the_heads_distribution(self, deep, head, twin_logits):
        drafter = StaticTreeDrafter(head, TREE, capacity=40, rule=RULES["sequoia"], sampling=Sampling(0.7))
        assert drafter.sampled
        proposal = propose(drafter, deep)
        assert set(proposal.tokens[1:].tolist()) <= set(KNOWN)
        logits = twin_logits()
        weights = np.exp((logits - logits.max()) / 0.7)
        np.testing.assert_allclose(proposal.probs[0], weights / weights.sum(), atol=1e-5)

    def test_the_order_of_the_heads_tokens_does_not_matter(self, deep, head, tmp_path):
        made, order = made_head(deep), [3, 0, 7, 1, 2, 6, 5, 4]
        other = made_head(deep, [KNOWN[index] for index in order])
        other.weights = {**made.weights, "output": made.weights["output"][order]}
        drafters = [StaticTreeDrafter(each, TREE, capacity=40) for each in (head, load(other, tmp_path, deep))]
        first, second = (propose(drafter, deep).tokens.tolist() for drafter in drafters)
        assert first == second


def test_dynamic_trees_have_the_likeliest_paths(deep, head, twin_logits):
    proposal = propose(ExpandingDrafter(head, DYNAMIC, capacity=40), deep)
    beams, pool = [((), 0.0)], []
    for _ in range(DYNAMIC.depth):
        children = []
        for path, score in beams:
            logits = twin_logits(path)
            log_probs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            best = np.argsort(-log_probs)[: DYNAMIC.top_k]
            children += [((*path, int(token)), score + log_probs[token]) for token in best]
        pool += children
        beams = sorted(children, key=lambda child: -child[1])[: DYNAMIC.top_k]
    expected = {path for path, _ in sorted(pool, key=lambda child: -child[1])[: DYNAMIC.nodes - 1]}
    tokens, tree = proposal.tokens.tolist(), proposal.tree
    assert {tuple(tokens[node] for node in np.flatnonzero(row)[1:]) for row in tree.ancestor_mask[1:]} == expected


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_caches_of_a_batch_are_adjacent_and_must_fit_into_memory(head, monkeypatch, kind):
    static = StaticTreeDrafter(head, TREE, capacity=60)
    drafter = static if kind == "static" else ExpandingDrafter(head, DYNAMIC, capacity=60)
    drafter.reserve(3)
    caches = [drafter._sequences.acquire(number).cache for number in range(3)]
    assert len({id(cache.store) for cache in caches}) == 1
    assert [cache.index for cache in caches] == [0, 1, 2]
    slot = sum(entries[..., 0, :].nbytes for pair in caches[0].layers for entries in pair)
    monkeypatch.setattr("treeopt.runtime.models.memory.free_bytes", lambda _: 4 * slot * (caches[0].capacity + 1) - 1)
    drafter.reserve(3)
    with pytest.raises(OutOfMemoryError, match=r"cache of \d+ tokens for each of 4 sequences"):
        drafter.reserve(4)
