"""Dynamic trees grow as in EAGLE-2, next to a slow twin; that output stays the target's is tested in tests/contracts."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.support.decoded import PROMPT, joined, walk
from tests.support.passes import count_fed_tokens
from tests.support.slow_beam_expansion import children_of, own, paths_of, slow_tree
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, ExpandingDrafter
from treeopt.runtime.drafters.expanding_drafter import TreeExpansion
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting, pool_nodes


def dynamic(top_k, depth, nodes):
    return DynamicTree(top_k=top_k, depth=depth, nodes=nodes)


def whole_pool(top_k, depth):
    return dynamic(top_k, depth, 1 + pool_nodes(top_k, depth))


def make_decoder(target, draft, tree, **sampling):
    return Decoder(target, ExpandingDrafter(draft, tree, capacity=target.config.max_positions), **sampling)


TREES = [dynamic(1, 4, 3), dynamic(3, 1, 2), whole_pool(2, 3), dynamic(4, 4, 16), dynamic(8, 5, 32), dynamic(23, 2, 40)]
all_trees = pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree.top_k}-{tree.depth}-{tree.nodes}")


class TestDrafting:
    @all_trees
    def test_trees_are_the_slow_twins_after_random_paths(self, precise_draft, tree, logits_after):
        for text, proposal in walk(ExpandingDrafter(precise_draft, tree, capacity=128), 4):
            assert proposal.tree.nodes == tree.nodes
            expected = slow_tree(children_of(precise_draft, text, tree.top_k, logits_after), tree)
            assert paths_of(proposal.tree, proposal.tokens) == expected

    def test_trees_grown_by_a_nodes_own_probability_are_found(self, precise_draft, logits_after):
        tree = dynamic(4, 4, 16)
        for prompt in (PROMPT, PROMPT[1:], PROMPT[2:]):
            children = children_of(precise_draft, prompt, tree.top_k, logits_after)
            assert slow_tree(children, tree) != slow_tree(children, tree, own)

    def test_a_level_is_one_pass_over_its_beams(self, target, draft, monkeypatch):
        tree = dynamic(8, 5, 32)
        fed = count_fed_tokens(draft, monkeypatch)
        decoder = make_decoder(target, draft, tree, temperature=0.8)
        decoder.start(PROMPT)
        for _ in range(8):
            fed.clear()
            decoder.step()
            assert fed[0] in (1, 2)
            assert fed[1:] == list(tree.draft_widths[1:])


class TestTies:
    """Scores on a coarse grid, so that most comparisons are between equals."""

    @pytest.mark.parametrize("seed", range(20))
    def test_the_earlier_candidate_comes_first(self, seed):
        generator = np.random.default_rng(seed)
        top_k, depth = int(generator.integers(1, 5)), int(generator.integers(1, 5))
        tree = dynamic(top_k, depth, int(generator.integers(2, pool_nodes(top_k, depth) + 2)))

        def children_after(path):
            steps = np.random.default_rng([seed, *path, 77]).integers(3, size=top_k)
            return -np.cumsum(np.where(steps == 2, 0.5, 0.0)).astype(np.float32), list(range(top_k))

        def children(paths):
            return [torch.tensor(np.array(part)) for part in zip(*map(children_after, paths), strict=True)]

        expansion, paths = TreeExpansion(tree, 1), [()]
        expansion.add(*children(paths))
        for _ in range(depth - 1):
            (beams,) = expansion.feed_next()
            rows = beams.nodes.visible[:, beams.nodes.start - len(paths) : beams.nodes.start].argmax(1)
            paths = [(*paths[row], int(token)) for row, token in zip(rows, beams.tokens, strict=True)]
            expansion.add(*children(paths))
        (expanded,) = expansion.trees()
        assert paths_of(expanded.tree, expanded.tokens) == slow_tree(children_after, tree)

    def test_a_child_as_likely_as_its_parent_comes_after_it(self):
        expansion = TreeExpansion(dynamic(2, 2, 3), 1)
        expansion.begin([9])
        expansion.add(torch.tensor([[0.0, -20.0]]), torch.tensor([[3, 4]]))
        expansion.feed_next()
        expansion.add(torch.tensor([[0.0, -20.0]] * 2), torch.tensor([[5, 6]] * 2))
        (expanded,) = expansion.trees()
        assert expanded.tree.parents.tolist() == [-1, 0, 1]
        assert expanded.tokens.tolist() == [9, 3, 5]
        assert expanded.feed_indices == [0, 1, -1]


class TestBatches:
    @staticmethod
    def grow(make_expansion, roots, *, not_finite_at=None):
        """Return parents, tokens and fed nodes of every tree; children follow from the tokens of a node's path."""
        expansion = make_expansion(len(roots))
        expansion.begin(roots)
        paths, fed = [[(root,)] for root in roots], [(sequence, (root,)) for sequence, root in enumerate(roots)]
        while fed:
            generators = [np.random.default_rng(path) for _, path in fed]
            log_probs = torch.tensor(np.array([-np.cumsum(rng.integers(1, 9, 3)) / 4 for rng in generators])).float()
            log_probs[[path == not_finite_at for _, path in fed]] = torch.nan
            expansion.add(log_probs, torch.tensor(np.array([rng.permutation(9)[:3] for rng in generators])))
            fed = []
            for sequence, tokens, nodes in expansion.feed_next():
                parents = [int(np.flatnonzero(row)[-2]) for row in nodes.visible]
                new = [(*paths[sequence][p], int(token)) for p, token in zip(parents, tokens, strict=True)]
                paths[sequence] += new
                fed += [(sequence, path) for path in new]
        return [
            (tree.tree.parents.tolist(), tree.tokens.tolist(), tree.feed_indices, tree.finite)
            for tree in expansion.trees()
        ]

    @pytest.mark.parametrize(
        "policy",
        [dynamic(3, 4, 9), SpecExecSetting(budget=9, branching=3, batch=2, max_passes=5, least_log_prob=-2.0)],
        ids=["beams", "best first"],
    )
    def test_each_sequence_grows_as_alone_even_if_another_ends_early(self, policy):
        make, roots = partial(TreeExpansion, policy), [5, 8, 11, 5, 2]
        alone = [self.grow(make, [root])[0] for root in roots]
        assert self.grow(make, roots) == alone
        assert len({str(tree) for tree in alone}) == 4
        ended = self.grow(make, roots, not_finite_at=(8, alone[1][1][1]))
        assert ended[1] == ([-1], [8], [0], False)
        assert [*ended[:1], *ended[2:]] == [*alone[:1], *alone[2:]]


