"""Lookahead decoding: window, mask and pool against plain Python; texts against the target's own."""

import numpy as np
import pytest
import torch

from tests.support.decoded import PROMPT, accepted, begun, decoded_step, joined, proposed
from tests.support.slow_lookahead import SlowLookahead
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.decoding import target_sequence
from treeopt.runtime.drafters import lookahead as lookahead_module
from treeopt.runtime.drafters.lookahead import LookaheadDrafter, NgramPool
from treeopt.trees.drafter_parameters import LOOKAHEAD_SETTINGS, LookaheadSetting

SETTINGS = [(1, 2, 1), (3, 2, 2), (1, 3, 1), (2, 3, 2), (4, 3, 1), (3, 4, 3), (5, 4, 2), (1, 5, 4), (9, 3, 4)]
all_settings = pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: "W{} N{} G{}".format(*each))


@pytest.fixture(scope="module")
def precise(make_checkpoint):
    """Return a target in float64, whose likeliest tokens do not depend on how passes are put together."""
    return load_model(make_checkpoint(seed=1, tie_word_embeddings=False), dtype=torch.float64)


@pytest.fixture
def likeliest(precise, logits_after):
    return lambda text: int(logits_after(precise, text).argmax())


@pytest.fixture(scope="module")
def bundled(bundled_pair, bundled_texts):
    """Return the bundled target, prompts and plain decoding's text after each."""
    return bundled_pair.target, [prompt for prompt, _ in bundled_texts], [text[:50] for _, text in bundled_texts]


def paths_of(proposal):
    """Return the tokens along the path to every node but the root."""
    tokens, visible = proposal.tokens.tolist(), proposal.tree.ancestor_mask
    return [tuple(tokens[node] for node in np.flatnonzero(row)[1:]) for row in visible[1:]]


def seen(proposal):
    """Return, for every extra token, the tokens that it sees beside the text in the order of their places."""
    tokens = [*proposal.tokens.tolist(), *proposal.side.tokens.tolist()]
    depth = [*proposal.tree.depth.tolist(), *proposal.side.depth.tolist()]
    rows = []
    for row, place in zip(proposal.side.visible, proposal.side.depth, strict=True):
        visible = sorted(np.flatnonzero(row), key=lambda node: depth[node])
        assert [depth[node] for node in visible] == list(range(place + 1))
        rows.append([tokens[node] for node in visible])
    return rows


class TestWindow:
    @all_settings
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_window_and_proposals_are_those_of_the_slow_twin(self, precise, setting, temperature, likeliest):
        slow, drafter = SlowLookahead(likeliest, *setting), LookaheadDrafter(*setting)
        decoder = Decoder(precise, drafter, temperature=temperature, seed=2)
        for prompt in (PROMPT, [1], PROMPT[:3] * 4):
            slow.start(prompt)
            decoder.start(prompt)
            for _ in range(12):
                proposal = decoder.draft()
                assert proposal.side.tokens.tolist() == slow.window_tokens()
                beginnings = {each[:length] for each in slow.found() for length in range(1, setting[1])}
                assert set(paths_of(proposal)) == beginnings
                assert proposal.tree.nodes == 1 + len(beginnings)
                assert proposal.tree.nodes + len(proposal.side.tokens) <= drafter.max_tokens
                slow.step(decoded_step(decoder, proposal))

    @all_settings
    def test_a_token_sees_level_0_up_to_its_column_and_its_own_column(self, precise, setting, likeliest):
        slow = SlowLookahead(likeliest, *setting)
        decoder = Decoder(precise, LookaheadDrafter(*setting), temperature=0.0)
        slow.start(PROMPT)
        decoder.start(PROMPT)
        for _ in range(8):
            proposal = decoder.draft()
            places = [(level, column) for level in range(len(slow.levels)) for column in range(setting[0])]
            assert seen(proposal) == [slow.sequence(*place) for place in places[1:]]
            slow.step(decoded_step(decoder, proposal))

    def agreement(self, model, setting, logits_after):
        """Return the largest difference of an extra token's logits from a pass over the text that it claims to see."""
        decoder, text, worst = Decoder(model, LookaheadDrafter(*setting), temperature=0.0), list(PROMPT), 0.0
        decoder.start(PROMPT)
        for _ in range(8):
            proposal = decoder.draft()
            read = decoder.verify(proposal)
            for logits, tokens in zip(read.logits[proposal.tree.nodes :], seen(proposal), strict=True):
                fresh = logits_after(model, [*text[:-1], *tokens])
                worst = max(worst, float((logits - fresh).abs().max()))
            text += decoded_step(decoder, proposal, read)
        return worst

    @all_settings
    def test_logits_are_those_of_the_text_that_a_token_claims_to_see(self, precise, setting, logits_after):
        assert self.agreement(precise, setting, logits_after) < 1e-9

    def test_a_window_that_does_not_see_the_root_is_found(self, precise, logits_after, monkeypatch):
        whole = target_sequence.join_masks

        def without_root(tree, extra):
            return whole(tree, np.hstack([np.zeros((len(extra), 1), np.bool_), extra[:, 1:]]))

        monkeypatch.setattr(target_sequence, "join_masks", without_root)
        assert self.agreement(precise, (3, 4, 3), logits_after) > 1e-3

    def test_the_bound_on_nodes_is_reached(self):
        drafter = LookaheadDrafter(3, 2, 2)
        begun(drafter, [0, 1, 0, 2, 0])
        proposal = proposed(drafter)
        assert proposal.tree.nodes + len(proposal.side.tokens) == drafter.max_tokens == (3 + 2) * 1


