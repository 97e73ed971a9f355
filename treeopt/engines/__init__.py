"""Plan to engine: the settings of other programs, one module each."""

from treeopt.engines import (
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
from treeopt.engines.engine import Engine
from treeopt.errors import InvalidValueError

__all__ = ["ENGINES", "engine_named"]

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


def engine_named(name: str) -> Engine:
    """Return the engine of a name; raise InvalidValueError listing the names for an unknown one."""
    for engine in ENGINES:
        if engine.name == name:
            return engine
    raise InvalidValueError(f"engine: expected one of {', '.join(engine.name for engine in ENGINES)}. Got {name!r}.")


def __dir__() -> list[str]:
    """Return the public names: what tab completion shows."""
    return __all__
