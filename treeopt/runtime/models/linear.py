"""Matrix products with fixed weights, in the fastest layout for few rows on each device."""

import torch
from torch import Tensor
from torch.nn import functional as F

LEAST_REORDERED = 100_000
"""Weights from which oneDNN's reordered product outweighs its fixed cost per call; measured on two cores of an AMD EPYC."""
LEAST_PRODUCTS = 600_000
"""Rows times weights from which it does with fewer weights."""
COUNTS_PER_DOUBLING = 16
"""Row counts between n and 2n to which prompts are padded: padding adds at most a sixteenth."""
MOST_PADDED = 3_000_000_000
"""Rows times weights of a model above which padding would take longer than code generation: an estimate, not measured."""


class Linear:
    """y = x W^T + b for x (n, inputs), W (outputs, inputs), b (outputs,) or None.

    On a CPU weights are stored in oneDNN's layout; small ones also transposed, which is faster with few rows.  Weights that
    require gradients stay as they are.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        on_cpu = weight.device.type == "cpu" and not weight.requires_grad
        self.parameters = weight.numel() + (0 if bias is None else bias.numel())
        self.bias = bias
        self._reordered = reorder_weight(weight) if on_cpu else None
        self._columns: Tensor | None = None
        self._few_rows = 0
        """Up to this many rows, the transposed weights are faster."""
        if self._reordered is None:
            self._columns = weight.t().contiguous() if on_cpu else weight.t()
        elif weight.numel() < LEAST_REORDERED:
            self._columns = weight.t().contiguous()
            self._few_rows = LEAST_PRODUCTS // weight.numel()

    @property
    def weight(self) -> Tensor:
        """W; a copy if it is stored in oneDNN's layout only."""
        if self._columns is not None:
            return self._columns.t()
        assert self._reordered is not None  # there is always one of the two
        return self._reordered.to_dense()

    def __reduce__(self) -> "tuple[type[Linear], tuple[Tensor, Tensor | None]]":
        """Copy and pickle the plain weights: oneDNN's layout cannot be serialised."""
        return Linear, (self.weight, self.bias)

    @torch.inference_mode()
    def assign(self, weight: Tensor, bias: Tensor | None) -> None:
        """Replace the weights by others of the same shapes, in place, so that captured graphs use them."""
        if self._columns is not None:
            self._columns.copy_(weight.t())
        if self._reordered is not None:
            self._reordered = reorder_weight(weight.to(self._reordered.dtype))
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)

    def __call__(self, x: Tensor) -> Tensor:
        if self._columns is not None and (self._reordered is None or x.shape[0] <= self._few_rows):
            return x @ self._columns if self.bias is None else F.linear(x, self._columns.t(), self.bias)
        assert self._reordered is not None  # there is always one of the two
        return multiply_reordered(x, self._reordered, self.bias)


def pad_row_count(rows: int, weights: int) -> int:
    """Return the padded row count of a pass on a CPU, for a model with `weights` weights.

    oneDNN generates code per row count, in a fraction of a millisecond per product, and caches the last thousand.
    Padding to few counts lets prompts of any length share it.  Large products are not padded, because that would take
    longer than the code generation.

    >>> [pad_row_count(rows, weights=7_000_000) for rows in (31, 32, 33, 65, 100)]
    [31, 32, 34, 68, 100]
    """
    if rows * weights > MOST_PADDED:
        return rows
    step = max(1, (1 << (rows - 1).bit_length()) // (2 * COUNTS_PER_DOUBLING))
    return -(-rows // step) * step


def slow_products_note(dtype: torch.dtype) -> str | None:
    """Return a note if oneDNN has the dtype, but this torch lacks its reordered product; else None."""
    if not torch.backends.mkldnn.is_available() or dtype not in (torch.float32, torch.bfloat16):
        return None
    if reorder_weight(torch.zeros((2, 2), dtype=dtype)) is not None:
        return None
    return f"Matrix products are slower than usual: torch {torch.__version__} has no reordered product of oneDNN here."


def reorder_weight(weight: Tensor) -> Tensor | None:
    """Return the weight in oneDNN's layout, or None if this torch or this processor has no product for it."""
    if not torch.backends.mkldnn.is_available() or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        multiply_reordered(weight[:2], packed)
    except (AttributeError, RuntimeError):
        return None
    return packed


def multiply_reordered(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b for weights from `reorder_weight`."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product
