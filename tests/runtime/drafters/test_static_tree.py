"""What is drafted and scored within the decode loop: every token and distribution is that of a fresh pass over its text."""

import numpy as np
import pytest
import torch

from tests.support.decoded import PROMPT, TREES, decoded_step
from tests.support.fed_tokens import count_fed_tokens
from treeopt.records.rules import LOSSY_RULES
from treeopt.runtime import Decoder, Sampling, distribution
from treeopt.runtime.decoding.target_sequence import whole_tree
from treeopt.runtime.drafters import draft_levels
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.rules import RULES
from treeopt.trees import chain, level_widths


@pytest.fixture
def fed(draft, monkeypatch):
    """Return a list of the number of tokens in each pass of the draft model."""
    return count_fed_tokens(draft, monkeypatch)


all_trees = pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())


class TestDrafting:
    @all_trees
    def test_the_drafter_is_fed_internal_nodes_only(self, target, draft, tree, fed):
        decoder = Decoder(target, draft, tree, temperature=0.8)
        decoder.start(PROMPT)
        pending = 1
        for _ in range(12):
            fed.clear()
            drafted = decoder.draft()
            assert fed == ([pending, *tree.draft_widths[1:].tolist()] if tree.max_depth else [])
            step = decoder.accept(drafted, decoder.verify(drafted))
            decoder.commit(step)
            pending = 2 if tree.child_counts[step.path[-1]] == 0 else 1

    @pytest.mark.parametrize("drafts_like_target", [False, True])
    @pytest.mark.parametrize("rule", [rule for rule in RULES if RULES[rule].random_drafts])
    @all_trees
    def test_every_distribution_is_that_of_a_fresh_pass(
        self, target, draft, tree, rule, drafts_like_target, logits_after
    ):
        model = target if drafts_like_target else draft
        sampling = Sampling(0.9, top_p=0.95, top_k=20)
        decoder = Decoder(target, model, tree, rule=rule, temperature=0.7, draft_sampling=sampling, seed=4)
        decoder.start(PROMPT)
        text = list(PROMPT)
        for _ in range(4):
            drafted = decoder.draft()
            output = decoder.verify(drafted)
            tokens, logits = drafted.tokens.tolist(), output.logits
            assert tokens[0] == text[-1]
            for node in range(tree.nodes):
                path = [tokens[above] for above in np.flatnonzero(tree.ancestor_mask[node])]
                fresh = logits_after(target, [*text[:-1], *path])
                torch.testing.assert_close(logits[node], fresh, rtol=1e-4, atol=1e-4)
                children = tree.children(node)
                assert rule == "specinfer" or len({tokens[child] for child in children}) == len(children)
                if len(children) > 0:
                    expected = distribution(logits_after(model, [*text[:-1], *path])[None], sampling)[0]
                    torch.testing.assert_close(drafted.probs[node], expected, rtol=1e-3, atol=1e-5)
            text += decoded_step(decoder, drafted, output)

    def test_the_distribution_defaults_to_the_targets_temperature_and_all_tokens(self, target, draft, logits_after):
        decoder = Decoder(target, draft, TREES["chain of 1"], temperature=0.7, top_p=0.5, top_k=3)
        decoder.start(PROMPT)
        expected = distribution(logits_after(draft, PROMPT)[None], Sampling(0.7))[0]
        torch.testing.assert_close(decoder.draft().probs[0], expected, rtol=1e-3, atol=1e-5)

    @pytest.mark.parametrize(
        ("rule", "temperature"),
        [("sequoia", 0.0), ("specinfer", 0.0), ("target", 0.7), ("target", 0.0), ("typical", 0.7)],
    )
    def test_where_nothing_is_drawn_children_are_the_likeliest(self, target, draft, rule, temperature, logits_after):
        tree = level_widths([3, 4, 2])
        decoder = Decoder(target, draft, tree, rule=rule, temperature=temperature, lossy=rule in LOSSY_RULES)
        decoder.start(PROMPT)
        text = list(PROMPT)
        for _ in range(8):
            drafted = decoder.draft()
            assert drafted.probs is None
            tokens = drafted.tokens.tolist()
            for node in range(tree.nodes):
                path = [tokens[above] for above in np.flatnonzero(tree.ancestor_mask[node])]
                wanted = logits_after(draft, [*text[:-1], *path]).topk(len(tree.children(node))).indices.tolist()
                assert [tokens[child] for child in tree.children(node)] == wanted
            text += decoded_step(decoder, drafted)


