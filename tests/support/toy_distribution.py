"""The joint distribution of the first tokens that a drafter's decoder gives after a prompt, on a random model of few tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from treeopt.runtime import Sampling, Transformer, Verdict, distribution
from treeopt.runtime.decoding.batch import GenerationRequest

VOCABULARY, LENGTH = 5, 4
EVEN = Sampling(1.0)
SAMPLINGS = [EVEN, Sampling(0.7, top_p=0.8), Sampling(0.8, top_k=3)]
JOINTS: dict[tuple[Any, ...], tuple[np.ndarray, Transformer]] = {}
"""Distributions that were enumerated; a model that is kept keeps its id."""
BATCH = 25
FEW = 200
"""Texts: a mistake of a drafter or its noise is found among 250 to 300, by a p-value below 1e-6."""


@dataclass(frozen=True)
class ToyDistribution:
    """Compares what is decoded with fresh passes over every text; the fields are fixtures."""

    make_checkpoint: Any
    logits_after: Any
    chi_squared: Any

    def joint(self, model: Transformer, prompt, sampling):
        found = np.ones((VOCABULARY,) * LENGTH)
        for done in range(LENGTH):
            for text in np.ndindex(*(VOCABULARY,) * done):
                after = distribution(self.logits_after(model, [*prompt, *text])[None], sampling)[0].double().numpy()
                found[text] *= (after / after.sum()).reshape(VOCABULARY, *[1] * (LENGTH - done - 1))
        return found

    def of(self, decoder, model, prompt, sequences, sampling=EVEN):
        """Return how probable it is that outputs of the right distribution lie as far from it, and tokens per step."""
        steps = [list(decoder.stream(prompt, LENGTH)) for _ in range(sequences)]
        return self.compare([[token for step in text for token in step] for text in steps], model, prompt, sampling), (
            sequences * LENGTH / sum(map(len, steps))
        )

    def of_batches(self, decoder, model, prompt, sequences, sampling=EVEN):
        """Return the same of sequences that are decoded in batches."""
        found, steps = [[] for _ in range(sequences)], 0
        for step in decoder.stream_all([GenerationRequest(prompt, LENGTH)] * sequences, batch_size=BATCH):
            found[step.request] += step.tokens
            steps += 1
        return self.compare(found, model, prompt, sampling), sequences * LENGTH / steps

    def compare(self, sequences, model, prompt, sampling):
        counts = np.zeros((VOCABULARY,) * LENGTH)
        for text in sequences:
            counts[tuple(text)] += 1
        key = id(model), tuple(prompt), sampling
        if key not in JOINTS:
            JOINTS[key] = self.joint(model, prompt, sampling), model
        return self.chi_squared(counts, JOINTS[key][0])


def first_children(children, _tokens, token_after):
    """Return the path of first children down to a leaf, whatever was sampled: what must not stand in for the rule."""
    path = [0]
    while len(children[path[-1]]) > 0:
        path.append(children[path[-1]][0])
    return Verdict(tuple(path), token_after(path[-1]))
