"""A way of sampling is one record: a decoder that is given it decodes as with its parts."""

import pytest

from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.trees import k_ary

PROMPT = [3, 1, 2]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8), Sampling(1.2, 0.9, 7)])
def test_a_record_of_sampling_is_the_same_as_its_parts(target, draft, sampling):
    tree = k_ary(2, 2)
    parts = Decoder(
        target, draft, tree, temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, seed=5
    )
    whole = Decoder(target, draft, tree, sampling=sampling, seed=5)
    text = list(whole.generate(PROMPT, 24))
    assert text == list(parts.generate(PROMPT, 24))
    other = Decoder(target, draft, tree, sampling=Sampling(3.0), seed=5)
    assert text != list(other.generate(PROMPT, 24))  # it is looked at
