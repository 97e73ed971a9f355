"""What is promised for one pair is never put beside another, and what is printed to go on with means the same pair."""

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import torch as safetensors

from tests.cli.invented import call, invented
from treeopt import bundled as bundle
from treeopt.profiler.machine import describe_machine
from treeopt.records.profile import Profile
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.pair import load_pair
from treeopt.trees import Provenance, TreeFile, chain, load_file

OWN = ("--target", "my models/t", "--draft", "my models/d")
OTHER = "big + small"


@pytest.fixture
def own_pair(folder: Path) -> Path:
    """Return the folder of a pair that is nearly the bundled one: one weight of its draft is another."""
    shutil.copytree(bundle.TARGET, folder / "my models" / "t")
    shutil.copytree(bundle.DRAFT, folder / "my models" / "d")
    weights = safetensors.load_file(folder / "my models" / "d" / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    safetensors.save_file(weights, folder / "my models" / "d" / "model.safetensors")
    return folder


def profile_of_own() -> Profile:
    """Return a profile of that pair on this machine, with invented numbers."""
    models = load_pair("my models/t", "my models/d")
    machine = describe_machine(models.target.device)
    return replace(invented(), pair=models.described, machine=machine)


def commands(printed: str) -> list[list[str]]:
    """Return the commands that stand behind `Next:`, as a shell reads them."""
    return [shlex.split(each) for each in re.split(r", (?=treeopt )", printed.partition("Next: ")[2].strip())]


def warnings(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("Warning: ")]


class TestOwnPair:
    def test_what_solve_prints_runs_and_means_the_pair_that_was_profiled(self, own_pair: Path) -> None:
        profile_of_own().save(own_pair / "my profile.yaml")
        solved = call("solve", "--profile", "my profile.yaml", "-o", "my tree.json")
        show, run = commands(solved.stdout)
        assert run[1:] == ["run", "my tree.json", "--prompt", "TEXT"]
        assert call(*show[1:]).exit_code == 0
        done = call(*run[1:], "--max-new-tokens", "2")
        assert (done.exit_code, warnings(done.stderr)) == (0, [])
        assert done.stderr.startswith("t + d: cpu, float32\n")

    @pytest.mark.parametrize(
        "command", [("run", "tree.json", "--prompt", "a"), ("bench", "tree", "tree.json", "--repeats", 1)]
    )
    def test_other_models_are_refused_unless_forced(self, own_pair: Path, command: tuple[str, ...]) -> None:
        profile_of_own().save(own_pair / "profile.yaml")
        assert call("solve").exit_code == 0
        other = (*command, "--max-new-tokens", "2", "--target", bundle.TARGET, "--draft", bundle.DRAFT)
        done = call(*other)
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"expected its own models, t + d. Got target + draft: add {shlex.join(OWN)}, or" in done.stderr
        done = call(*other, "--force")
        assert done.exit_code == 0, done.output
        (*_, warning) = warnings(done.stderr)
        assert "was made for t + d, and this is target + draft: the prediction does not hold." in warning

    def test_a_folder_that_is_gone_is_named_with_what_to_do(self, own_pair: Path) -> None:
        profile_of_own().save(own_pair / "profile.yaml")
        assert call("solve").exit_code == 0
        (own_pair / "my models" / "t").rename(own_pair / "moved")
        done = call("run", "tree.json", "--prompt", "a", "--max-new-tokens", "2")
        assert done.exit_code == 1
        assert "tree.json names my models/t; if it has moved, add --target DIR." in done.stderr
        done = call("run", "tree.json", "--prompt", "a", "--max-new-tokens", "2", "--target", "moved")
        assert (done.exit_code, warnings(done.stderr)) == (0, [])

    def test_the_same_models_elsewhere_are_the_same(self, own_pair: Path) -> None:
        profile_of_own().save(own_pair / "profile.yaml")
        assert call("solve").exit_code == 0
        (own_pair / "my models").rename(own_pair / "moved")
        (own_pair / "moved" / "d").rename(own_pair / "moved" / "renamed")
        moved = ("--target", "moved/t", "--draft", "moved/renamed")
        done = call("run", "tree.json", *moved, "--prompt", "a", "--max-new-tokens", "2")
        assert (done.exit_code, warnings(done.stderr)) == (0, [])

    def test_a_folder_of_the_same_name_is_not(self, own_pair: Path) -> None:
        before = ModelFolder("my models/d").digest
        assert before != ModelFolder(bundle.DRAFT).digest
        profile_of_own().save(own_pair / "profile.yaml")
        assert call("solve").exit_code == 0
        shutil.copy(bundle.DRAFT / "model.safetensors", own_pair / "my models" / "d" / "model.safetensors")
        done = call("run", "tree.json", *OWN, "--prompt", "a", "--max-new-tokens", "2")
        assert done.exit_code == 1
        assert "Got t + d by their names, with other weights" in done.stderr

    def test_settings_name_what_an_engine_can_load(self, own_pair: Path) -> None:
        profile_of_own().save(own_pair / "profile.yaml")
        done = call("export", "profile.yaml", "--to", "vllm")
        assert '"model": "my models/d"' in done.stdout
        assert "Use: vllm serve 'my models/t' --speculative-config" in done.stderr
        assert not any("which is a name" in line for line in warnings(done.stderr))

    @pytest.mark.slow
    def test_so_it_is_from_a_real_profile_on(self, own_pair: Path) -> None:
        little = (
            *("--max-tokens", "8", "--rounds", "1", "--positions", "24", "--context-tokens", "64"),
            *("--max-prompts", "4"),
        )
        measured = call("profile", *OWN, *little, "--temperature", "0.7", "--top-k", "50")
        assert measured.exit_code == 0, measured.output
        (solve,) = commands(measured.stdout)
        _, run = commands(call(*solve[1:]).stdout)
        options = ["--temperature", "0.7", "--top-k", "50"]
        assert [word for word in run[3:] if word in options] == options
        assert warnings(call(*run[1:], "--max-new-tokens", "2").stderr) == []
        done = call("bench", "tree", "tree.json", "--max-new-tokens", "8", "--repeats", "1", "-o", "bench.json")
        assert done.exit_code == 0, done.output
        assert '"temperature": 0.7' in (own_pair / "bench.json").read_text()


class TestTreesOfOthers:
    @pytest.fixture(autouse=True)
    def files(self, folder: Path) -> None:
        here = invented()
        here.save(folder / "profile.yaml")
        made_for = Provenance(pair="large + tiny", target="l", draft="t", threads=8)
        TreeFile(tree=chain(2), provenance=made_for).save(folder / "other.json")
        TreeFile(tree=chain(2), provenance=Provenance(pair=OTHER, threads=8)).save(folder / "threads.json")
        TreeFile(tree=chain(2)).save(folder / "silent.json")

    def test_export_refuses_a_tree_of_other_models_unless_forced(self) -> None:
        options = ("--to", "vllm", "--draft-model", "d")
        refused = call("export", "other.json", *options)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "other.json: expected its own models, large + tiny. Got big + small" in refused.stderr
        forced = call("export", "other.json", *options, "--force")
        assert (forced.exit_code, len(warnings(forced.stderr))) == (0, 1)

    @pytest.mark.parametrize("command", [("compare",), ("export", "--force", "--to", "vllm", "--draft-model", "d")])
    def test_compare_and_export_tell_whose_a_tree_is(self, command: tuple[str, ...]) -> None:
        name, *options = command
        (other,) = warnings(call(name, "other.json", *options).stderr)
        assert f"for large + tiny, and this is {OTHER}" in other
        assert other.endswith("add --target l --draft t.")
        (threads,) = warnings(call(name, "threads.json", *options).stderr)
        assert "for 8 threads, not 2 threads: times differ." in threads
        assert warnings(call(name, "silent.json", *options).stderr) == []

    def test_a_name_alone_is_no_model_for_an_engine(self) -> None:
        (warning,) = warnings(call("export", "profile.yaml", "--to", "vllm").stderr)
        assert warning.endswith("Name a model with --draft-model.")
        assert "the draft model is known by the name 'small' only" in warning

    def test_a_solved_tree_knows_its_pair(self) -> None:
        assert call("solve").exit_code == 0
        provenance = load_file("tree.json").provenance
        assert provenance is not None
        assert (provenance.pair, provenance.threads, provenance.dtype) == (OTHER, 2, "float32")


def test_what_import_prints_runs(folder: Path) -> None:
    (folder / "choices.json").write_text("[[0], [0, 0], [1]]")
    (show,) = commands(call("import", "choices.json", "-o", "my tree.json").stdout)
    assert call(*show[1:]).exit_code == 0
    invented().save(folder / "profile.yaml")
    show, compare = commands(call("import", "choices.json", "-o", "my tree.json").stdout)
    assert call(*compare[1:]).exit_code == 0
