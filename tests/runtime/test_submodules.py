"""Submodules of the runtime come by attribute, each when it is first used."""

import importlib
import subprocess
import sys

import pytest

from treeopt import runtime

BY_ATTRIBUTE = """
import sys, treeopt
assert "torch" not in sys.modules
treeopt.runtime
assert "treeopt.texts.prompts" not in sys.modules and "transformers" not in sys.modules
print(len(treeopt.runtime.prompts.load_prompts()), treeopt.runtime.pair.load_pair().target.name)
assert treeopt.runtime.models.pair is treeopt.runtime.pair
"""


@pytest.mark.process
@pytest.mark.slow
def test_they_are_there_without_an_import_of_their_own():
    found = subprocess.run([sys.executable, "-c", BY_ATTRIBUTE], capture_output=True, text=True, check=True)
    assert found.stdout.endswith("bundled target\n")


@pytest.mark.parametrize("name", sorted(runtime.SUBMODULES - {"huggingface"}))
def test_each_of_them(name):
    assert runtime.__getattr__(name) is importlib.import_module(f"treeopt.runtime.{name}")


def test_other_names_are_missing():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = runtime.nothing
