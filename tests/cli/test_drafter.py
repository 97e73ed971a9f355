"""A tree file that names its drafter: commands use it, and --drafter names the folder of its heads."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.invented import call, refused, succeed, warnings_of
from tests.support.eagle_heads import make_head, safeailab, save_head
from treeopt import bundled
from treeopt.runtime.drafters import registry
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.trees import Provenance, TreeFile, chain, k_ary, load_file
from treeopt.trees.drafter_setting import drafter_setting

TEXT = "class Reader:\n    def read"
PROMPT = ("--prompt", TEXT, "--max-new-tokens", 30, "--threads", 1)
LITTLE = ("--max-prompts", 4, "--max-new-tokens", 12, "--repeats", 1, "--threads", 1)
PREDICTED = {"tokens_per_step": 2.5, "step_s": 0.004, "speedup": 1.75}


def medusa(**setting: str) -> TreeFile:
    provenance = Provenance(rule="target", temperature=0.0, **PREDICTED)
    return TreeFile(tree=k_ary(2, 2), drafter=drafter_setting("medusa", **setting), provenance=provenance)


def lookup() -> TreeFile:
    return TreeFile(tree=chain(8), drafter=drafter_setting("prompt-lookup", ngram=3, length=8))


@pytest.fixture(scope="module")
def plain_output() -> str:
    """Return the output of plain decoding."""
    return succeed("run", *PROMPT).stdout


@pytest.fixture(autouse=True)
def trees(folder: Path) -> Path:
    k_ary(2, 2).save("tree.json")
    medusa().save("medusa.json")
    lookup().save("lookup.json")
    return folder


def test_run_uses_the_drafter_of_the_file(plain_output: str):
    results = [call("run", f"{name}.json", *PROMPT) for name in ("medusa", "lookup", "tree")]
    results.append(call("run", "tree.json", "--drafter", "model", *PROMPT))
    assert [result.stdout for result in results] == [plain_output] * 4
    assert len(plain_output) == len(TEXT) + 30 + 1
    medusa_steps, lookup_steps, model_steps, _ = (result.stderr.splitlines()[-1].split(",")[0] for result in results)
    assert medusa_steps != model_steps, "the same tree is filled by another drafter"
    assert "30 tokens in 30 steps" not in (medusa_steps, lookup_steps, model_steps)


@pytest.mark.parametrize(("name", "predicted"), [("medusa", PREDICTED), ("lookup", {})])
def test_bench_reports_the_prediction_of_the_file(greedy_profile: Path, name: str, predicted: dict[str, float]):
    result = succeed("bench", "tree", f"{name}.json", "--profile", greedy_profile, *LITTLE, "-o", "bench.json")
    report = json.loads(Path("bench.json").read_text("utf-8"))
    for key in PREDICTED:
        assert report["predicted"].get(key) == predicted.get(key)
        assert report["measured"][key] > 0
    assert (report["measured"]["divergences"], report["rule"]) == ([], "target")
    assert report["drafter"] == load_file(f"{name}.json").drafter.description
    assert f"Drafted by {report['drafter']}." in result.stdout
    (speedup,) = [line.split() for line in result.stdout.splitlines() if line.startswith("speedup")]
    assert speedup[1] == ("1.75" if predicted else "-")


def test_predictions_for_another_temperature_are_left_out(rules_profile: Path):
    options = ("--profile", rules_profile, "--temperature", "0.6", *LITTLE)
    succeed("bench", "tree", "medusa.json", *options, "-o", "out.json")
    report = json.loads(Path("out.json").read_text("utf-8"))
    assert (report["temperature"], report["predicted"]) == (0.6, {})


def test_heads_may_have_moved(plain_output: str):
    moved = Path(shutil.copytree(bundled.MEDUSA, "moved"))
    medusa(source="gone").save("gone.json")
    assert refused("run", "gone.json", *PROMPT).startswith("Error: gone/config.json: no such file")
    result = call("run", "gone.json", "--drafter", f"medusa={moved}", *PROMPT)
    assert result.stdout == plain_output
    assert "other medusa heads" not in result.stderr


def test_layers_are_those_of_the_file_unless_an_option_names_others(
    folder: Path, bundled_pair, monkeypatch: pytest.MonkeyPatch, plain_output: str
):
    head = folder / "eagle"
    save_head(safeailab, head, make_head(bundled_pair.target, (1, 2, 3), seed=3), bundled_pair.target)
    TreeFile(tree=k_ary(2, 2), drafter=drafter_setting("eagle", source=str(head), layers=(3, 1, 2))).save("eagle.json")
    TreeFile(tree=k_ary(2, 2), drafter=drafter_setting("eagle", source=str(head))).save("default.json")
    loaded = []

    def spy(*arguments, **options):
        loaded.append(load_eagle(*arguments, **options))
        return loaded[-1]

    kinds = registry.DRAFTER_KINDS
    monkeypatch.setitem(kinds, "eagle", kinds["eagle"]._replace(load=spy))
    other = ("--eagle-layers", "6,5,1")
    commands = [
        ("eagle.json",),
        ("eagle.json", "--eagle-layers", "3,1,2"),
        ("eagle.json", *other),
        ("default.json", *other),
        ("default.json",),
    ]
    results = [call("run", *command, *PROMPT) for command in commands]
    assert [result.stdout for result in results] == [plain_output] * 5
    layers = [drafter.requested_states.layer_ids for drafter in loaded]
    assert layers == [(3, 1, 2)] * 2 + [(6, 5, 1)] * 2 + [(2, 4, 5)]
    planned, again, other_layers, config, default = map(warnings_of, results)
    assert planned == again == []
    end = ", and layers 6,5,1 are read: the prediction may not hold. Leave out --eagle-layers, or profile with it and solve again."
    assert other_layers == [f"Warning: eagle.json was planned with layers 3,1,2{end}"]
    assert config == [f"Warning: default.json was planned with those of the head's config.json{end}"]
    assert len(default) == 1
    assert "or with --eagle-layers (layer_ids= in Python), those that the head was trained on." in default[0]


def test_other_heads_than_the_planned_ones_are_a_warning(plain_output: str):
    medusa(digest="0123456789abcdef").save("other.json")
    result = call("run", "other.json", *PROMPT)
    assert result.stdout == plain_output
    (warning,) = warnings_of(result)
    assert "other.json was planned for other medusa heads than the bundled ones" in warning
    assert warning.endswith("--drafter medusa=DIR, or profile and solve again.")


def test_show_names_and_keeps_the_drafter():
    assert call("show", "medusa.json").stdout.endswith("\nDrafted by medusa.\n")
    assert "which builds its own trees" in call("show", "lookup.json").stdout
    assert "Drafted" not in call("show", "tree.json").stdout
    TreeFile(tree=chain(2), drafter=drafter_setting("eagle", source="head", layers=(6, 2))).save("eagle.json")
    assert "Drafted by eagle, heads from head, reading hidden-state layers 6,2." in call("show", "eagle.json").stdout
    succeed("show", "lookup.json", "-o", "copy.json")
    assert load_file("copy.json") == lookup()
    succeed("show", "medusa.json", "-o", "medusa.svg")
    assert "medusa" in Path("medusa.svg").read_text("utf-8")


def test_export_and_import_keep_the_drafter():
    succeed("export", "medusa.json", "--to", "medusa", "-o", "choices.py")
    assert json.loads(Path("choices.py.provenance.json").read_text("utf-8"))["drafter"] == "medusa"
    succeed("export", "lookup.json", "--to", "vllm", "-o", "vllm.json")
    assert json.loads(Path("vllm.json").read_text("utf-8"))["method"] == "ngram"
    succeed("import", "medusa.json", "-o", "imported.json")
    assert load_file("imported.json").drafter == medusa().drafter
