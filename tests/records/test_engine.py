"""Profile files of engines."""

import json
from copy import deepcopy
from pathlib import Path

import jsonschema
import pytest
import yaml

from treeopt.errors import FormatError, InfeasibleError
from treeopt.planner import plan, step_model
from treeopt.records.profile import Profile
from treeopt.trees import chain, k_ary

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "profile-engine.yaml"
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "docs" / "reference" / "engine-profile.schema.json").read_bytes())
)


@pytest.fixture
def content():
    return yaml.safe_load(GOLDEN.read_bytes())


@pytest.fixture
def load(tmp_path):
    def load(content):
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return Profile.load(tmp_path / "p.yaml")

    return load


@pytest.mark.source
def test_the_golden_file_follows_the_schema(content):
    VALIDATOR.validate(content)


def chains(content):
    return content["chain_latency"][0]["chains"]


def counts(content):
    return content["acceptance"][0]["chains"]


INVALID = {
    "no plain decoding": (lambda c: chains(c).pop(0), r"chain_latency\[0\].chains: expected increasing lengths from 0"),
    "lengths fall": (lambda c: chains(c).reverse(), r"chain_latency\[0\].chains: expected increasing lengths"),
    "no time": (
        lambda c: chains(c)[1].update(samples_s=[0.0]),
        r"chains\[1\].samples_s: samples_s: expected seconds above 0",
    ),
    "more tokens than steps can": (
        lambda c: counts(c)[0]["tokens"].__setitem__(0, 10**6),
        r"chains\[0\].tokens: expected 1 to 2",
    ),
    "fewer tokens than steps": (
        lambda c: counts(c)[0]["tokens"].__setitem__(0, 1),
        r"chains\[0\].tokens: expected 1 to 2",
    ),
    "texts missing": (lambda c: counts(c)[0]["steps"].pop(), r"chains\[0\].steps: expected as many"),
    "length twice": (
        lambda c: counts(c)[1].update(length=1),
        r"acceptance\[0\].chains: expected increasing lengths|tokens: expected",
    ),
    "condition twice": (
        lambda c: c["chain_latency"].append(deepcopy(c["chain_latency"][0])),
        "expected each condition once",
    ),
    "no engine": (lambda c: c.pop("engine"), "engine: .*expected with chain_latency"),
    "version 2": (lambda c: c.update(version=2), "version: expected 1. Got 2"),
    "unknown key": (lambda c: c["engine"].update(speed=1), "engine.*speed"),
}


@pytest.mark.parametrize("name", INVALID)
def test_inconsistent_content_raises(content, load, name):
    perturb, reason = INVALID[name]
    assert load(content)
    perturb(content)
    with pytest.raises(FormatError, match=reason):
        load(content)


def test_plans_are_chains_or_plain_decoding(load, content):
    result = plan(load(content), max_nodes=8)
    assert result.choice.tree.nodes == result.choice.tree.max_depth + 1


def test_no_predictions_beyond_probed_lengths(load, content):
    model = step_model(load(content))
    with pytest.raises(InfeasibleError, match="probe with larger --lengths"):
        model.step_s(k_ary(2, 5))


def test_passes_are_not_padded_to_longer_chain(load, content):
    """A step with fewer draft tokens is never taken to be as fast as one with more, whatever was measured."""
    chains(content)[1]["samples_s"] = [1.0]
    model = step_model(load(content))
    assert model.step_s(chain(1)) > model.step_s(chain(3))
