"""Memory does not grow from sequence to sequence."""

import gc
import sys
from dataclasses import dataclass, replace

import pytest
import torch

from tests.runtime.learning.toy import FAST, learning_decoder
from tests.support.decoded import PROMPT
from tests.support.passes import new_cache
from tests.support.steppers import decoder_with
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.step import Stepper
from treeopt.trees import k_ary

SEQUENCES, ROUNDS = 40, 5
MAX_BLOCKS = 25
"""Python's own caches take some blocks now and then, until they are full."""


@dataclass(frozen=True)
class Memory:
    objects: int
    """Objects that can contain others: lists, dicts, tensors, frames."""
    blocks: int
    """Blocks of Python's allocator, including numbers."""
    tensor_bytes: int
    """Each storage counted once."""

    @classmethod
    def measure(cls):
        gc.collect()
        objects = gc.get_objects()
        tensors = [tensor for tensor in objects if type(tensor) is torch.Tensor and not tensor.is_mkldnn]
        storages = {
            storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)
        }
        return cls(len(objects), sys.getallocatedblocks(), sum(storages.values()))


def decode(decoder):
    """Decode sequences, and stop every third one after its first token."""
    for number in range(SEQUENCES):
        tokens = decoder.generate(PROMPT, 4, stop=[[1, 2, 3]])
        for _ in zip(range(1 if number % 3 == 0 else 4), tokens, strict=False):
            pass


def measure_growth(decoder, rounds=ROUNDS):
    """Return the growth over `SEQUENCES` sequences, the least of several rounds, because a leak shows in each."""
    gc.freeze()  # existing objects need not be counted every time, here and in later tests
    decode(decoder)
    growth = []
    for _ in range(rounds):
        before = Memory.measure()
        decode(decoder)
        after = Memory.measure()
        growth.append(
            (after.objects - before.objects, after.blocks - before.blocks, after.tensor_bytes - before.tensor_bytes)
        )
        if max(growth[-1]) <= 0:
            break
    return Memory(*map(min, zip(*growth, strict=True)))


def check_growth(decoder, max_blocks=MAX_BLOCKS):
    growth = measure_growth(decoder)
    assert growth.objects <= 0
    assert growth.blocks < max_blocks
    assert growth.tensor_bytes <= 0


@pytest.mark.parametrize(("rule", "temperature"), [("traversal", 0.8), ("sequoia", 0.0)])
def test_memory_does_not_grow(target, draft, rule, temperature):
    check_growth(Decoder(target, draft, k_ary(2, 2), rule=rule, temperature=temperature))


def test_memory_does_not_grow_while_the_draft_learns(target, draft):
    settings = replace(FAST, positions=1)  # empties the replay buffer after every step with a rejected position
    decoder, learner = learning_decoder(target, draft, k_ary(2, 2), settings, temperature=0.8)
    check_growth(decoder, max_blocks=3 * MAX_BLOCKS)  # torch's caches fill up for longer
    assert learner.stats.updates > 2 * SEQUENCES


class KeepsPrompts(Decoder):
    def start(self, token_ids, **seed):
        self.kept = [*getattr(self, "kept", []), list(token_ids)]
        super().start(token_ids, **seed)


class KeepsNumbers(Decoder):
    def start(self, token_ids, **seed):
        self.__dict__.setdefault("kept", {})[self._sequence + 1000] = self._sequence + 0.5
        super().start(token_ids, **seed)


class KeepsCaches(Decoder):
    def start(self, token_ids, **seed):
        self.kept = [*getattr(self, "kept", []), new_cache(self.target, 64)]
        super().start(token_ids, **seed)


class LogitsKeeper(Stepper):
    def verify(self, sequences, proposals):
        outputs = super().verify(sequences, proposals)
        logits = (output.logits for output in outputs)
        self.kept = getattr(self, "kept", {}) | dict(zip(sequences, logits, strict=True))
        return outputs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "field", "least"),
    [
        (KeepsPrompts, "objects", SEQUENCES // 2),
        (KeepsNumbers, "blocks", 2 * MAX_BLOCKS),
        (KeepsCaches, "tensor_bytes", 50 * SEQUENCES),
        (decoder_with(LogitsKeeper), "tensor_bytes", 50 * SEQUENCES),
    ],
    ids=["prompts", "numbers", "caches", "logits"],
)
def test_leak_is_detected(target, draft, kind, field, least):
    assert getattr(measure_growth(kind(target, draft, k_ary(2, 2)), rounds=1), field) > least
