"""A target without a draft model: profiled with other drafters, planned, run, benchmarked and exported."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.invented import call
from treeopt import Profile, bundled, plan
from treeopt.trees import load_file

LITTLE = ("--max-tokens", 16, "--rounds", 2, "--positions", 64, "--context-tokens", 64, "--max-prompts", 8)
PROMPTS = ("--prompts", bundled.PROMPTS)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile of the bundled target without its draft model, with a lookup and with a head."""
    path = tmp_path_factory.mktemp("alone") / "profile.yaml"
    options = ("--drafter", "prompt-lookup", "--drafter", f"eagle={bundled.EAGLE}")
    done = call("profile", "--target", bundled.TARGET, *options, *LITTLE, *PROMPTS, "-o", path)
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("target: cpu, float32\n")
    return path


@pytest.fixture
def profile(measured: Path, folder: Path) -> Profile:
    (folder / "profile.yaml").write_bytes(measured.read_bytes())
    return Profile.load("profile.yaml")


def test_the_profile_has_no_number_of_a_draft_model(profile: Profile) -> None:
    assert not profile.has_draft_model
    assert (profile.pair.draft, profile.pair.draft_digest, profile.acceptances) == (None, None, ())
    assert all(each.draft is each.overhead is None and each.steps == () for each in profile.latencies)
    assert profile.prefill is not None
    assert profile.prefill.draft is None
    assert [each.name for each in profile.drafters] == ["prompt-lookup", "eagle"]
    profile.save("again.yaml")
    assert Path("again.yaml").read_bytes() == Path("profile.yaml").read_bytes()


def test_its_plan_is_plain_decoding_and_its_drafters_are_compared(profile: Profile) -> None:
    alone = plan(profile)
    assert (alone.choice.kind, alone.choice.tree.nodes, alone.choice.speedup.value) == ("plain", 1, 1.0)
    done = call("solve", "--json")
    found = {each["drafter"]: each for each in json.loads(done.stdout)["drafters"]}
    assert list(found) == ["model", "prompt-lookup", "eagle"]
    assert found["model"]["nodes"] == 1
    assert found["eagle"]["parents"] is not None
    best = max(found.values(), key=lambda each: each["speedup"])
    tree = load_file("tree.json")
    assert tree.provenance is not None
    assert tree.provenance.speedup == pytest.approx(best["speedup"], rel=1e-4)
    assert (tree.provenance.target, tree.provenance.draft) == (str(bundled.TARGET), None)


@pytest.mark.usefixtures("profile")
@pytest.mark.parametrize("drafter", ["prompt-lookup", "eagle"])
def test_run_and_bench_take_the_models_of_the_file(drafter: str) -> None:
    assert call("solve", "--drafter", drafter).exit_code == 0
    run = ("--prompt", "import os\n", "--max-new-tokens", 24)
    drafted, plain = call("run", "tree.json", *run), call("run", "--target", bundled.TARGET, *run)
    assert (drafted.exit_code, plain.exit_code) == (0, 0), drafted.output
    assert drafted.stdout == plain.stdout
    assert "24 tokens in 24 steps" in plain.stderr
    bench = ("--max-new-tokens", 8, "--repeats", 1, *PROMPTS, "--max-prompts", 8)
    done = call("bench", "tree", "tree.json", *bench, "-o", "bench.json")
    assert done.exit_code == 0, done.output
    assert "identical to plain decoding, token by token" in done.stdout
    for command in (("report", "profile.yaml", "tree.json", "bench.json", "-o", "p.html"), ("show", "profile.yaml")):
        assert call(*command).exit_code == 0


def test_export_sets_the_drafter_that_the_engine_has(profile: Profile) -> None:
    exported = json.loads(call("export", "profile.yaml", "--to", "vllm").stdout)
    assert exported["method"] in ("ngram", "eagle", "eagle3")
    refused = call("export", "profile.yaml", "--to", "mlx-lm")
    assert refused.exit_code == 1
    assert "Measured were prompt-lookup, eagle: profile with --drafter or --draft" in refused.stderr
    only = replace(profile, drafters=profile.drafters[:1])
    only.save("profile.yaml")
    assert json.loads(call("export", "profile.yaml", "--to", "vllm").stdout)["method"] == "ngram"


