"""The memory of re-calibration does not grow with the sequence: all objects that it references are counted."""

import gc
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import numpy as np
import pytest
import torch

from tests.adaptation.test_recalibration import BAD, GOOD, MACHINE, MIDDLE
from tests.support.invented_machines import NODES, profile_of
from tests.support.simulated_decoding import SimulatedDecoder
from treeopt.adaptation import Recalibration, recalibration
from treeopt.planner import plan

SHORT, LONG = 15_000, 40_000
"""Tokens."""
PERIOD = 500
"""Steps between two changes of what is accepted, so that trees change and plain decoding is met again and again."""
FEW = 100_000
"""Bytes that may still come: the latest times of up to 16 trees."""


def held_bytes(root, without=()):
    """Return the bytes of all objects that are reached from one, each once; modules, classes and functions left out."""
    seen, found, pending = {id(each) for each in without}, 0, [root]
    while pending:
        each = pending.pop()
        if id(each) in seen or isinstance(each, (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)):
            continue
        seen.add(id(each))
        found += sys.getsizeof(each)
        if isinstance(each, torch.Tensor):
            found += each.untyped_storage().nbytes()
        elif isinstance(each, np.ndarray):
            found += 0 if each.base is None else each.base.nbytes
        pending += gc.get_referents(each)
    return found


def sizes(observer, decoder, held):
    """Return what is held after the shorter and after the longer text; tables change all the while."""
    found, turn = [], 0
    for tokens in (SHORT, LONG):
        while decoder.tokens < tokens:
            decoder.table = (GOOD, BAD, MIDDLE)[turn % 3]
            decoder.decode(observer, PERIOD)
            turn += 1
        found.append(held())
    return found


def begun(kind=Recalibration):
    profile = profile_of(MACHINE, GOOD)
    tree = plan(profile, NODES).choice.tree
    decoder = SimulatedDecoder(tree, GOOD, MACHINE, max_nodes=NODES)
    observer = kind(profile, now_s=lambda: 0.0)
    observer.attach(decoder)
    return decoder, observer


@pytest.mark.slow
def test_what_is_held_does_not_grow_with_the_sequence(monkeypatch):
    monkeypatch.setattr(recalibration, "MAX_CHANGES", 8)
    decoder, adapting = begun()
    short, long = sizes(adapting, decoder, lambda: held_bytes(adapting, [decoder]))
    assert len(decoder.trees) > 10
    assert len(adapting.changes) == 8
    assert long - short < FEW, (short, long)


class Growing(Recalibration):
    """Keeps the tokens of every step, which are few bytes each: what must be found."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.kept = []

    def __call__(self, step):
        super().__call__(step)
        self.kept.append(list(step.step.tokens))


@pytest.mark.slow
def test_what_grows_is_found():
    decoder, growing = begun(kind=Growing)
    short, long = sizes(growing, decoder, lambda: held_bytes(growing, [decoder]))
    assert long - short > 3 * FEW
