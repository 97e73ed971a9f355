"""Engines and their files by name."""

from treeopt.engines import ENGINES
from treeopt.engines.exporters.common import render_setting
from treeopt.engines.exporters.engine import Engine, SettingFiles, SettingRequest


def engine_named(name: str) -> Engine:
    (engine,) = [engine for engine in ENGINES if engine.name == name]
    return engine


def render(name: str, request: SettingRequest) -> SettingFiles:
    return render_setting(engine_named(name), request)
