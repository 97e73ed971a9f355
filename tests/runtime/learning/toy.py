"""Settings of learning for toy models, and decoders with a learning draft model."""

from treeopt.runtime import Decoder
from treeopt.runtime.learning.learner import Learner, LearningSettings
from treeopt.runtime.models.trainable import copy_model

FAST = LearningSettings(rate=3e-3, positions=8, window_tokens=64, max_time_share=1e9)
"""For models of a few thousand weights."""


def learning_decoder(target, draft, tree, settings=FAST, **options):
    """Return a decoder with a learning copy of a draft model, and its learner."""
    copy = copy_model(draft)
    learner = Learner(copy, settings)
    return Decoder(target, copy, tree, on_step=learner, **options), learner
