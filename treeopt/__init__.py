"""treeopt finds the fastest speculation tree for a machine and a pair of models.

Names are imported on first use, so that `import treeopt` loads neither torch nor numba nor matplotlib.
"""

from typing import TYPE_CHECKING, Any

from treeopt.errors import (
    BatchError,
    EngineError,
    FormatError,
    InfeasibleError,
    InvalidValueError,
    OutOfMemoryError,
    TreeoptError,
    TreeoptWarning,
)

if TYPE_CHECKING:
    from treeopt import engines, planner, profiler, runtime, solver, trees
    from treeopt.planner import Plan, Schedule, plan, schedule
    from treeopt.records.acceptance import AcceptanceTable
    from treeopt.records.latency import LatencyTable
    from treeopt.records.profile import Profile
    from treeopt.solver import Solution, solve
    from treeopt.trees import TokenTree

    __version__: str

__all__ = [
    "AcceptanceTable",
    "BatchError",
    "EngineError",
    "FormatError",
    "InfeasibleError",
    "InvalidValueError",
    "LatencyTable",
    "OutOfMemoryError",
    "Plan",
    "Profile",
    "Schedule",
    "Solution",
    "TokenTree",
    "TreeoptError",
    "TreeoptWarning",
    "__version__",
    "engines",
    "plan",
    "planner",
    "profiler",
    "runtime",
    "schedule",
    "solve",
    "solver",
    "trees",
]

_MODULES = {
    "AcceptanceTable": "treeopt.records.acceptance",
    "LatencyTable": "treeopt.records.latency",
    "Plan": "treeopt.planner",
    "Profile": "treeopt.records.profile",
    "Schedule": "treeopt.planner",
    "Solution": "treeopt.solver",
    "TokenTree": "treeopt.trees",
    "__version__": "treeopt.version",
    "plan": "treeopt.planner",
    "schedule": "treeopt.planner",
    "solve": "treeopt.solver",
}
_SUBPACKAGES = frozenset({"engines", "planner", "profiler", "runtime", "solver", "trees"})


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    from importlib import import_module

    if name in _SUBPACKAGES:
        return import_module(f"treeopt.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'treeopt' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, for tab completion."""
    return __all__
