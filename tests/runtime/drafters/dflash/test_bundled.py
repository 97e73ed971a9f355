"""The bundled DFlash head: it reads the layers that it was trained on, and decodes as the table predicts."""

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


def test_output_is_plain_decodings(bundled):
    prompt = bundled.prompts[1][:60]
    drafter = DFlashDrafter(bundled.head, level_widths([2, 2, 1]), capacity=120)
    outputs = [list(Decoder(bundled.target, each, temperature=0.0).generate(prompt, 24)) for each in (drafter, None)]
    assert outputs[0] == outputs[1]


def count_accepted(bundled, head, prompts=1):
    """Return the accepted draft tokens of chains below every position."""
    accepted = 0.0
    for prompt in bundled.prompts[:prompts]:
        text = generated(bundled.target, prompt[:80], 60, GREEDY, 0, head.requested_states)
        accepted += float(count_children(dflash_children(head, text, 1), text).accepted.sum())
    return accepted


def with_layers(head, *layer_ids):
    return replace(head, requested_states=head.requested_states._replace(layer_ids=layer_ids))


def test_other_layers_and_shifted_slots_are_accepted_less(bundled):
    head = bundled.head
    assert head.requested_states.layer_ids == (2, 4, 5)
    others = [count_accepted(bundled, other) for other in (with_layers(head, 0, 1, 2), replace(head, shifted=True))]
    assert max(others) < 0.5 * count_accepted(bundled, head)


@pytest.mark.slow
def test_neighbouring_layers_are_accepted_less(bundled):
    layers = ((2, 4, 5), (1, 3, 4), (3, 5, 6))
    accepted, *others = (count_accepted(bundled, with_layers(bundled.head, *each), 10) for each in layers)
    assert max(others) < 0.98 * accepted


@pytest.mark.slow
def test_decoding_accepts_as_the_table_predicts(bundled):
    target, head, prompts, positions = bundled.target, bundled.head, bundled.prompts, 60
    table = head_acceptance(target, head, prompts, sampling=GREEDY, positions=12 * positions).table
    rate, error = decoded_rate(target, DFlashDrafter(head, chain(4), capacity=1024), prompts, positions)
    assert abs(rate - table.expected_tokens(chain(4))) < 3 * error
    assert error < 0.1 * rate
    assert rate > 1.5
