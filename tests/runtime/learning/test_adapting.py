"""Online learning with re-calibration: weights and trees change within a text, which stays the target's."""

import itertools

import numpy as np
import pytest

from tests.runtime.learning.toy import FAST
from tests.support.decoded import PROMPT
from tests.support.invented_machines import DEPTH, NODES, profile_of, seconds
from tests.support.perturbed import perturbed_model
from tests.support.steppers import decoder_with
from tests.support.toy_distribution import FEW, LENGTH, SAMPLINGS, ToyDistribution
from treeopt.adaptation import Recalibration, recalibration
from treeopt.planner import plan
from treeopt.runtime import Decoder, distribution, load_model
from treeopt.runtime.decoding.observer import StepSeconds, combine_observers
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.learning.learner import Learner
from treeopt.trees import level_widths

TREE = level_widths([2, 1])
MACHINE = seconds(lambda n: 0.9 + 0.05 * n, lambda w: 0.05 + 0.005 * w, 0.02)
POOR = [[0.25, 0.1, 0.05, 0.02]] * DEPTH
SAMPLING = SAMPLINGS[0]
START = (2, 0, 3, 1, 4, 0, 3, 2, 0)


class WithTimesOfMachine:
    """An observer of steps that take the times of `MACHINE`, so that no clock matters."""

    def __init__(self, observer):
        self.observer = observer

    def attach(self, decoder):
        self.observer.attach(decoder)

    def largest_tree_nodes(self, tree):
        return self.observer.largest_tree_nodes(tree)

    def __call__(self, event):
        tree = event.proposal.tree
        draft_s = sum(MACHINE.draft[width - 1] for width in tree.draft_widths)
        overhead_s = MACHINE.overhead if tree.nodes > 1 else 0.0
        self.observer(event._replace(seconds=StepSeconds(draft_s, MACHINE.verify[tree.nodes - 1], overhead_s)))


class AlwaysChanging(Recalibration):
    """Changes the tree at every check."""

    def __init__(self, profile):
        super().__init__(profile, now_s=lambda: 0.0)
        self.trees = itertools.cycle([level_widths([1]), level_widths([2, 2, 1]), level_widths([3, 1]), TREE])

    def _check(self):
        self._update_averages()
        tree = next(self.trees)
        self._decoder.change_tree(tree)
        self._start(tree)


def learn_and_adapt(draft, adapting):
    """Return a learner, and an observer that calls re-calibration and the learner."""
    learner = Learner(draft, FAST)
    return learner, combine_observers(WithTimesOfMachine(adapting), learner)


@pytest.fixture
def changing(monkeypatch):
    """Return an observer that changes the tree in every fourth step."""
    monkeypatch.setattr(recalibration, "CHECK_STEPS", 4)
    return AlwaysChanging(profile_of(MACHINE, POOR))


def test_greedy_outputs_equal_plain_decoding(target, target_folder, changing):
    draft = perturbed_model(target_folder, 0.5, device=target.device)
    learner, observer = learn_and_adapt(draft, changing)
    decoder = Decoder(target, draft, TREE, temperature=0.0, on_step=observer)
    plain = Decoder(target, None, None, temperature=0.0)
    for prompt in (PROMPT, [1]):
        trees, text = set(), []
        for step in decoder.decode_steps(prompt, 80):
            text += step.tokens
            trees.add(decoder.tree)
        assert text[:80] == list(plain.generate(prompt, 80))
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
def p_value(toy, toy_folder, logits_after, chi_squared, changing):
    """Return the function that decodes outputs while weights and trees change, and returns the p-value of their beginnings."""

    def p_value(kind=Decoder):
        draft = perturbed_model(toy_folder, 1.0)
        learner, observer = learn_and_adapt(draft, changing)
        options = {"temperature": SAMPLING.temperature, "top_p": SAMPLING.top_p, "top_k": SAMPLING.top_k}
        decoder = kind(toy, draft, TREE, rule="sequoia", seed=1, on_step=observer, **options)
        counts, steps = np.zeros((5,) * LENGTH), 0
        for _ in range(FEW):
            text = list(decoder.stream(START, LENGTH))
            counts[tuple(token for step in text for token in step)] += 1
            steps += len(text)
        assert steps < FEW * LENGTH
        assert learner.stats.updates > 5
        joint = ToyDistribution(None, logits_after, None).joint(toy, START, SAMPLING)
        return chi_squared(counts.sum((2, 3)), joint.sum((2, 3)))  # few cells, which few outputs fill

    return p_value


def test_outputs_follow_the_target_while_weights_and_trees_change(p_value):
    assert p_value() > 1e-3


def late_decoder(newer, logits_after):
    """Return a decoder class that verifies drafts against the distributions of `newer` instead of those sampled from."""

    class LateStepper(Stepper):
        def draft(self, sequences):
            (proposal,) = super().draft(sequences)
            probs = proposal.probs.clone()
            for node in proposal.tree.child_counts.nonzero()[0].tolist():
                path, above = [], node
                while above > 0:
                    path.insert(0, int(proposal.tokens[above]))
                    above = int(proposal.tree.parents[above])
                probs[node] = distribution(logits_after(newer, [*self.tokens, *path])[None], SAMPLING)[0]
            return [proposal._replace(probs=probs)]

        def commit(self, sequences, results):
            super().commit(sequences, results)
            self.tokens += results[0].tokens

    class LateDecoder(decoder_with(LateStepper)):
        def start(self, token_ids, **options):
            super().start(token_ids, **options)
            self._stepper.tokens = list(token_ids)

    return LateDecoder


@pytest.mark.slow
def test_verification_against_newer_weights_is_detected(p_value, toy_folder, logits_after):
    """Negative control: weights change between sampling and verification."""
    assert p_value(late_decoder(perturbed_model(toy_folder, 4.0, seed=1), logits_after)) < 1e-6


@pytest.mark.slow
def test_learning_leads_to_a_larger_tree(target, target_folder):
    """The profile was measured with a poor draft, which learns; re-calibration then drafts more."""
    profile = profile_of(MACHINE, POOR)
    first = plan(profile, NODES).choice.tree
    trees = {}
    for learns in (False, True):
        draft = perturbed_model(target_folder, 0.2, device=target.device)
        adapting = Recalibration(profile, now_s=lambda: 0.0)
        _, observer = learn_and_adapt(draft, adapting)
        observer = observer if learns else WithTimesOfMachine(adapting)
        decoder = Decoder(target, draft, first, temperature=0.0, on_step=observer)
        for number in range(18):
            list(decoder.generate([number % 2, *PROMPT[:4]], 60))
        trees[learns] = decoder.tree
    assert trees[True].max_depth > max(first.max_depth, trees[False].max_depth)
