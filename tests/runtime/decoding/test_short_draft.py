"""A draft model that takes shorter texts than the target stops drafting there, and the text goes on plainly."""

import pytest

from tests.support.decoded import PROMPT
from tests.support.table_model import Table, counted
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, ExpandingDrafter, load_model
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.runtime.models.hf import load_adapter
from treeopt.trees import chain, level_widths
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting

LIMIT = 32
"""Tokens that the draft takes, of the target's 128."""


@pytest.fixture(scope="module", params=["built in", "transformers"])
def short(request, make_checkpoint):
    """Return the target with a lower limit, so that every draft is right."""
    folder = make_checkpoint(seed=1, tie_word_embeddings=False, max_position_embeddings=LIMIT)
    return load_adapter(folder) if request.param == "transformers" else load_model(folder)


def drafters(draft):
    return {
        "chain": (draft, chain(3)),
        "tree": (draft, level_widths([2, 2, 1])),
        "dynamic tree": (ExpandingDrafter(draft, DynamicTree(top_k=2, depth=3, nodes=6), capacity=128), None),
        "specexec": (
            ExpandingDrafter(draft, SpecExecSetting(budget=8, branching=2, batch=2, max_passes=4), capacity=128),
            None,
        ),
    }


@pytest.mark.parametrize("name", ["chain", "tree", "dynamic tree", "specexec"])
def test_it_drafts_up_to_its_limit_and_the_text_goes_on_to_the_targets(target, short, greedy_text, name):
    decoder = Decoder(target, *drafters(short)[name], temperature=0.0)
    steps = list(decoder.stream(PROMPT, 128 - len(PROMPT)))
    assert [token for step in steps for token in step] == greedy_text(target, PROMPT, 128 - len(PROMPT))
    length, sizes = len(PROMPT), {True: set(), False: set()}
    for step in steps[:-1]:
        sizes[length <= LIMIT].add(len(step))
        length += len(step)
    assert sizes[False] == {1}
    assert sizes[True] == {4} if name in ("chain", "tree") else max(sizes[True]) > 1


@pytest.mark.parametrize("name", ["tree", "specexec"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_sequences_of_a_batch_stop_each_at_its_own_time(target, short, greedy_text, name, batch_size):
    prompts = [PROMPT, [7] * 60, [3, 1] * 15, [2] * LIMIT, [5] * (LIMIT + 1)]
    texts = [[] for _ in prompts]
    decoder = Decoder(target, *drafters(short)[name], temperature=0.0)
    for number, tokens in decoder.generate_all(prompts, 40, batch_size=batch_size):
        texts[number] += tokens
    assert texts == [greedy_text(target, prompt, 40) for prompt in prompts]


def test_a_text_after_one_that_was_too_long_is_drafted_again(target, short):
    decoder = Decoder(target, short, chain(3), temperature=0.0, cuda_graphs=True)
    assert [len(step) for step in decoder.stream([7] * 60, 3)] == [1] * 3
    assert [len(step) for step in decoder.stream(PROMPT, 8)] == [4] * 2


def test_another_drafter_may_take_its_place_beyond_the_limit(target, short, greedy_text):
    decoder = Decoder(target, short, chain(3), temperature=0.0)
    steps, text = decoder.stream(PROMPT, 80), []
    for number, step in enumerate(steps):
        text += step
        if number % 3 == 1:
            decoder.change_drafter(PromptLookupDrafter(2, 3))
        elif number % 3 == 2:
            decoder.change_tree(chain(3))
    assert text == greedy_text(target, PROMPT, 80)


@pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal"])
def test_sampled_texts_are_the_targets(rule, chi_squared):
    """The draft takes 3 tokens, so that it stops in the middle of most texts, after one token or after two."""
    target, draft = Table.random(5, 4, "target"), Table.random(6, 4, "draft")
    draft.config.max_positions = 3
    decoder = Decoder(target, draft, level_widths([2, 1]), rule=rule, temperature=1.0, seed=2)
    assert chi_squared(counted(decoder, (0, 2), 4, 600, 4)[0], target.joint(2, 4, Sampling(1.0))) > 1e-3
