"""CUDA graphs without a GPU: the tensor operations of a pass are recorded once, and replayed with the same arguments.

As in a graph, whatever the host computed during the recording stays as it was: only what lies in tensors changes. What a
graph cannot hold, a number read back from the device or a tensor made of the host's numbers, is an error as on a GPU.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from treeopt.runtime.models import runner

REFUSED = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.nonzero.default,
)


class Recorder(TorchDispatchMode):
    """Records the operations within it, with their arguments and results."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in REFUSED:
            raise RuntimeError(f"{func} is not permitted when stream is capturing")
        found = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, found))
        return found

    @torch.inference_mode()
    def replay(self):
        """Do the operations again, on the same tensors and on what they newly make."""
        made = {}

        def now(value):
            return made.get(id(value), value) if isinstance(value, Tensor) else value

        for func, args, kwargs, before in self.calls:
            found = func(*tree_map(now, args), **tree_map(now, kwargs))
            for old, new in zip(tree_leaves(before), tree_leaves(found), strict=True):
                if isinstance(old, Tensor):
                    made[id(old)] = new


def capture(_pool, work):
    """Do what `GraphPool.capture` does, on a CPU."""
    work()
    with Recorder() as recorder:
        work()
    return recorder.replay


def replay_on_cpu(patch):
    """Record and replay all passes on the CPU, with short KV lengths."""
    patch.setattr(runner, "SHORTEST_KV_LENGTH", 16)
    patch.setattr(runner.GraphPool, "capture", capture)
