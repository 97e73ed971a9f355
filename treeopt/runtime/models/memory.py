"""Memory estimates, checked before a decoder or a cache is allocated.

For a tree of n nodes, m of which have children, sequences of up to L tokens, a vocabulary of V and a dtype of b bytes:

    target, permanent    cache(L + n)  +  b n (L + n) mask  +  n^2 visibility  +  8 m V residuals (twice on a device)
    draft, permanent     cache(L + n)  +  b w (L + fed) mask of every level  +  m^2 visibility  +  4 n V probabilities
    temporary            n^2 while a mask is built; activations; b n V logits  +  8 n V probabilities;
                         (b + 5) n (L + n) for a mask with a sliding window

Only the largest temporary counts.  Residuals and probabilities exist above temperature 0 only.  A prefill counts the
activations and the mask of one chunk of `PREFILL_TOKENS`.  Python lists (about 300 bytes per node) and the memory of a
device's libraries are not counted.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from treeopt.errors import OutOfMemoryError
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.attention import BLOCK_ROWS
from treeopt.runtime.models.model import PREFILL_TOKENS, ForwardModel, LanguageModel
from treeopt.trees import TokenTree

SORTING_BYTES = 20
"""Per entry of the n V that top-p sorts: tokens, their order, cumulative sums."""
TAKE_LESS = (
    "take a smaller tree (solve --budget), or shorten the sequences (--max-new-tokens or --context-tokens, in Python "
    "max_sequence_tokens)"
)
CGROUP = Path("/sys/fs/cgroup")
"""Memory limits of a Linux container."""


def decoder_bytes(
    target: LanguageModel,
    draft: LanguageModel | None,
    tree: TokenTree | None,
    *,
    sequence_tokens: int,
    max_nodes: int,
    sampling: Sampling,
) -> Counter[torch.device]:
    """Return the bytes that a decoder needs on each device; the module's docstring has the formula.

    L is `sequence_tokens`, n is `max_nodes`; the tree is None if it is unknown or may change.
    """
    n, vocabulary, width = max_nodes, target.config.vocabulary, target.dtype.itemsize
    parents = n if tree is None else int(np.count_nonzero(tree.child_counts))
    sampled_entries = 0 if sampling.greedy else vocabulary
    mask = width * n * (sequence_tokens + n) + n**2 if n > 1 else 0
    residuals = 8 * parents * sampled_entries * (1 if target.device.type == "cpu" else 2)
    probabilities = n * sampled_entries * (8 if sampling.top_p == 1 else 8 + SORTING_BYTES)
    chunk_tokens = min(sequence_tokens, PREFILL_TOKENS)
    # all chunks of a prompt but the first need a mask, in blocks of rows
    chunk_mask = (width + 2) * BLOCK_ROWS * sequence_tokens if sequence_tokens > PREFILL_TOKENS else 0
    temporary = max(target.pass_bytes(max(n, chunk_tokens)) + chunk_mask, width * n * vocabulary + probabilities)
    if target.config.sliding_window is not None:
        temporary = max(temporary, target.pass_bytes(n) + (width + 5) * n * (sequence_tokens + n))
    needed = Counter({target.device: target.cache_bytes(sequence_tokens + n) + mask + residuals})
    if draft is not None and n > 1:
        temporary = max(temporary, n**2)
        draft_tokens = min(sequence_tokens, draft.config.max_positions)
        needed[draft.device] += draft.cache_bytes(draft_tokens + n) + parents**2 + 4 * n * sampled_entries
        needed[draft.device] += draft.dtype.itemsize * _count_level_mask_entries(tree, n, draft_tokens)
    needed[target.device] += temporary
    return needed


def check_batch_size(sequence_bytes: Counter[torch.device], batch_size: int, *, allocated: int) -> None:
    """Raise OutOfMemoryError, naming the largest batch that fits, if a batch needs more memory than is free.

    The memory of `allocated` sequences is allocated already.
    """
    for device, size in sequence_bytes.items():
        free = free_bytes(device)
        if free is not None and size * (batch_size - allocated) > free:
            raise OutOfMemoryError(
                f"batch_size: expected at most {allocated + int(free // size)}, because each sequence takes "
                f"{_gigabytes(size)} and {_gigabytes(free)} are free on {device}. Got {batch_size}: lower it, or "
                "shorten the sequences (--max-new-tokens or --context-tokens, in Python max_sequence_tokens).",
                field="batch_size",
            )


def new_caches(model: ForwardModel, capacity: int, sequences: int) -> Sequence[Any]:
    """Return a model's caches for `capacity` tokens each; OutOfMemoryError if they need more memory than is free."""
    batch = f" for each of {sequences} sequences" if sequences > 1 else ""
    what = f"{model.name}'s cache of {capacity} tokens{batch}"
    check_room(model.device, sequences * model.cache_bytes(capacity), what)
    return model.new_caches(capacity, sequences)


def check_room(device: torch.device, needed_bytes: int, what: str, advice: str = TAKE_LESS) -> None:
    """Raise OutOfMemoryError, naming what needs the memory and what to do, if a device has less than that free."""
    free = free_bytes(device)
    if free is not None and needed_bytes > free:
        raise OutOfMemoryError(
            f"memory: expected room for {what}, {_gigabytes(needed_bytes)}. Got {_gigabytes(free)} free on {device}: "
            f"{advice}."
        )


def free_bytes(device: torch.device) -> float | None:
    """Return the free memory of a device; None if unknown."""
    if device.type == "cpu":
        return min(psutil.virtual_memory().available, _container_bytes())
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return None


def _count_level_mask_entries(tree: TokenTree | None, nodes: int, sequence_tokens: int) -> int:
    """Count the entries of the masks of all draft levels; a chain needs none."""
    if tree is None:
        return nodes * (sequence_tokens + nodes)
    widths = tree.draft_widths.astype(np.int64)
    fed = widths.cumsum()
    masked = fed > np.arange(1, len(widths) + 1)
    return int((widths * (sequence_tokens + fed))[masked].sum())


def _container_bytes() -> float:
    """Return the free memory within a container's limit, infinity without a limit.

    `memory.current` includes page cache, which the kernel drops when memory is short.
    """
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no Linux, no container, or "max"
        return float("inf")
    return max(0, limit - used + _page_cache_bytes())


def _page_cache_bytes() -> int:
    """Return a container's inactive page cache; 0 if `memory.stat` does not contain it."""
    try:
        lines = (CGROUP / "memory.stat").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _gigabytes(size: float) -> str:
    """Format a size in GB of 10^9 bytes.

    >>> _gigabytes(23_900_000_000), _gigabytes(12_000_000)
    ('23.9 GB', '0.01 GB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e9:.2f} GB"