@pytest.mark.usefixtures("profile")
@pytest.mark.parametrize(
    "command",
    [
        ("bench", "grid"),
        ("bench", "batches", "--batch-sizes", "1,2"),
        ("simulate", "--rate", "1/s", "--prompt-tokens", 8, "--new-tokens", 8),
        ("compare", "some.json"),
        ("export", "profile.yaml", "--to", "speculation-profile"),
        ("solve", "--plot", "plan.svg"),
    ],
    ids=str,
)
def test_what_compares_trees_of_a_draft_model_says_that_there_is_none(command: tuple) -> None:
    Path("some.json").write_text('{"format": "treeopt-tree", "version": 1, "parents": [-1, 0]}')
    done = call(*command)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "expected a profile of a draft model" in done.stderr
    assert "Got one of target alone" in done.stderr


@pytest.mark.usefixtures("folder")
def test_without_a_drafter_those_are_measured_that_need_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def load(name: str, *_: object, **__: object) -> None:
        names.append(name)
        if len(names) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("treeopt.runtime.drafters.registry.load_drafter", load)
    call("profile", "--target", bundled.TARGET, *LITTLE)
    assert names == ["prompt-lookup", "lookahead"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--drafter", "specexec"), "--drafter specexec: expected --draft MODEL"),
        (("--drafter", "eagle2"), "--drafter eagle2: expected --draft MODEL"),
        (("--rules", "sequoia"), "--rules: expected a draft model"),
        (("--record",), "--record: expected a draft model"),
        (
            ("--temperature", 0.6, "--draft-temperature", 0.8),
            "--draft-temperature, --draft-top-p, --draft-top-k: expected a",
        ),
        (("--latency", "curve.csv"), "--latency, --draft-latency, --acceptance: expected a draft model"),
    ],
    ids=str,
)
def test_what_needs_a_draft_model_is_refused(folder: Path, options: tuple, expected: str) -> None:
    Path("curve.csv").write_text("tokens,seconds\n1,0.1\n")
    done = call("profile", "--target", bundled.TARGET, *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert expected in done.stderr
    assert [each.name for each in folder.iterdir()] == ["curve.csv"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("option", ["--schedule", "--adapt", "--learn"])
def test_run_without_a_tree_decodes_plainly_and_nothing_else(option: str) -> None:
    done = call("run", "--target", bundled.TARGET, "--prompt", "x", option)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{option}: expected TREE, a file of treeopt solve" in done.stderr


def test_a_draft_model_is_loaded_only_where_something_expands_it(folder: Path) -> None:
    """A plan of prompt lookup of a pair runs where its draft model is gone."""
    tree = {
        "format": "treeopt-tree",
        "version": 1,
        "parents": [-1, 0, 1],
        "drafter": {"name": "prompt-lookup", "values": {"length": 2, "ngram": 2}},
        "provenance": {"pair": "target + gone", "target": str(bundled.TARGET), "draft": "gone", "rule": "target"},
    }
    (folder / "lookup.json").write_text(json.dumps(tree))
    run = ("--prompt", "import os\n", "--max-new-tokens", 8)
    assert call("run", "lookup.json", *run).exit_code == 0
    del tree["drafter"]
    (folder / "model.json").write_text(json.dumps(tree))
    done = call("run", "model.json", *run)
    assert done.exit_code == 1
    assert "model.json names gone; if it has moved, add --draft DIR" in done.stderr


def test_nothing_is_accepted_where_nothing_is_drafted(profile: Profile) -> None:
    only = replace(profile, drafters=())
    assert np.array_equal(only.acceptance(temperature=0.6).table.p, [0.0])
    assert plan(only, temperature=0.6).choice.tokens_per_step.value == 1.0
