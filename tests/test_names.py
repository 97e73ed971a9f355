"""`dir` and tab completion list the public names only."""

import importlib
import rlcompleter
import types

import pytest

import treeopt

PUBLIC = ["engines", "planner", "profiler", "runtime", "solver", "trees"]
PACKAGES = ["treeopt", *(f"treeopt.{name}" for name in PUBLIC)]


def completed(package: str) -> list[str]:
    """Return the tab completions of `package.` without the names of every object."""
    module = importlib.import_module(package)
    matches = rlcompleter.Completer({"it": module}).attr_matches("it.")
    return sorted(name.removeprefix("it.").removesuffix("(").removesuffix("()") for name in matches)


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_and_completion_list_the_public_names_only(package):
    module = importlib.import_module(package)
    assert dir(module) == sorted(set(module.__all__))
    assert completed(package) == [name for name in dir(module) if not name.startswith("_")]
    for name in module.__all__:
        value = getattr(module, name)
        home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "treeopt")
        assert home.split(".")[0] == "treeopt", name


def test_public_packages_are_attributes():
    """Of the module's own `__getattr__`, because imported packages are attributes already."""
    assert [treeopt.__getattr__(name).__name__ for name in PUBLIC] == PACKAGES[1:]
    assert set(PUBLIC) | {"__version__"} <= set(treeopt.__all__)


def test_unknown_names_raise_attribute_error():
    with pytest.raises(AttributeError, match="module 'treeopt' has no attribute 'nothing'"):
        treeopt.nothing  # noqa: B018
