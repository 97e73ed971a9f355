"""A tree file that names its drafter: run, bench, show, compare and export know it, and --drafter finds its heads."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.invented import call
from tests.support.eagle_heads import make_head, safeailab, save_head
from treeopt import bundled
from treeopt.runtime.drafters import eagle as eagle_package
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.trees import Provenance, TreeFile, chain, k_ary, load_file
from treeopt.trees.drafter_setting import drafter_setting

TEXT = "class Reader:\n    def read"
PROMPT = ("--prompt", TEXT, "--max-new-tokens", 30, "--threads", 1)
LITTLE = ("--max-prompts", 4, "--max-new-tokens", 12, "--repeats", 1, "--threads", 1)
PROMISED = Provenance(rule="target", temperature=0.0, tokens_per_step=2.5, step_s=0.004, speedup=1.75)


def heads(**more: str) -> TreeFile:
    return TreeFile(tree=k_ary(2, 2), drafter=drafter_setting("medusa", **more), provenance=PROMISED)


def lookup() -> TreeFile:
    return TreeFile(tree=chain(8), drafter=drafter_setting("prompt-lookup", ngram=3, length=8))


@pytest.fixture
def eagle(folder: Path, bundled_pair) -> Path:
    """Save a random head of the bundled target, whose configuration names no layer ids; return its folder."""
    head = folder / "eagle"
    save_head(safeailab, head, make_head(bundled_pair.target, (1, 2, 3), seed=3), bundled_pair.target)
    TreeFile(tree=k_ary(2, 2), drafter=drafter_setting("eagle", source=str(head), layers=(3, 1, 2))).save("eagle.json")
    return head


@pytest.fixture
def trees(folder: Path) -> Path:
    chain(0).save("plain.json")
    k_ary(2, 2).save("tree.json")
    heads().save("medusa.json")
    lookup().save("lookup.json")
    TreeFile(tree=k_ary(2, 2), drafter=drafter_setting("eagle")).save("shipped.json")
    expanded = drafter_setting("eagle2", top_k=2, depth=2, nodes=4)
    TreeFile(tree=chain(2), drafter=expanded).save("expanded.json")
    return folder


def refused(*arguments: object) -> tuple[int, str]:
    """Return the exit code and the one line that is said."""
    result = call(*arguments)
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert (len(lines), result.stdout) == (1, ""), result.output
    return result.exit_code, lines[0]


@pytest.mark.usefixtures("trees")
def test_run_takes_the_drafter_of_the_file():
    plain, medusa, looked_up, draft = (call("run", f"{n}.json", *PROMPT) for n in ("plain", "medusa", "lookup", "tree"))
    assert plain.stdout == medusa.stdout == looked_up.stdout == draft.stdout
    assert len(plain.stdout) == len(TEXT) + 30 + 1
    steps = [result.stderr.splitlines()[-1].split(",")[0] for result in (plain, medusa, draft)]
    assert len({*steps}) == 3, "the same tree is filled by something else"
    assert "30 tokens in 30 steps" not in looked_up.stderr


@pytest.mark.usefixtures("trees")
def test_bench_prints_what_the_file_promised_beside_what_was_measured(greedy_profile: Path):
    for name, predicted in (("medusa", {"tokens_per_step": 2.5, "step_s": 0.004, "speedup": 1.75}), ("lookup", None)):
        result = call("bench", "tree", f"{name}.json", "--profile", greedy_profile, *LITTLE, "-o", f"{name}.out.json")
        assert result.exit_code == 0, result.output
        report = json.loads(Path(f"{name}.out.json").read_text("utf-8"))
        for each in ("tokens_per_step", "step_s", "speedup"):
            assert report["predicted"].get(each) == (predicted or {}).get(each)
            assert report["measured"][each] > 0
        assert report["measured"]["divergences"] == []
        assert report["drafter"] == load_file(f"{name}.json").drafter.description
        assert f"Drafted by {report['drafter']}." in result.stdout
        (speedup,) = [line.split() for line in result.stdout.splitlines() if line.startswith("speedup")]
        assert speedup[1] == ("1.75" if predicted else "-")
    assert report["rule"] == "target"


@pytest.mark.usefixtures("trees")
def test_a_promise_of_another_temperature_is_not_printed(rules_profile: Path):
    options = ("--profile", rules_profile, "--temperature", "0.6", *LITTLE)
    result = call("bench", "tree", "medusa.json", *options, "-o", "out.json")
    assert result.exit_code == 0, result.output
    report = json.loads(Path("out.json").read_text("utf-8"))
    assert (report["temperature"], report["predicted"]) == (0.6, {})


@pytest.mark.usefixtures("trees")
def test_the_folder_of_the_heads_may_be_another():
    moved = Path(shutil.copytree(bundled.MEDUSA, "moved"))
    heads(source="gone").save("gone.json")
    assert refused("run", "gone.json", *PROMPT)[1].startswith("Error: gone/config.json: no such file")
    result = call("run", "gone.json", "--drafter", f"medusa={moved}", *PROMPT)
    assert result.stdout == call("run", "plain.json", *PROMPT).stdout
    assert "other medusa heads" not in result.stderr


def warnings_of(result) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]


@pytest.mark.usefixtures("trees")
def test_layers_come_from_the_file_unless_an_option_names_others(eagle: Path, monkeypatch):
    read = []

    def spy(*arguments, **options):
        read.append(load_eagle(*arguments, **options))
        return read[-1]

    monkeypatch.setattr(eagle_package, "load_eagle", spy)
    TreeFile(tree=k_ary(2, 2), drafter=drafter_setting("eagle", source=str(eagle))).save("default.json")
    plain = call("run", "plain.json", *PROMPT).stdout
    asked = ("--eagle-layers", "6,5,1")
    runs = [
        ("eagle.json",),
        ("eagle.json", "--eagle-layers", "3,1,2"),
        ("eagle.json", *asked),
        ("default.json", *asked),
    ]
    found = [call("run", *each, *PROMPT) for each in (*runs, ("default.json",))]
    assert [each.stdout for each in found] == [plain] * 5
    assert [each.requested_states.layer_ids for each in read] == [(3, 1, 2)] * 2 + [(6, 5, 1)] * 2 + [(2, 4, 5)]
    planned, again, other, config, default = map(warnings_of, found)
    assert planned == again == []
    end = ", and layers 6,5,1 are read: the prediction may not hold. Leave out --eagle-layers, or profile with it and solve again."
    assert other == [f"Warning: eagle.json was planned with layers 3,1,2{end}"]
    assert config == [f"Warning: default.json was planned with those of the head's config.json{end}"]
    assert len(default) == 1
    assert "or with --eagle-layers (layer_ids= in Python), those that the head was trained on." in default[0]


@pytest.mark.usefixtures("trees")
def test_other_heads_than_those_planned_for_are_warned_of_with_an_action():
    heads(digest="0123456789abcdef").save("other.json")
    result = call("run", "other.json", *PROMPT)
    assert result.stdout == call("run", "plain.json", *PROMPT).stdout
    (warning,) = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert "other.json was planned for other medusa heads than the bundled ones" in warning
    assert warning.endswith("--drafter medusa=DIR, or profile and solve again.")


@pytest.mark.usefixtures("trees")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("run", "medusa.json", "--drafter", "redrafter", *PROMPT),
            2,
            "expected medusa, which medusa.json was planned",
        ),
        (("run", "tree.json", "--drafter", "prompt-lookup", *PROMPT), 2, "plan for it with treeopt profile --drafter"),
        (
            ("bench", "tree", "tree.json", "--drafter", "medusa"),
            2,
            "expected model, which tree.json was planned for. Got medusa",
        ),
        (("run", "medusa.json", "--drafter", "jacobi", *PROMPT), 2, "expected one of model, medusa"),
        (("run", "medusa.json", "--drafter", "medusa=", *PROMPT), 2, "expected a folder after medusa="),
        (("run", "lookup.json", "--drafter", "prompt-lookup=x", *PROMPT), 2, "prompt-lookup reads none"),
        (("run", "medusa.json", "--rule", "sequoia", *PROMPT), 1, "expected target or typical"),
        (
            ("run", "medusa.json", "--temperature", "0.8", "--draft-temperature", "0.4", *PROMPT),
            1,
            "medusa does not sample what it drafts",
        ),
        (("run", "medusa.json", "--drafter", f"medusa={bundled.REDRAFTER}", *PROMPT), 1, "expected 'medusa'"),
        (
            ("run", "expanded.json", "--drafter", f"eagle2={bundled.EAGLE}", *PROMPT),
            2,
            "expected eagle2 without a folder, because expanded.json was planned for the draft model's trees",
        ),
        (("run", "tree.json", "--eagle-layers", "2,4,5", *PROMPT), 2, "tree.json was planned for model: leave it out"),
        (("bench", "tree", "medusa.json", "--eagle-layers", "2"), 2, "expected a plan for an EAGLE head. medusa.json"),
        (
            ("run", "shipped.json", "--eagle-layers", "2,4,9", *PROMPT),
            1,
            "layers: expected 3 hidden-state layer ids from 0 to 8",
        ),
        (("compare", "medusa.json", "--profile", "profile.yaml"), 1, "compare drafters with treeopt solve"),
        (("export", "lookup.json", "--to", "medusa"), 1, "builds its own trees"),
        (("export", "medusa.json", "--to", "vllm"), 1, "run it with treeopt run, or choose another engine"),
    ],
    ids=lambda each: " ".join(map(str, each[:4])) if isinstance(each, tuple) else None,
)
def test_what_does_not_fit_is_one_line_that_says_what_to_do(arguments, code, said, greedy_profile: Path):
    shutil.copy(greedy_profile, "profile.yaml")
    found = refused(*arguments)
    assert found[0] == code
    assert said in found[1]


@pytest.mark.usefixtures("trees")
def test_the_draft_model_may_be_named():
    assert call("run", "tree.json", "--drafter", "model", *PROMPT).stdout == call("run", "tree.json", *PROMPT).stdout


@pytest.mark.usefixtures("trees")
def test_show_says_the_drafter_and_keeps_it():
    assert call("show", "medusa.json").stdout.endswith("\nDrafted by medusa.\n")
    assert "which builds its own trees" in call("show", "lookup.json").stdout
    assert "Drafted" not in call("show", "tree.json").stdout
    TreeFile(tree=chain(2), drafter=drafter_setting("eagle", source="head", layers=(6, 2))).save("eagle.json")
    assert "Drafted by eagle, heads from head, reading hidden-state layers 6,2." in call("show", "eagle.json").stdout
    assert call("show", "lookup.json", "-o", "kept.json").exit_code == 0
    assert load_file("kept.json") == lookup()
    assert call("show", "medusa.json", "-o", "medusa.svg").exit_code == 0
    assert "medusa" in Path("medusa.svg").read_text("utf-8")


@pytest.mark.usefixtures("trees")
def test_export_writes_the_tree_of_heads_and_the_drafter_of_an_engine():
    assert call("export", "medusa.json", "--to", "medusa", "-o", "choices.py").exit_code == 0
    sidecar = json.loads(Path("choices.py.provenance.json").read_text("utf-8"))
    assert sidecar["drafter"] == "medusa"
    result = call("export", "lookup.json", "--to", "vllm", "-o", "vllm.json")
    assert result.exit_code == 0, result.output
    assert json.loads(Path("vllm.json").read_text("utf-8"))["method"] == "ngram"
    assert call("import", "medusa.json", "-o", "imported.json").exit_code == 0
    assert load_file("imported.json").drafter == heads().drafter
