"""Dynamic trees: expanded as EAGLE-2 expands them, and verified so that the text is the target's own."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.support.decoded import PROMPT, accepted, begun, joined, proposed
from tests.support.fed_tokens import count_fed_tokens
from tests.support.slow_beam_expansion import children_of, own, paths_of, slow_tree
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, ExpandingDrafter, Sampling, load_model
from treeopt.runtime.drafters.expansion import TreeExpansion
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting, pool_nodes

EVEN = Sampling(1.0)


def dynamic(top_k, depth, nodes):
    return DynamicTree(top_k=top_k, depth=depth, nodes=nodes)


def dynamic_decoder(target, draft, tree, **sampling):
    return Decoder(target, ExpandingDrafter(draft, tree, capacity=target.config.max_positions), **sampling)


def whole_pool(top_k, depth):
    return dynamic(top_k, depth, 1 + pool_nodes(top_k, depth))


TREES = [
    dynamic(1, 1, 2),
    dynamic(1, 4, 5),
    dynamic(1, 4, 3),
    dynamic(3, 1, 2),
    whole_pool(3, 1),
    dynamic(2, 6, 2),
    whole_pool(2, 3),
    dynamic(3, 3, 8),
    dynamic(4, 4, 16),
    whole_pool(4, 3),
    dynamic(8, 5, 32),
    dynamic(23, 2, 40),
]
all_trees = pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree.top_k}-{tree.depth}-{tree.nodes}")


@pytest.fixture(scope="module")
def precise(make_checkpoint):
    """Return a draft model in float64, whose scores as float32 do not depend on how passes are put together."""
    return load_model(make_checkpoint(seed=2, tie_word_embeddings=True, num_hidden_layers=1), dtype=torch.float64)


def path_to(tree, node):
    return [int(above) for above in np.flatnonzero(tree.ancestor_mask[node])]


class TestDrafting:
    @all_trees
    def test_the_tree_is_that_of_the_slow_twin_wherever_the_text_goes_on(self, precise, tree, logits_after):
        drafter, generator = ExpandingDrafter(precise, tree, capacity=128), np.random.default_rng(1)
        text = list(PROMPT)
        begun(drafter, text)
        for _ in range(5):
            drafted = proposed(drafter)
            assert drafted.tokens.dtype == torch.int64
            assert drafted.tokens.tolist()[0] == text[-1]
            assert drafted.tree.nodes == tree.nodes
            expected = slow_tree(children_of(precise, text, tree.top_k, logits_after), tree)
            assert paths_of(drafted.tree, drafted.tokens) == expected
            path = path_to(drafted.tree, int(generator.integers(tree.nodes)))
            committed = [*(int(drafted.tokens[node]) for node in path[1:]), int(generator.integers(23))]
            accepted(drafter, path, committed)
            text += committed

    def test_the_likeliest_text_is_a_chain(self, precise, greedy_text):
        drafter = ExpandingDrafter(precise, DynamicTree.chain(5), capacity=128)
        begun(drafter, PROMPT)
        assert proposed(drafter).tokens.tolist()[1:] == greedy_text(precise, PROMPT, 5)

    def test_beams_by_their_own_probability_are_found(self, precise, logits_after):
        tree, differ = dynamic(4, 4, 16), 0
        for prompt in (PROMPT, PROMPT[1:], PROMPT[2:]):
            children = children_of(precise, prompt, tree.top_k, logits_after)
            differ += slow_tree(children, tree) != slow_tree(children, tree, own)
        assert differ == 3

    @all_trees
    def test_a_level_is_one_pass_over_its_beams(self, target, draft, tree, monkeypatch):
        fed = count_fed_tokens(draft, monkeypatch)
        decoder = dynamic_decoder(target, draft, tree, temperature=0.8)
        decoder.start(PROMPT)
        for _ in range(8):
            fed.clear()
            decoder.step()
            assert fed[0] in (1, 2)
            assert fed[1:] == list(tree.draft_widths[1:])


class TestTies:
    """Scores on a coarse grid, certainty among them, so that most comparisons are between equals."""

    @pytest.mark.parametrize("seed", range(40))
    def test_the_earlier_in_the_pool_comes_first(self, seed):
        generator = np.random.default_rng(seed)
        top_k, depth = int(generator.integers(1, 5)), int(generator.integers(1, 5))
        tree = dynamic(top_k, depth, int(generator.integers(2, pool_nodes(top_k, depth) + 2)))
        distributions = {}

        def children_after(path):
            if path not in distributions:
                steps = np.random.default_rng([seed, *path, 77]).integers(3, size=top_k)
                distributions[path] = -np.cumsum(np.where(steps == 2, 0.5, 0.0)).astype(np.float32)
            return distributions[path], list(range(top_k))

        def children(paths):
            found = [children_after(path) for path in paths]
            return [torch.tensor(np.array(part)) for part in zip(*found, strict=True)]

        expansion, paths = TreeExpansion(tree, 1), [()]
        expansion.add(*children(paths))
        for _ in range(depth - 1):
            (beams,) = expansion.feed_next()
            rows = beams.nodes.visible[:, beams.nodes.start - len(paths) : beams.nodes.start].argmax(1)
            paths = [(*paths[row], int(token)) for row, token in zip(rows, beams.tokens, strict=True)]
            expansion.add(*children(paths))
        (expanded,) = expansion.trees()
        assert paths_of(expanded.tree, expanded.tokens) == slow_tree(children_after, tree)

    def test_a_child_as_likely_as_its_parent_stands_behind_it(self):
        expansion = TreeExpansion(dynamic(2, 2, 3), 1)
        expansion.begin([9])
        expansion.add(torch.tensor([[0.0, -20.0]]), torch.tensor([[3, 4]]))
        expansion.feed_next()
        expansion.add(torch.tensor([[0.0, -20.0]] * 2), torch.tensor([[5, 6]] * 2))
        (expanded,) = expansion.trees()
        assert expanded.tree.parents.tolist() == [-1, 0, 1]
        assert expanded.tokens.tolist() == [9, 3, 5]
        assert expanded.feed_indices == [0, 1, -1]


class TestTextsAtOnce:
    """Texts grow as each does alone, also where one of them ends early."""

    @staticmethod
    def grown(new_nodes, roots, *, not_finite_at=None):
        """Return parents, tokens and fed nodes of every tree; children are told by the tokens on the way to a node."""
        nodes = new_nodes(len(roots))
        nodes.begin(roots)
        paths, fed = [[(root,)] for root in roots], [(text, (root,)) for text, root in enumerate(roots)]
        while fed:
            rows = [np.random.default_rng(path) for _, path in fed]
            log_probs = torch.tensor(np.array([-np.cumsum(row.integers(1, 9, 3)) / 4 for row in rows])).float()
            log_probs[[path == not_finite_at for _, path in fed]] = torch.nan
            nodes.add(log_probs, torch.tensor(np.array([row.permutation(9)[:3] for row in rows])))
            fed = []
            for text, tokens, pass_nodes in nodes.feed_next():
                above = [int(np.flatnonzero(row)[-2]) for row in pass_nodes.visible]
                new = [(*paths[text][place], int(token)) for place, token in zip(above, tokens, strict=True)]
                paths[text] += new
                fed += [(text, path) for path in new]
        return [
            (each.tree.parents.tolist(), each.tokens.tolist(), each.feed_indices, each.finite) for each in nodes.trees()
        ]

    @pytest.mark.parametrize(
        "new_nodes",
        [
            partial(TreeExpansion, dynamic(3, 4, 9)),
            partial(
                TreeExpansion,
                SpecExecSetting(budget=9, branching=3, batch=2, max_passes=5, least_log_prob=-2.0),
            ),
        ],
        ids=["beams", "best first"],
    )
    def test_they_grow_as_alone(self, new_nodes):
        roots = [5, 8, 11, 5, 2]
        alone = [found for root in roots for found in self.grown(new_nodes, [root])]
        assert self.grown(new_nodes, roots) == alone
        assert len({str(found) for found in alone}) == 4
        spoilt = self.grown(new_nodes, roots, not_finite_at=(8, alone[1][1][1]))
        assert spoilt[1] == ([-1], [8], [0], False)
        assert [*spoilt[:1], *spoilt[2:]] == [*alone[:1], *alone[2:]]

    def test_children_of_other_nodes_are_refused(self):
        with pytest.raises(InvalidValueError, match=r"children: expected \(2, 3\). Got \(2, 2\), \(2, 3\)"):
            TreeExpansion(dynamic(3, 4, 9), 2).add(torch.zeros(2, 2), torch.zeros(2, 3, dtype=torch.int64))


class TestTemperatureZero:
    @all_trees
    @pytest.mark.parametrize("drafts_like_target", [False, True])
    def test_the_text_is_that_of_plain_decoding(self, target, draft, tree, drafts_like_target, greedy_text):
        decoder = dynamic_decoder(target, target if drafts_like_target else draft, tree, temperature=0.0)
        for prompt in (PROMPT, [1], PROMPT[:3] * 4):
            steps = list(decoder.stream(prompt, 30))
            assert joined(steps) == greedy_text(target, prompt, 30)
            assert all(1 <= len(step) <= tree.depth + 1 for step in steps)
            assert {type(token) for token in joined(steps)} == {int}

    def test_a_draft_like_the_target_is_accepted_as_deep_as_the_tree(self, target):
        steps = list(dynamic_decoder(target, target, whole_pool(2, 3), temperature=0.0).stream(PROMPT, 24))
        assert [len(step) for step in steps] == [4] * 6

    def test_the_bundled_pair(self, bundled_pair, bundled_texts):
        decoder = dynamic_decoder(bundled_pair.target, bundled_pair.draft, dynamic(4, 4, 16), temperature=0.0)
        steps = [list(decoder.stream(prompt, 50)) for prompt, _ in bundled_texts]
        assert [joined(each) for each in steps] == [text[:50] for _, text in bundled_texts]
        assert sum(map(len, steps)) < 150 / 2


class TestRefusals:
    @pytest.mark.parametrize(
        ("tree", "reason"),
        [
            (dynamic(24, 1, 5), r"policy: expected at most 23 children of a node, the vocabulary. Got 24"),
            (
                dynamic(1, 129, 5),
                r"policy: expected at most 128 levels, the longest sequence that .* takes. Got 129",
            ),
        ],
    )
    def test_a_tree_that_the_model_cannot_grow(self, draft, tree, reason):
        with pytest.raises(InvalidValueError, match=reason):
            ExpandingDrafter(draft, tree, capacity=128)

    def test_a_text_that_cannot_be_decoded(self, target, draft):
        with pytest.raises(InvalidValueError, match="token_ids: expected at least one token"):
            dynamic_decoder(target, draft, dynamic(2, 2, 4), temperature=0.0).generate([], 5)
