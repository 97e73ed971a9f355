"""The memory that a decoder needs, worked out before any of it is taken.

For a tree of n nodes, m of which have children, texts of up to L tokens, a vocabulary of V and numbers of b bytes:

    kept for the target    cache(L + n)  +  b n (L + n) mask  +  n^2 nodes seen  +  8 m V residuals (twice on a device)
    kept for the draft     cache(L + n)  +  b w (L + fed) mask of every level  +  m^2 nodes seen  +  4 n V probabilities
    for a moment           n^2 while a mask is made; activations; b n V logits  +  8 n V probabilities;
                           (b + 5) n (L + n) for a mask within a sliding window

Of what is needed for a moment only the most counts.  Residuals and probabilities are needed above temperature 0
only.  A prompt is read `PREFILL_TOKENS` at a time; activations and mask of such a chunk are counted.  Not counted are Python's lists (some
300 bytes a node), and what a device's libraries take for themselves.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import torch

from treeopt.errors import OutOfMemoryError
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.attention import BLOCK_ROWS
from treeopt.runtime.models.model import PREFILL_TOKENS, LanguageModel
from treeopt.trees import TokenTree

SORTING = 20
"""Bytes for each of n V entries that top-p sorts: tokens, their order, sums."""
CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells what a container may use."""


def decoder_bytes(
    target: LanguageModel,
    draft: LanguageModel | None,
    tree: TokenTree | None,
    *,
    text_tokens: int,
    max_nodes: int,
    sampling: Sampling,
) -> Counter[torch.device]:
    """Return the bytes that a decoder takes on each device; see the formula above.

    Args:
        target: the model that verifies.
        draft: the model that drafts, None where nothing or something else does.
        tree: what is drafted; None where it is not known, or another may come.
        text_tokens: longest text, L.
        max_nodes: nodes of the largest tree, n.
        sampling: of the target.
    """
    n, vocabulary, width = max_nodes, target.config.vocabulary, target.dtype.itemsize
    parents = n if tree is None else int(np.count_nonzero(tree.child_counts))
    sampled_entries = 0 if sampling.greedy else vocabulary
    mask = width * n * (text_tokens + n) + n**2 if n > 1 else 0
    residuals = 8 * parents * sampled_entries * (1 if target.device.type == "cpu" else 2)
    probabilities = n * sampled_entries * (8 if sampling.top_p == 1 else 8 + SORTING)
    read_at_once = min(text_tokens, PREFILL_TOKENS)
    # chunks of a prompt but the first attend with a mask, some rows at a time
    chunk_mask = (width + 2) * BLOCK_ROWS * text_tokens if text_tokens > PREFILL_TOKENS else 0
    moment = max(target.pass_bytes(max(n, read_at_once)) + chunk_mask, width * n * vocabulary + probabilities)
    if getattr(target.config, "sliding_window", None) is not None:
        moment = max(moment, target.pass_bytes(n) + (width + 5) * n * (text_tokens + n))
    needed = Counter({target.device: target.cache_bytes(text_tokens + n) + mask + residuals})
    if draft is not None and n > 1:
        moment = max(moment, n**2)
        read_tokens = min(text_tokens, draft.config.max_positions)
        needed[draft.device] += draft.cache_bytes(read_tokens + n) + parents**2 + 4 * n * sampled_entries
        needed[draft.device] += draft.dtype.itemsize * _level_mask_entries(tree, n, read_tokens)
    needed[target.device] += moment
    return needed


def check_texts(each: Counter[torch.device], texts: int, *, there: int) -> None:
    """Raise OutOfMemoryError, naming the most that fit, for more texts at a time than memory has room for.

    Args:
        each: bytes that a text takes on each device.
        texts: how many are to be decoded at a time.
        there: for how many of them the memory has been taken.
    """
    for device, size in each.items():
        free = free_bytes(device)
        if free is not None and size * (texts - there) > free:
            raise OutOfMemoryError(
                f"batch_size: expected at most {there + int(free // size)}, because each text takes "
                f"{_gigabytes(size)} and {_gigabytes(free)} are free on {device}. Got {texts}: decode fewer at a time.",
                field="batch_size",
            )


class HasCaches(Protocol):
    """A model or head that makes caches for sequences."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> torch.device: ...

    def new_caches(self, capacity: int, sequences: int) -> Sequence[Any]: ...

    def cache_bytes(self, capacity: int) -> int: ...


def new_caches(model: HasCaches, capacity: int, sequences: int) -> Sequence[Any]:
    """Return a model's caches for so many tokens each; OutOfMemoryError where they do not fit in what is free."""
    what = f"{model.name}'s cache of {capacity} tokens" + (f" for each of {sequences} texts" if sequences > 1 else "")
    check_room(model.device, sequences * model.cache_bytes(capacity), what)
    return model.new_caches(capacity, sequences)


def check_room(device: torch.device, needed_bytes: int, what: str) -> None:
    """Raise OutOfMemoryError, naming what needs the memory, where a device has less of it free."""
    free = free_bytes(device)
    if free is not None and needed_bytes > free:
        raise OutOfMemoryError(
            f"memory: expected room for {what}, {_gigabytes(needed_bytes)}. Got {_gigabytes(free)} free on {device}: "
            "take a smaller tree, or a shorter text (--max-new-tokens, in Python max_text_tokens)."
        )


def free_bytes(device: torch.device) -> float | None:
    """Return the bytes that are free on a device; None where it does not say."""
    if device.type == "cpu":
        return min(psutil.virtual_memory().available, _container_bytes())
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return None


def _level_mask_entries(tree: TokenTree | None, nodes: int, text_tokens: int) -> int:
    """Return the entries of the masks of all draft levels; a level of one node below one of each needs none."""
    if tree is None:
        return nodes * (text_tokens + nodes)
    widths = tree.draft_widths.astype(np.int64)
    fed = widths.cumsum()
    masked = fed > np.arange(1, len(widths) + 1)
    return int((widths * (text_tokens + fed))[masked].sum())


def _container_bytes() -> float:
    """Return what is left of a container's memory limit, infinity without a limit.

    `memory.current` counts page cache, which the kernel drops when memory is short.
    """
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no Linux, no container, or "max"
        return float("inf")
    return max(0, limit - used + _page_cache_bytes())


def _page_cache_bytes() -> int:
    """Return the page cache of a container that was not used lately, 0 where `memory.stat` does not contain it."""
    try:
        lines = (CGROUP / "memory.stat").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _gigabytes(size: float) -> str:
    """Return a size in GB of 10^9 bytes.

    >>> _gigabytes(23_900_000_000), _gigabytes(12_000_000)
    ('23.9 GB', '0.01 GB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e9:.2f} GB"
