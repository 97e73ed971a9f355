"""Memory does not grow from text to text."""

import gc
import sys
from dataclasses import dataclass

import pytest
import torch

from tests.support.decoded import PROMPT
from tests.support.passes import new_cache
from tests.support.steppers import decoder_with
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.step import Stepper
from treeopt.trees import k_ary

TEXTS, ROUNDS = 40, 5
ALLOWED_BLOCKS = 25
"""What Python's own stores take now and then, until they are full."""


@dataclass(frozen=True)
class Memory:
    """What there is of everything that can grow."""

    objects: int
    """Objects that can hold others: lists, dicts, tensors, frames."""
    blocks: int
    """Pieces of Python's memory, numbers among them."""
    tensors: int
    """Bytes, each store counted once."""

    @classmethod
    def now(cls):
        gc.collect()
        objects = gc.get_objects()
        stores = [each.untyped_storage() for each in objects if type(each) is torch.Tensor and not each.is_mkldnn]
        held = {store.data_ptr(): store.nbytes() for store in stores}
        return cls(len(objects), sys.getallocatedblocks(), sum(held.values()))


def decode(decoder):
    """Decode TEXTS texts, of which every third is given up."""
    for text in range(TEXTS):
        tokens = decoder.generate(PROMPT, 4, stop=[[1, 2, 3]])
        for _ in zip(range(1 if text % 3 == 0 else 4), tokens, strict=False):
            pass


def growth(decoder):
    """Return by how much memory grew over TEXTS texts: the least of ROUNDS in a row, because a leak shows in each."""
    gc.freeze()  # what is there already need not be counted every time, here and in the tests that follow
    decode(decoder)
    found = []
    for _ in range(ROUNDS):
        before = Memory.now()
        decode(decoder)
        after = Memory.now()
        found.append((after.objects - before.objects, after.blocks - before.blocks, after.tensors - before.tensors))
    return Memory(*(min(each) for each in zip(*found, strict=True)))


@pytest.mark.parametrize(("rule", "temperature"), [("traversal", 0.8), ("sequoia", 0.0)])
def test_a_hundred_texts_leave_nothing_behind(target, draft, rule, temperature):
    found = growth(Decoder(target, draft, k_ary(2, 2), rule=rule, temperature=temperature))
    assert found.objects <= 0
    assert found.blocks < ALLOWED_BLOCKS
    assert found.tensors <= 0


class KeepsTokens(Decoder):
    """Remembers what every text began with."""

    def start(self, token_ids, **seed):
        self.kept = [*getattr(self, "kept", []), list(token_ids)]
        super().start(token_ids, **seed)


class LogitsKept(Stepper):
    """Remembers the logits of a step per text."""

    def verify(self, texts, proposals):
        outputs = super().verify(texts, proposals)
        self.kept = getattr(self, "kept", {}) | dict(zip(texts, [output.logits for output in outputs], strict=True))
        return outputs


KeepsLogits = decoder_with(LogitsKept)


class NewCaches(Decoder):
    """Makes a cache for every text and forgets to let go of the old ones."""

    def start(self, token_ids, **seed):
        self.kept = [*getattr(self, "kept", []), new_cache(self.target, 64)]
        super().start(token_ids, **seed)


class KeepsNumbers(Decoder):
    """Remembers a number per text."""

    def start(self, token_ids, **seed):
        self.__dict__.setdefault("kept", {})[self._sequence + 1000] = self._sequence + 0.5
        super().start(token_ids, **seed)


def test_the_same_check_finds_lists_that_are_kept(target, draft):
    assert growth(KeepsTokens(target, draft, k_ary(2, 2))).objects > TEXTS // 2


def test_the_same_check_finds_numbers_that_are_kept(target, draft):
    assert growth(KeepsNumbers(target, draft, k_ary(2, 2))).blocks > 2 * ALLOWED_BLOCKS


@pytest.mark.parametrize("kind", [KeepsLogits, NewCaches])
def test_the_same_check_finds_tensors_that_are_kept(target, draft, kind):
    assert growth(kind(target, draft, k_ary(2, 2))).tensors > 50 * TEXTS