class TestDraftingAgain:
    def decoded_plainly(self, target, draft, steps):
        """Return a decoder that drafted nothing for some steps, and its text."""
        decoder = Decoder(target, draft, chain(0), temperature=0.0, max_nodes=8)
        decoder.start(PROMPT)
        return decoder, [*PROMPT, *(token for _ in range(steps) for token in decoder.step().tokens)]

    def test_drafting_begins_again_behind_all_of_the_text(self, target, draft, logits_after):
        decoder, text = self.decoded_plainly(target, draft, 9)
        decoder.change_tree(chain(2))
        tokens = decoder.draft().tokens.tolist()
        assert tokens[0] == text[-1]
        assert tokens[1] == int(logits_after(draft, text).argmax())
        assert tokens[2] == int(logits_after(draft, [*text, tokens[1]]).argmax())

    def test_all_that_was_missed_is_one_pass(self, target, draft, fed):
        decoder, _ = self.decoded_plainly(target, draft, 9)
        decoder.change_tree(chain(2))
        fed.clear()
        decoder.draft()
        assert fed == [9, 1, 1]

    def test_the_draft_models_logits_are_those_of_fresh_passes_and_leave_the_text_alone(
        self, target, draft, logits_after
    ):
        decoder, text = self.decoded_plainly(target, draft, 9)
        for place, row in enumerate(decoder.draft_logits(text[3:])):
            torch.testing.assert_close(row, logits_after(draft, text[3 : 4 + place]), rtol=1e-4, atol=1e-4)
        decoder.change_tree(chain(1))
        assert decoder.draft().tokens.tolist() == [text[-1], int(logits_after(draft, text).argmax())]

    def test_a_tree_that_comes_back_is_drafted_as_if_it_were_new(self, target, draft, monkeypatch):
        trees = [level_widths([3, 4]), chain(4), level_widths([2]), chain(0)]

        def decoded():
            decoder = Decoder(target, draft, trees[0], temperature=0.9, max_nodes=8, seed=5)
            decoder.start(PROMPT)
            text, rows = [], []
            for step in range(16):
                decoder.change_tree(trees[step % 4])
                drafted = decoder.draft()
                leaves = np.flatnonzero(drafted.tree.child_counts == 0)
                assert not drafted.probs[leaves].any()
                rows.append(drafted.probs.clone())
                text += decoded_step(decoder, drafted)
            return text, rows

        text, rows = decoded()
        monkeypatch.setattr("treeopt.runtime.drafters.static_tree.CACHED_TREES", 1)
        monkeypatch.setattr("treeopt.runtime.drafters.static_tree.level_passes", draft_levels.level_passes.__wrapped__)
        monkeypatch.setattr("treeopt.runtime.decoding.target_sequence.whole_tree", PassNodes.whole)
        new_text, new_rows = decoded()
        assert text == new_text
        for row, new in zip(rows, new_rows, strict=True):
            torch.testing.assert_close(row, new, rtol=0, atol=0)

    def test_trees_that_come_back_are_not_prepared_again(self, target, draft, monkeypatch):
        decoder = Decoder(target, draft, chain(2), temperature=0.0, max_nodes=8)
        decoder.start(PROMPT)
        for depth in (3, 0, 2):
            decoder.change_tree(chain(depth))
            decoder.step()
        monkeypatch.setattr(draft_levels, "DraftLevelSampler", lambda *_: pytest.fail("levels were prepared"))
        prepared = [each.cache_info().misses for each in (draft_levels.level_passes, whole_tree)]
        for depth in (3, 2, 0, 3):
            decoder.change_tree(chain(depth))
            assert len(decoder.step().tokens) <= depth + 1
        assert [each.cache_info().misses for each in (draft_levels.level_passes, whole_tree)] == prepared

    def test_a_change_leaves_the_last_proposal_alone(self, target, draft):
        decoder = Decoder(target, draft, level_widths([3, 4]), temperature=0.9, max_nodes=8)
        decoder.start(PROMPT)
        drafted = decoder.draft()
        tokens, probs = drafted.tokens.clone(), drafted.probs.clone()
        decoder.commit(decoder.accept(drafted, decoder.verify(drafted)))
        decoder.change_tree(chain(4))
        assert drafted.tokens.equal(tokens)
        assert drafted.probs.equal(probs)

    def test_without_a_draft_model_there_is_nothing_to_read(self, target):
        decoder = Decoder(target, None, temperature=0.0)
        assert decoder.draft_logits([1]) is None
