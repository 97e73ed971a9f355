"""Predictions for one pair are never shown for another, and printed commands name the same pair."""

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from safetensors import torch as safetensors

from tests.cli.invented import call, invented, refused, succeed, warnings_of
from treeopt import bundled as bundle
from treeopt.profiler.machine import describe_machine
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.pair import load_pair
from treeopt.trees import Provenance, TreeFile, chain, load_file

MODELS = ("--target", "my models/t", "--draft", "my models/d")
RUN = ("run", "tree.json", "--prompt", "a", "--max-new-tokens", "2")


@pytest.fixture(scope="module")
def solved_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the bundled pair that differs in one weight, its profile and its tree."""
    folder = tmp_path_factory.mktemp("pair")
    shutil.copytree(bundle.TARGET, folder / "my models" / "t")
    shutil.copytree(bundle.DRAFT, folder / "my models" / "d")
    weights = safetensors.load_file(folder / "my models" / "d" / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    safetensors.save_file(weights, folder / "my models" / "d" / "model.safetensors")
    with pytest.MonkeyPatch.context() as inside:
        inside.chdir(folder)
        models = load_pair("my models/t", "my models/d")
        machine = describe_machine(models.target.device)
        replace(invented(), pair=models.described, machine=machine).save("profile.yaml")
        succeed("solve")
    return folder


@pytest.fixture
def own_pair(folder: Path, solved_folder: Path) -> Path:
    return Path(shutil.copytree(solved_folder, folder, dirs_exist_ok=True))


def next_commands(result: Result) -> list[list[str]]:
    """Return the commands after `Next:`, as a shell reads them."""
    return [
        shlex.split(command) for command in re.split(r", (?=treeopt )", result.stdout.partition("Next: ")[2].strip())
    ]


class TestOwnPair:
    def test_commands_of_solve_run_with_the_profiled_pair(self, own_pair: Path) -> None:
        (own_pair / "profile.yaml").rename("my profile.yaml")
        show, run = next_commands(succeed("solve", "--profile", "my profile.yaml", "-o", "my tree.json"))
        assert run[1:] == ["run", "my tree.json", "--prompt", "TEXT"]
        succeed(*show[1:])
        result = succeed(*run[1:], "--max-new-tokens", "2")
        assert warnings_of(result) == []
        assert result.stderr.startswith("t + d: cpu, float32\n")

    @pytest.mark.usefixtures("own_pair")
    @pytest.mark.parametrize(
        "command", [RUN, ("bench", "tree", "tree.json", "--repeats", 1, "--max-new-tokens", 2, "--max-prompts", 4)]
    )
    def test_other_models_need_force(self, command: tuple[object, ...]) -> None:
        other = (*command, "--target", bundle.TARGET, "--draft", bundle.DRAFT)
        assert f"expected its own models, t + d. Got target + draft: add {shlex.join(MODELS)}, or" in refused(*other)
        *_, warning = warnings_of(succeed(*other, "--force"))
        assert "was made for t + d, and this is target + draft: the prediction does not hold." in warning

    def test_moved_models_are_the_same_models(self, own_pair: Path) -> None:
        (own_pair / "my models" / "t").rename(own_pair / "moved")
        assert "tree.json names my models/t; if it has moved, add --target DIR." in refused(*RUN)
        (own_pair / "my models" / "d").rename(own_pair / "renamed")
        assert warnings_of(succeed(*RUN, "--target", "moved", "--draft", "renamed")) == []

    @pytest.mark.slow
    def test_offloaded_target_is_the_planned_model_with_other_times(self, own_pair: Path) -> None:
        pytest.importorskip("accelerate", reason="needs the hf extra")
        planned = load_file("tree.json")
        assert planned.provenance is not None
        provenance = replace(planned.provenance, target_digest=None, draft_digest=None)
        for file, content in (("tree.json", planned), ("named.json", replace(planned, provenance=provenance))):
            content.save(own_pair / file)
            result = succeed("run", file, *RUN[2:], "--offload", own_pair / "offload")
            (warning,) = warnings_of(result)
            assert f"{file} was made for the target on one device, not the target over" in warning

    def test_other_weights_under_the_same_names_are_refused(self, own_pair: Path) -> None:
        assert ModelFolder("my models/d").digest != ModelFolder(bundle.DRAFT).digest
        shutil.copy(bundle.DRAFT / "model.safetensors", own_pair / "my models" / "d" / "model.safetensors")
        assert "Got t + d by their names, with other weights" in refused(*RUN, *MODELS)

    @pytest.mark.usefixtures("own_pair")
    def test_settings_of_engines_name_the_models(self) -> None:
        result = succeed("export", "profile.yaml", "--to", "vllm")
        assert '"model": "my models/d"' in result.stdout
        assert "Use: vllm serve 'my models/t' --speculative-config" in result.stderr
        assert not any("which is a name" in warning for warning in warnings_of(result))

    @pytest.mark.slow
    def test_printed_commands_of_a_real_profile_name_its_sampling(self, own_pair: Path) -> None:
        little = ("--max-tokens", 8, "--rounds", 1, "--positions", 24, "--context-tokens", 64, "--max-prompts", 4)
        (solve,) = next_commands(succeed("profile", *MODELS, *little, "--temperature", "0.7", "--top-k", "50"))
        _, run = next_commands(succeed(*solve[1:]))
        options = ["--temperature", "0.7", "--top-k", "50"]
        assert [word for word in run[3:] if word in options] == options
        assert warnings_of(succeed(*run[1:], "--max-new-tokens", "2")) == []
        succeed("bench", "tree", "tree.json", "--max-new-tokens", "8", "--repeats", "1", "-o", "bench.json")
        assert '"temperature": 0.7' in (own_pair / "bench.json").read_text()


class TestTreesOfOtherPairs:
    @pytest.fixture(autouse=True)
    def files(self, folder: Path) -> None:
        invented().save(folder / "profile.yaml")
        other = Provenance(pair="large + tiny", target="l", draft="t", threads=8)
        TreeFile(tree=chain(2), provenance=other).save(folder / "other.json")
        TreeFile(tree=chain(2), provenance=Provenance(pair="big + small", threads=8)).save(folder / "threads.json")
        TreeFile(tree=chain(2)).save(folder / "silent.json")

    def test_export_needs_force_for_a_tree_of_other_models(self) -> None:
        line = refused("export", "other.json", "--to", "vllm", "--draft-model", "d")
        assert (
            "other.json: expected its own models, large + tiny. Got big + small: name its own profile with --profile,"
            in line
        )

    @pytest.mark.parametrize("command", [("compare",), ("export", "--force", "--to", "vllm", "--draft-model", "d")])
    def test_compare_and_export_warn_of_the_pair_and_threads_of_a_tree(self, command: tuple[str, ...]) -> None:
        name, *options = command
        (other,) = warnings_of(succeed(name, "other.json", *options))
        assert "for large + tiny, and this is big + small" in other
        assert other.endswith("name its own profile with --profile.")
        (threads,) = warnings_of(succeed(name, "threads.json", *options))
        assert "for 8 threads, not 2 threads: times differ." in threads
        assert warnings_of(succeed(name, "silent.json", *options)) == []

    def test_the_name_of_a_draft_model_is_no_model_for_an_engine(self) -> None:
        (warning,) = warnings_of(call("export", "profile.yaml", "--to", "vllm"))
        assert "the draft model is known by the name 'small' only" in warning
        assert warning.endswith("Name a model with --draft-model.")

    def test_tree_file_of_solve_contains_the_pair(self) -> None:
        succeed("solve")
        provenance = load_file("tree.json").provenance
        assert provenance is not None
        assert (provenance.pair, provenance.threads, provenance.dtype) == ("big + small", 2, "float32")


def test_commands_of_import_run(folder: Path) -> None:
    (folder / "choices.json").write_text("[[0], [0, 0], [1]]")
    (show,) = next_commands(succeed("import", "choices.json", "-o", "my tree.json"))
    succeed(*show[1:])
    invented().save(folder / "profile.yaml")
    _, compare = next_commands(succeed("import", "choices.json", "-o", "my tree.json"))
    succeed(*compare[1:])
