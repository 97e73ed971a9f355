"""SpecExec: exactly the most probable paths of the draft, and a text that is the target's own."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from tests.support.decoded import PROMPT, accepted, begun, joined, proposed
from tests.support.fed_tokens import count_fed_tokens
from tests.support.slow import slow
from tests.support.slow_beam_expansion import children_of, own, paths_of
from tests.support.slow_best_first import best_paths, enumerated, slow_tree
from treeopt.errors import InvalidValueError, OutOfMemoryError
from treeopt.runtime import Decoder, Sampling, load_model
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.drafters.expansion import TreeExpansion
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.trees.drafter_parameters import SpecExecSetting

EVEN = Sampling(1.0)


def specexec(budget, branching, batch, max_passes=1000, least_log_prob=-np.inf):
    return SpecExecSetting(
        budget=budget, branching=branching, batch=batch, max_passes=max_passes, least_log_prob=least_log_prob
    )


SETTINGS = [
    specexec(2, 1, 1),
    specexec(5, 1, 1),
    specexec(5, 1, 3, max_passes=2),
    specexec(2, 4, 3),
    specexec(8, 3, 1),
    specexec(8, 3, 4),
    specexec(16, 4, 2, max_passes=3),
    specexec(16, 4, 100),
    specexec(24, 6, 5, max_passes=4, least_log_prob=-4.0),
    specexec(40, 23, 8),
    specexec(64, 8, 16, max_passes=6),
    specexec(9, 4, 4, least_log_prob=0.0),
]
all_settings = pytest.mark.parametrize(
    "setting", SETTINGS, ids=lambda s: f"{s.budget}-{s.branching}-{s.batch}-{s.max_passes}-{s.least_log_prob}"
)


def invented(seed, branching, *, ties):
    """Return `children_after` of a draft that does not exist; with ties most scores are equal, certainty among them."""

    @cache
    def after(path):
        generator = np.random.default_rng([seed, len(path), *path])
        if ties:
            log_probs = -np.cumsum(generator.integers(2, size=branching)) * 0.5
        else:
            log_probs = np.log(-np.sort(-generator.dirichlet(np.ones(branching + 1)))[:branching])
        return log_probs.astype(np.float32), list(generator.permutation(branching))

    return after


def grown(children_after, setting):
    """Return the path of every node that the expansion keeps, the root's empty one first, and how many passes it took."""

    def children(paths):
        return [torch.tensor(np.array(part)) for part in zip(*map(children_after, paths), strict=True)]

    expansion, fed, passes = TreeExpansion(setting, 1), [()], 1
    expansion.add(*children(fed))
    while passes < setting.longest_draft and (found := expansion.feed_next()):
        (frontier,) = found
        assert frontier.nodes.start == len(fed)
        assert 1 <= len(frontier.tokens) <= setting.batch
        above = [[fed[place] for place in np.flatnonzero(row[: len(fed)])] for row in frontier.nodes.visible]
        new = [(*max(each, key=len), int(token)) for each, token in zip(above, frontier.tokens, strict=True)]
        for path, seen in zip(new, above, strict=True):
            assert sorted(seen) == [path[:length] for length in range(len(path))]
        np.testing.assert_array_equal(frontier.nodes.visible[:, len(fed) :], np.eye(len(new), dtype=bool))
        assert frontier.nodes.depth.tolist() == [len(path) for path in new]
        fed += new
        passes += 1
        expansion.add(*children(new))
    ((tree, tokens, places, _),) = expansion.trees()
    paths = paths_of(tree, tokens)
    assert [fed[place] for place in places if place >= 0] == [path for path in paths if path in fed]
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


