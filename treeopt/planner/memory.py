"""Which trees fit in memory: weights, and a KV cache for every sequence.

    weights + batch size * (context + nodes) * KV bytes of a token <= memory

Target and draft count together: both cache the context and the nodes.  Activations of a pass, and the state that some
hybrid models have per token, are not counted: leave some memory free for them.
"""

from dataclasses import dataclass

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError
from treeopt.records.profile import Profile


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Memory(ShortRepr):
    """The memory of a device, and how much of it models and sequences take."""

    total_bytes: int
    weight_bytes: int
    """Of all models."""
    kv_bytes: int
    """Of one token of one sequence, in all models."""

    def max_nodes(self, context_tokens: int, batch_size: int) -> int:
        """Return the most nodes, root included, for which every sequence of a batch has room; below 1 if none fits."""
        cached_tokens = (self.total_bytes - self.weight_bytes) // (self.kv_bytes * batch_size)
        return cached_tokens - context_tokens

    def sequences(self, context_tokens: int, nodes: int = 1) -> int:
        """Return how many sequences fit with steps of `nodes` nodes each; 1 is plain decoding."""
        return max(0, self.total_bytes - self.weight_bytes) // (self.kv_bytes * (context_tokens + nodes))


def memory_of(profile: Profile, total_bytes: int) -> Memory:
    """Return the memory of a device with a profile's models.

    Raises InfeasibleError for a profile without the models' memory.
    """
    pair = profile.pair
    weights, kv = [pair.target_weight_bytes], [pair.target_kv_bytes]
    if pair.draft is not None:
        weights, kv = [*weights, pair.draft_weight_bytes], [*kv, pair.draft_kv_bytes]
    if None in weights or None in kv:
        raise InfeasibleError(
            "memory: expected a profile with the memory of weights and KV caches. Got one without: measure it with "
            "treeopt profile, or leave the limit out.",
            field="memory",
        )
    return Memory(total_bytes=total_bytes, weight_bytes=sum(filter(None, weights)), kv_bytes=sum(filter(None, kv)))
