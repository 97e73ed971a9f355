"""The first tokens that the bundled pair decodes after a prompt follow the target's own distribution.

The distribution is computed from the target alone: all first tokens, and what follows the likely ones.  Texts that
begin otherwise are one cell, and so are rare ones.  The statistic is the total variation from this distribution in
units of the noise floor, the largest among 200 samples of the same count that were sampled from the distribution
directly.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support import broken
from treeopt.records.rules import LOSSY_RULES
from treeopt.runtime import Decoder
from treeopt.runtime.rules import RULES
from treeopt.runtime.rules.selection import TopDown
from treeopt.trees import TokenTree

pytestmark = pytest.mark.slow

PROMPT = "import"
LENGTH = 3
TEXTS = 400
LIKELY = 2e-3
"""Texts less likely are not continued."""
RARE = 3.0
"""Texts expected less often than this are one cell."""
ALLOWED, REJECTED = 1.1, 2.0
TREE = TokenTree([-1, 0, 0, 0, 1, 1, 2])


@pytest.fixture(scope="module")
def pair(bundled_pair):
    return bundled_pair


@pytest.fixture(scope="module")
def prompt(pair):
    return pair.tokenizer.encode(PROMPT)


@pytest.fixture(scope="module")
def distribution(pair, prompt, logits_after):
    """Return {text: probability} of likely texts of LENGTH tokens."""
    texts = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for text, probability in texts.items():
            after = torch.softmax(logits_after(pair.target, [*prompt, *text]).double(), -1).numpy() * probability
            longer |= {(*text, int(token)): after[token] for token in np.flatnonzero(after > LIKELY)}
        texts = longer
    return texts


def cells(distribution, count):
    """Return the texts that have a cell of their own, and the distribution of the cells, the last for all others."""
    common = sorted(text for text, probability in distribution.items() if probability * count >= RARE)
    own = np.array([distribution[text] for text in common])
    return {text: i for i, text in enumerate(common)}, np.append(own, 1 - own.sum())


def excess(distribution, texts):
    """Return the total variation of texts from the distribution, in units of the noise floor."""
    index, expected = cells(distribution, len(texts))
    counts = np.bincount([index.get(text, len(index)) for text in texts], minlength=len(expected))
    direct = np.random.default_rng(0).multinomial(len(texts), expected, 200)
    distance = np.abs(np.vstack([counts, direct]) / len(texts) - expected).sum(1)
    return distance[0] / distance[1:].max()


def decoded(pair, prompt, rule, **changes):
    decoder = Decoder(pair.target, pair.draft, TREE, rule=rule, temperature=1.0, seed=3, **changes)
    return [tuple(decoder.generate(prompt, LENGTH)) for _ in range(TEXTS)]


def test_there_is_enough_to_tell_distributions_apart_by(distribution):
    index, expected = cells(distribution, TEXTS)
    assert len(index) > 20
    assert expected[-1] < 0.6


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in LOSSY_RULES])
def test_the_first_tokens_follow_the_distribution_of_the_target(pair, prompt, distribution, rule):
    assert excess(distribution, decoded(pair, prompt, rule)) < ALLOWED


def test_the_lossy_rule_is_found(pair, prompt, distribution):
    assert excess(distribution, decoded(pair, prompt, "typical", lossy=True)) > REJECTED


@pytest.mark.parametrize(
    "changes",
    [
        {"draw": broken.draw_likeliest},
        {"accept_test": broken.argmax_accepted, "by_level": False, "selection": TopDown()},
    ],
    ids=["the likeliest children in the place of sampled ones", "the target's likeliest token accepted"],
)
def test_a_mistake_is_found(pair, prompt, distribution, changes, monkeypatch):
    broken.verify_with_tensors(monkeypatch)
    monkeypatch.setitem(RULES, "traversal", replace(RULES["traversal"], **changes))
    assert excess(distribution, decoded(pair, prompt, "traversal")) > REJECTED
