"""Decoding while the draft learns, and decoding that verifies against what another model says."""

from tests.support.steppers import decoder_with
from treeopt.runtime import Decoder, distribution
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.learning.learner import Learner, LearningSettings
from treeopt.runtime.models.trainable import copy_model

FAST = LearningSettings(rate=3e-3, positions=8, window_tokens=64, max_time_share=1e9)
"""For models of a few thousand weights."""


def learning_decoder(target, draft, tree, settings=FAST, **options):
    """Return a decoder whose draft learns, and the learner; the draft given stays as it is."""
    own = copy_model(draft)
    learner = Learner(own, settings)
    return Decoder(target, own, tree, on_step=learner, **options), learner


def late(newer, logits_after, sampling):
    """Return a kind of decoder that verifies drafts against what another model says where they were sampled."""

    class LateStepper(Stepper):
        def draft(self, sequences):
            (proposal,) = super().draft(sequences)
            probs = proposal.probs.clone()
            for node in proposal.tree.child_counts.nonzero()[0].tolist():
                path, above = [], node
                while above > 0:
                    path.insert(0, int(proposal.tokens[above]))
                    above = int(proposal.tree.parents[above])
                probs[node] = distribution(logits_after(newer, [*self.text, *path])[None], sampling)[0]
            return [proposal._replace(probs=probs)]

        def commit(self, sequences, results):
            super().commit(sequences, results)
            self.text += results[0].tokens

    class Late(decoder_with(LateStepper)):
        def start(self, token_ids, **options):
            super().start(token_ids, **options)
            self._stepper.text = list(token_ids)

    return Late
