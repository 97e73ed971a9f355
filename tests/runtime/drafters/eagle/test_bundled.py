"""The bundled EAGLE head: it reads the hidden states that it was trained on, and decodes as the table predicts."""

from types import SimpleNamespace

import pytest

from tests.support.head_acceptance import decoded_rate, eagle_counts, generated, head_acceptance
from treeopt import bundled as bundle
from treeopt.records.sampling import GREEDY
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.runtime.drafters.medusa import load_medusa
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.texts.prompts import load_prompts, profile_prompts
from treeopt.trees import chain


@pytest.fixture(scope="module")
def bundled(bundled_pair):
    """Return the bundled target, its head and prompts of profiles."""
    prompts = [bundled_pair.tokenizer.encode(text) for text in profile_prompts(load_prompts())[:6]]
    return SimpleNamespace(
        target=bundled_pair.target, head=load_eagle(bundle.EAGLE, bundled_pair.target), prompts=prompts
    )


def test_other_hidden_states_are_accepted_less(bundled):
    target, prompt = bundled.target, bundled.prompts[0]
    assert bundled.head.requested_states.layer_ids == (2, 4, 5)
    accepted = []
    for layer_ids in ((2, 4, 5), (1, 3, 4), (3, 5, 6)):
        head = load_eagle(bundle.EAGLE, target, layer_ids=layer_ids)
        text = generated(target, prompt[:80], 60, GREEDY, 0, head.requested_states)
        accepted.append(float(eagle_counts(head, text, 1, 4).accepted.sum()))  # of a chain of 4
    assert max(accepted[1:]) < 0.93 * accepted[0]


@pytest.mark.slow
def test_decoding_accepts_as_the_table_predicts_and_more_than_medusa(bundled):
    target, head, prompts, positions = bundled.target, bundled.head, bundled.prompts, 60
    tables = [
        head_acceptance(target, heads, prompts, sampling=GREEDY, positions=6 * positions).table
        for heads in (head, load_medusa(bundle.MEDUSA, target))
    ]
    expected, medusa = (table.expected_tokens(chain(4)) for table in tables)
    assert expected > medusa
    rate, error = decoded_rate(target, StaticTreeDrafter(head, chain(4), capacity=1024), prompts, positions)
    assert abs(rate - expected) < 3 * error
    assert error < 0.1 * rate