class TestBestFirst:
    """Expansion against all paths there are."""

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("batch", [1, 2, 3, 50])
    @pytest.mark.parametrize(("branching", "budget"), [(1, 6), (2, 2), (2, 7), (2, 9), (3, 6), (4, 6)])
    def test_the_best_of_all_paths_by_enumeration(self, branching, budget, batch, seed):
        after = invented(seed, branching, ties=False)
        paths, passes = grown(after, specexec(budget, branching, batch))
        expected = [path for path, _ in enumerated(after, budget - 1, budget - 1, branching)]
        assert sorted(paths) == sorted([(), *expected])
        assert passes <= budget - 1

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("batch", [1, 7, 64])
    @pytest.mark.parametrize(("branching", "budget"), [(2, 64), (5, 33), (8, 300), (30, 100)])
    def test_the_best_of_all_paths_from_a_heap(self, branching, budget, batch, seed):
        after = invented(seed, branching, ties=False)
        paths, _ = grown(after, specexec(budget, branching, batch))
        assert sorted(paths) == sorted([(), *(path for path, _ in best_paths(after, budget - 1))])

    @pytest.mark.parametrize("seed", range(20))
    @pytest.mark.parametrize("batch", [1, 2, 50])
    def test_equal_scores_leave_nothing_better_out(self, batch, seed):
        branching, budget = 1 + seed % 3, 3 + seed % 5
        after = invented(seed, branching, ties=True)
        setting = specexec(budget, branching, batch)
        paths, _ = grown(after, setting)
        best = [score for _, score in enumerated(after, budget - 1, budget - 1, branching)]
        assert scores_of(after, paths) == best
        assert paths == slow_tree(after, setting)

    def test_a_certain_draft_gives_a_chain(self):
        after = invented(0, 1, ties=True)
        paths, passes = grown(lambda path: (np.zeros(1, np.float32), after(path)[1]), specexec(9, 1, 4))
        assert [len(path) for path in paths] == list(range(9))
        assert passes == 8

    @pytest.mark.parametrize("batch", [1, 4])
    def test_the_worst_of_a_full_set_is_not_fed(self, batch):
        after, fed = invented(2, 3, ties=False), []
        grown(lambda path: fed.append(path) or after(path), specexec(20, 3, batch))
        assert best_paths(after, 19)[-1][0] not in fed

    @pytest.mark.parametrize("batch", [1, 4, 50])
    def test_a_threshold_keeps_exactly_the_paths_above_it(self, batch):
        for seed in range(8):
            after = invented(seed, 3, ties=False)
            every = enumerated(after, 1000, 6, 3)
            least = float(every[20][1])
            paths, _ = grown(after, specexec(500, 3, batch, least_log_prob=least))
            kept = [path for path, score in every if score >= least]
            assert max(map(len, kept)) < 6  # deeper paths than were enumerated are less likely still
            assert sorted(paths) == sorted([(), *kept])

    def test_a_threshold_ends_growth_early(self):
        after = invented(3, 4, ties=False)
        assert grown(after, specexec(500, 4, 8, least_log_prob=-2.0))[1] < grown(after, specexec(500, 4, 8))[1]

    @pytest.mark.parametrize("seed", range(30))
    def test_growth_cut_short_is_that_of_the_slow_twin(self, seed):
        generator = np.random.default_rng(seed)
        branching = int(generator.integers(1, 5))
        setting = specexec(
            int(generator.integers(2, 40)),
            branching,
            int(generator.integers(1, 8)),
            int(generator.integers(1, 6)),
            float(generator.choice([-np.inf, -4.0, -1.5])),
        )
        after = invented(seed, branching, ties=bool(seed % 2))
        assert grown(after, setting)[0] == slow_tree(after, setting)

    def test_paths_by_their_own_probability_are_found(self):
        differ = 0
        for seed in range(5):
            after = invented(seed, 3, ties=False)
            paths = sorted(grown(after, specexec(20, 3, 4))[0])
            differ += paths != sorted([(), *(path for path, _ in best_paths(after, 19, own))])
        assert differ == 5


@pytest.fixture(scope="module")
def precise(make_checkpoint):
    """Return a draft model in float64, whose scores as float32 do not depend on how passes are put together."""
    return load_model(make_checkpoint(seed=2, tie_word_embeddings=True, num_hidden_layers=1), dtype=torch.float64)


