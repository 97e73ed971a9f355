"""Models whose logits are NaN."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.invented import call, succeed, warnings_of
from treeopt import bundled
from treeopt.trees import chain

LITTLE = ("--max-tokens", "4", "--rounds", "1", "--positions", "240", "--context-tokens", "16", "-o", "p.yaml")
RUN = ("run", "tree.json", "--prompt", "def ", "--max-new-tokens", "8", "--threads", "1")


def error_of(*command: object) -> str:
    """Return the last line of a command that fails after it has begun, and so may leave a checkpoint."""
    result = call(*command)
    assert result.exit_code == 1, result.output
    return result.stderr.splitlines()[-1]


@pytest.fixture
def break_model(folder: Path):
    """Return a function that copies a bundled model, sets a weight to NaN, and returns the folder."""
    chain(2).save("tree.json")

    def copy(source: Path) -> str:
        target = Path(shutil.copytree(source, folder / f"broken-{source.name}"))
        weights = load_file(target / "model.safetensors")
        weights["model.norm.weight"][0] = torch.nan
        save_file(weights, target / "model.safetensors")
        return str(target)

    return copy


def test_run_ignores_the_draft_model_with_a_warning_and_profile_refuses_it(break_model):
    models = ("--target", bundled.TARGET, "--draft", break_model(bundled.DRAFT))
    result, whole = succeed(*RUN, *models), succeed(*RUN)
    assert result.stdout == whole.stdout
    (warning,) = warnings_of(result)
    reason = "broken-draft: expected a draft model whose logits are"
    assert warning.startswith(f"Warning: {reason} finite. Got NaN")
    assert warnings_of(whole) == []
    assert error_of("profile", *models, "--threads", "1", *LITTLE).startswith(f"Error: {reason}")


@pytest.mark.parametrize("command", [RUN, ("profile", "--threads", "1", *LITTLE)], ids=lambda command: command[0])
@pytest.mark.parametrize("temperature", ["0", "0.7"])
def test_target_is_refused_by_name(break_model, command, temperature):
    models = ("--target", break_model(bundled.TARGET), "--draft", bundled.DRAFT)
    line = error_of(*command, "--temperature", temperature, *models)
    assert line.startswith("Error: broken-target: expected a target whose logits are finite. Got NaN or infinity: ")
    assert "float32" in line
