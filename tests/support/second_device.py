"""A second device that is none: its tensors lie in the host's memory, and no operation mixes them with others.

Models are loaded and run inside `second_device()`.  Tensors made there on `SECOND` report that device; an operation with
tensors of both raises, as it does with two real ones; moving and reading single numbers is counted.
"""

from collections import Counter
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass, replace

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.rotary import Rotations


class _Module:
    """What torch asks of a device, here of one that keeps no state."""

    def is_initialized(self):
        return True

    def is_available(self):
        return True

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):
        pass

    def get_rng_state(self, device=None):  # noqa: ARG002
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state, device=None):
        pass


SECOND = torch.device("privateuseone:0")
MOVES = {"_to_copy", "copy_", "_copy_from"}
moved = Counter()
"""Tensors that were moved between the devices, by direction."""


class Elsewhere(torch.Tensor):
    """A tensor of the second device."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=SECOND,
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"Elsewhere({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


class Generator(torch.Generator):
    """A generator of either device."""

    def __new__(cls, device="cpu"):  # noqa: ARG004
        return super().__new__(cls, "cpu")

    def __init__(self, device="cpu"):
        self._on = torch.device(device)

    @property
    def device(self):
        return self._on


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


class _NewTensors(TorchFunctionMode):
    """Lets functions that make tensors of Python's numbers take the second device."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch.inference_mode(False), torch.no_grad():  # of which wrapped tensors know nothing
            return self._called(function, args, kwargs)

    @staticmethod
    def _called(function, args, kwargs):
        device = kwargs.get("device")
        if function in (torch.tensor, torch.as_tensor) and device is not None and _is_second(device):
            return function(*args, **{**kwargs, "device": "cpu"}).to(SECOND)
        if function is torch.Tensor.tolist and isinstance(args[0], Elsewhere):
            return args[0].inner.tolist()
        return function(*args, **kwargs)


@contextmanager
def second_device():
    """Let tensors and generators be made on `SECOND`, once in a process."""
    _setup_privateuseone_for_python_backend("second", backend_module=_Module())
    own, torch.Generator = torch.Generator, Generator
    moved.clear()
    try:
        with _NewTensors(), _Dispatch():
            yield
    finally:
        torch.Generator = own


def _is_second(device):
    return torch.device(device).type == SECOND.type


def _run(function, args, kwargs):
    tensors = []
    tree_map(lambda x: tensors.append(x) if isinstance(x, torch.Tensor) else None, (args, kwargs))
    there = [x for x in tensors if isinstance(x, Elsewhere)]
    here = [x for x in tensors if not isinstance(x, Elsewhere) and x.ndim > 0]
    name, device = function.overloadpacket.__name__, kwargs.get("device")
    if there and here and name not in MOVES:
        raise RuntimeError(f"{name}: expected all tensors on one device. Got some on cpu and some on {SECOND}.")
    second = bool(there) if device is None else _is_second(device)
    generator = kwargs.get("generator")
    if generator is not None and isinstance(generator, Generator) and _is_second(generator.device) != second:
        raise RuntimeError(f"{name}: expected a generator of the tensor's device. Got one of {generator.device}.")
    if name == "copy_":
        second = isinstance(args[0], Elsewhere)
    if tensors and name in MOVES and second != bool(there and tensors[-1] is there[-1]):
        moved["there" if second else "here"] += 1
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner = lambda x: x.inner if isinstance(x, Elsewhere) else x
    found = function(*tree_map(inner, args), **tree_map(inner, kwargs))
    if function._schema.name.endswith("_") and args and isinstance(args[0], torch.Tensor):
        return args[0]
    if not second:
        return found
    return tree_map(
        lambda x: Elsewhere(x) if isinstance(x, torch.Tensor) and not isinstance(x, Elsewhere) else x, found
    )


def moved_model(model):
    """Return a built-in model with its weights on the second device."""
    other = copy(model)
    other.weights = _moved(model.weights)
    other.device = SECOND
    other._rotations = Rotations(model.config.head_size, model.config.rope_base, model.config.rope_scaling, SECOND)
    return other


def _moved(value):
    """Return a tensor, or anything made of tensors, on the second device."""
    if isinstance(value, torch.Tensor):
        return value.to(SECOND)
    if isinstance(value, Linear):
        return Linear(_moved(value.weight), _moved(value.bias))
    if isinstance(value, tuple):
        return tuple(map(_moved, value))
    if is_dataclass(value):
        return replace(value, **{each.name: _moved(getattr(value, each.name)) for each in fields(value)})
    return value
