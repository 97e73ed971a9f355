"""SpecExec drafts exactly the most probable paths; that output stays the target's is tested in tests/contracts."""

from dataclasses import replace
from functools import cache
from heapq import heappop, heappush
from itertools import product

import numpy as np
import pytest
import torch

from tests.support.decoded import PROMPT, joined, walk
from tests.support.passes import count_fed_tokens
from tests.support.slow import slow
from tests.support.slow_beam_expansion import children_of, cumulative, own, paths_of
from treeopt.errors import InvalidValueError, OutOfMemoryError
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter, TreeExpansion
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.trees.drafter_parameters import SpecExecSetting


def specexec(budget, branching, batch, max_passes=1000, least_log_prob=-np.inf):
    return SpecExecSetting(
        budget=budget, branching=branching, batch=batch, max_passes=max_passes, least_log_prob=least_log_prob
    )


def slow_tree(children_after, setting, score=cumulative):
    """Return the tokens along every path of SpecExec's tree, the root's empty path first, in level order, without arrays.

    `children_after(path)` returns the log-probabilities, float32 and falling, of the likeliest tokens after a path, and
    the tokens.
    """
    scores, pool, fed = {(): np.float32(0)}, [], []
    batch = [()]
    for _ in range(setting.longest_draft):
        for path in batch:
            fed.append(path)
            for log_prob, token in zip(*children_after(path), strict=True):
                child = (*path, int(token))
                scores[child] = score(scores, path, np.float32(log_prob))
                pool.append(child)
        best = sorted(pool, key=lambda path: -scores[path])[: setting.budget - 1]  # sorted() keeps the order of equals
        best = [path for path in best if scores[path] >= setting.least_log_prob]
        pool = [path for path in pool if path in best]
        full = len(best) == setting.budget - 1
        batch = [path for path in best if path not in fed and not (full and scores[path] <= scores[best[-1]])]
        batch = batch[: setting.batch]
        if not batch:
            break
    order = [()]
    for path in order:
        order += [child for child in pool if child[:-1] == path]
    return order


def enumerated(children_after, count, depth, branching):
    """Return the scores of the `count` best of all paths down to a depth, falling, by looking at every one."""
    found = []
    for level in range(1, depth + 1):
        for ranks in product(range(branching), repeat=level):
            path, score = (), np.float32(0)
            for rank in ranks:
                log_probs, tokens = children_after(path)
                path, score = (*path, int(tokens[rank])), np.float32(score + log_probs[rank])
            found.append((path, score))
    return sorted(found, key=lambda each: -each[1])[:count]


def best_paths(children_after, count, score=cumulative):
    """Return the `count` best of all paths, one at a time from a heap, falling."""
    scores, heap, found = {(): np.float32(0)}, [], []

    def push_children(path):
        for log_prob, token in zip(*children_after(path), strict=True):
            child = (*path, int(token))
            scores[child] = score(scores, path, np.float32(log_prob))
            heappush(heap, (-scores[child], len(scores), child))

    push_children(())
    while len(found) < count:
        path = heappop(heap)[2]
        found.append((path, scores[path]))
        push_children(path)
    return found


def random_children(seed, branching, *, ties):
    """Return `children_after` of an invented draft; with ties most scores are equal."""

    @cache
    def after(path):
        generator = np.random.default_rng([seed, len(path), *path])
        if ties:
            log_probs = -np.cumsum(generator.integers(2, size=branching)) * 0.5
        else:
            log_probs = np.log(-np.sort(-generator.dirichlet(np.ones(branching + 1)))[:branching])
        return log_probs.astype(np.float32), list(generator.permutation(branching))

    return after


def grow(children_after, setting):
    """Return the path of every node of the tree, the root's empty one first, and the number of passes."""

    def children(paths):
        return [torch.tensor(np.array(part)) for part in zip(*map(children_after, paths), strict=True)]

    expansion, fed, passes = TreeExpansion(setting, 1), [()], 1
    expansion.add(*children(fed))
    while passes < setting.longest_draft and (frontiers := expansion.feed_next()):
        (frontier,) = frontiers
        nodes = frontier.nodes
        assert nodes.start == len(fed)
        assert 1 <= len(frontier.tokens) <= setting.batch
        ancestors = [[fed[index] for index in np.flatnonzero(row[: len(fed)])] for row in nodes.visible]
        new = [(*max(row, key=len), int(token)) for row, token in zip(ancestors, frontier.tokens, strict=True)]
        for path, row in zip(new, ancestors, strict=True):
            assert sorted(row) == [path[:length] for length in range(len(path))]
        np.testing.assert_array_equal(nodes.visible[:, len(fed) :], np.eye(len(new), dtype=bool))
        assert nodes.depth.tolist() == [len(path) for path in new]
        fed += new
        passes += 1
        expansion.add(*children(new))
    ((tree, tokens, indices, _),) = expansion.trees()
    paths = paths_of(tree, tokens)
    assert [fed[index] for index in indices if index >= 0] == [path for path in paths if path in fed]
    assert len(fed) <= setting.max_fed
    return paths, passes


