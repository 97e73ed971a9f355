"""Plan to engine: the settings of other programs, one module each."""

from treeopt.engines.engine import Engine
from treeopt.engines.settings import (
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
"""All that settings can be written for, the most used ones first."""


def __dir__() -> list[str]:
    """Return the public names: what tab completion shows."""
    return __all__
