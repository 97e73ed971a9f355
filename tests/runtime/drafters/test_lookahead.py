"""Lookahead decoding: window, mask and pool next to plain Python; output is tested in tests/contracts too."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.decoded import PROMPT, begun, decoded_step, joined, proposed
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.decoding import target_sequence
from treeopt.runtime.drafters import lookahead as lookahead_module
from treeopt.runtime.drafters.lookahead import LookaheadDrafter, NgramPool
from treeopt.trees.drafter_parameters import LOOKAHEAD_SETTINGS, LookaheadSetting

all_settings = pytest.mark.parametrize(
    "setting",
    [(1, 2, 1), (1, 3, 1), (4, 3, 1), (5, 4, 2), (1, 5, 4), (9, 3, 4)],
    ids=lambda setting: "W{} N{} G{}".format(*setting),
)


class SlowLookahead:
    """Window and pool as lists of tokens, each proposal by a pass over the text that its token sees.

    `likeliest(text)` returns the token that a model finds likeliest after a text.
    """

    def __init__(self, likeliest, window, ngram, candidates):
        self.likeliest, self.window, self.ngram, self.candidates = likeliest, window, ngram, candidates

    def start(self, text):
        self.text, self.pool = [], {}
        seeds = text[-self.window :]
        self.levels = [[seeds[column % len(seeds)] for column in range(self.window)]]
        self.go_on(text)

    def sequence(self, level, column):
        """Return the tokens of the window that one of them sees, in a row, itself last."""
        return self.levels[0][: column + 1] + [self.levels[above][column] for above in range(1, level + 1)]

    def window_tokens(self):
        return [token for level in self.levels for token in level][1:]

    def found(self):
        """Return the pool's continuations of the root, the newest first."""
        return self.pool.get(self.text[-1], [])[: self.candidates]

    def remember(self, ngram):
        kept = self.pool.setdefault(ngram[0], [])
        if ngram[1:] in kept:
            kept.remove(ngram[1:])
        kept.insert(0, ngram[1:])
        del kept[self.candidates :]

    def step(self, committed):
        last, before = len(self.levels) - 1, self.text[:-1]
        new = [self.likeliest([*before, *self.sequence(last, column)]) for column in range(self.window)]
        if len(self.levels) == self.ngram - 1:
            for column in range(self.window):
                self.remember((*(level[column] for level in self.levels), new[column]))
            self.levels = self.levels[1:]
        self.levels.append(new)
        self.go_on(committed)

    def go_on(self, tokens):
        for token in tokens:
            self.text.append(token)
            if len(self.text) >= self.ngram:
                self.remember(tuple(self.text[-self.ngram :]))
        self.levels[0][0] = self.text[-1]


@pytest.fixture(scope="module")
def precise(make_checkpoint):
    """Return a target in float64, whose likeliest tokens do not depend on how passes are put together."""
    return load_model(make_checkpoint(seed=1, tie_word_embeddings=False), dtype=torch.float64)


@pytest.fixture
def likeliest(precise, logits_after):
    return lambda text: int(logits_after(precise, text).argmax())


def paths_of(proposal):
    """Return the tokens along the path to every node but the root."""
    tokens, visible = proposal.tokens.tolist(), proposal.tree.ancestor_mask
    return [tuple(tokens[node] for node in np.flatnonzero(row)[1:]) for row in visible[1:]]


def visible_tokens(proposal):
    """Return, for every side token, the uncommitted tokens that it attends to, by position."""
    tokens = [*proposal.tokens.tolist(), *proposal.side.tokens.tolist()]
    depth = [*proposal.tree.depth.tolist(), *proposal.side.depth.tolist()]
    rows = []
    for row, position in zip(proposal.side.visible, proposal.side.depth, strict=True):
        visible = sorted(np.flatnonzero(row), key=lambda node: depth[node])
        assert [depth[node] for node in visible] == list(range(position + 1))
        rows.append([tokens[node] for node in visible])
    return rows