def scores_of(children_after, paths):
    """Return the scores of paths, falling."""

    def score(path):
        total = np.float32(0)
        for length, token in enumerate(path):
            log_probs, tokens = children_after(path[:length])
            total = np.float32(total + log_probs[list(tokens).index(token)])
        return total

    return sorted((score(path) for path in paths if path), reverse=True)


class TestGrowth:
    """Trees next to all paths that exist."""

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("batch", [1, 3, 50])
    @pytest.mark.parametrize(("branching", "budget"), [(1, 6), (2, 2), (2, 7), (3, 6), (4, 6)])
    def test_the_best_of_all_paths_by_enumeration(self, branching, budget, batch, seed):
        after = random_children(seed, branching, ties=False)
        paths, passes = grow(after, specexec(budget, branching, batch))
        expected = [path for path, _ in enumerated(after, budget - 1, budget - 1, branching)]
        assert sorted(paths) == sorted([(), *expected])
        assert passes <= budget - 1

    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("batch", [1, 7, 64])
    @pytest.mark.parametrize(("branching", "budget"), [(2, 64), (8, 150), (30, 100)])
    def test_the_best_of_all_paths_from_a_heap(self, branching, budget, batch, seed):
        after = random_children(seed, branching, ties=False)
        paths, _ = grow(after, specexec(budget, branching, batch))
        assert sorted(paths) == sorted([(), *(path for path, _ in best_paths(after, budget - 1))])

    @pytest.mark.parametrize("seed", range(15))
    @pytest.mark.parametrize("batch", [1, 2, 50])
    def test_ties_leave_out_nothing_better(self, batch, seed):
        branching, budget = 1 + seed % 3, 3 + seed % 5
        after = random_children(seed, branching, ties=True)
        setting = specexec(budget, branching, batch)
        paths, _ = grow(after, setting)
        best = [score for _, score in enumerated(after, budget - 1, budget - 1, branching)]
        assert scores_of(after, paths) == best
        assert paths == slow_tree(after, setting)

    def test_a_certain_draft_gives_a_chain(self):
        after = random_children(0, 1, ties=True)
        paths, passes = grow(lambda path: (np.zeros(1, np.float32), after(path)[1]), specexec(9, 1, 4))
        assert [len(path) for path in paths] == list(range(9))
        assert passes == 8

    @pytest.mark.parametrize("batch", [1, 4])
    def test_the_worst_of_a_full_set_is_not_fed(self, batch):
        after, fed = random_children(2, 3, ties=False), []
        grow(lambda path: fed.append(path) or after(path), specexec(20, 3, batch))
        assert best_paths(after, 19)[-1][0] not in fed

    @pytest.mark.parametrize("batch", [1, 50])
    def test_a_threshold_keeps_exactly_the_paths_above_it(self, batch):
        for seed in range(2):
            after = random_children(seed, 3, ties=False)
            every = enumerated(after, 1000, 6, 3)
            least = float(every[20][1])
            paths, passes = grow(after, specexec(500, 3, batch, least_log_prob=least))
            expected = [path for path, score in every if score >= least]
            assert max(map(len, expected)) < 6  # deeper paths than were enumerated are less likely still
            assert sorted(paths) == sorted([(), *expected])
            assert passes < 25

    @pytest.mark.parametrize("seed", range(20))
    def test_growth_cut_short_is_the_slow_twins(self, seed):
        generator = np.random.default_rng(seed)
        branching = int(generator.integers(1, 5))
        setting = specexec(
            int(generator.integers(2, 40)),
            branching,
            int(generator.integers(1, 8)),
            int(generator.integers(1, 6)),
            float(generator.choice([-np.inf, -4.0, -1.5])),
        )
        after = random_children(seed, branching, ties=bool(seed % 2))
        assert grow(after, setting)[0] == slow_tree(after, setting)

    def test_paths_by_their_own_probability_are_found(self):
        for seed in range(5):
            after = random_children(seed, 3, ties=False)
            paths = sorted(grow(after, specexec(20, 3, 4))[0])
            assert paths != sorted([(), *(path for path, _ in best_paths(after, 19, own))])