class TestDecoding:
    def test_the_target_as_draft_is_accepted_to_the_trees_depth(self, target, greedy_text):
        steps = list(make_decoder(target, target, whole_pool(2, 3), temperature=0.0).stream(PROMPT, 24))
        assert [len(step) for step in steps] == [4] * 6
        assert joined(steps) == greedy_text(target, PROMPT, 24)

    def test_the_bundled_pair_takes_few_steps(self, bundled_pair, bundled_outputs):
        decoder = make_decoder(bundled_pair.target, bundled_pair.draft, dynamic(4, 4, 16), temperature=0.0)
        steps = [list(decoder.stream(prompt, 50)) for prompt, _ in bundled_outputs]
        assert [joined(text) for text in steps] == [text[:50] for _, text in bundled_outputs]
        assert sum(map(len, steps)) < 150 / 2


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        (
            dynamic(24, 1, 5),
            r"policy: expected at most 23 children of a node, the vocabulary of .*Got 24: take a narrower tree",
        ),
        (dynamic(1, 129, 5), r"policy: expected at most 128 levels, the longest sequence that .* takes. Got 129"),
    ],
)
def test_a_tree_beyond_the_model_is_refused(draft, tree, reason):
    with pytest.raises(InvalidValueError, match=reason):
        ExpandingDrafter(draft, tree, capacity=128)
