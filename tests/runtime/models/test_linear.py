"""Products with fixed weights: copies and files have what was given, in whatever order it lies in memory."""

import copy
import io

import pytest
import torch

from treeopt.runtime.models.linear import Linear


@pytest.mark.parametrize("shape", [(3, 5), (400, 300)])
@pytest.mark.parametrize("bias", [None, torch.arange(400.0)])
def test_copies_and_files_have_the_same_weights(shape, bias):
    torch.manual_seed(0)
    weight = torch.randn(shape)
    product = Linear(weight, None if bias is None else bias[: shape[0]])
    file = io.BytesIO()
    torch.save(product, file)
    file.seek(0)
    x = torch.randn(4, shape[1])
    for other in (copy.deepcopy(product), torch.load(file, weights_only=False)):
        assert torch.equal(other.weight, weight)
        assert torch.equal(other(x), product(x))
        assert other.parameters == product.parameters