class TestWindow:
    @all_settings
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_window_mask_and_proposals_are_the_slow_twins(self, precise, setting, temperature, likeliest):
        slow, drafter = SlowLookahead(likeliest, *setting), LookaheadDrafter(*setting)
        decoder = Decoder(precise, drafter, temperature=temperature, seed=2)
        for prompt in (PROMPT, [1]):
            slow.start(prompt)
            decoder.start(prompt)
            for _ in range(10):
                proposal = decoder.draft()
                assert proposal.side.tokens.tolist() == slow.window_tokens()
                places = [(level, column) for level in range(len(slow.levels)) for column in range(setting[0])]
                assert visible_tokens(proposal) == [slow.sequence(*place) for place in places[1:]]
                prefixes = {ngram[:length] for ngram in slow.found() for length in range(1, setting[1])}
                assert set(paths_of(proposal)) == prefixes
                assert proposal.tree.nodes == 1 + len(prefixes)
                assert proposal.tree.nodes + len(proposal.side.tokens) <= drafter.max_tokens
                slow.step(decoded_step(decoder, proposal))

    @staticmethod
    def largest_difference(model, setting, logits_after):
        """Return how far a side token's logits are from those of a pass over the tokens that it attends to."""
        decoder, text, largest = Decoder(model, LookaheadDrafter(*setting), temperature=0.0), list(PROMPT), 0.0
        decoder.start(PROMPT)
        for _ in range(6):
            proposal = decoder.draft()
            output = decoder.verify(proposal)
            for logits, tokens in zip(output.logits[proposal.tree.nodes :], visible_tokens(proposal), strict=True):
                expected = logits_after(model, [*text[:-1], *tokens])
                largest = max(largest, float((logits - expected).abs().max()))
            text += decoded_step(decoder, proposal, output)
        return largest

    @pytest.mark.parametrize("setting", [(1, 3, 1), (5, 4, 2), (9, 3, 4)], ids=str)
    def test_side_tokens_attend_as_their_mask_declares(self, precise, setting, logits_after):
        assert self.largest_difference(precise, setting, logits_after) < 1e-9

    def test_a_window_that_does_not_attend_to_the_root_is_found(self, precise, logits_after, monkeypatch):
        join = target_sequence.join_masks

        def without_root(tree, side):
            return join(tree, np.hstack([np.zeros((len(side), 1), np.bool_), side[:, 1:]]))

        monkeypatch.setattr(target_sequence, "join_masks", without_root)
        assert self.largest_difference(precise, (3, 4, 3), logits_after) > 1e-3

    def test_the_largest_proposal_has_max_tokens(self):
        drafter = LookaheadDrafter(3, 2, 2)
        begun(drafter, [0, 1, 0, 2, 0])
        proposal = proposed(drafter)
        assert proposal.tree.nodes + len(proposal.side.tokens) == drafter.max_tokens == (3 + 2) * 1


class TestTemperatureZero:
    @pytest.mark.parametrize("setting", [(1, 2, 1), (9, 3, 4), (2, 9, 2)], ids=str)
    def test_output_is_plain_decodings(self, target, setting, greedy_text):
        decoder = Decoder(target, LookaheadDrafter(*setting), temperature=0.0)
        for prompt in (PROMPT, [1], PROMPT[:3] * 4):
            steps = list(decoder.stream(prompt, 30))
            assert joined(steps) == greedy_text(target, prompt, 30)
            assert all(1 <= len(step) <= setting[1] for step in steps)

    @staticmethod
    def count_steps(pair, outputs, *setting):
        decoder = Decoder(pair.target, LookaheadDrafter(*setting), temperature=0.0)
        steps = [list(decoder.stream(prompt, 50)) for prompt, _ in outputs]
        assert [joined(text) for text in steps] == [text[:50] for _, text in outputs]
        return sum(map(len, steps))

    @pytest.mark.slow
    def test_the_bundled_target_takes_few_steps(self, bundled_pair, bundled_outputs):
        assert self.count_steps(bundled_pair, bundled_outputs, 8, 4, 8) < 150 / 2
        assert self.count_steps(bundled_pair, bundled_outputs, 1, 3, 1) < 150 / 1.2

    def test_the_window_alone_predicts_well(self, bundled_pair, bundled_outputs, monkeypatch):
        monkeypatch.setattr(NgramPool, "add_all", lambda _pool, _text: None)
        assert self.count_steps(bundled_pair, bundled_outputs[:1], 8, 4, 8) < 50 / 1.3

    @pytest.mark.slow
    def test_a_window_that_attends_to_all_of_itself_predicts_worse(self, bundled_pair, bundled_outputs, monkeypatch):
        monkeypatch.setattr(NgramPool, "add_all", lambda _pool, _text: None)
        steps = self.count_steps(bundled_pair, bundled_outputs, 8, 4, 8)
        side_mask = lookahead_module.side_mask

        def all_visible(setting, nodes, tokens):
            mask, depth = side_mask(setting, nodes, tokens)
            return mask | (np.arange(nodes + tokens) >= nodes), depth

        monkeypatch.setattr(lookahead_module, "side_mask", all_visible)
        assert self.count_steps(bundled_pair, bundled_outputs, 8, 4, 8) > 1.2 * steps

    def test_a_tree_that_attends_to_the_window_changes_the_output(self, target, greedy_text, monkeypatch):
        def all_visible(tree, side):
            return np.vstack([np.hstack([tree, np.ones((len(tree), len(side)), np.bool_)]), side])

        monkeypatch.setattr(target_sequence, "join_masks", all_visible)
        decoder = Decoder(target, LookaheadDrafter(3, 3, 2), temperature=0.0)
        assert list(decoder.generate(PROMPT, 30)) != greedy_text(target, PROMPT, 30)


