"""An engine by its name, and its files, as tests are parametrized."""

from treeopt.engines import ENGINES
from treeopt.engines.engine import Engine, SettingFiles, SettingRequest
from treeopt.engines.settings.common import emit


def engine_named(name: str) -> Engine:
    """Return the one engine of a name."""
    (found,) = [engine for engine in ENGINES if engine.name == name]
    return found


def emitted(name: str, request: SettingRequest) -> SettingFiles:
    """Return the files of an engine's setting."""
    return emit(engine_named(name), request)
