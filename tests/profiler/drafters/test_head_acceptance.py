"""The ranks below every root of heads that fill static trees: replayed, any tree takes the very steps that decoding takes."""

import numpy as np
import pytest
import torch

from tests.support import dflash_heads
from tests.support.eagle_heads import eagle1, make_head, save_head, speculators, speculators_p_eagle
from tests.support.head_acceptance import loaded
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.drafters.acceptance import RootCounts, measure_head_acceptance, root_counter
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
    return {name: loaded(target, each) for name, each in heads.items()}


def counted(drafter, prompt, sampling=GREEDY, branching=23):
    decoder = Decoder(drafter.target, None, sampling=sampling, max_sequence_tokens=len(prompt) + LENGTH)
    tokens = list(decoder.generate(prompt, LENGTH, seed=0))
    return root_counter(drafter, {0: prompt}, {0: tokens}, sampling=sampling, branching=branching, depth=3)(0)


@pytest.mark.parametrize("prompt", [[5], [5, 3], [1, 2, 3, 4, 9]])
@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle, few tokens", "eagle 1", "dflash", "dspark", "p-eagle"])
def test_a_replay_takes_the_steps_that_decoding_takes(drafters, target, name, prompt):
    found = counted(drafters[name], prompt)
    assert found.ranks.shape == (LENGTH - (len(prompt) == 1), 3)
    lengths = []
    for tree in TREES:
        decoder = Decoder(target, drafters[name].make_with_tree(tree), sampling=GREEDY, max_sequence_tokens=128)
        steps = [len(step.tokens) for step in decoder.decode_steps(prompt, LENGTH)]
        place, replayed = 0, []
        if len(prompt) == 1:  # ranks begin where a hidden state precedes the root
            place = steps.pop(0) - 1
            assert place == 0 or name in ("dflash", "dspark")  # a block needs no context
        for taken in steps:
            if place >= len(found.ranks) - tree.max_depth:
                break
            ranks = RootRanks([found.ranks[place:].tolist()])
            replayed.append(first_step(tree, ranks.ranks[0]))
            assert replayed[-1] == taken, (tree, place)
            place += taken
        lengths += replayed
    assert max(lengths) > 2, "nothing was accepted: this test would not see a wrong rank"


def first_step(tree, ranks):
    """Walk a tree down from its root, child by child."""
    node, tokens = 0, 1
    for depth in range(min(tree.max_depth, *ranks.shape)):
        children = np.flatnonzero(tree.parents == node)
        if not 0 <= ranks[0, depth] < len(children):
            break
        node, tokens = children[ranks[0, depth]], tokens + 1
    return tokens


def test_the_sums_are_those_of_the_ranks_at_temperature_0(drafters):
    """Every accepted token is the child of its rank, and of no other."""
    for name, drafter in drafters.items():
        found = counted(drafter, [1, 2, 3, 4, 9], branching=4)
        reached, accepted = np.zeros(3), np.zeros((3, 4))
        for root in range(LENGTH):
            for depth in range(min(3, LENGTH - root)):
                reached[depth] += 1
                rank = found.ranks[root, depth]
                if rank < 0:
                    break
                accepted[depth, rank] += 1
        assert found.counts.reached.tolist() == reached.tolist(), name
        assert found.counts.accepted.tolist() == accepted.tolist(), name


def test_sampling_counts_the_probability_of_every_child(drafters):
    """At the first depth, where every root counts, the sums are the target's probabilities of what the head says."""
    drafter, sampling = drafters["eagle"], Sampling(0.8)
    hits, expected = np.zeros(23), np.zeros(23)
    for first in range(8):
        found = counted(drafter, [first, 2, 3], sampling)
        assert found.counts.accepted.sum(1) == pytest.approx(found.counts.reached)  # all of the vocabulary are children
        hits += np.bincount(found.ranks[:, 0], minlength=23)
        expected += found.counts.accepted[0]
    assert hits.sum() == 8 * LENGTH
    assert ((hits - expected) ** 2 / expected).sum() < 50  # 22 degrees of freedom


def test_a_row_of_the_checkpoint_gives_the_text_again(drafters, tmp_path):
    found = counted(drafters["eagle"], [1, 2, 3])
    again = RootCounts.from_numbers(found.numbers)
    assert again.ranks.tolist() == found.ranks.tolist()
    assert again.counts.numbers == found.counts.numbers

    def never(number):
        raise AssertionError(number)

    told = []
    open_checkpoint = lambda resume: Checkpoint(tmp_path / "checkpoint", "heading", resume=resume)
    first = measure_head_acceptance(
        lambda _: found, range(3), GREEDY, "kind", open_checkpoint(False), lambda: told.append(1)
    )
    second = measure_head_acceptance(never, range(3), GREEDY, "kind", open_checkpoint(True), lambda: told.append(1))
    assert len(told) == 6
    assert first.acceptance.table.p.tolist() == second.acceptance.table.p.tolist()
    assert first.ranks.rows == second.ranks.rows
