"""Profile files with drafters."""

import json
from copy import deepcopy
from pathlib import Path

import jsonschema
import pytest
import yaml

from treeopt.errors import FormatError
from treeopt.records.profile import Profile

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "profile-drafters.yaml"
SCHEMA = json.loads((ROOT / "docs" / "reference" / "profile-file.schema.json").read_bytes())


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
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.validate(content)
    for perturb in (
        lambda c: c["drafters"][0].pop("trees"),
        lambda c: c["drafters"][1].update(name="medusa"),
        lambda c: c["drafters"][0].update(name="model"),
        lambda c: c.update(version=2),
        lambda c: c["drafters"][0].update(layers=[2]),
        lambda c: as_eagle(c, layers=[]),
        lambda c: as_eagle(c, layers=[2, 2]),
    ):
        wrong = deepcopy(content)
        perturb(wrong)
        assert not validator.is_valid(wrong)


def test_file_content(content, load):
    profile = load(content)
    medusa, lookup = profile.drafters
    assert (medusa.name, medusa.source, medusa.digest) == ("medusa", "heads/medusa", "0123456789abcdef")
    (trees,) = medusa.trees_at(0.0)
    (drafting,) = medusa.latencies
    assert [each.tree.nodes for each in drafting.steps] == [2, 4]
    assert (drafting.per_block, drafting.draft.max_tokens, drafting.host) == (True, 4, None)
    assert trees.ranks.rows == [[[0, 0], [1], [], []], [[0, 1], [0], [], [0], []]]
    assert medusa.trees_at(0.6) == ()
    (sampled,) = lookup.decodes_at(0.6)
    assert (sampled.sampling.top_p, sampled.sampling.top_k) == (0.9, 50)
    assert lookup.setting(sampled.settings[0].values).description == "prompt-lookup: length 2, ngram 2"
    assert sampled.settings[0].decoded.tokens_per_step == sampled.settings[0].tokens_per_step == pytest.approx(26 / 17)
    replayed = lookup.decodes_at(0.0)[0].settings[0]
    assert (replayed.decoded.tokens_per_step, replayed.tokens_per_step) == pytest.approx((26 / 12, 67 / 42))


def as_eagle(content, **more):
    content["drafters"][0].update(name="eagle", **more)


def test_layers_reach_the_plans_setting(content, load, tmp_path):
    assert "layers" not in GOLDEN.read_text("utf-8")
    assert load(content).drafters[0].setting().layers == ()
    as_eagle(content, layers=[9, 2, 6])
    jsonschema.Draft202012Validator(SCHEMA).validate(content)
    load(content).save(tmp_path / "again.yaml")
    assert yaml.safe_load((tmp_path / "again.yaml").read_bytes())["drafters"][0]["layers"] == [9, 2, 6]
    assert Profile.load(tmp_path / "again.yaml").drafters[0].setting().layers == (9, 2, 6)


def test_block_sizes_reach_the_plans_setting_and_tell_drafters_apart(content, load, tmp_path):
    first = content["drafters"][0]
    assert load(content).drafters[0].setting().block_draft_tokens is None
    with pytest.raises(FormatError, match="block_draft_tokens: expected none, because medusa"):
        load({**content, "drafters": [{**first, "block_draft_tokens": 3}]})
    blocks = [{**deepcopy(first), "name": "dflash", "block_draft_tokens": size} for size in (3, 7)]
    content = {**content, "drafters": blocks}
    jsonschema.Draft202012Validator(SCHEMA).validate(content)
    load(content).save(tmp_path / "again.yaml")
    labels = [drafter.setting().label for drafter in Profile.load(tmp_path / "again.yaml").drafters]
    assert labels == ["dflash, blocks of 3", "dflash, blocks of 7"]
    with pytest.raises(FormatError, match="Got dflash, blocks of 3 twice"):
        load({**content, "drafters": [blocks[0], deepcopy(blocks[0])]})


def test_file_without_drafters_is_version_1(content, load, tmp_path):
    content.pop("drafters")
    load(content).save(tmp_path / "again.yaml")
    assert yaml.safe_load((tmp_path / "again.yaml").read_bytes())["version"] == 1


def trees(content):
    return content["drafters"][0]["trees"][0]


def drafting(content):
    return content["drafters"][0]["latency"][0]


def decodes(content):
    return content["drafters"][1]["decodes"][0]


def setting(content):
    return decodes(content)["settings"][0]


