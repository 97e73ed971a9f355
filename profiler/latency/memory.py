"""Handling of out-of-memory errors, on any device."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cannot allocate memory",
    "cublas_status_alloc_failed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on the device or on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error).lower() for message in MESSAGES)


def release_memory() -> None:
    """Return unused memory to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def fits_in_memory(call: Callable[[], object]) -> bool:
    """Make a call and return whether memory sufficed; if not, memory is released.

    That is after the exception is gone, because its traceback refers to the allocations of the failed call.
    """
    try:
        call()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    else:
        return True
    release_memory()
    return False


@contextmanager
def freeze_existing_objects() -> Iterator[None]:
    """Exclude existing objects from garbage collection, so that `release_memory` takes milliseconds."""
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