class TestPool:
    def test_it_is_bounded_after_many_steps(self, target, greedy_text):
        drafter = LookaheadDrafter(3, 3, 2, pool_keys=4)
        decoder = Decoder(target, drafter, temperature=0.0)
        assert list(decoder.generate(PROMPT, 100)) == greedy_text(target, PROMPT, 100)
        assert len(drafter.pool(1)._continuations) == 4
        assert sum(map(len, drafter.pool(1)._continuations.values())) <= 8

    def test_another_text_begins_with_a_pool_of_its_own(self):
        drafter = LookaheadDrafter(2, 2, 4)
        begun(drafter, [1, 2, 1, 3])
        begun(drafter, [5, 1])
        assert sum(map(len, drafter.pool(0)._continuations.values())) == 1
        accepted(drafter, (0,), [1], torch.zeros(2, 9))
        assert drafter.pool(0).find(1) == [(1,), (0,)]


class TestTemperatureZero:
    @pytest.mark.parametrize("setting", [*SETTINGS, (2, 9, 2)], ids=str)
    def test_the_text_is_that_of_plain_decoding(self, target, setting, greedy_text):
        decoder = Decoder(target, LookaheadDrafter(*setting), temperature=0.0)
        for prompt in (PROMPT, [1], PROMPT[:3] * 4):
            steps = list(decoder.stream(prompt, 30))
            assert joined(steps) == greedy_text(target, prompt, 30)
            assert all(1 <= len(step) <= setting[1] for step in steps)

    @staticmethod
    def steps(bundled, *setting):
        target, prompts, texts = bundled
        decoder = Decoder(target, LookaheadDrafter(*setting), temperature=0.0)
        steps = [list(decoder.stream(prompt, 50)) for prompt in prompts]
        assert [joined(each) for each in steps] == texts
        return sum(map(len, steps))

    @pytest.mark.slow
    def test_the_bundled_target(self, bundled):
        assert self.steps(bundled, 8, 4, 8) < 150 / 2
        assert self.steps(bundled, 1, 3, 1) < 150 / 1.2

    def test_the_window_alone_predicts_well(self, bundled, monkeypatch):
        monkeypatch.setattr(NgramPool, "add_all", lambda _pool, _text: None)
        assert self.steps(bundled, 8, 4, 8) < 150 / 1.5

    @pytest.mark.slow
    def test_a_window_whose_tokens_see_all_of_it_predicts_worse(self, bundled, monkeypatch):
        monkeypatch.setattr(NgramPool, "add_all", lambda _pool, _text: None)
        right = self.steps(bundled, 8, 4, 8)
        all_of_it = np.ones((24, 24), np.bool_)
        monkeypatch.setattr(lookahead_module, "_window_mask", lambda *_: all_of_it)
        assert self.steps(bundled, 8, 4, 8) > 1.2 * right

    def test_a_tree_that_sees_the_window_changes_the_text(self, target, greedy_text, monkeypatch):
        def all_visible(tree, extra):
            return np.vstack([np.hstack([tree, np.ones((len(tree), len(extra)), np.bool_)]), extra])

        monkeypatch.setattr(target_sequence, "join_masks", all_visible)
        decoder = Decoder(target, LookaheadDrafter(3, 3, 2), temperature=0.0)
        assert list(decoder.generate(PROMPT, 30)) != greedy_text(target, PROMPT, 30)


@pytest.mark.parametrize("setting", [(0, 4, 8), (8, 1, 8), (8, 4, 0), (-1, 0, 0)])
def test_a_setting_out_of_range(setting):
    for make in (LookaheadSetting, LookaheadDrafter):
        with pytest.raises(InvalidValueError, match=r"(window|ngram|candidates): expected at least [12]\. Got"):
            make(*setting)


def test_all_settings_worth_trying_fit_passes_of_256_tokens():
    assert max(setting.max_nodes for setting in LOOKAHEAD_SETTINGS) <= 256