INVALID = {
    "version 2": (lambda c: c.update(version=2), "version: expected 1. Got 2"),
    "an engine's": (
        lambda c: engine(c),
        r"drafters: expected with latency",
    ),
    "twice": (lambda c: c["drafters"].append(deepcopy(c["drafters"][0])), "drafters: expected each once. Got medusa"),
    "none": (lambda c: c.update(drafters=[]), "drafters: expected a list of at least one"),
    "unknown drafter": (lambda c: c["drafters"][0].update(name="oracle"), r"drafters\[0\].name: expected a drafter"),
    "draft model": (lambda c: c["drafters"][0].update(name="model"), r"drafters\[0\].name: expected another drafter"),
    "unknown key": (lambda c: c["drafters"][0].update(speed=1), r"drafters\[0\].speed: unknown field"),
    "no folder belongs": (lambda c: c["drafters"][1].update(source="x"), r"drafters\[1\].source: expected none"),
    "layers of none": (lambda c: c["drafters"][0].update(layers=[2]), r"drafters\[0\].layers: .*medusa reads no EAGLE"),
    "layers of nothing": (lambda c: as_eagle(c, layers=[]), r"drafters\[0\].layers: expected a list of at least one"),
    "layer below 0": (lambda c: as_eagle(c, layers=[-2]), r"drafters\[0\].layers: expected layer ids from 0"),
    "layer twice": (lambda c: as_eagle(c, layers=[2, 2]), r"drafters\[0\].layers: .*each once"),
    "wrong way": (lambda c: c["drafters"][1].update(name="redrafter"), r"drafters\[1\].values: expected the numbers"),
    "no trees": (lambda c: c["drafters"][0].pop("trees"), r"drafters\[0\].trees: expected trees of medusa"),
    "trees too": (
        lambda c: c["drafters"][1].update(trees=deepcopy(c["drafters"][0]["trees"])),
        r"drafters\[1\].decodes: expected decodes of prompt-lookup, and nothing else",
    ),
    "temperature twice": (
        lambda c: c["drafters"][1]["decodes"].append(deepcopy(decodes(c))),
        r"drafters\[1\].decodes: expected each temperature once",
    ),
    "another rule": (
        lambda c: trees(c)["acceptance"].update(rule="sequoia"),
        r"trees\[0\].acceptance: expected rule target",
    ),
    "a table that its sums contradict": (
        lambda c: trees(c)["acceptance"]["p"][0].__setitem__(0, 0.7),
        r"trees\[0\].acceptance.texts: texts: expected accepted / reached",
    ),
    "a tree twice": (
        lambda c: drafting(c)["steps"].append(deepcopy(drafting(c)["steps"][0])),
        r"latency\[0\].steps: expected one or more trees, each once",
    ),
    "a root alone": (
        lambda c: drafting(c)["steps"][0].update(parents=[-1]),
        r"latency\[0\].steps: expected trees of 2 nodes or more",
    ),
    "a condition twice": (
        lambda c: c["drafters"][0]["latency"].append(deepcopy(drafting(c))),
        r"drafters\[0\].latency: expected with trees, and only there, each condition once",
    ),
    "trees without times": (
        lambda c: c["drafters"][0].pop("latency"),
        r"drafters\[0\].latency: expected with trees, and only there",
    ),
    "ranks of other texts": (lambda c: trees(c)["outcomes"].pop(), r"trees\[0\].outcomes: expected those of as many"),
    "no rank": (
        lambda c: trees(c)["outcomes"][0]["roots"][0].__setitem__(0, -2),
        r"trees\[0\].outcomes: ranks: expected rows",
    ),
    "texts missing": (
        lambda c: decodes(c)["plain"]["steps"].pop(),
        r"decodes\[0\].plain.steps: expected as many of each",
    ),
    "other texts": (
        lambda c: [decodes(c)["plain"][name].append(1) for name in ("tokens", "steps", "samples_s")],
        r"decodes\[0\].settings: expected decodes of 3 texts",
    ),
    "no time": (
        lambda c: decodes(c)["plain"]["samples_s"].__setitem__(0, 0.0),
        r"decodes\[0\].plain.samples_s: samples_s: expected seconds above 0",
    ),
    "plain steps of two tokens": (
        lambda c: decodes(c)["plain"]["tokens"].__setitem__(0, 11),
        r"decodes\[0\].plain: expected a token of each step",
    ),
    "fewer tokens than steps": (
        lambda c: setting(c)["decoded"]["tokens"].__setitem__(0, 1),
        r"settings\[0\].decoded.tokens: expected a step of every text, and a token",
    ),
    "a setting twice": (
        lambda c: decodes(c)["settings"].append(deepcopy(setting(c))),
        r"decodes\[0\].settings: expected one or more, each once",
    ),
    "a number missing": (lambda c: setting(c)["values"].pop("ngram"), r"drafters\[1\].values: expected the numbers"),
    "a number too small": (lambda c: setting(c)["values"].update(ngram=0), r"values.ngram: expected a whole number"),
    "a number too large": (lambda c: setting(c)["values"].update(ngram=10**6), r"drafters\[1\].values: expected ngram"),
    "sizes fall": (
        lambda c: setting(c)["pass_tokens"].reverse(),
        r"settings\[0\].pass_tokens: expected increasing sizes",
    ),
    "too large a pass": (lambda c: setting(c).update(max_tokens=4), r"settings\[0\].pass_tokens: expected at most 4"),
    "passes missing": (lambda c: setting(c)["passes"].pop(), r"settings\[0\].passes: expected a number"),
    "replayed steps missing": (
        lambda c: setting(c)["replayed"]["steps"].pop(),
        r"settings\[0\].replayed.steps: expected as many as tokens, 3. Got 2",
    ),
    "a replayed step of no token": (
        lambda c: setting(c)["replayed"]["tokens"].__setitem__(0, 1),
        r"settings\[0\].replayed.tokens: expected a step of every text, and a token",
    ),
    "too few replayed passes": (
        lambda c: setting(c)["replayed"]["passes"].__setitem__(0, 1),
        r"settings\[0\].replayed.passes: expected as many as steps, 42. Got 21",
    ),
    "too few passes": (
        lambda c: setting(c)["passes"].__setitem__(0, 1),
        r"settings\[0\].passes: expected as many as steps",
    ),
}


