"""Models whose passes are timed while something else is measured, so that what is not passes can be told."""

import time
from collections.abc import Callable
from typing import Any, cast

import torch

from treeopt.runtime.models.model import LanguageModel

PASSES = ("prefill", "forward")
REST = ("name", "dtype", "device", "parameters", "config", "new_caches", "cache_bytes", "pass_bytes")
"""What else decoders ask of a model."""


class PassSeconds:
    """Adds up the seconds of all passes of some models.

    Args:
        now_s: the clock; a CUDA device is waited for before every reading.
    """

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.total_s = 0.0
        self._now_s = now_s

    def timed(self, model: LanguageModel) -> LanguageModel:
        """Return a model that runs the same passes and is timed; what is replayed as a CUDA graph is not seen."""
        found = _Timed()
        for name in REST:
            setattr(found, name, getattr(model, name))
        for name in PASSES:
            setattr(found, name, self._timed(getattr(model, name), model.device))
        return cast("LanguageModel", found)

    def _timed(self, run: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            start_s = self._time_s(device)
            try:
                return run(*arguments, **keywords)
            finally:
                self.total_s += self._time_s(device) - start_s

        return timed

    def _time_s(self, device: torch.device) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self._now_s()


class _Timed:
    """A model by its attributes."""
