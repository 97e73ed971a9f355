"""Trees that a head fills: children by rank, the cache behind them, and tokens by whatever number the head has for them."""

import numpy as np
import pytest
import torch

from tests.runtime.drafters.eagle.test_head import rows_of, states_of
from tests.support import eagle_heads as layouts
from tests.support.decoded import PROMPT, decoded_step
from tests.support.eagle_heads import make_head, save_head
from tests.support.slow_eagle import SlowEagle
from treeopt.errors import OutOfMemoryError
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.draft_model import root_logits
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.eagle import EagleDrafter, EagleDynamicDrafter, load_eagle
from treeopt.runtime.drafters.eagle.sequence import new_eagle_sequences
from treeopt.runtime.models.runner import Runner
from treeopt.runtime.rules.rule import RULES
from treeopt.trees import TokenTree, chain, level_widths
from treeopt.trees.drafter_parameters import DynamicTree

LAYER_IDS = (2, 4, 5)
SOME = [1, 2, 5, 6, 9, 11, 14, 15]
TREE = TokenTree([-1, 0, 0, 0, 1, 1, 3, 4, 6])


def made_head(target, ids=SOME, **options):
    return make_head(target, layer_ids=LAYER_IDS, ids=ids, embedding=True, scale=0.2, **options)


def loaded(made, folder, target):
    return load_eagle(save_head(layouts.specforge, folder, made, target), target)


def proposal_of(drafter, target, text=PROMPT):
    drafter.begin(0, text, states_of(target, text[:-1], drafter.requested_states))
    return drafter.propose([0], [torch.Generator()])[0]


class TestStaticTrees:
    def test_the_child_of_rank_k_carries_the_kth_likeliest_token_after_its_path(self, deep, tmp_path):
        made = made_head(deep)
        head, twin = loaded(made, tmp_path, deep), SlowEagle(made, None, None)
        proposal, states = (
            proposal_of(EagleDrafter(head, TREE, capacity=40), deep),
            states_of(deep, PROMPT[:-1], head.requested_states),
        )
        tokens, expected = proposal.tokens.tolist(), [PROMPT[-1]]
        for node in range(1, TREE.nodes):
            path = np.flatnonzero(TREE.ancestor_mask[node])[1:-1]
            logits = twin.logits_after(rows_of(states), PROMPT, [tokens[each] for each in path])
            expected.append(int(np.argsort(-logits)[TREE.rank[node]]))
        assert tokens == expected
        assert proposal.tree == TREE

    def test_the_tree_changes_from_one_step_to_the_next(self, deep, tmp_path):
        head = loaded(made_head(deep), tmp_path, deep)
        drafter = EagleDrafter(head, TREE, capacity=40)
        decoder, text = Decoder(deep, drafter, temperature=0.0), list(PROMPT)
        decoder.start(text)
        for tree in (chain(4), TREE, chain(1), level_widths([2, 2, 2])):
            drafter.change_tree(tree)
            proposal = decoder.draft()
            alone = proposal_of(EagleDrafter(head, tree, capacity=40), deep, text)
            assert proposal.tree == tree
            assert proposal.tokens.tolist() == alone.tokens.tolist()
            text += decoded_step(decoder, proposal)

    def test_sampled_children_are_tokens_that_the_head_knows_and_their_probabilities_are_its_own(self, deep, tmp_path):
        made = made_head(deep)
        head, twin, sampling = loaded(made, tmp_path, deep), SlowEagle(made, None, None), Sampling(0.7)
        drafter = EagleDrafter(head, TREE, capacity=40, rule=RULES["sequoia"], sampling=sampling)
        assert drafter.sampled
        proposal = proposal_of(drafter, deep)
        assert set(proposal.tokens[1:].tolist()) <= set(SOME)
        logits = twin.logits_after(rows_of(states_of(deep, PROMPT[:-1], head.requested_states)), PROMPT)
        weights = np.exp((logits - logits.max()) / sampling.temperature)
        np.testing.assert_allclose(proposal.probs[0], weights / weights.sum(), atol=1e-5)

    def test_numbers_that_the_head_has_for_tokens_do_not_matter(self, deep, tmp_path):
        made, order = made_head(deep), [3, 0, 7, 1, 2, 6, 5, 4]
        other = made_head(deep, [SOME[each] for each in order])
        other.weights = {**made.weights, "output": made.weights["output"][order]}
        drafters = [EagleDrafter(loaded(each, tmp_path, deep), TREE, capacity=40) for each in (made, other)]
        first, second = (proposal_of(each, deep).tokens.clone() for each in drafters)
        assert first.tolist() == second.tolist()


