"""A draft that learns under a plan that is re-calibrated: weights and trees change in one text, which stays the target's."""

import itertools

import numpy as np
import pytest

from tests.runtime.learning.toy import FAST, late
from tests.support.decoded import PROMPT
from tests.support.invented_machines import DEPTH, NODES, profile_of, seconds
from tests.support.perturbed import perturbed_model
from tests.support.toy_distribution import FEW, LENGTH, SAMPLINGS, ToyDistribution
from treeopt.adaptation import Recalibration, recalibration
from treeopt.planner import plan
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.decoding.observer import StepSeconds, combine_observers
from treeopt.runtime.learning.learner import Learner
from treeopt.runtime.models.checkpoint import named_tensors
from treeopt.runtime.models.trainable import copy_model
from treeopt.trees import level_widths

TREE = level_widths([2, 1])
MACHINE = seconds(lambda n: 0.9 + 0.05 * n, lambda w: 0.05 + 0.005 * w, 0.02)
POOR = [[0.25, 0.1, 0.05, 0.02]] * DEPTH
SAMPLING = SAMPLINGS[0]
START = (2, 0, 3, 1, 4, 0, 3, 2, 0)


class Timed:
    """Tells an observer of every step as if it had taken what a machine takes, so that no clock decides."""

    def __init__(self, observer):
        self.observer = observer

    def attach(self, decoder):
        self.observer.attach(decoder)

    def largest_tree_nodes(self, tree):
        return self.observer.largest_tree_nodes(tree)

    def __call__(self, event):
        tree = event.proposal.tree
        drafted = sum(MACHINE.draft[width - 1] for width in tree.draft_widths)
        overhead = MACHINE.overhead if tree.nodes > 1 else 0.0
        self.observer(event._replace(seconds=StepSeconds(drafted, MACHINE.verify[tree.nodes - 1], overhead)))


class Restless(Recalibration):
    """Changes the tree at every check, whatever was counted."""

    def __init__(self, profile):
        super().__init__(profile, now_s=lambda: 0.0)
        self.following = itertools.cycle([level_widths([1]), level_widths([2, 2, 1]), level_widths([3, 1]), TREE])

    def _check(self):
        self._update_averages()
        tree = next(self.following)
        self._decoder.change_tree(tree)
        self._start(tree)


def both(draft, adapting):
    """Return a learner, and an observer that tells re-calibration and it of every step."""
    learner = Learner(draft, FAST)
    return learner, combine_observers(Timed(adapting), learner)


@pytest.fixture
def restless(monkeypatch):
    """Have every fourth step change the tree."""
    monkeypatch.setattr(recalibration, "CHECK_STEPS", 4)
    return Restless(profile_of(MACHINE, POOR))


def test_greedy_texts_are_plain_decodings(target, target_folder, restless):
    own = perturbed_model(target_folder, 0.5, device=target.device)
    learner, observer = both(own, restless)
    decoder = Decoder(target, own, TREE, temperature=0.0, on_step=observer)
    plain = Decoder(target, None, None, temperature=0.0)
    for prompt in (PROMPT, PROMPT[:4], [1]):
        trees = set()
        found = []
        for step in decoder.decode_steps(prompt, 80):
            found += step.tokens
            trees.add(decoder.tree)
        assert found[:80] == list(plain.generate(prompt, 80))
        assert len(trees) > 2
    assert learner.stats.updates > 3


@pytest.fixture(scope="module")
def toy_folder(make_checkpoint):
    """Return the folder of a target of 5 tokens."""
    sizes = {"vocab_size": 5, "num_hidden_layers": 1, "tie_word_embeddings": False, "initializer_range": 0.25}
    return make_checkpoint(seed=5, **sizes)


@pytest.fixture(scope="module")
def toy(toy_folder):
    return load_model(toy_folder)


@pytest.fixture
def p_value(toy, toy_folder, logits_after, chi_squared, restless):
    """Return the function that decodes texts while weights and trees change, and tells how probable their beginnings are."""

    def p_value(kind=Decoder):
        own = perturbed_model(toy_folder, 1.0)
        before = named_tensors(copy_model(own))
        learner, observer = both(own, restless)
        numbers = {"temperature": SAMPLING.temperature, "top_p": SAMPLING.top_p, "top_k": SAMPLING.top_k}
        decoder = kind(toy, own, TREE, rule="sequoia", seed=1, on_step=observer, **numbers)
        counts, steps = np.zeros((5,) * LENGTH), 0
        for _ in range(FEW):
            found = list(decoder.stream(START, LENGTH))
            counts[tuple(token for step in found for token in step)] += 1
            steps += len(found)
        assert steps < FEW * LENGTH
        joint = ToyDistribution(None, logits_after, None).joint(toy, START, SAMPLING)
        assert learner.stats.updates > 5
        assert any(not each.equal(before[name]) for name, each in named_tensors(own).items())
        return chi_squared(counts.sum((2, 3)), joint.sum((2, 3)))  # few cells, so that few texts tell

    return p_value


def test_texts_follow_the_target_while_weights_and_trees_change(p_value):
    assert p_value() > 1e-3


def test_a_draft_verified_against_newer_weights_is_found(p_value, toy_folder, logits_after):
    """Negative control: between sampling and verification the weights change, and the newer distribution is looked up."""
    assert p_value(late(perturbed_model(toy_folder, 4.0, seed=1), logits_after, SAMPLING)) < 1e-6


@pytest.mark.slow
def test_what_learning_brought_leads_to_a_larger_tree(target, target_folder):
    """The profile was measured with a poor draft; while that learns, re-calibration sees it accepted and drafts more."""
    profile = profile_of(MACHINE, POOR)
    first = plan(profile, NODES).choice.tree
    found = {}
    for learns in (False, True):
        own = perturbed_model(target_folder, 0.2, device=target.device)
        adapting = Recalibration(profile, now_s=lambda: 0.0)
        _, together = both(own, adapting)
        decoder = Decoder(target, own, first, temperature=0.0, on_step=together if learns else Timed(adapting))
        for number in range(18):
            list(decoder.generate([number % 2, *PROMPT[:4]], 60))
        found[learns] = decoder.tree
    assert found[True].max_depth > max(first.max_depth, found[False].max_depth)
