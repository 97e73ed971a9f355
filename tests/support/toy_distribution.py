"""The joint distribution of the first tokens that a drafter's decoder gives after a prompt, on a random model of few tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from treeopt.runtime import Decoder, Sampling, Transformer, Verdict, distribution, load_model

VOCABULARY, LENGTH = 5, 4
EVEN = Sampling(1.0)
SAMPLINGS = [EVEN, Sampling(0.7, top_p=0.8), Sampling(0.8, top_k=3)]
FEW = 200
"""Texts: a mistake of a drafter or its noise is found among 250 to 300, by a p-value below 1e-6."""


@dataclass(frozen=True)
class ToyDistribution:
    """Compares what is decoded with fresh passes over every text; the fields are fixtures."""

    make_checkpoint: Any
    logits_after: Any
    chi_squared: Any

    def model(self):
        sizes = {"vocab_size": VOCABULARY, "num_hidden_layers": 1, "tie_word_embeddings": False}
        return load_model(self.make_checkpoint(seed=5, initializer_range=0.25, **sizes))

    def joint(self, model: Transformer, prompt, sampling):
        found = np.ones((VOCABULARY,) * LENGTH)
        for done in range(LENGTH):
            for text in np.ndindex(*(VOCABULARY,) * done):
                after = distribution(self.logits_after(model, [*prompt, *text])[None], sampling)[0].double().numpy()
                found[text] *= (after / after.sum()).reshape(VOCABULARY, *[1] * (LENGTH - done - 1))
        return found

    def p_value(self, drafter, prompt, texts, sampling=EVEN):
        """Return how probable it is that texts of the right distribution lie as far from it, and tokens per step."""
        model = self.model()
        decoder = Decoder(
            model,
            drafter,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=1,
        )
        return self.of(decoder, model, prompt, texts, sampling)

    def of(self, decoder, model, prompt, texts, sampling=EVEN):
        """Return the same for any decoder of a model."""
        counts, steps = np.zeros((VOCABULARY,) * LENGTH), 0
        for _ in range(texts):
            found = list(decoder.steps(prompt, LENGTH))
            counts[tuple(token for step in found for token in step)] += 1
            steps += len(found)
        return self.chi_squared(counts, self.joint(model, prompt, sampling)), texts * LENGTH / steps


def first_children(children, _tokens, following):
    """Return the path of first children down to a leaf, whatever was sampled: what must not stand in for the rule."""
    path = [0]
    while len(children[path[-1]]) > 0:
        path.append(children[path[-1]][0])
    return Verdict(tuple(path), following[path[-1]])