class TestDynamicTrees:
    def test_nodes_are_the_likeliest_paths_by_the_slow_twin(self, deep, tmp_path):
        made, grown = made_head(deep), DynamicTree(top_k=2, depth=3, nodes=6)
        head, twin = loaded(made, tmp_path, deep), SlowEagle(made, None, None)
        proposal = proposal_of(EagleDynamicDrafter(head, grown, capacity=40), deep)
        states = rows_of(states_of(deep, PROMPT[:-1], head.requested_states))
        beams, pool = [((), 0.0)], []
        for _ in range(grown.depth):
            children = []
            for path, score in beams:
                logits = twin.logits_after(states, PROMPT, path)
                log_probs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
                best = np.argsort(-log_probs)[: grown.top_k]
                children += [((*path, int(token)), score + log_probs[token]) for token in best]
            pool += children
            beams = sorted(children, key=lambda each: -each[1])[: grown.top_k]
        expected = {path for path, _ in sorted(pool, key=lambda each: -each[1])[: grown.nodes - 1]}
        tokens, tree = proposal.tokens.tolist(), proposal.tree
        found = {tuple(tokens[each] for each in np.flatnonzero(row)[1:]) for row in tree.ancestor_mask[1:]}
        assert found == expected


class TestCache:
    def test_it_holds_a_slot_for_every_token_but_the_first_after_a_refill(self, deep, tmp_path):
        (text,) = new_eagle_sequences(loaded(made_head(deep), tmp_path, deep), 40, 4, 1)
        tokens, runner = list(PROMPT), Runner(text.head, max_nodes=4)
        text.begin(tokens, states_of(deep, tokens[:-1], text.head.requested_states))
        root_logits(runner, [text])
        states = states_of(deep, PROMPT[:4], text.head.requested_states)  # of four nodes; lengths do not depend on them
        for path, committed in (((0, 2, 3), [5, 6, 7]), ((0,), [9]), ((0, 1), [1, 2])):
            text.accept(Step(path, committed, torch.empty(0), states), [])
            tokens += committed
            root_logits(runner, [text])
            assert text.cache.length == len(tokens) - 2  # the root's own slot stands behind

    @pytest.mark.parametrize("kind", ["static", "dynamic"])
    def test_those_of_a_batch_lie_side_by_side_and_must_fit_together(self, deep, tmp_path, monkeypatch, kind):
        head, grown = loaded(made_head(deep), tmp_path, deep), DynamicTree(top_k=2, depth=3, nodes=6)
        static = EagleDrafter(head, TREE, capacity=60)
        drafter = static if kind == "static" else EagleDynamicDrafter(head, grown, capacity=60)
        drafter.reserve(3)
        caches = [getattr(each, "draft", each).cache for each in drafter._sequences]
        assert len({id(cache.store) for cache in caches}) == 1
        assert [cache.index for cache in caches] == [0, 1, 2]
        slot = sum(entries[..., 0, :].nbytes for pair in caches[0].layers for entries in pair)
        monkeypatch.setattr(
            "treeopt.runtime.models.memory.free_bytes", lambda _: 4 * slot * (caches[0].capacity + 1) - 1
        )
        drafter.reserve(3)
        with pytest.raises(OutOfMemoryError, match=r"cache of \d+ tokens for each of 4 sequences"):
            drafter.reserve(4)

    @pytest.mark.parametrize("prompt", [[3], [3, 14]])
    def test_texts_that_begin_with_a_token_or_two(self, deep, tmp_path, prompt, greedy_text):
        head = loaded(made_head(deep), tmp_path, deep)
        for drafter in (
            EagleDrafter(head, TREE, capacity=60),
            EagleDynamicDrafter(head, DynamicTree(top_k=2, depth=3, nodes=6), capacity=60),
        ):
            decoder = Decoder(deep, drafter, temperature=0.0)
            assert list(decoder.generate(prompt, 20)) == greedy_text(deep, prompt, 20)