class TestDrafting:
    @staticmethod
    def count_equal_steps(model, setting, logits_after, steps=4):
        """Return how many steps, along random paths, draft the tree of the slow twin."""
        drafter, equal = ExpandingDrafter(model, setting, capacity=128), 0
        assert drafter.max_tokens == setting.budget
        for text, proposal in walk(drafter, steps):
            expected = slow_tree(children_of(model, text, setting.branching, logits_after), setting)
            equal += paths_of(proposal.tree, proposal.tokens) == expected
        return equal

    @pytest.mark.parametrize(
        "setting",
        [
            specexec(5, 1, 3, max_passes=2),
            specexec(16, 4, 100),
            specexec(24, 6, 5, max_passes=4, least_log_prob=-4.0),
            specexec(9, 4, 4, least_log_prob=0.0),
        ],
        ids=str,
    )
    def test_trees_are_the_slow_twins_after_random_paths(self, precise_draft, setting, logits_after):
        assert self.count_equal_steps(precise_draft, setting, logits_after) == 4

    def test_a_cache_with_the_wrong_nodes_is_found(self, precise_draft, logits_after, monkeypatch):
        commit = KVCache.commit
        monkeypatch.setattr(KVCache, "commit", lambda cache, path: commit(cache, range(len(path))))
        assert self.count_equal_steps(precise_draft, specexec(16, 4, 4), logits_after, 5) < 5

    def test_a_pass_feeds_no_more_than_a_batch(self, target, draft, monkeypatch):
        fed = count_fed_tokens(draft, monkeypatch)
        setting = specexec(32, 4, 5, max_passes=6)
        decoder = Decoder(target, ExpandingDrafter(draft, setting, capacity=128), temperature=0.8)
        decoder.start(PROMPT)
        for _ in range(8):
            fed.clear()
            decoder.step()
            assert fed[0] in (1, 2)
            assert 1 <= len(fed) <= 6
            assert max(fed[1:]) <= 5

    @pytest.mark.parametrize(
        ("setting", "count"),
        [
            (specexec(64, 16, 16, max_passes=8, least_log_prob=-6.0), 3),
            *slow([(specexec(2048, 32, 128, max_passes=24), 1)]),
        ],
        ids=lambda value: str(getattr(value, "budget", value)),
    )
    def test_the_bundled_pair_takes_few_steps(self, bundled_pair, bundled_outputs, setting, count):
        drafter = ExpandingDrafter(bundled_pair.draft, setting, capacity=1024)
        decoder = Decoder(bundled_pair.target, drafter, temperature=0.0, max_sequence_tokens=1024)
        for prompt, text in bundled_outputs[:count]:
            steps = list(decoder.stream(prompt, 40))
            assert joined(steps) == text[:40]
            assert len(steps) < 20
        decoder.start(prompt)
        assert decoder.draft().tree.nodes == setting.budget or setting.least_log_prob > -np.inf


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"budget": 1}, "budget: expected at least 2. Got 1"),
            ({"branching": 0}, "branching: expected at least 1. Got 0"),
            ({"batch": 0}, "batch: expected at least 1. Got 0"),
            ({"max_passes": 0}, "max_passes: expected at least 1. Got 0"),
            ({"least_log_prob": 0.5}, r"least_log_prob: .* at most 0. Got 0.5"),
            ({"least_log_prob": np.nan}, r"least_log_prob: .* at most 0. Got nan"),
        ],
    )
    def test_a_setting_out_of_range_is_refused(self, changes, reason):
        with pytest.raises(InvalidValueError, match=reason):
            replace(specexec(8, 2, 2), **changes)

    def test_caches_beyond_memory_are_refused(self, draft, monkeypatch):
        with pytest.raises(OutOfMemoryError, match=r"cache of \d+ tokens"):
            ExpandingDrafter(draft, specexec(10**12, 2, 10**11, max_passes=64), capacity=128)
        drafter = ExpandingDrafter(draft, specexec(8, 2, 2), capacity=64)
        monkeypatch.setattr("treeopt.runtime.models.memory.free_bytes", lambda _: 10_000)
        with pytest.raises(OutOfMemoryError, match="for each of 64 sequences"):
            drafter.reserve(64)
