"""What running out of memory looks like, on any device."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SIGNS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cannot allocate memory",
    "cublas_status_alloc_failed",
)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on the device or on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def give_back_memory() -> None:
    """Return to the device what nothing holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def fast_collection() -> Iterator[None]:
    """Leave out of garbage collection what exists already: giving memory back then takes milliseconds."""
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
