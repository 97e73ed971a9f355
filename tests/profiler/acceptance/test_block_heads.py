"""Acceptance of P-EAGLE and DFlash heads along a sequence: roots that share a pass have the children of separate steps."""

from dataclasses import replace

import pytest
import torch

from tests.support import dflash_heads
from tests.support.eagle_heads import LEVELS, make_head, save_head, speculators_p_eagle
from treeopt.profiler.acceptance import heads
from treeopt.profiler.acceptance.heads import BLOCKS_PER_PASS, build_head_sequence, dflash_children, p_eagle_children
from treeopt.records.sampling import GREEDY
from treeopt.runtime.drafters.dflash import load_dflash
from treeopt.runtime.drafters.eagle import PEagleDrafter, load_p_eagle
from treeopt.trees import TokenTree

TREE = TokenTree([-1, 0, 0, 0, *(1 + 3 * (node // 3) for node in range(3 * (LEVELS - 1)))])
"""Three children of the first node at every depth."""


@pytest.fixture
def head(target, tmp_path):
    made = make_head(target, (0, 1), layers=2, mask=True, ids=list(range(3, 20)))
    return load_p_eagle(save_head(speculators_p_eagle, tmp_path, made, target), target)


@pytest.fixture
def compare(target, head):
    """Return a function that counts the roots of a sequence whose children are those that a step drafts."""

    def compare(prompt, tokens):
        sequence = build_head_sequence(target, prompt, tokens, GREEDY, head.requested_states)
        children, whole = p_eagle_children(head, sequence, 3), [*prompt, *tokens]
        assert children.shape == (len(sequence.tokens), LEVELS, 3)
        equal = []
        for place in range(len(sequence.tokens)):
            before = whole[: len(sequence.before) + place]
            drafter = PEagleDrafter(head, TREE, capacity=64)
            drafter.begin(0, before, target.compute_states(torch.tensor(before[:-1]), head.requested_states))
            (proposal,) = drafter.propose([0], [torch.Generator()])
            equal.append(children[place].flatten().tolist() == proposal.tokens[1:].tolist())
        return equal

    return compare


def tokens_after(count):
    return torch.randint(22, (count,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("prompt", [[3], [3, 14], [3, 14, 15, 9]])
def test_roots_that_share_a_pass_equal_separate_steps(compare, prompt):
    assert all(compare(prompt, tokens_after(BLOCKS_PER_PASS + 3)))


def test_masks_that_see_each_other_are_found(compare, monkeypatch):
    """Negative control."""
    attend = heads._attend_in_blocks

    def unhidden(*arguments, **options):
        blocks = attend(*arguments, **options)
        return blocks._replace(mask=torch.ones_like(blocks.mask))

    monkeypatch.setattr(heads, "_attend_in_blocks", unhidden)
    assert not all(compare([3, 14, 15, 9], tokens_after(6)))


def test_a_sequence_without_roots_has_no_children(target, head):
    sequence = build_head_sequence(target, [3, 14], [], GREEDY, head.requested_states)
    assert p_eagle_children(head, sequence, 3).shape == (0, LEVELS, 3)


PROMPT = [3, 14, 15, 9]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"causal_head": True},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
        {"architectures": ["Qwen3DSparkModel"]},
    ],
    ids=["bidirectional", "causal", "sliding", "shifted"],
)
def test_blocks_that_share_a_pass_equal_separate_blocks(target, tmp_path, changes):
    config, tensors = dflash_heads.z_lab(dflash_heads.make_oracle(target.config))
    config["dflash_config"]["target_layer_ids"] = [-1, 0]
    assert config["vocab_size"] == target.config.vocabulary
    head = load_dflash(dflash_heads.save(tmp_path / "head", config | changes, tensors), target)
    tokens = tokens_after(BLOCKS_PER_PASS + 3)
    sequence = build_head_sequence(target, PROMPT, tokens, GREEDY, head.requested_states)
    children = dflash_children(head, sequence, 3)
    assert children.shape == (len(sequence.tokens), head.levels, 3)
    whole = [*PROMPT, *tokens]
    for place in range(len(sequence.tokens)):
        before = whole[: len(PROMPT) + place]
        (cache,) = head.new_caches(len(before), 1)
        head.read(target.compute_states(torch.tensor(before[:-1]), head.requested_states), cache)
        alone = head.draft([before[-1]], [cache])[0].topk(3).indices
        assert children[place].tolist() == alone.tolist()


def test_children_of_a_markov_head_follow_the_tokens_of_the_sequence(target, tmp_path):
    config, tensors = dflash_heads.add_markov(*dflash_heads.z_lab(dflash_heads.make_oracle(target.config)))
    config["dflash_config"]["target_layer_ids"] = [-1, 0]
    head = load_dflash(dflash_heads.save(tmp_path / "head", config, tensors), target)
    tokens = tokens_after(BLOCKS_PER_PASS + 3)
    sequence = build_head_sequence(target, PROMPT, tokens, GREEDY, head.requested_states)
    children, marginal = (dflash_children(each, sequence, 3) for each in (head, replace(head, markov=None)))
    whole, changed = [*PROMPT, *tokens], 0
    for place in range(len(sequence.tokens)):
        root = len(PROMPT) + place - 1
        (cache,) = head.new_caches(root, 1)
        head.read(target.compute_states(torch.tensor(whole[:root]), head.requested_states), cache)
        depths = min(head.levels, len(sequence.tokens) - place)
        alone = head.draft([whole[root]], [cache])[0, :depths] + dflash_heads.markov_bias(
            tensors, whole[root : root + depths]
        )
        assert children[place, :depths].tolist() == alone.topk(3).indices.tolist()
        changed += int((children[place, 1:depths] != marginal[place, 1:depths]).sum())
    assert changed > 50
