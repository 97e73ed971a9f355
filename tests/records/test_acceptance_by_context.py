"""Profile files with acceptance by context length."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from treeopt.adaptation.profile_update import replace_acceptance
from treeopt.errors import FormatError
from treeopt.planner import step_model
from treeopt.records.profile import Profile
from treeopt.trees import chain

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "profile-contexts.yaml"
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "docs" / "reference" / "profile-file.schema.json").read_bytes())
)


@pytest.fixture
def content():
    return yaml.safe_load(GOLDEN.read_bytes())


@pytest.mark.source
def test_the_golden_file_follows_the_schema(content):
    VALIDATOR.validate(content)
    for wrong in (-1, 1.5, "256", True):
        perturbed = deepcopy(content)
        perturbed["acceptance"][0]["context_tokens"] = wrong
        assert not VALIDATOR.is_valid(perturbed)


def test_file_content():
    result = Profile.load(GOLDEN)

    assert [each.context_tokens for each in result.acceptances] == [256, 4096, None]
    assert [each.prompts for each in result.acceptances][:2] == [3, 2]
    assert result.acceptances_by_context(result.acceptances[1]) == result.acceptances[:2]
    assert result.acceptances_by_context(result.acceptances[2]) == result.acceptances[2:]
    assert result.acceptances[1].accepted_ranks.ranks[2].tolist() == []
    ends = [step_model(result, context_tokens=each, raw=True).tokens_per_step(chain(1)) for each in (256, 4096)]
    middle = step_model(result, context_tokens=2176, raw=True).tokens_per_step(chain(1))
    assert middle == pytest.approx(sum(ends) / 2)
    assert ends[0] > ends[1]


def test_inconsistent_content_raises_by_field(content, tmp_path):
    def twice(c):
        c["acceptance"][1]["context_tokens"] = 256

    def beside_none(c):
        del c["acceptance"][1]["context_tokens"]

    for perturb, reason in (
        (
            twice,
            "acceptance: expected each rule and sampling once. Got 'sequoia' at temperature 0 and 256 tokens of context",
        ),
        (beside_none, "acceptance: expected context_tokens in all of 'sequoia' at temperature 0, or in none"),
        (lambda c: c["acceptance"][0].update(context_tokens=-1), "context_tokens"),
        (lambda c: c["acceptance"][0].update(context_tokens=2.5), "context_tokens"),
    ):
        wrong = deepcopy(content)
        perturb(wrong)
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(wrong, sort_keys=False))
        with pytest.raises(FormatError) as result:
            Profile.load(tmp_path / "p.yaml")
        assert reason in str(result.value)
        assert "p.yaml" in str(result.value)


def test_replaced_acceptance_keeps_other_contexts():
    result = Profile.load(GOLDEN)
    before, *others = result.acceptances
    learnt = replace_acceptance(result, replace(before, positions=7), before)

    assert learnt.acceptances == (replace(before, positions=7), *others)
    assert {each.context_tokens for each in others if each.rule == before.rule} - {before.context_tokens}
