"""The head that ships: it drafts what its target says, reads the right hidden states, and leaves the text alone."""

from types import SimpleNamespace

import pytest

from tests.support.head_acceptance import decoded_rate, eagle_counts, generated, head_acceptance
from treeopt import bundled as bundle
from treeopt.records.sampling import GREEDY
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.eagle import EagleDrafter, load_eagle
from treeopt.runtime.drafters.medusa import load_medusa
from treeopt.texts.prompts import load_prompts, profile_prompts
from treeopt.trees import chain, level_widths


@pytest.fixture(scope="module")
def bundled(bundled_pair):
    """Return the bundled target, its head and prompts of profiles."""
    prompts = [bundled_pair.tokenizer.encode(text) for text in profile_prompts(load_prompts())[:12]]
    return SimpleNamespace(
        target=bundled_pair.target, head=load_eagle(bundle.EAGLE, bundled_pair.target), prompts=prompts
    )


def test_it_reads_the_states_that_it_was_trained_on_and_others_score_worse(bundled):
    target, head, prompt = bundled.target, bundled.head, bundled.prompts[0]
    assert head.requested_states.layer_ids == (2, 4, 5)
    scores = []
    for layer_ids in ((2, 4, 5), (1, 3, 4), (3, 5, 6)):
        other = load_eagle(bundle.EAGLE, target, layer_ids=layer_ids)
        text = generated(target, prompt[:80], 60, GREEDY, 0, other.requested_states)
        scores.append(float(eagle_counts(other, text, 1, 4).accepted.sum()))  # drafted tokens of a chain of 4
    assert max(scores[1:]) < 0.93 * scores[0]


def test_the_text_is_plain_decodings(bundled):
    prompt = bundled.prompts[1][:60]
    drafter = EagleDrafter(bundled.head, level_widths([2, 2, 1]), capacity=120)
    texts = [list(Decoder(bundled.target, each, temperature=0.0).generate(prompt, 24)) for each in (drafter, None)]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_decoding_yields_the_tokens_that_the_table_expects_and_more_than_medusa(bundled):
    target, head, prompts, positions = bundled.target, bundled.head, bundled.prompts, 60
    found = head_acceptance(target, head, prompts, sampling=GREEDY, positions=12 * positions)
    other = head_acceptance(
        target, load_medusa(bundle.MEDUSA, target), prompts, sampling=GREEDY, positions=12 * positions
    )
    tree = chain(4)
    assert found.table.expected_tokens(tree) > other.table.expected_tokens(tree)
    rate, error = decoded_rate(target, EagleDrafter(head, tree, capacity=1024), prompts, positions)
    assert abs(rate - found.table.expected_tokens(tree)) < 3 * error
    assert error < 0.1 * rate
