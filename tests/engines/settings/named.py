"""An engine by its name, as tests are parametrized."""

from treeopt.engines import ENGINES
from treeopt.engines.engine import Engine


def engine_named(name: str) -> Engine:
    """Return the one engine of a name."""
    (found,) = [engine for engine in ENGINES if engine.name == name]
    return found
