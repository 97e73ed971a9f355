"""The memory of re-calibration, over all objects that it references."""

import gc
import itertools
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import numpy as np
import pytest
import torch

from tests.adaptation.test_recalibration import BAD, GOOD, MACHINE, MIDDLE, start
from tests.support.invented_machines import profile_of
from treeopt.adaptation import Recalibration, recalibration

SHORT, LONG = 8_000, 20_000
"""Tokens."""
PERIOD = 500
"""Steps between two changes of the acceptance table, so that trees change and plain decoding recurs."""
ALLOWED_BYTES = 100_000
"""Bytes for the latest times of up to 16 trees."""


def referenced_bytes(root, excluded=()):
    """Return the bytes of all objects reachable from `root`, without modules, classes and functions."""
    seen, size, pending = {id(item) for item in excluded}, 0, [root]
    while pending:
        item = pending.pop()
        if id(item) in seen or isinstance(item, (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)):
            continue
        seen.add(id(item))
        size += sys.getsizeof(item)
        if isinstance(item, torch.Tensor):
            size += item.untyped_storage().nbytes()
        elif isinstance(item, np.ndarray):
            size += 0 if item.base is None else item.base.nbytes
        pending += gc.get_referents(item)
    return size


def growth(kind):
    """Return the decoder, the observer, and its additional bytes after the longer sequence; the table changes all the time."""
    decoder, observer = start(profile_of(MACHINE, GOOD), GOOD, MACHINE, kind=kind)
    sizes, tables = [], itertools.cycle((GOOD, BAD, MIDDLE))
    for tokens in (SHORT, LONG):
        while decoder.tokens < tokens:
            decoder.table = next(tables)
            decoder.decode(observer, PERIOD)
        sizes.append(referenced_bytes(observer, [decoder]))
    return decoder, observer, sizes[1] - sizes[0]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_sequence(monkeypatch):
    monkeypatch.setattr(recalibration, "MAX_CHANGES", 8)
    decoder, observer, added_bytes = growth(Recalibration)
    assert len(decoder.trees) > 10
    assert len(observer.changes) == 8
    assert added_bytes < ALLOWED_BYTES


class Growing(Recalibration):
    """Stores the tokens of every step, which are few bytes each."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.tokens = []

    def __call__(self, step):
        super().__call__(step)
        self.tokens.append(list(step.step.tokens))


@pytest.mark.slow
def test_growing_memory_is_detected():
    """Negative control."""
    assert growth(Growing)[-1] > 3 * ALLOWED_BYTES
