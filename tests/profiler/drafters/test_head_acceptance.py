"""Ranks below every root of heads that fill static trees: replayed steps are those of decoding."""

import numpy as np
import pytest
import torch

from tests.profiler.pretended import FakeClock
from tests.support import dflash_heads
from tests.support.eagle_heads import eagle1, make_head, save_head, speculators, speculators_p_eagle
from tests.support.head_acceptance import loaded, plain_sequences
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.acceptance.contexts import DecodingPoint, WholePrompts
from treeopt.profiler.drafters import acceptance as acceptance_module
from treeopt.profiler.drafters.acceptance import count_roots, measure_trees
from treeopt.profiler.drafters.plain_sequences import PlainSequences
from treeopt.profiler.latency.rounds import Recorder
from treeopt.records.accepted_ranks import RootRanks
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.dflash import load_dflash
from treeopt.runtime.drafters.eagle import load_eagle, load_p_eagle
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.trees import TokenTree, chain, level_widths

BUSHY = TokenTree([-1] + [0] * 12 + [parent for parent in range(1, 13) for _ in range(12)])
TREES = (chain(1), chain(3), level_widths([4, 4, 2]), BUSHY)
LENGTH = 60


@pytest.fixture(scope="module")
def drafters(target, tmp_path_factory):
    """Return drafters with random heads by name."""

    def eagle(layout, **changes):
        folder = save_head(layout, tmp_path_factory.mktemp("head"), make_head(target, **changes), target)
        return load_eagle(folder, target)

    def block(markov):
        config, tensors = dflash_heads.z_lab(dflash_heads.make_oracle(target.config))
        config |= {"block_size": 3, "sample_from_anchor": True}
        config["dflash_config"]["target_layer_ids"] = [-1, 0]
        if markov:
            config, tensors = dflash_heads.add_markov(config, tensors)
        return load_dflash(dflash_heads.save(tmp_path_factory.mktemp("head"), config, tensors), target)

    masked = make_head(target, layer_ids=(0, 1), ids=list(range(3, 20)), layers=2, mask=True)
    trained = {"proposal_methods": [{"speculative_tokens": 3}]}
    folder = save_head(speculators_p_eagle, tmp_path_factory.mktemp("head"), masked, target, speculators_config=trained)
    size, noise = target.config.hidden, torch.Generator().manual_seed(0)
    medusa = MedusaHeads(target, 0.4 * torch.randn(3, size, size, generator=noise), torch.zeros(3, size))
    heads = {
        "medusa": medusa,
        "eagle": eagle(speculators, layer_ids=(0, 1)),
        "eagle, few tokens": eagle(speculators, layer_ids=(0, 1), ids=list(range(3, 15))),
        "eagle 1": eagle(eagle1, layer_ids=(), eagle1=True),
        "dflash": block(markov=False),
        "dspark": block(markov=True),
        "p-eagle": load_p_eagle(folder, target),
    }
    return {name: loaded(target, own_heads) for name, own_heads in heads.items()}


def count(drafter, prompt, sampling=GREEDY, branching=23):
    decoder = Decoder(drafter.target, None, sampling=sampling, max_sequence_tokens=len(prompt) + LENGTH)
    tokens = list(decoder.generate(prompt, LENGTH, seed=0))
    point = DecodingPoint(sampling, WholePrompts([prompt]))
    return count_roots(drafter, PlainSequences(point, {0: prompt}, LENGTH, {0: tokens}), 0, branching, 3)


def first_step(tree, ranks):
    """Return the tokens of a step with a tree, from the ranks (roots, D) of its root and the following ones."""
    node, tokens = 0, 1
    for depth in range(min(tree.max_depth, *ranks.shape)):
        children = np.flatnonzero(tree.parents == node)
        if not 0 <= ranks[0, depth] < len(children):
            break
        node, tokens = children[ranks[0, depth]], tokens + 1
    return tokens


@pytest.mark.parametrize("prompt", [[5], [1, 2, 3, 4, 9]])
@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle, few tokens", "eagle 1", "dflash", "dspark", "p-eagle"])
def test_replayed_steps_are_those_of_decoding(drafters, target, name, prompt):
    counted = count(drafters[name], prompt)
    assert counted.ranks.shape == (LENGTH - (len(prompt) == 1), 3)
    longest = 0
    for tree in TREES:
        decoder = Decoder(target, drafters[name].make_with_tree(tree), sampling=GREEDY, max_sequence_tokens=128)
        steps = [len(step.tokens) for step in decoder.decode_steps(prompt, LENGTH)]
        root = 0
        if len(prompt) == 1:  # the first root has a hidden state before it
            root = steps.pop(0) - 1
            assert root == 0 or name in ("dflash", "dspark")  # a block needs no context
        for taken in steps:
            if root >= len(counted.ranks) - tree.max_depth:
                break
            ranks = RootRanks([counted.ranks[root:].tolist()])
            assert first_step(tree, ranks.ranks[0]) == taken, (tree, root)
            longest, root = max(longest, taken), root + taken
    assert longest > 2, "nothing was accepted: this test would not see a wrong rank"


@pytest.mark.parametrize("name", ["medusa", "eagle, few tokens", "dspark", "p-eagle"])
def test_sums_at_temperature_0_follow_from_the_ranks(drafters, name):
    counted = count(drafters[name], [1, 2, 3, 4, 9], branching=4)
    reached, accepted = np.zeros(3), np.zeros((3, 4))
    for root in range(LENGTH):
        for depth in range(min(3, LENGTH - root)):
            reached[depth] += 1
            rank = counted.ranks[root, depth]
            if rank < 0:
                break
            accepted[depth, rank] += 1
    assert counted.counts.reached.tolist() == reached.tolist()
    assert counted.counts.accepted.tolist() == accepted.tolist()


def test_sums_above_temperature_0_are_probabilities_of_the_children(drafters):
    """A chi-squared statistic with 22 degrees of freedom over all roots at the first depth."""
    accepted, expected = np.zeros(23), np.zeros(23)
    for first in range(8):
        counted = count(drafters["eagle"], [first, 2, 3], Sampling(0.8))
        assert counted.counts.accepted.sum(1) == pytest.approx(counted.counts.reached)  # all tokens are children
        accepted += np.bincount(counted.ranks[:, 0], minlength=23)
        expected += counted.counts.accepted[0]
    assert accepted.sum() == 8 * LENGTH
    assert ((accepted - expected) ** 2 / expected).sum() < 50


def test_counts_are_restored_from_the_checkpoint(drafters, target, prompts, tmp_path, monkeypatch):
    sequences, settings, ticks = plain_sequences(target, prompts[:3], 10), Settings(branching=4, depth=3), []

    def measure(*, resume):
        checkpoint = Checkpoint(tmp_path / "checkpoint", "h", resume=resume)
        recorder = Recorder(FakeClock(), checkpoint, lambda: ticks.append(1))
        return measure_trees(drafters["eagle"], sequences, settings, recorder)

    first = measure(resume=False)
    monkeypatch.setattr(acceptance_module, "build_head_sequence", None)
    second = measure(resume=True)
    assert len(ticks) == 6
    assert first.acceptance == second.acceptance
    assert first.root_ranks.rows == second.root_ranks.rows
    assert sum(map(len, first.root_ranks.ranks)) == 3 * 10
