"""A matrix product with fixed weights, in the form that is fastest for few rows on this device."""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

LEAST_REORDERED = 100_000
"""Weights from which oneDNN's reordered product pays for its fixed cost per call; measured on two cores of an AMD EPYC."""
LEAST_PRODUCTS = 600_000
"""Rows times weights from which it pays with smaller ones."""
COUNTS_PER_DOUBLING = 16
"""Counts of rows between n and 2n that prompts are padded to: at most a sixteenth is added."""
MOST_PADDED = 3_000_000_000
"""Rows times weights of a model above which added rows would take longer than new code: an estimate, not measured."""


class Product(Protocol):
    """y = x W^T + b, W (outputs, inputs), b (outputs,) or None."""

    @property
    def parameters(self) -> int:
        """How many numbers W and b are."""

    @property
    def weight(self) -> Tensor:
        """W."""

    @property
    def bias(self) -> Tensor | None:
        """What is added, b, if anything is."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W^T + b, (n, outputs), of x (n, inputs)."""


class Linear:
    """y = x W^T + b for x (n, inputs), W (outputs, inputs), b (outputs,) or None.

    On a CPU weights are kept in oneDNN's own order, small ones also transposed, which is faster with few rows; elsewhere
    they stay as they are.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        on_cpu = weight.device.type == "cpu"
        self.parameters = weight.numel() + (0 if bias is None else bias.numel())
        self.bias = bias
        self._reordered = reordered(weight) if on_cpu else None
        self._columns: Tensor | None = None
        self._few = 0
        """Rows that are too few for oneDNN."""
        if self._reordered is None:
            self._columns = weight.t().contiguous() if on_cpu else weight.t()
        elif weight.numel() < LEAST_REORDERED:
            self._columns = weight.t().contiguous()
            self._few = LEAST_PRODUCTS // weight.numel()

    @property
    def weight(self) -> Tensor:
        """W as it was given, where it lies in another order in memory of its own."""
        if self._columns is not None:
            return self._columns.t()
        assert self._reordered is not None  # one of both is there
        return self._reordered.to_dense()

    def __reduce__(self) -> "tuple[type[Linear], tuple[Tensor, Tensor | None]]":
        """Return what a copy or a file has of it: oneDNN's order cannot be stored."""
        return Linear, (self.weight, self.bias)

    @torch.inference_mode()
    def assign(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take other numbers of the same shapes; what was captured of this product on a device goes on with them."""
        if self._columns is not None:
            self._columns.copy_(weight.t())
        if self._reordered is not None:
            self._reordered = reordered(weight.to(self._reordered.dtype))
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W^T + b, (n, outputs)."""
        if self._reordered is not None and x.shape[0] > self._few:
            return reordered_product(x, self._reordered, self.bias)
        assert self._columns is not None
        return x @ self._columns if self.bias is None else F.linear(x, self._columns.t(), self.bias)


def padded_rows(rows: int, weights: int) -> int:
    """Return how many rows to work on instead of so many, of a model on a CPU that has so many weights.

    oneDNN makes code for each count of rows, a fraction of a millisecond for each product, and keeps that of the last
    thousand: prompts of any length share it if they are padded to few counts.  Where products take long, padding would
    take longer than the code, and rows stay as many as they are.

    >>> [padded_rows(rows, weights=7_000_000) for rows in (31, 32, 33, 65, 100)]
    [31, 32, 34, 68, 100]
    """
    if rows * weights > MOST_PADDED:
        return rows
    apart = max(1, (1 << (rows - 1).bit_length()) // (2 * COUNTS_PER_DOUBLING))
    return -(-rows // apart) * apart


def slow_products_note(dtype: torch.dtype) -> str | None:
    """Return a note if oneDNN has the dtype, but this torch lacks the reordered product; None if all is as usual."""
    if not torch.backends.mkldnn.is_available() or dtype not in (torch.float32, torch.bfloat16):
        return None
    if reordered(torch.zeros((2, 2), dtype=dtype)) is not None:
        return None
    return f"Matrix products are slower than usual: torch {torch.__version__} has no reordered product of oneDNN here."


def reordered(weight: Tensor) -> Tensor | None:
    """Return the weight in oneDNN's own order, or None where this torch or this processor has no such product."""
    if not torch.backends.mkldnn.is_available() or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        reordered_product(weight[:2], packed)
    except (AttributeError, RuntimeError):
        return None
    return packed


def reordered_product(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b for weights from `reordered`."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product
