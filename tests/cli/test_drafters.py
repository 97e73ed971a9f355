"""Drafters on the command line: named before anything is loaded, a row each in what solve prints, the fastest in the tree file."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.conftest import LITTLE
from tests.cli.invented import call, invented, saved, solved, solved_json
from tests.planner.test_drafters import heads, lookup, lookup_rows
from tests.support.eagle_heads import make_head, save_head, speculators
from treeopt import bundled as bundle
from treeopt.errors import TreeoptError
from treeopt.records.profile import Profile
from treeopt.runtime import load_model
from treeopt.trees import load_file
from treeopt.trees.drafter_setting import drafter_setting


@pytest.fixture
def profile():
    found = invented()
    best = ({"length": 5, "ngram": 3}, 6, 4.5, 1e-4)
    return replace(found, drafters=(heads(found), lookup(found, [*lookup_rows(), best])))


def rows(text):
    """Return the lines of the table of drafters."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("  drafter"))
    return lines[start + 1 : lines.index("", start)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("medsua",),
            "expected one of model, medusa, dflash, dspark, ddtree, redrafter, eagle, p-eagle, eagle2, specexec, lookahead, prompt-lookup",
        ),
        (("lookahead=heads",), "expected no folder, because lookahead reads none. Got 'heads': leave it out."),
        (("medusa=",), "expected a folder after medusa=. Got none"),
        (("lookahead", "medusa", "lookahead"), "--drafter lookahead: expected once. Got it 2 times."),
        (("model", "model"), "--drafter model: expected once. Got it 2 times."),
    ],
)
def test_names_are_refused_before_anything_is_loaded(folder, options, expected):
    named = [part for each in options for part in ("--drafter", each)]
    result = call("profile", "--target", "absent", "--draft", "absent", *named)
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())
    assert list(folder.iterdir()) == []


EAGLE = "--eagle-layers: expected --drafter eagle, p-eagle=DIR or eagle2=DIR, whose head reads them. Got none"


@pytest.mark.parametrize(
    ("named", "layers", "expected"),
    [
        ((), "2,6,9", EAGLE),
        (("model", "medusa=heads", "eagle2"), "2,6,9", EAGLE),
        (
            ("eagle",),
            "2,-6",
            "expected layer ids of the target, whole numbers of at least 0, each once, such as 2,6,9.",
        ),
        (("eagle",), "2,6,2", "Got '2,6,2'."),
        (("eagle",), "", "Got ''."),
    ],
)
def test_layers_without_a_head_are_refused_before_loading(folder, named, layers, expected):
    options = [part for each in named for part in ("--drafter", each)]
    result = call("profile", "--target", "absent", "--draft", "absent", *options, "--eagle-layers", layers)
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("folder")
def test_layers_apply_to_eagle_heads_only(monkeypatch):
    found = {}

    def load(name, *_, layers, **__):
        found[name] = layers
        if len(found) < 5:
            return SimpleNamespace(setting=lambda: drafter_setting(name, layers=layers))
        raise TreeoptError("enough")

    monkeypatch.setattr("treeopt.methods.build.load_drafter", load)
    named = ("medusa", "eagle=heads", "p-eagle=heads", "eagle2=heads", "lookahead")
    options = [part for each in named for part in ("--drafter", each)]
    assert call("profile", *LITTLE, *options, "--eagle-layers", "9,2,6").exit_code == 1
    read = (9, 2, 6)
    assert found == {"medusa": (), "eagle": read, "p-eagle": read, "eagle2": read, "lookahead": ()}


def test_layers_of_a_profile_reach_the_plan_and_the_tree_file(folder):
    found = invented()
    profile = replace(found, drafters=(replace(heads(found, name="eagle"), layers=(9, 2, 6)),))
    text = solved(folder, profile, "--drafter", "eagle")
    assert rows(text)[0].startswith("* eagle")
    assert load_file(folder / "tree.json").drafter == drafter_setting("eagle", layers=(9, 2, 6))
    model, eagle = solved_json(folder, profile)["drafters"]
    assert (model["layers"], eagle["layers"]) == ([], [9, 2, 6])


def test_heads_that_are_not_there_or_fit_no_target(folder):
    (folder / "heads").mkdir()
    for drafter in ("medusa=absent", "eagle=heads", "eagle2=absent"):
        result = call("profile", "--drafter", drafter, *LITTLE)
        assert result.exit_code == 1, drafter
        running, error = result.stderr.strip().splitlines()
        assert (running, error[:7]) == ("bundled target + bundled draft: cpu, float32", "Error: ")
        assert not (folder / "profile.yaml").exists()


def test_a_row_for_each_drafter_and_the_fastest_in_the_tree_file(folder, profile):
    text = solved(folder, profile)
    found = rows(text)
    assert [line[2:].split()[0] for line in found] == ["model", "medusa", "prompt-lookup"]
    (chosen,) = [line for line in found if line.startswith("*")]
    rates = [float(line.split()[-2]) for line in found]
    assert found[rates.index(max(rates))] == chosen
    file = load_file(folder / "tree.json")
    assert file.drafter is not None
    assert file.drafter.name == chosen[2:].split()[0]
    assert f"Fastest of all drafters: {file.drafter.name}" in text
    assert file.provenance is not None
    assert round(file.provenance.speedup, 2) == max(rates)


