"""Other engines: exporters of plans, importers of measurements, and clients of running engines."""

from treeopt.engines.exporters import (
    eagle,
    exllamav3,
    hf,
    llama_cpp,
    lmdeploy,
    mlx_lm,
    openvino,
    sglang,
    tensorrt_llm,
    vllm,
)
from treeopt.engines.exporters.engine import Engine

__all__ = ["ENGINES", "default_length"]

ENGINES: tuple[Engine, ...] = (
    vllm.ENGINE,
    sglang.ENGINE,
    tensorrt_llm.ENGINE,
    hf.ENGINE,
    llama_cpp.ENGINE,
    lmdeploy.ENGINE,
    mlx_lm.ENGINE,
    exllamav3.ENGINE,
    openvino.ENGINE,
    eagle.ENGINE,
)
"""Engines that `treeopt export` writes configurations for, the most used first."""
EXPORTED_NAMES = {"llama-server": "llama-cpp", "transformers": "hf"}
"""Names in `treeopt export` of engines that have another one in `treeopt probe`."""


def default_length(name: str) -> int | None:
    """Return the draft length that an engine of `treeopt probe` uses without any option; None if it has none."""
    exported = EXPORTED_NAMES.get(name, name)
    default = next((engine.default for engine in ENGINES if engine.name == exported), None)
    return None if default is None or not default.is_chain else default.depth


def __dir__() -> list[str]:
    return __all__
