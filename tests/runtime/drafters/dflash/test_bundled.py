"""The bundled DFlash head: it leaves outputs alone, reads the layers that it was trained on, and drafts what the table expects."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.head_acceptance import decoded_rate, generated, head_acceptance
from treeopt import bundled as bundle
from treeopt.profiler.acceptance.heads import count_children, dflash_children
from treeopt.records.sampling import GREEDY
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.dflash import DFlashDrafter, load_dflash
from treeopt.texts.prompts import load_prompts, profile_prompts
from treeopt.trees import chain, level_widths


@pytest.fixture(scope="module")
def bundled(bundled_pair):
    """Return the bundled target, its head and prompts of profiles."""
    prompts = [bundled_pair.tokenizer.encode(text) for text in profile_prompts(load_prompts())[:12]]
    head = load_dflash(bundle.DFLASH, bundled_pair.target)
    return SimpleNamespace(target=bundled_pair.target, head=head, prompts=prompts)


def test_the_text_is_plain_decodings(bundled):
    prompt = bundled.prompts[1][:60]
    drafter = DFlashDrafter(bundled.head, level_widths([2, 2, 1]), capacity=120)
    texts = [list(Decoder(bundled.target, each, temperature=0.0).generate(prompt, 24)) for each in (drafter, None)]
    assert texts[0] == texts[1]


def accepted_of(head, target, prompt):
    """Return the draft tokens of chains that are accepted, every position as a root once."""
    text = generated(target, prompt[:80], 60, GREEDY, 0, head.requested_states)
    return float(count_children(dflash_children(head, text, 1), text).accepted.sum())


def accepted_from(layers, bundled, prompts):
    head = replace(bundled.head, requested_states=bundled.head.requested_states._replace(layer_ids=layers))
    return sum(accepted_of(head, bundled.target, prompt) for prompt in prompts)


def test_it_reads_the_layers_that_it_was_trained_on(bundled):
    assert bundled.head.requested_states.layer_ids == (2, 4, 5)
    right, wrong = (accepted_from(layers, bundled, bundled.prompts[:1]) for layers in ((2, 4, 5), (0, 1, 2)))
    assert wrong < 0.5 * right


@pytest.mark.slow
def test_neighbouring_layers_score_worse(bundled):
    right, *wrong = (
        accepted_from(layers, bundled, bundled.prompts[:10]) for layers in ((2, 4, 5), (1, 3, 4), (3, 5, 6))
    )
    assert max(wrong) < 0.98 * right


def test_slots_shifted_by_one_score_worse(bundled):
    right = accepted_of(bundled.head, bundled.target, bundled.prompts[0])
    shifted = accepted_of(replace(bundled.head, shifted=True), bundled.target, bundled.prompts[0])
    assert shifted < 0.5 * right


@pytest.mark.slow
def test_decoding_yields_the_tokens_that_the_table_expects(bundled):
    target, head, prompts, positions = bundled.target, bundled.head, bundled.prompts, 60
    found = head_acceptance(target, head, prompts, sampling=GREEDY, positions=12 * positions)
    tree = chain(4)
    rate, error = decoded_rate(target, DFlashDrafter(head, tree, capacity=1024), prompts, positions)
    assert abs(rate - found.table.expected_tokens(tree)) < 3 * error
    assert error < 0.1 * rate
    assert rate > 1.5
