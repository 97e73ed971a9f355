"""Models that differ by noise, and decoding while one of them learns."""

import torch

from treeopt.runtime import Decoder
from treeopt.runtime.learning.learner import Learner, LearningSettings
from treeopt.runtime.models.trainable import TrainableCopy, copied

FAST = LearningSettings(rate=3e-3, positions=8, window_tokens=64, most_share=1e9)
"""For models of a few thousand weights."""


def spoilt(model, share=0.5, seed=0):
    """Return a copy of a model, its matrices with noise of so many of their standard deviations."""
    found, noise = copied(model), torch.Generator().manual_seed(seed)
    trainable = TrainableCopy(found)
    with torch.no_grad():
        for each in trainable.parameters:
            if each.ndim == 2:
                each += share * each.std() * torch.randn(each.shape, generator=noise)
    trainable.write()
    return found


def learning_decoder(target, draft, tree, settings=FAST, **options):
    """Return a decoder whose draft learns, and the learner; the draft given stays as it is."""
    own = copied(draft)
    learner = Learner(own, settings)
    return Decoder(target, own, tree, on_step=learner, **options), learner
