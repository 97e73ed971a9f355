"""Acceptance of a DFlash head along a sequence: blocks that share a pass have the children of separate blocks."""

from dataclasses import replace

import pytest
import torch

from tests.support import dflash_heads as heads
from treeopt.profiler.acceptance.heads import BLOCKS_PER_PASS, build_head_sequence, dflash_children
from treeopt.records.sampling import GREEDY
from treeopt.runtime.drafters.dflash import load_dflash

PROMPT = [3, 14, 15, 9]


def tokens_after(count):
    return torch.randint(22, (count,), generator=torch.Generator().manual_seed(1)).tolist()


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
    config, tensors = heads.z_lab(heads.make_oracle(target.config))
    config["dflash_config"]["target_layer_ids"] = [-1, 0]
    assert config["vocab_size"] == target.config.vocabulary
    head = load_dflash(heads.save(tmp_path / "head", config | changes, tensors), target)
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
    config, tensors = heads.add_markov(*heads.z_lab(heads.make_oracle(target.config)))
    config["dflash_config"]["target_layer_ids"] = [-1, 0]
    head = load_dflash(heads.save(tmp_path / "head", config, tensors), target)
    tokens = tokens_after(BLOCKS_PER_PASS + 3)
    sequence = build_head_sequence(target, PROMPT, tokens, GREEDY, head.requested_states)
    children, marginal = (dflash_children(each, sequence, 3) for each in (head, replace(head, markov=None)))
    whole, changed = [*PROMPT, *tokens], 0
    for place in range(len(sequence.tokens)):
        root = len(PROMPT) + place - 1
        (cache,) = head.new_caches(root, 1)
        head.read(target.compute_states(torch.tensor(whole[:root]), head.requested_states), cache)
        depths = min(head.levels, len(sequence.tokens) - place)
        alone = head.draft([whole[root]], [cache])[0, :depths] + heads.markov_bias(tensors, whole[root : root + depths])
        assert children[place, :depths].tolist() == alone.topk(3).indices.tolist()
        changed += int((children[place, 1:depths] != marginal[place, 1:depths]).sum())
    assert changed > 50