def test_where_the_draft_model_is_fastest_the_file_names_no_drafter(folder, profile):
    slow = lookup(profile, [({"length": 3, "ngram": 2}, 4, 1.1, 5e-3)])
    text = solved(folder, replace(profile, drafters=(slow,)))
    assert rows(text)[0].startswith("* model")
    assert '"version": 1' in (folder / "tree.json").read_text()
    assert load_file(folder / "tree.json").drafter is None


def test_without_drafters_nothing_is_said_of_them(folder, profile):
    text = solved(folder, replace(profile, drafters=()))
    assert "drafter" not in text
    assert solved_json(folder, replace(profile, drafters=()))["drafters"] == []


def test_one_drafter_alone(folder, profile):
    for name in ("model", "medusa", "prompt-lookup"):
        text = solved(folder, profile, "--drafter", name)
        (row,) = rows(text)
        assert row.startswith(f"* {name}")
        assert "of all drafters" not in text
        assert (load_file(folder / "tree.json").drafter or drafter_setting("model")).name == name
    result = call("solve", "--profile", saved(folder, profile), "--drafter", "eagle")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: drafter eagle: no measurement of it fits the request. Measured here: model, medusa, prompt-lookup. "
        "Profile with --drafter eagle.\n"
    )
    assert call("solve", "--profile", saved(folder, profile), "--drafter", "medsua").exit_code == 2


def test_as_json(folder, profile):
    found = solved_json(folder, profile)["drafters"]
    assert [each["drafter"] for each in found] == ["model", "medusa", "prompt-lookup"]
    assert sum(each["chosen"] for each in found) == 1
    model, medusa, prompt_lookup = found
    assert (len(medusa["parents"]), medusa["settings"]) == (medusa["nodes"], {})
    assert (prompt_lookup["parents"], sorted(prompt_lookup["settings"])) == (None, ["length", "ngram"])
    assert model["bound_on_speedup"] >= model["speedup"]
    for each in found:
        low, high = each["speedup_interval"]
        assert low <= each["speedup"] <= high


def test_a_tree_file_on_standard_output_is_nothing_else(folder, profile):
    result = call("solve", "--profile", saved(folder, profile), "-o", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["drafter"]["name"] in result.stderr


@pytest.mark.slow
def test_a_profile_of_the_bundled_pair_with_drafters_is_solved(folder):
    target = load_model(bundle.TARGET)
    eagle = save_head(speculators, folder / "eagle", make_head(target, (1, 2), embedding=True), target)
    named = (f"medusa={bundle.MEDUSA}", f"eagle2={eagle}")
    options = [part for each in named for part in ("--drafter", each)]
    result = call("profile", *LITTLE, "--positions", "48", "--max-prompts", "4", *options, "--eagle-layers", "5,3")
    assert result.exit_code == 0, result.output
    assert all(f"{name} at" in result.stdout or f"{name}: " in result.stdout for name in ("eagle2", "medusa"))
    names = ["model", *(each.partition("=")[0] for each in named)]
    result = call("solve")
    assert result.exit_code == 0, result.output
    assert [line[2:].split()[0] for line in rows(result.stdout)] == names
    assert call("solve", "--drafter", "eagle2").exit_code == 0
    drafter = load_file(folder / "tree.json").drafter
    assert drafter is not None
    assert (drafter.source, drafter.layers) == (str(eagle), (5, 3))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("medusa=heads",), "--block-draft-tokens: expected --drafter dflash, dspark, ddtree, whose blocks they are."),
        (("dflash", "3,0"), "expected whole numbers of at least 1, each once, such as 3,7."),
    ],
)
def test_block_sizes_are_refused_before_anything_is_loaded(folder, options, expected):
    drafter, *blocks = options
    block = blocks[0] if blocks else "3"
    result = call("profile", "--target", "absent", "--drafter", drafter, "--block-draft-tokens", block)
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_every_block_size_is_measured_and_the_fastest_planned(folder):
    named = ("--drafter", "dflash", "--drafter", "ddtree", "--block-draft-tokens", "2,7")
    result = call("profile", *LITTLE, "--positions", "96", "--max-prompts", "4", *named)
    assert result.exit_code == 0, result.output
    small, large = Profile.load(folder / "profile.yaml").drafters[:2]
    assert [small.label, large.label] == ["dflash, blocks of 2", "dflash, blocks of 7"]
    (two,), (seven,) = small.trees, large.trees
    assert (two.acceptance.table.max_depth, seven.acceptance.table.max_depth) == (2, 7)
    assert not np.allclose(two.acceptance.table.p[:2], seven.acceptance.table.p[:2], atol=1e-6)
    result = call("solve")
    assert result.exit_code == 0, result.output
    lines = [line for line in rows(result.stdout) if "blocks of" in line]
    assert [line[2:].split()[0] for line in lines] == ["dflash", "dflash", "ddtree", "ddtree"]
    assert call("solve", "--drafter", "dflash").exit_code == 0
    drafter = load_file(folder / "tree.json").drafter
    assert drafter is not None
    assert drafter.block_draft_tokens in (2, 7)
    assert call("run", "tree.json", "--max-new-tokens", "8", "--prompt", "import os").exit_code == 0
    result = call("profile", *LITTLE, "--drafter", "dflash", "--block-draft-tokens", "8", "-o", "other.yaml")
    assert result.exit_code == 1
    assert "--block-draft-tokens: expected 1 to 7, because" in " ".join(result.stderr.split())
