"""`dir` and tab completion list the public names only."""

import importlib
import rlcompleter
import types

import pytest

import treeopt

PUBLIC = ["engines", "planner", "profiler", "runtime", "solver", "trees"]
PACKAGES = ["treeopt", *(f"treeopt.{name}" for name in PUBLIC)]


def public_names(module: types.ModuleType) -> list[str]:
    """Return the names that a star import brings."""
    return sorted(module.__all__)


def completed(package: str) -> list[str]:
    """Return what tab completion offers behind `package.`, names that Python itself gives every object left out."""
    module = importlib.import_module(package)
    found = rlcompleter.Completer({"it": module}).attr_matches("it.")
    return sorted(name.removeprefix("it.").removesuffix("(").removesuffix("()") for name in found)


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_lists_the_public_names_only(package):
    module = importlib.import_module(package)
    assert dir(module) == public_names(module)
    assert len(set(dir(module))) == len(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_tab_completion_lists_the_public_names_only(package):
    module = importlib.import_module(package)
    assert completed(package) == [name for name in public_names(module) if not name.startswith("_")]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_exists(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "treeopt")
        assert home.split(".")[0] == "treeopt", name


def test_public_packages_are_attributes():
    """Asked of the module's own `__getattr__`, because here they were imported long ago, and became attributes."""
    assert [treeopt.__getattr__(name).__name__ for name in PUBLIC] == PACKAGES[1:]
    assert set(PUBLIC) | {"__version__"} <= set(treeopt.__all__)


def test_unknown_names_raise_attribute_error():
    with pytest.raises(AttributeError, match="module 'treeopt' has no attribute 'nothing'"):
        treeopt.nothing  # noqa: B018
