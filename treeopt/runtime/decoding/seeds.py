"""Seeds of texts."""

import numpy as np


def text_seed(seed: int, text: int) -> int:
    """Return the seed of a decoder's text by its number, which no other text of the decoder has."""
    return int(np.random.SeedSequence([seed % 2**64, text]).generate_state(1, np.uint64)[0])
