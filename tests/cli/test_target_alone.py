"""A target without a draft model: profiled with other drafters, planned, run, benchmarked and exported."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.invented import call, refused, succeed
from treeopt import Profile, bundled, plan
from treeopt.trees import load_file
from treeopt.trees.drafter_setting import DrafterSetting

LITTLE = ("--max-tokens", 8, "--rounds", 1, "--positions", 48, "--context-tokens", 64, "--max-prompts", 8)
PROMPTS = ("--prompts", bundled.PROMPTS)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile of the bundled target without its draft model, with a lookup and with a head."""
    path = tmp_path_factory.mktemp("alone") / "profile.yaml"
    options = ("--drafter", "prompt-lookup", "--drafter", f"eagle={bundled.EAGLE}")
    result = succeed("profile", "--target", bundled.TARGET, *options, *LITTLE, *PROMPTS, "-o", path)
    assert result.stderr.startswith("target: cpu, float32\n")
    return path


@pytest.fixture
def profile(measured: Path, folder: Path) -> Profile:
    (folder / "profile.yaml").write_bytes(measured.read_bytes())
    return Profile.load("profile.yaml")


def test_profile_contains_nothing_of_a_draft_model(profile: Profile) -> None:
    assert not profile.has_draft_model
    assert (profile.pair.draft, profile.pair.draft_digest, profile.acceptances) == (None, None, ())
    assert all(latency.draft is latency.overhead is None and latency.steps == () for latency in profile.latencies)
    assert profile.prefill is not None
    assert profile.prefill.draft is None
    assert [drafter.name for drafter in profile.drafters] == ["prompt-lookup", "eagle"]
    profile.save("again.yaml")
    assert Path("again.yaml").read_bytes() == Path("profile.yaml").read_bytes()


def test_plan_compares_plain_decoding_and_the_drafters(profile: Profile) -> None:
    alone = plan(profile)
    assert (alone.choice.kind, alone.choice.tree.nodes, alone.choice.speedup.value) == ("plain", 1, 1.0)
    drafters = {row["drafter"]: row for row in json.loads(succeed("solve", "--json").stdout)["drafters"]}
    assert list(drafters) == ["model", "prompt-lookup", "eagle"]
    assert drafters["model"]["nodes"] == 1
    assert drafters["eagle"]["parents"] is not None
    provenance = load_file("tree.json").provenance
    assert provenance is not None
    assert provenance.speedup == pytest.approx(max(row["speedup"] for row in drafters.values()), rel=1e-4)
    assert (provenance.target, provenance.draft) == (str(bundled.TARGET), None)
    without = replace(profile, drafters=())
    assert np.array_equal(without.acceptance(temperature=0.6).table.p, [0.0])
    assert plan(without, temperature=0.6).choice.tokens_per_step.value == 1.0


@pytest.mark.usefixtures("profile")
@pytest.mark.parametrize("drafter", ["prompt-lookup", "eagle"])
def test_run_bench_and_report_use_the_models_of_the_file(drafter: str) -> None:
    succeed("solve", "--drafter", drafter)
    run = ("--prompt", "import os\n", "--max-new-tokens", 24)
    drafted, plain = succeed("run", "tree.json", *run), succeed("run", "--target", bundled.TARGET, *run)
    assert drafted.stdout == plain.stdout
    assert "24 tokens in 24 steps" in plain.stderr
    bench = ("--max-new-tokens", 8, "--repeats", 1, *PROMPTS, "--max-prompts", 8)
    result = succeed("bench", "tree", "tree.json", *bench, "-o", "bench.json")
    assert "identical to plain decoding, token by token" in result.stdout
    succeed("report", "profile.yaml", "tree.json", "bench.json", "-o", "p.html")
    succeed("show", "profile.yaml")


@pytest.mark.parametrize("output", ["-", "acceptance.svg"])
def test_acceptance_is_that_of_static_trees(profile: Profile, output: str) -> None:
    succeed("show", "profile.yaml", "--acceptance", "-o", output)
    assert "target at temperature 0; float32" in succeed("show", "profile.yaml").stdout
    replace(profile, drafters=profile.drafters[:1]).save("profile.yaml")
    line = refused("show", "profile.yaml", "--acceptance", "-o", output)
    assert "expected acceptance by depth and rank. Got drafters that build their own trees" in line


@pytest.mark.usefixtures("profile")
def test_methods_are_compared_at_the_temperatures_of_the_drafters() -> None:
    few = ("--methods", "plain", "--max-new-tokens", 8, "--repeats", 1, *PROMPTS, "--max-prompts", 8)
    assert "temperature 0\n" in succeed("bench", "methods", "--profile", "profile.yaml", *few).stdout


def test_export_sets_a_drafter_of_the_engine(profile: Profile) -> None:
    setting = json.loads(call("export", "profile.yaml", "--to", "vllm").stdout)
    assert setting["method"] in ("ngram", "eagle", "eagle3")
    line = refused("export", "profile.yaml", "--to", "mlx-lm")
    assert "Measured were prompt-lookup, eagle: profile with --drafter or --draft" in line
    replace(profile, drafters=profile.drafters[:1]).save("profile.yaml")
    assert json.loads(call("export", "profile.yaml", "--to", "vllm").stdout)["method"] == "ngram"


@pytest.mark.usefixtures("profile")
@pytest.mark.parametrize(
    "command",
    [
        "bench grid",
        "bench batches --batch-sizes 1,2",
        "simulate --rate 1/s --prompt-tokens 8 --new-tokens 8",
        "schedule",
        "compare some.json",
        "export profile.yaml --to speculation-profile",
        "solve --plot plan.svg",
        "solve --save solution.npz",
    ],
)
def test_trees_of_a_draft_model_are_refused(command: str) -> None:
    Path("some.json").write_text('{"format": "treeopt-tree", "version": 1, "parents": [-1, 0]}')
    line = refused(*command.split())
    assert "expected a profile of a draft model" in line
    assert "Got one of target alone" in line


@pytest.mark.usefixtures("folder")
def test_default_drafters_are_those_that_need_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def load(setting: DrafterSetting, *_: object, **__: object) -> SimpleNamespace:
        names.append(setting.name)
        if len(names) == 2:
            raise KeyboardInterrupt
        loaded = SimpleNamespace()
        loaded.with_block_of = lambda _: loaded
        return loaded

    monkeypatch.setattr("treeopt.cli.profile_run.load_drafter", load)
    call("profile", "--target", bundled.TARGET, *LITTLE)
    assert names == ["prompt-lookup", "lookahead"]


def test_draft_model_is_loaded_only_if_it_drafts(folder: Path) -> None:
    tree = {
        "format": "treeopt-tree",
        "version": 1,
        "parents": [-1, 0, 1],
        "drafter": {"name": "prompt-lookup", "values": {"length": 2, "ngram": 2}},
        "provenance": {"pair": "target + gone", "target": str(bundled.TARGET), "draft": "gone", "rule": "target"},
    }
    (folder / "lookup.json").write_text(json.dumps(tree))
    del tree["drafter"]
    (folder / "model.json").write_text(json.dumps(tree))
    run = ("--prompt", "import os\n", "--max-new-tokens", 8)
    succeed("run", "lookup.json", *run)
    assert "model.json names gone; if it has moved, add --draft DIR" in refused("run", "model.json", *run)
