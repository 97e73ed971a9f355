"""A matrix product with fixed weights, in the form that is fastest for few rows on this device."""

import torch
from torch import Tensor


class Linear:
    """y = x W^T for x (n, inputs), W (outputs, inputs).

    On a CPU, oneDNN's product with weights it has reordered once is 1.3 to 2 times as fast as the general one for 4 to
    64 rows, and slower for a single row (benchmarks/linear.py), so both forms are kept there.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        on_cpu = weight.device.type == "cpu"
        self._columns = weight.t().contiguous() if on_cpu else weight.t()
        self._packed = _pack(weight) if on_cpu else None

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W^T, (n, outputs)."""
        if self._packed is None or len(x) == 1:
            return x @ self._columns
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")
        return product


def _pack(weight: Tensor) -> Tensor | None:
    """Return the weight in oneDNN's own order, or None where this build of torch has no such product."""
    if not torch.backends.mkldnn.is_available() or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        torch.ops.mkldnn._linear_pointwise(weight[:2], packed, None, "none", [], "")  # does this processor run it?
    except (AttributeError, RuntimeError):
        return None
    return packed
