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

__all__ = ["ENGINES"]

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


def __dir__() -> list[str]:
    return __all__
