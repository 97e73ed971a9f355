"""Drafters in `treeopt profile` and `treeopt solve`: a row for each, and the fastest in the tree file."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.conftest import LITTLE
from tests.cli.invented import TABLE, call, invented, refused, saved, solved, solved_json, succeed
from tests.planner.test_drafters import heads, lookup, lookup_rows
from tests.support.eagle_heads import make_head, save_head, speculators
from treeopt import bundled as bundle
from treeopt.errors import TreeoptError
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import load_model
from treeopt.trees import load_file
from treeopt.trees.drafter_setting import drafter_setting


@pytest.fixture
def profile() -> Profile:
    result = invented()
    best = ({"length": 5, "ngram": 3}, 6, 4.5, 1e-4)
    return replace(result, drafters=(heads(result), lookup(result, [*lookup_rows(), best])))


def drafter_rows(output: str) -> list[str]:
    """Return the lines of the table of drafters."""
    lines = output.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  drafter"))
    return lines[start + 1 : lines.index("", start)]


def test_layers_apply_to_eagle_heads_only(folder: Path, monkeypatch: pytest.MonkeyPatch):
    layers_of = {}

    def load(setting, *_, **__):
        layers_of[setting.name] = setting.layers
        if len(layers_of) < 5:
            loaded = SimpleNamespace(setting=setting)
            loaded.with_block_of = lambda _: loaded
            return loaded
        raise TreeoptError("enough")

    monkeypatch.setattr("treeopt.cli.profile_run.load_drafter", load)
    names = ("medusa", "eagle=heads", "p-eagle=heads", "eagle2=heads", "lookahead")
    options = [word for name in names for word in ("--drafter", name)]
    assert call("profile", *LITTLE, *options, "--eagle-layers", "9,2,6").exit_code == 1
    read = (9, 2, 6)
    assert layers_of == {"medusa": (), "eagle": read, "p-eagle": read, "eagle2": read, "lookahead": ()}
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("folder")
def test_cuda_graphs_apply_to_drafters(monkeypatch: pytest.MonkeyPatch):
    received = []

    def load(*_, cuda_graphs, **__):
        received.append(cuda_graphs)
        raise TreeoptError("enough")

    monkeypatch.setattr("treeopt.cli.profile_run.load_drafter", load)
    for option in ((), ("--cuda-graphs",), ("--no-cuda-graphs",)):
        assert call("profile", *LITTLE, "--drafter", "lookahead", *option).exit_code == 1
    assert received == [None, True, False]


def test_layers_of_a_profile_reach_the_plan_and_the_tree_file(folder: Path):
    profile = invented()
    profile = replace(
        profile, drafters=(replace(heads(profile, name="eagle"), setting=drafter_setting("eagle", layers=(9, 2, 6))),)
    )
    assert drafter_rows(solved(folder, profile, "--drafter", "eagle"))[0].startswith("* eagle")
    assert load_file(folder / "tree.json").drafter == drafter_setting("eagle", layers=(9, 2, 6))
    model, eagle = solved_json(folder, profile)["drafters"]
    assert (model["layers"], eagle["layers"]) == ([], [9, 2, 6])


def test_a_row_for_each_drafter_and_the_fastest_in_the_tree_file(folder: Path, profile: Profile):
    output = solved(folder, profile)
    rows = drafter_rows(output)
    assert [row[2:].split()[0] for row in rows] == ["model", "medusa", "prompt-lookup"]
    (chosen,) = [row for row in rows if row.startswith("*")]
    speedups = [float(row.split()[-2]) for row in rows]
    assert rows[speedups.index(max(speedups))] == chosen
    content = load_file(folder / "tree.json")
    assert content.drafter is not None
    assert content.drafter.name == chosen[2:].split()[0]
    assert f"Fastest of all drafters: {content.drafter.name}" in output
    assert content.provenance is not None
    assert round(content.provenance.speedup, 2) == max(speedups)


def test_a_tree_of_the_draft_model_names_no_drafter(folder: Path, profile: Profile):
    slow = lookup(profile, [({"length": 3, "ngram": 2}, 4, 1.1, 5e-3)])
    assert drafter_rows(solved(folder, replace(profile, drafters=(slow,))))[0].startswith("* model")
    assert '"version": 1' in (folder / "tree.json").read_text()
    assert load_file(folder / "tree.json").drafter is None


def test_without_drafters_none_are_mentioned(folder: Path):
    assert "drafter" not in solved(folder, invented())
    assert solved_json(folder, invented())["drafters"] == []


def test_one_drafter_alone(folder: Path, profile: Profile):
    for name in ("model", "medusa", "prompt-lookup"):
        output = solved(folder, profile, "--drafter", name)
        (row,) = drafter_rows(output)
        assert row.startswith(f"* {name}")
        assert "of all drafters" not in output
        assert (load_file(folder / "tree.json").drafter or drafter_setting("model")).name == name
    assert refused("solve", "--profile", saved(folder, profile), "--drafter", "eagle") == (
        "Error: drafter eagle: no measurement of it fits the request. Measured here: model, medusa, prompt-lookup. "
        "Profile with --drafter eagle."
    )
    line = refused("solve", "--drafter", "medusa", "--budget", "1")
    assert "Plan with another --budget, --batch-size or --temperature." in line


def test_other_drafters_than_the_saved_and_exported_one_are_named(folder: Path, profile: Profile):
    saved(folder, profile)
    line = refused("solve", "--drafter", "medusa", "--save", "all.npz", code=2)
    assert "--save: expected the draft model, whose trees are solved" in line
    warning = succeed("export", "profile.yaml", "--to", "sglang").stderr
    assert "times as fast as plain decoding, and faster than the draft model. Export the tree file" in warning


def test_heads_are_not_planned_under_rules_that_need_sampled_children(folder: Path):
    base = invented(tables=[TABLE, TABLE])
    profile = replace(base, drafters=(heads(base, name="dflash", temperature=0.2),))
    command = ("solve", "--profile", saved(folder, profile), "--temperature", "0.2", "--drafter", "dflash")
    assert refused(*command, "--rule", "sequoia").endswith("or plan without --rule sequoia.")
    succeed(*command)
    provenance = load_file(folder / "tree.json").provenance
    assert provenance is not None
    assert (provenance.rule, provenance.temperature) == ("target", 0.2)


@pytest.mark.parametrize(("name", "options"), [("medusa", ""), ("model", " --draft-temperature 0.5")])
def test_printed_command_has_the_draft_temperature_of_the_draft_model_only(folder: Path, name: str, options: str):
    base = invented(tables=[TABLE, TABLE])
    acceptance = replace(base.acceptances[1], draft_sampling=Sampling(0.5))
    profile = replace(base, acceptances=(acceptance,), drafters=(heads(base, temperature=0.2),))
    output = succeed("solve", "--profile", saved(folder, profile), "--drafter", name).stdout
    assert f"treeopt run tree.json --target MODEL --draft MODEL --temperature 0.2{options} --prompt TEXT" in output


def test_json_contains_every_drafter(folder: Path, profile: Profile):
    drafters = solved_json(folder, profile)["drafters"]
    assert [drafter["drafter"] for drafter in drafters] == ["model", "medusa", "prompt-lookup"]
    assert sum(drafter["chosen"] for drafter in drafters) == 1
    model, medusa, prompt_lookup = drafters
    assert (len(medusa["parents"]), medusa["settings"]) == (medusa["nodes"], {})
    assert (prompt_lookup["parents"], sorted(prompt_lookup["settings"])) == (None, ["length", "ngram"])
    assert model["bound_on_speedup"] >= model["speedup"]
    for drafter in drafters:
        low, high = drafter["speedup_interval"]
        assert low <= drafter["speedup"] <= high


@pytest.mark.slow
def test_a_profile_of_the_bundled_pair_with_drafters_is_solved(folder: Path):
    target = load_model(bundle.TARGET)
    eagle = save_head(speculators, folder / "eagle", make_head(target, (1, 2), embedding=True), target)
    heads = ("--drafter", f"medusa={bundle.MEDUSA}", "--drafter", f"eagle2={eagle}", "--eagle-layers", "5,3")
    blocks = ("--drafter", "dflash", "--block-draft-tokens", "2,7")
    result = succeed("profile", *LITTLE, "--positions", "96", "--max-prompts", "4", *heads, *blocks)
    assert all(f"{name} at" in result.stdout or f"{name}: " in result.stdout for name in ("eagle2", "medusa"))
    small, large = [drafter for drafter in Profile.load("profile.yaml").drafters if drafter.name == "dflash"]
    assert [small.label, large.label] == ["dflash, blocks of 2", "dflash, blocks of 7"]
    (two,), (seven,) = small.trees, large.trees
    assert (two.acceptance.table.max_depth, seven.acceptance.table.max_depth) == (2, 7)
    assert not np.allclose(two.acceptance.table.p[:2], seven.acceptance.table.p[:2], atol=1e-6)
    rows = drafter_rows(succeed("solve").stdout)
    assert [row[2:].split()[0] for row in rows] == ["model", "medusa", "eagle2", "dflash", "dflash"]
    assert ["blocks of" in row for row in rows] == [False, False, False, True, True]
    succeed("solve", "--drafter", "eagle2")
    drafter = load_file("tree.json").drafter
    assert drafter is not None
    assert (drafter.source, drafter.layers) == (str(eagle), (5, 3))
    succeed("solve", "--drafter", "dflash")
    drafter = load_file("tree.json").drafter
    assert drafter is not None
    assert drafter.block_draft_tokens in (2, 7)
    succeed("run", "tree.json", "--max-new-tokens", "8", "--prompt", "import os")


def test_blocks_longer_than_the_heads_are_refused(folder: Path):
    options = ("--drafter", "dflash", "--block-draft-tokens", "8")
    assert "--block-draft-tokens: expected 1 to 7, because" in refused("profile", *LITTLE, *options, code=2)
    assert list(folder.iterdir()) == []
