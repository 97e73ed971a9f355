"""DDTree: the most probable prefixes of a block, by enumeration."""

from itertools import product

import numpy as np
import pytest
import torch

from tests.support import dflash_heads as heads
from tests.support.decoded import PROMPT, decoded_step, joined
from tests.support.slow_beam_expansion import paths_of
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.dflash import DDTreeDrafter, DFlashDrafter, load_dflash
from treeopt.runtime.drafters.dflash.best_first import NEVER, count_tokens_to_reach, grow_trees
from treeopt.trees import TokenTree, k_ary
from treeopt.trees.drafter_parameters import DDTreeSetting


def random_log_probs(seed, levels, k):
    generator = np.random.default_rng(seed)
    return np.log(-np.sort(-generator.dirichlet(np.ones(k + 1), size=levels))[:, :k])


def every_prefix(log_probs):
    """Return all prefixes of ranks but the empty one, the most probable first."""
    levels, k = log_probs.shape
    prefixes = [ranks for level in range(1, levels + 1) for ranks in product(range(k), repeat=level)]
    return sorted(prefixes, key=lambda ranks: -sum(log_probs[depth, rank] for depth, rank in enumerate(ranks)))


def grown(log_probs, sizes):
    """Return the ranks along the path of each node of each tree, checking that trees are in level order."""
    parents, indices, counts = grow_trees(np.array(log_probs), np.array(sizes))
    trees = []
    for tree_parents, tree_indices, count in zip(parents, indices, counts, strict=True):
        tree = TokenTree(tree_parents[:count])
        k = np.array(log_probs).shape[2]
        assert tree_indices[1:count].tolist() == ((tree.depth[1:] - 1) * k + tree.rank[1:]).tolist()
        trees.append(paths_of(tree, tree.rank.tolist()))
    return trees


class TestBestFirst:
    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize(("levels", "k"), [(1, 5), (4, 1), (3, 4), (5, 3), (2, 12)])
    def test_a_tree_has_the_most_probable_of_all_prefixes(self, seed, levels, k):
        log_probs = random_log_probs(seed, levels, k)
        prefixes = every_prefix(log_probs)
        for size in sorted({2, 3, 5, 17, len(prefixes), len(prefixes) + 1, len(prefixes) + 9}):
            (paths,) = grown([log_probs], [size])
            assert sorted(paths) == sorted([(), *prefixes[: size - 1]])

    def test_each_sequence_has_a_tree_of_its_size(self):
        log_probs = [random_log_probs(seed, 3, 4) for seed in range(3)]
        trees = grown(log_probs, [9, 1, 4])
        assert trees == [grown([each], [size])[0] for each, size in zip(log_probs, (9, 1, 4), strict=True)]
        assert trees[1] == [()]

    def test_ties_leave_out_nothing_better(self):
        log_probs = np.log([[0.5, 0.25, 0.25], [0.5, 0.5, 0.25], [1.0, 0.5, 0.5]])
        score = lambda path: sum(log_probs[depth, rank] for depth, rank in enumerate(path))
        (paths,) = grown([log_probs], [12])
        expected = [score(path) for path in every_prefix(log_probs)[:11]]
        assert sorted(map(score, paths[1:]), reverse=True) == pytest.approx(expected)

    @pytest.mark.parametrize("seed", range(2))
    def test_a_node_is_reached_by_the_first_tree_that_contains_it(self, seed):
        log_probs, generator = random_log_probs(seed, 3, 4), np.random.default_rng(seed)
        size = 40
        ranks = generator.integers(-1, 4, size=(30, 3))
        needed = count_tokens_to_reach(np.tile(log_probs, (30, 1, 1)), ranks, size)
        prefixes = every_prefix(log_probs)
        for path, tokens in zip(ranks, needed, strict=True):
            for depth in range(1, 4):
                place = prefixes.index(tuple(path[:depth])) + 2 if min(path[:depth]) >= 0 else NEVER
                assert tokens[depth - 1] == (place if place <= size else NEVER)


@pytest.fixture(scope="module")
def oracle(deep):
    return heads.make_oracle(deep.config)


@pytest.fixture(scope="module")
def head(oracle, deep, tmp_path_factory):
    return load_dflash(heads.save(tmp_path_factory.mktemp("ddtree") / "head", *heads.z_lab(oracle)), deep)


def drafter_of(head, budget):
    return DDTreeDrafter(head, DDTreeSetting(budget=budget), capacity=60)


class TestDrafter:
    @pytest.mark.parametrize(("budget", "temperature"), [(2, 0.0), (7, 1.5), (20, 1.5)])
    def test_the_tree_is_that_of_transformers_logits(self, deep, oracle, head, budget, temperature):
        """The oracle adds up the log-probabilities of every prefix of the top tokens."""
        decoder, text = Decoder(deep, drafter_of(head, budget), temperature=temperature, seed=5), list(PROMPT)
        decoder.start(text)
        for _ in range(4):
            proposal = decoder.draft()
            assert proposal.tree.nodes == budget
            values, tokens = heads.oracle_logits(oracle, deep, text)[1:].log_softmax(-1).topk(10)
            prefixes = every_prefix(values.detach().numpy())
            paths = [path for path in paths_of(proposal.tree, proposal.tokens.tolist()) if path]
            best = [
                tuple(int(tokens[depth, rank]) for depth, rank in enumerate(path)) for path in prefixes[: budget - 1]
            ]
            assert sorted(paths) == sorted(best)
            text += decoded_step(decoder, proposal)

    def test_a_slot_that_is_not_finite_leaves_the_root(self, deep, head, greedy_text, monkeypatch):
        draft = type(head).draft

        def broken(self, roots, caches):
            logits = draft(self, roots, caches)
            logits[:, 2] = torch.where(roots[:, None] % 2 == 0, torch.nan, logits[:, 2])
            return logits

        monkeypatch.setattr(type(head), "draft", broken)
        decoder = Decoder(deep, drafter_of(head, 9), temperature=0.0)
        with pytest.warns(match="expected a draft model whose logits are finite"):
            steps = list(decoder.stream(PROMPT, 30))
        assert joined(steps) == greedy_text(deep, PROMPT, 30)

    @pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal"])
    def test_rules_for_sampled_children_are_refused(self, deep, head, rule):
        """Children that were chosen by their probability are no sample: these rules would change the output's distribution."""
        for drafter in (drafter_of(head, 9), DFlashDrafter(head, k_ary(2, 2), capacity=60)):
            with pytest.raises(InvalidValueError, match=r"rule: expected target .* because the drafts are not sampled"):
                Decoder(deep, drafter, temperature=0.7, rule=rule)

    def test_a_budget_below_two_is_refused(self):
        with pytest.raises(InvalidValueError, match=r"budget: expected at least 2\. Got 1"):
            DDTreeSetting(budget=1)
