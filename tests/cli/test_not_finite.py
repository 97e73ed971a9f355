"""What the commands say of models whose logits are NaN."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.invented import call
from treeopt import bundled
from treeopt.trees import chain

LITTLE = ("--max-tokens", "4", "--rounds", "1", "--positions", "240", "--context-tokens", "16")


@pytest.fixture
def broken(folder):
    """Return a function that copies a bundled model with a weight that is NaN, and returns its folder."""
    chain(2).save("tree.json")

    def spoil(source):
        copy = folder / f"broken-{source.name}"
        shutil.copytree(source, copy)
        weights = load_file(copy / "model.safetensors")
        weights["model.norm.weight"][0] = torch.nan
        save_file(weights, copy / "model.safetensors")
        return str(copy)

    return spoil


def test_of_a_draft_run_says_one_line_and_writes_the_targets_text(broken):
    models = ("--target", bundled.TARGET, "--draft", broken(bundled.DRAFT))
    arguments = ("run", "tree.json", "--prompt", "def ", "--max-new-tokens", "8", "--threads", "1")
    found, whole = call(*arguments, *models), call(*arguments)
    assert found.exit_code == 0
    assert found.stdout == whole.stdout
    said = [line for line in found.stderr.splitlines() if "Warning" in line]
    assert len(said) == 1
    assert said[0].startswith("Warning: broken-draft: expected a draft model whose logits are finite. Got NaN")
    assert "Warning" not in whole.stderr


def test_a_draft_is_refused_by_profile(broken):
    models = ("--target", bundled.TARGET, "--draft", broken(bundled.DRAFT), "--threads", "1")
    refused = call("profile", *models, *LITTLE, "-o", "p.yaml")
    assert refused.exit_code == 1
    assert refused.stderr.splitlines()[-1].startswith("Error: broken-draft: expected a draft model whose logits are")


@pytest.mark.parametrize(
    "command", [("run", "tree.json", "--prompt", "def "), ("profile", *LITTLE, "-o", "p.yaml")], ids=lambda c: c[0]
)
@pytest.mark.parametrize("temperature", ["0", "0.7"])
def test_a_target_is_an_error_that_names_it(broken, command, temperature):
    models = ("--target", broken(bundled.TARGET), "--draft", bundled.DRAFT, "--threads", "1")
    found = call(*command, "--temperature", temperature, *models)
    assert found.exit_code == 1
    last = found.stderr.splitlines()[-1]
    assert last.startswith("Error: broken-target: expected a target whose logits are finite. Got NaN or infinity: ")
    assert "float32" in last