@pytest.mark.parametrize("setting", [(0, 4, 8), (8, 1, 8), (8, 4, 0)])
def test_a_setting_out_of_range_is_refused(setting):
    for make in (LookaheadSetting, LookaheadDrafter):
        with pytest.raises(InvalidValueError, match=r"(window|ngram|candidates): expected at least [12]\. Got"):
            make(*setting)


def test_all_settings_to_try_fit_passes_of_256_tokens():
    assert max(setting.max_nodes for setting in LOOKAHEAD_SETTINGS) <= 256


class SlowPool:
    """Searches the times of all entries when there are too many."""

    def __init__(self, capacity_keys, per_key, *, touch_on_find=True):
        self.capacity_keys, self.per_key, self.touch_on_find = capacity_keys, per_key, touch_on_find
        self.added, self.used, self.now = {}, {}, 0

    def add(self, ngram):
        self.now += 1
        key, continuation = ngram[0], tuple(ngram[1:])
        self.used[key] = self.now
        self.added.setdefault(key, {})[continuation] = self.now
        if len(self.added[key]) > self.per_key:
            del self.added[key][min(self.added[key], key=self.added[key].get)]
        if len(self.used) > self.capacity_keys:
            oldest = min(self.used, key=self.used.get)
            del self.used[oldest], self.added[oldest]

    def find(self, key):
        self.now += 1
        if self.touch_on_find and key in self.used:
            self.used[key] = self.now
        continuations = self.added.get(key, {})
        return sorted(continuations, key=continuations.get, reverse=True)


def count_entries(pool):
    """Return the numbers of keys and of continuations."""
    return len(pool._continuations), sum(map(len, pool._continuations.values()))


@given(st.data(), st.integers(2, 4), st.integers(1, 4), st.integers(1, 3))
def test_it_equals_the_slow_pool(data, ngram, capacity_keys, per_key):
    slow, pool, tokens = SlowPool(capacity_keys, per_key), NgramPool(ngram, capacity_keys, per_key), st.integers(0, 5)
    for _ in range(data.draw(st.integers(0, 60))):
        if data.draw(st.booleans()):
            new = [data.draw(tokens) for _ in range(ngram)]
            slow.add(new)
            pool.add(new)
        else:
            key = data.draw(tokens)
            assert slow.find(key) == pool.find(key)
        assert count_entries(pool) == (len(slow.added), sum(map(len, slow.added.values())))
        assert len(slow.added) <= capacity_keys
    assert all(slow.find(key) == pool.find(key) for key in range(6))


def test_a_slow_pool_without_times_of_use_differs():
    slow, pool = SlowPool(2, 1, touch_on_find=False), NgramPool(2, 2, 1)
    for each in (slow, pool):
        each.add([1, 7])
        each.add([2, 8])
        each.find(1)
        each.add([3, 9])
    assert pool.find(1) == [(7,)] != slow.find(1)


def test_all_ngrams_of_a_sequence_are_added_in_order():
    pool = NgramPool(3, 10, 10)
    pool.add_all([1, 2, 3, 1, 2, 4])
    continuations = pool.find(1)
    assert (continuations, pool.find(2), pool.find(3)) == ([(2, 4), (2, 3)], [(3, 1)], [(1, 2)])
    pool.add_all([8, 9])
    assert pool.find(8) == []
    pool.add([1, 5, 5])
    assert continuations == [(2, 4), (2, 3)]  # a copy
