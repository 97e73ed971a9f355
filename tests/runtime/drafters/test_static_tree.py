"""Static trees within the decode loop: every token and distribution is that of a fresh pass."""

import numpy as np
import pytest
import torch

from tests.support.decoded import PROMPT, TREES, decoded_step
from tests.support.passes import count_fed_tokens
from treeopt.records.rules import LOSSY_RULES
from treeopt.runtime import Decoder, Sampling, distribution
from treeopt.runtime.drafters import static_tree
from treeopt.runtime.drafters.draft_levels import draft_levels
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import chain, level_widths


@pytest.fixture
def fed(draft, monkeypatch):
    """Return a list of the number of tokens in each pass of the draft model."""
    return count_fed_tokens(draft, monkeypatch)


all_trees = pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())


class TestDrafting:
    @all_trees
    def test_the_draft_model_is_fed_internal_nodes_only(self, target, draft, tree, fed):
        decoder = Decoder(target, draft, tree, temperature=0.8)
        decoder.start(PROMPT)
        pending = 1
        for _ in range(8):
            fed.clear()
            proposal = decoder.draft()
            assert fed == ([pending, *tree.draft_widths[1:].tolist()] if tree.max_depth else [])
            step = decoder.accept(proposal, decoder.verify(proposal))
            decoder.commit(step)
            pending = 2 if tree.child_counts[step.path[-1]] == 0 else 1

    @pytest.mark.parametrize(
        ("tree", "rule", "is_target"),
        [
            *((tree, "sequoia", False) for tree in TREES.values()),
            *((TREES["wide, then narrow"], rule, True) for rule in ("specinfer", "traversal")),
        ],
    )
    def test_distributions_are_those_of_fresh_passes(self, target, draft, tree, rule, is_target, logits_after):
        model, sampling = target if is_target else draft, Sampling(0.9, top_p=0.95, top_k=20)
        decoder = Decoder(target, model, tree, rule=rule, temperature=0.7, draft_sampling=sampling, seed=4)
        decoder.start(PROMPT)
        text = list(PROMPT)
        for _ in range(4):
            proposal = decoder.draft()
            output = decoder.verify(proposal)
            tokens = proposal.tokens.tolist()
            assert tokens[0] == text[-1]
            for node in range(tree.nodes):
                path = [tokens[ancestor] for ancestor in np.flatnonzero(tree.ancestor_mask[node])]
                fresh = logits_after(target, [*text[:-1], *path])
                torch.testing.assert_close(output.logits[node], fresh, rtol=1e-4, atol=1e-4)
                children = tree.children(node)
                assert rule == "specinfer" or len({tokens[child] for child in children}) == len(children)
                if len(children) > 0:
                    expected = distribution(logits_after(model, [*text[:-1], *path])[None], sampling)[0]
                    torch.testing.assert_close(proposal.probs[node], expected, rtol=1e-3, atol=1e-5)
            text += decoded_step(decoder, proposal, output)

    def test_draft_sampling_defaults_to_the_targets_temperature_and_all_tokens(self, target, draft, logits_after):
        decoder = Decoder(target, draft, chain(1), temperature=0.7, top_p=0.5, top_k=3)
        decoder.start(PROMPT)
        expected = distribution(logits_after(draft, PROMPT)[None], Sampling(0.7))[0]
        torch.testing.assert_close(decoder.draft().probs[0], expected, rtol=1e-3, atol=1e-5)

    @pytest.mark.parametrize(("rule", "temperature"), [("sequoia", 0.0), ("target", 0.7), ("typical", 0.7)])
    def test_unsampled_children_are_the_likeliest(self, target, draft, rule, temperature, logits_after):
        tree = level_widths([3, 4, 2])
        decoder = Decoder(target, draft, tree, rule=rule, temperature=temperature, lossy=rule in LOSSY_RULES)
        decoder.start(PROMPT)
        text = list(PROMPT)
        for _ in range(5):
            proposal = decoder.draft()
            assert proposal.probs is None
            tokens = proposal.tokens.tolist()
            for node in range(tree.nodes):
                path = [tokens[ancestor] for ancestor in np.flatnonzero(tree.ancestor_mask[node])]
                children = tree.children(node)
                likeliest = logits_after(draft, [*text[:-1], *path]).topk(len(children)).indices.tolist()
                assert [tokens[child] for child in children] == likeliest
            text += decoded_step(decoder, proposal)


class TestChanges:
    def decode_plainly(self, target, draft, steps):
        """Return a decoder that drafted nothing for some steps, and its tokens."""
        decoder = Decoder(target, draft, chain(0), temperature=0.0, max_nodes=8)
        decoder.start(PROMPT)
        return decoder, [*PROMPT, *(token for _ in range(steps) for token in decoder.step().tokens)]

    def test_drafting_resumes_after_one_pass_over_all_missed_tokens(self, target, draft, fed, logits_after):
        decoder, text = self.decode_plainly(target, draft, 9)
        decoder.change_tree(chain(2))
        fed.clear()
        tokens = decoder.draft().tokens.tolist()
        assert fed == [9, 1, 1]
        assert tokens[0] == text[-1]
        assert tokens[1] == int(logits_after(draft, text).argmax())
        assert tokens[2] == int(logits_after(draft, [*text, tokens[1]]).argmax())

    def test_draft_logits_are_those_of_fresh_passes_and_change_nothing(self, target, draft, logits_after):
        decoder, text = self.decode_plainly(target, draft, 9)
        for index, row in enumerate(decoder.draft_logits(text[3:])):
            torch.testing.assert_close(row, logits_after(draft, text[3 : 4 + index]), rtol=1e-4, atol=1e-4)
        decoder.change_tree(chain(1))
        assert decoder.draft().tokens.tolist() == [text[-1], int(logits_after(draft, text).argmax())]
        assert Decoder(target, None, temperature=0.0).draft_logits([1]) is None

    def test_a_repeated_tree_is_drafted_as_if_it_were_new(self, target, draft, monkeypatch):
        trees = [level_widths([3, 4]), chain(4), level_widths([2]), chain(0)]

        def decode():
            decoder = Decoder(target, draft, trees[0], temperature=0.9, max_nodes=8, seed=5)
            decoder.start(PROMPT)
            text, rows = [], []
            for step in range(16):
                decoder.change_tree(trees[step % 4])
                proposal = decoder.draft()
                leaves = np.flatnonzero(proposal.tree.child_counts == 0)
                assert not proposal.probs[leaves].any()
                rows.append(proposal.probs.clone())
                text += decoded_step(decoder, proposal)
            return text, rows

        text, rows = decode()
        monkeypatch.setattr(static_tree, "draft_levels", draft_levels.__wrapped__)
        monkeypatch.setattr("treeopt.runtime.decoding.target_sequence.whole_tree", PassNodes.whole)
        new_text, new_rows = decode()
        assert text == new_text
        for row, new in zip(rows, new_rows, strict=True):
            assert torch.equal(row, new)

    def test_a_change_keeps_the_last_proposal(self, target, draft):
        decoder = Decoder(target, draft, level_widths([3, 4]), temperature=0.9, max_nodes=8)
        decoder.start(PROMPT)
        proposal = decoder.draft()
        tokens, probs = proposal.tokens.clone(), proposal.probs.clone()
        decoder.commit(decoder.accept(proposal, decoder.verify(proposal)))
        decoder.change_tree(chain(4))
        assert proposal.tokens.equal(tokens)
        assert proposal.probs.equal(probs)
