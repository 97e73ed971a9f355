"""Categories of prompts in profile files."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.planner.test_categories import UNLIKE, TestDrafters, counted, with_lookup
from treeopt.errors import FormatError
from treeopt.records.measured_acceptance import select_categories
from treeopt.records.measured_drafter import ReplayedSequences
from treeopt.records.profile import Profile

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "docs" / "reference" / "profile-file.schema.json"


def whole():
    """Return a profile with categories at every place of the file."""
    decodes = counted(UNLIKE, TestDrafters.NAMES, TestDrafters.ROWS)
    (setting,) = decodes.settings
    replayed = ReplayedSequences(
        tokens=(30, 10),
        steps=(10, 10),
        pass_tokens=(1, 4),
        passes=(11, 9),
        passes_by_text=((1, 9), (10, 0)),
        categories=("copy", ""),
    )
    return with_lookup(UNLIKE, replace(decodes, settings=(replace(setting, replayed=replayed),)))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "profile.yaml"


@pytest.fixture
def content(path):
    whole().save(path)
    return yaml.safe_load(path.read_bytes())


def test_profile_round_trip(path):
    whole().save(path)
    first = path.read_bytes()
    result = Profile.load(path)
    assert result.acceptances[0].categories == ("copy", "new") * 8
    (decodes,) = result.drafters[0].decodes
    assert decodes.categories == TestDrafters.NAMES
    assert decodes.settings[0].passes_by_text == whole().drafters[0].decodes[0].settings[0].passes_by_text
    assert decodes.settings[0].replayed == whole().drafters[0].decodes[0].settings[0].replayed
    result.save(path)
    assert path.read_bytes() == first


def test_profile_without_categories_omits_field(path):
    (acceptance,) = UNLIKE.acceptances
    replace(UNLIKE, acceptances=(replace(acceptance, categories=()),)).save(path)
    assert "categories" not in path.read_text()


@pytest.mark.source
def test_schema_describes_categories(content):
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_bytes()))
    validator.validate(content)
    for wrong in ("copy", [], [1] * 16):
        content["acceptance"][0]["categories"] = wrong
        assert not validator.is_valid(content)


@pytest.mark.parametrize(
    ("perturb", "field", "message"),
    [
        (
            lambda c: c["acceptance"][0]["categories"].pop(),
            "acceptance[0].categories",
            "expected one for each of 16 texts. Got 15.",
        ),
        (lambda c: c["acceptance"][0].pop("texts") and c["acceptance"][0].pop("outcomes"), "categories", "of 0 texts"),
        (lambda c: c["acceptance"][0].update(categories=[1] * 16), "categories", "expected a list of printable texts"),
        (lambda c: c["acceptance"][0].update(categories=["\x1b"] * 16), "categories", "printable texts"),
        (lambda c: decodes(c).update(categories=["copy"]), "categories", "expected one for each of 4 texts. Got 1."),
        (lambda c: decodes(c)["settings"][0].pop("passes_by_text"), "settings", "expected passes_by_text"),
        (
            lambda c: decodes(c)["settings"][0]["passes_by_text"].pop(),
            "passes_by_text",
            "expected a row for each of 4 texts",
        ),
        (
            lambda c: decodes(c)["settings"][0]["passes_by_text"].reverse(),
            "passes_by_text",
            "expected rows that add up",
        ),
        (lambda c: replayed(c)["passes_by_text"][0].append(0), "passes_by_text", "with 2 numbers"),
        (lambda c: replayed(c).pop("passes_by_text"), "passes_by_text", "expected a row for each of 2 texts"),
        (lambda c: replayed(c).update(categories=["copy"]), "categories", "expected one for each of 2 texts"),
    ],
)
def test_inconsistent_content_raises_by_field(content, path, perturb, field, message):
    perturb(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(FormatError) as refused:
        Profile.load(path)
    assert refused.value.field.endswith(field)
    assert message in str(refused.value)


def decodes(content):
    return content["drafters"][0]["decodes"][0]


def replayed(content):
    return decodes(content)["settings"][0]["replayed"]


def test_select_categories():
    assert select_categories(("a", "", "b", "a"), [0, 1, 3]) == ("a", "", "a")
    assert select_categories(("a", ""), [1]) == ("",)
    assert select_categories(("", ""), [1]) == select_categories((), [1]) == ()