class TestDrafting:
    @staticmethod
    def agreeing_steps(model, setting, logits_after):
        """Return how many of 5 steps, along paths at random, draft the tree of the slow twin."""
        drafter, generator = ExpandingDrafter(model, setting, capacity=128), np.random.default_rng(1)
        text, agreeing = list(PROMPT), 0
        begun(drafter, text)
        for _ in range(5):
            drafted = proposed(drafter)
            tokens = drafted.tokens.tolist()
            assert drafted.tokens.dtype == torch.int64
            assert tokens[0] == text[-1]
            assert drafted.tree.nodes <= setting.budget == drafter.max_tokens
            expected = slow_tree(children_of(model, text, setting.branching, logits_after), setting)
            agreeing += paths_of(drafted.tree, tokens) == expected
            node = int(generator.integers(drafted.tree.nodes))
            path = [int(above) for above in np.flatnonzero(drafted.tree.ancestor_mask[node])]
            committed = [*(tokens[above] for above in path[1:]), int(generator.integers(23))]
            accepted(drafter, path, committed)
            text += committed
        return agreeing

    @all_settings
    def test_the_tree_is_that_of_the_slow_twin_wherever_the_text_goes_on(self, precise, setting, logits_after):
        assert self.agreeing_steps(precise, setting, logits_after) == 5

    def test_a_cache_that_keeps_the_wrong_nodes_is_found(self, precise, logits_after, monkeypatch):
        commit = KVCache.commit
        monkeypatch.setattr(KVCache, "commit", lambda cache, path: commit(cache, range(len(path))))
        assert self.agreeing_steps(precise, specexec(16, 4, 4), logits_after) < 5

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


class TestTemperatureZero:
    @all_settings
    @pytest.mark.parametrize("drafts_like_target", [False, True])
    def test_the_text_is_that_of_plain_decoding(self, target, draft, setting, drafts_like_target, greedy_text):
        drafter = ExpandingDrafter(target if drafts_like_target else draft, setting, capacity=128)
        decoder = Decoder(target, drafter, temperature=0.0)
        for prompt in (PROMPT, [1], PROMPT[:3] * 4):
            steps = list(decoder.stream(prompt, 30))
            assert joined(steps) == greedy_text(target, prompt, 30)
            assert all(1 <= len(step) <= setting.longest_draft + 1 for step in steps)

    @pytest.mark.parametrize(
        ("setting", "texts", "new_tokens"),
        [
            (specexec(8, 4, 4), 3, 50),
            (specexec(64, 16, 16, max_passes=8, least_log_prob=-6.0), 3, 50),
            *slow([(specexec(2048, 32, 128, max_passes=24), 1, 40)]),
        ],
        ids=lambda value: str(getattr(value, "budget", value)),
    )
    def test_the_bundled_pair(self, bundled_pair, bundled_texts, setting, texts, new_tokens):
        target, draft = bundled_pair.target, bundled_pair.draft
        decoder = Decoder(
            target, ExpandingDrafter(draft, setting, capacity=1024), temperature=0.0, max_sequence_tokens=1024
        )
        for prompt, text in bundled_texts[:texts]:
            steps = list(decoder.stream(prompt, new_tokens))
            assert joined(steps) == text[:new_tokens]
            assert len(steps) < new_tokens / 2
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
    def test_a_setting_out_of_range(self, changes, reason):
        with pytest.raises(InvalidValueError, match=reason):
            replace(specexec(8, 2, 2), **changes)

    @pytest.mark.parametrize(
        ("setting", "reason"),
        [
            (specexec(8, 24, 2), "policy: expected at most 23 children of a node, the vocabulary. Got 24"),
            (specexec(130, 2, 2), r"policy: expected at most 128 levels, the longest sequence that .* takes. Got 129"),
        ],
    )
    def test_a_setting_that_does_not_fit_the_model(self, draft, setting, reason):
        with pytest.raises(InvalidValueError, match=reason):
            ExpandingDrafter(draft, setting, capacity=128)

    def test_a_cache_beyond_memory_is_an_out_of_memory_error(self, draft):
        with pytest.raises(OutOfMemoryError, match=r"cache of \d+ tokens"):
            ExpandingDrafter(draft, specexec(10**12, 2, 10**11, max_passes=64), capacity=128)

    def test_more_sequences_than_memory_has_room_for_are_not_the_budgets_fault(self, draft, monkeypatch):
        drafter = ExpandingDrafter(draft, specexec(8, 2, 2), capacity=64)
        monkeypatch.setattr("treeopt.runtime.models.memory.free_bytes", lambda _: 10_000)
        with pytest.raises(OutOfMemoryError, match="for each of 64 sequences"):
            drafter.reserve(64)
