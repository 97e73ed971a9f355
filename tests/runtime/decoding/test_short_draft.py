"""A draft model that takes shorter sequences than the target stops drafting there, and decoding goes on plainly."""

from dataclasses import replace

import pytest

from tests.support.decoded import PROMPT, joined
from tests.support.table_model import Table, counted
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, ExpandingDrafter, load_model
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import chain, level_widths
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting

LIMIT = 32
"""Tokens that the draft model takes, of the target's 128."""
SPECEXEC = SpecExecSetting(budget=8, branching=2, batch=2, max_passes=4)


@pytest.fixture(scope="module")
def short(make_checkpoint):
    """Return the target with a lower limit, so that every draft is accepted."""
    return load_model(make_checkpoint(seed=1, tie_word_embeddings=False, max_position_embeddings=LIMIT))


def drafter_arguments(name, draft):
    if name == "static tree":
        return draft, level_widths([2, 2, 1])
    policy = SPECEXEC if name == "specexec" else DynamicTree(top_k=2, depth=3, nodes=6)
    return (ExpandingDrafter(draft, policy, capacity=128),)


@pytest.mark.parametrize("name", ["static tree", "dynamic tree", "specexec"])
def test_drafting_ends_at_the_drafts_limit_and_decoding_at_the_targets(target, short, greedy_text, name):
    decoder = Decoder(target, *drafter_arguments(name, short), temperature=0.0)
    steps = list(decoder.stream(PROMPT, 128 - len(PROMPT)))
    assert joined(steps) == greedy_text(target, PROMPT, 128 - len(PROMPT))
    length, sizes = len(PROMPT), {True: set(), False: set()}
    for step in steps[:-1]:
        sizes[length <= LIMIT].add(len(step))
        length += len(step)
    assert sizes[False] == {1}
    assert sizes[True] == {4} if name == "static tree" else max(sizes[True]) > 1


@pytest.mark.parametrize("name", ["static tree", "specexec"])
def test_each_sequence_of_a_batch_ends_drafting_at_its_own_step(target, short, greedy_text, name):
    prompts = [PROMPT, [7] * 60, [3, 1] * 15, [2] * LIMIT, [5] * (LIMIT + 1)]
    outputs = [[] for _ in prompts]
    decoder = Decoder(target, *drafter_arguments(name, short), temperature=0.0)
    for number, tokens in decoder.generate_all(prompts, 40, batch_size=3):
        outputs[number] += tokens
    assert outputs == [greedy_text(target, prompt, 40) for prompt in prompts]


def test_the_next_sequence_is_drafted_again(target, short):
    decoder = Decoder(target, short, chain(3), temperature=0.0, cuda_graphs=True)
    assert [len(step) for step in decoder.stream([7] * 60, 3)] == [1] * 3
    assert [len(step) for step in decoder.stream(PROMPT, 8)] == [4] * 2


def test_another_drafter_may_take_over_beyond_the_limit(target, short, greedy_text):
    decoder = Decoder(target, short, chain(3), temperature=0.0)
    text = []
    for number, step in enumerate(decoder.stream(PROMPT, 80)):
        text += step
        if number % 3 == 1:
            decoder.change_drafter(PromptLookupDrafter(2, 3))
        elif number % 3 == 2:
            decoder.change_tree(chain(3))
    assert text == greedy_text(target, PROMPT, 80)


@pytest.mark.parametrize("rule", ["sequoia", "traversal"])
def test_sampled_sequences_follow_the_targets_distribution(rule, chi_squared):
    """The draft takes 3 tokens, so drafting ends after one or two tokens of most sequences."""
    target, draft = Table.random(5, 4, "target"), Table.random(6, 4, "draft")
    draft.config = replace(draft.config, max_positions=3)
    decoder = Decoder(target, draft, level_widths([2, 1]), rule=rule, temperature=1.0, seed=2)
    assert chi_squared(counted(decoder, (0, 2), 4, 500, 4)[0], target.joint(2, 4, Sampling(1.0))) > 1e-3