def engine(content):
    """Make the profile that of an engine, but for its drafters."""
    theirs = yaml.safe_load((ROOT / "tests" / "data" / "profile-engine.yaml").read_bytes())
    content.pop("latency")
    content.update({name: theirs[name] for name in ("engine", "chain_latency", "acceptance")})


def check_invalid(content, load, invalid):
    """Check that the content loads, and that each perturbation raises with its reason."""
    assert load(content)
    for perturb, reason in invalid.values():
        wrong = deepcopy(content)
        perturb(wrong)
        with pytest.raises(FormatError, match=reason):
            load(wrong)


def test_inconsistent_content_raises(content, load):
    check_invalid(content, load, INVALID)


def test_acceptance_has_no_context_tokens(content, load):
    content["drafters"][0]["trees"][0]["acceptance"]["context_tokens"] = 5
    with pytest.raises(FormatError, match="acceptance: expected context_tokens beside it"):
        load(content)


def contexts(content):
    """Measure both drafters at two contexts more."""
    for drafter, name in zip(content["drafters"], ("trees", "decodes"), strict=True):
        for context in (900, 64):
            drafter[name].append({**deepcopy(drafter[name][0]), "context_tokens": context})


@pytest.mark.source
def test_one_item_per_context(content, load, tmp_path):
    contexts(content)
    jsonschema.Draft202012Validator(SCHEMA).validate(content)
    profile = load(content)
    medusa, lookup = profile.drafters
    assert [each.context_tokens for each in medusa.trees_at(0.0)] == [64, 300, 900]
    assert [each.context_tokens for each in lookup.decodes_at(0.0)] == [64, 310, 900]
    assert len(lookup.decodes_at(0.6)) == 1
    profile.save(tmp_path / "again.yaml")
    assert Profile.load(tmp_path / "again.yaml") == profile


SPOILT_CONTEXTS = {
    "twice": (
        lambda c: trees(c).update(context_tokens=900),
        r"drafters\[0\].trees: expected each temperature once at a context. Got 0 twice at 900 tokens: remove one",
    ),
    "another sampling": (
        lambda c: decodes(c).update(top_p=0.5),
        r"drafters\[1\].decodes: expected one top-p and top-k at each temperature: profile again",
    ),
    "other settings": (
        lambda c: setting(c)["values"].update(ngram=3),
        r"drafters\[1\].decodes: expected the same settings at every context of a temperature: profile again",
    ),
    "an empty text": (
        lambda c: decodes(c)["plain"]["steps"].__setitem__(0, 0),
        r"decodes\[0\].plain.tokens: expected a step of every text",
    ),
}


def test_inconsistent_contexts_raise(content, load):
    contexts(content)
    check_invalid(content, load, SPOILT_CONTEXTS)
