"""Lookahead decoding: window, mask and pool next to plain Python; output is tested in tests/contracts too."""

import numpy as np
import pytest
import torch

from tests.support.decoded import PROMPT, begun, decoded_step, joined, proposed
from tests.support.slow_lookahead import SlowLookahead
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
