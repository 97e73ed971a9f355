"""The tree file of docs/reference/tree-file.md: golden bytes, round trips, and invalid files."""

import dataclasses
import json
import random
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.mutations import mutate
from treeopt.errors import FormatError, InvalidValueError, TreeoptError, printable
from treeopt.trees import Provenance, TokenTree, TreeFile, load, load_file
from treeopt.trees.drafter_setting import (
    DRAFTERS,
    HEAD_DRAFTERS,
    MAX_VALUE,
    DrafterSetting,
    drafter_setting,
    parameter_names,
)
from treeopt.trees.formats.detection import MAX_TEXT_BYTES
from treeopt.trees.token_tree import MAX_NODES
from treeopt.trees.tree_file import parse

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
SPECIFICATION = ROOT / "docs" / "reference" / "tree-file.md"
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "docs" / "reference" / "tree-file.schema.json").read_bytes())
)

GOLDEN = {
    "tree-chain.json": TreeFile(tree=TokenTree([-1, 0, 1, 2, 3])),
    "tree-reach.json": TreeFile(
        tree=TokenTree([-1, 0, 0, 1, 1, 2]), reach=np.array([1, 0.73, 0.12, 0.73**2, 0.73 * 0.12, 0.12 * 0.73])
    ),
    "tree-full.json": TreeFile(
        tree=TokenTree([-1, 0, 0, 1, 1, 2, 3]),
        reach=np.array([1, 0.7, 0.15, 0.7**2, 0.7 * 0.15, 0.15 * 0.7, 0.7**3]),
        provenance=Provenance(
            tool="treeopt 0.1.0",
            created="2026-11-20T11:12:00Z",
            source="profile.yaml",
            pair="target + draft",
            target="models/target",
            draft="models/draft",
            target_digest="6f1f0a8b9c2d3e4f",
            draft_digest="0123456789abcdef",
            dtype="float32",
            machine="AMD EPYC 7763",
            device="cpu",
            threads=2,
            rule="typical",
            lossy=True,
            temperature=0.6,
            tokens_per_step=2.893,
            step_s=0.0034,
            speedup=1.61668,
        ),
    ),
    "tree-drafter.json": TreeFile(
        tree=TokenTree([-1, 0, 0, 1, 1, 2, 3]),
        drafter=drafter_setting("medusa", source="models/heads", digest="89abcdef01234567"),
    ),
    "tree-drafter-own.json": TreeFile(
        tree=TokenTree([-1, 0, 1, 2, 3]), drafter=drafter_setting("prompt-lookup", ngram=3, length=4)
    ),
    "tree-drafter-full.json": TreeFile(
        tree=TokenTree([-1, 0, 1, 2]),
        drafter=drafter_setting(
            "eagle2", source="models/head", digest="89abcdef01234567", layers=(2, 6, 9), top_k=2, depth=3, nodes=8
        ),
        reach=np.array([1, 0.7, 0.49, 0.343]),
        provenance=Provenance(tool="treeopt 0.1.0", tokens_per_step=2.533),
    ),
}
golden = pytest.mark.parametrize("name", GOLDEN)


class TestGoldenFiles:
    @golden
    def test_written_bytes(self, name, tmp_path):
        GOLDEN[name].save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()

    @golden
    def test_read_contents(self, name):
        loaded, expected = load_file(DATA / name), GOLDEN[name]
        assert load(DATA / name) == loaded.tree == expected.tree
        assert loaded == expected
        if expected.reach is not None:
            np.testing.assert_allclose(loaded.reach, expected.reach, rtol=1e-6)

    def test_full_files_have_every_key_of_the_schema(self):
        content = json.loads((DATA / "tree-full.json").read_bytes())
        properties = VALIDATOR.schema["properties"]
        assert list(content) == [name for name in properties if name != "drafter"]
        with_drafter = json.loads((DATA / "tree-drafter-full.json").read_bytes())
        assert list(with_drafter) == list(properties)
        keys = list(properties["drafter"]["properties"])
        assert keys == [field.name for field in dataclasses.fields(DrafterSetting)]
        assert list(with_drafter["drafter"]) == [
            key for key in keys if key != "block_draft_tokens"
        ]  # not of an EAGLE head
        assert list(content["provenance"]) == list(properties["provenance"]["properties"])
        assert list(content["provenance"]) == [field.name for field in dataclasses.fields(Provenance)]

    @pytest.mark.parametrize("name", ["tree-full.json", "tree-drafter.json"])
    def test_specification_shows_the_file(self, name):
        assert f"```json\n{(DATA / name).read_text('utf-8')}```" in SPECIFICATION.read_text("utf-8")

    def test_specification_and_schema_list_every_drafter_with_its_numbers(self):
        page, schema = SPECIFICATION.read_text("utf-8"), VALIDATOR.schema["properties"]["drafter"]
        assert tuple(schema["properties"]["name"]["enum"]) == DRAFTERS
        for name in DRAFTERS:
            numbers = ", ".join(f"`{parameter}`" for parameter in parameter_names(name)) or "none"
            heads = "read" if name in HEAD_DRAFTERS else "none"
            key = f"`{name}`, also absent" if name == "model" else f"`{name}`"
            assert f"| {key} | {numbers} | {heads}" in page

    @pytest.mark.parametrize("name", DRAFTERS)
    def test_schema_accepts_only_the_numbers_of_each_drafter(self, name):
        content = {"format": "treeopt-tree", "version": 1, "parents": [-1, 0]}
        values = dict.fromkeys(parameter_names(name), 3)
        assert VALIDATOR.is_valid(content | {"drafter": {"name": name, "values": values}})
        assert not VALIDATOR.is_valid(content | {"drafter": {"name": name, "values": values | {"other": 3}}})

    def test_specification_shows_the_smallest_file(self, tmp_path):
        (tmp_path / "t.json").write_text(smallest := '{"format": "treeopt-tree", "version": 1, "parents": [-1]}')
        assert smallest in SPECIFICATION.read_text("utf-8")
        assert load(tmp_path / "t.json") == TokenTree([-1])

    def test_token_tree_saves_the_same_file(self, tmp_path):
        GOLDEN["tree-chain.json"].tree.save(tmp_path / "t.json")
        assert (tmp_path / "t.json").read_bytes() == (DATA / "tree-chain.json").read_bytes()


@st.composite
def drafters(draw: st.DrawFn) -> DrafterSetting:
    name = draw(st.sampled_from(DRAFTERS[1:]))
    text = TEXT if name in HEAD_DRAFTERS else st.none()
    values = tuple((parameter, draw(st.integers(1, 65_536))) for parameter in parameter_names(name))
    setting = DrafterSetting(name=name, source=draw(text), digest=draw(text), values=values)
    layers = st.lists(st.integers(0, MAX_VALUE), max_size=4, unique=True).map(tuple)
    return dataclasses.replace(setting, layers=draw(layers)) if setting.eagle_head else setting


TEXT = st.none() | st.text(max_size=8).map(printable)
NUMBER = st.none() | st.floats(0, 1e300) | st.integers(0, 10**20)


@st.composite
def tree_files(draw: st.DrawFn) -> TreeFile:
    parents, reach = [-1], [1.0]
    for node in range(1, draw(st.integers(1, 16))):
        parents.append(draw(st.integers(max(parents[-1], 0), node - 1)))
        reach.append(reach[parents[node]] * draw(st.floats(0, 1)))
    fields = dataclasses.fields(Provenance)
    counts = st.none() | st.integers(1, 2**63 - 1)
    strategies = {
        str | None: TEXT,
        float | None: NUMBER,
        bool | None: st.sampled_from([None, True]),
        int | None: counts,
    }
    values = {field.name: draw(strategies[field.type]) for field in fields}
    return TreeFile(
        tree=TokenTree(parents),
        drafter=draw(st.none() | drafters()),
        reach=np.array(reach) if draw(st.booleans()) else None,
        provenance=Provenance(**values) if draw(st.booleans()) else None,
    )


class TestRoundTrip:
    @settings(deadline=None)
    @given(tree_files())
    def test_save_and_load(self, tmp_path_factory, tree_file):
        path = tmp_path_factory.getbasetemp() / "round-trip.json"
        tree_file.save(path)
        loaded = load_file(path)
        assert loaded == tree_file
        if tree_file.reach is not None:
            np.testing.assert_allclose(loaded.reach, tree_file.reach, rtol=5.1e-6, atol=1e-300)
        assert loaded.to_json() == path.read_text("utf-8")
        assert hash(loaded) == hash(tree_file)
        VALIDATOR.validate(json.loads(path.read_bytes()))

    def test_any_json_layout_loads(self, tmp_path):
        content = json.loads((DATA / "tree-full.json").read_bytes())
        backwards = dict(reversed(content.items()))
        (tmp_path / "t.json").write_text(json.dumps(backwards, indent=7).replace("\n", "\r\n"))
        assert load_file(tmp_path / "t.json") == GOLDEN["tree-full.json"]

    def test_largest_tree_fits_into_the_file(self, tmp_path):
        tree = TokenTree([-1, *[0] * (MAX_NODES - 1)])
        TreeFile(tree=tree, reach=np.array([1.0, *[0.000123456] * (MAX_NODES - 1)])).save(tmp_path / "t.json")
        assert load(tmp_path / "t.json") == tree


def document(**fields: object) -> bytes:
    """Return the bytes of a valid file with some fields replaced, or removed by `...`."""
    valid = {"format": "treeopt-tree", "version": 1, "parents": [-1, 0, 0, 1], "reach": [1, 0.5, 0.25, 0.125]}
    return json.dumps({key: value for key, value in (valid | fields).items() if value is not ...}).encode()


def with_text(text: str) -> bytes:
    """Return the bytes of a file that ends with a text."""
    return b'{"format": "treeopt-tree", "version": 1, "parents": [-1, 0], ' + text.encode() + b"}"


def drafted(**drafter: object) -> bytes:
    """Return the bytes of a file with a drafter."""
    return document(drafter=drafter)


NOT_JSON = {
    "empty": (b"", "expected JSON"),
    "cut short": (document()[:-1], "expected JSON"),
    "data after the object": (document() + b"{}", "expected JSON .Extra data"),
    "byte-order mark": (b"\xef\xbb\xbf" + document(), "expected JSON .*BOM"),
    "deep nesting": (b"[" * 200_000, "expected JSON .*recursion"),
    "NaN": (with_text('"reach": [1, NaN]'), "NaN is not a JSON number"),
    "key twice": (with_text('"version": 1'), "the key 'version' appears twice"),
    "5000 digits": (with_text(f'"reach": [1, {"9" * 5000}]'), "expected JSON"),
    "list": (b"[-1, 0, 0]", "expected fields with names"),
}

# What a JSON Schema can refuse: id -> (bytes, field, reason).
WRONG_SHAPE = {
    "no format": (document(format=...), "format", "is missing. Expected a file of the format 'treeopt-tree'"),
    "other format": (document(format="treeopt-profile"), "format", "'treeopt-tree'. Got 'treeopt-profile'"),
    "no version": (document(version=...), "version", "is missing"),
    "version 2": (document(version=2), "version", "expected 1. Got 2: update treeopt"),
    "version true": (document(version=True), "version", "whole number.* Got True"),
    "unknown key": (document(mask=[[1]]), "mask", "unknown field"),
    "no parents": (document(parents=...), "parents", "is missing"),
    "parents huge": (document(parents=[-1, 10**30]), "parents", "whole numbers"),
    "too many nodes": (document(parents=[-1, *[0] * MAX_NODES]), "parents", "at most 65536 nodes. Got 65537"),
    "no root": (document(parents=[0, 0]), "parents", r"parents\[0\]: expected -1"),
    "reach of text": (document(reach=[1, "0.5", 0, 0]), "reach", "list of finite numbers"),
    "reach above 1": (document(reach=[1, 1.5, 0, 0]), "reach", "from 0 to 1"),
    "reach of the root": (document(reach=[0.9, 0.5, 0, 0]), "reach", "expected 1 for the root.* Got 0.9"),
    "drafter without name": (drafted(), "drafter.name", "is missing"),
    "drafter unknown": (drafted(name="hydra"), "drafter.name", "expected a drafter: model, medusa.* Got 'hydra'"),
    "drafter extra key": (drafted(name="medusa", tree=[1]), "drafter.tree", "unknown field"),
    "source with a direction mark": (drafted(name="medusa", source="a\u202e"), "drafter.source", r"Got \\u202e"),
    "source of none": (
        drafted(name="specexec", source="heads", values={"batch": 1, "branching": 1, "budget": 2, "max_passes": 1}),
        "drafter.source",
        "specexec reads no folder",
    ),
    "layers empty": (drafted(name="eagle", layers=[]), "drafter.layers", "at least one. Got none: leave it out"),
    "layer twice": (drafted(name="eagle", layers=[2, 6, 2]), "drafter.layers", r"each once, .*Got \(2, 6, 2\)"),
    "layer below 0": (drafted(name="eagle", layers=[-1, 2]), "drafter.layers", r"from 0 to 65536.* Got \(-1, 2\)"),
    "layers of Medusa": (drafted(name="medusa", layers=[2]), "drafter.layers", "medusa reads no EAGLE head. Got some"),
    "layers of the draft model": (
        drafted(name="eagle2", layers=[2], values={"depth": 1, "nodes": 2, "top_k": 1}),
        "drafter.layers",
        "eagle2 without source reads no EAGLE head. Got some: leave them out",
    ),
    "values missing": (
        drafted(name="prompt-lookup"),
        "drafter.values",
        "numbers length, ngram of prompt-lookup. Got no",
    ),
    "value too many": (drafted(name="eagle", values={"top_k": 2}), "drafter.values", "expected no numbers of eagle"),
    "values misspelt": (drafted(name="redrafter", values={"length": 2, "widht": 2}), "drafter.values", "widht: plan"),
    "value 0": (
        drafted(name="prompt-lookup", values={"length": 0, "ngram": 1}),
        "drafter.values.length",
        "least 1. Got 0",
    ),
    "value huge": (
        drafted(name="prompt-lookup", values={"length": 65537, "ngram": 1}),
        "drafter.values",
        "length from 1 to 65536",
    ),
    "provenance unknown": (document(provenance={"author": "me"}), "provenance.author", "unknown field"),
    "threads 0": (document(provenance={"threads": 0}), "provenance.threads", "at least 1. Got 0"),
    "rule with an escape": (
        document(provenance={"rule": "a\x1b[2J"}),
        "provenance.rule",
        r"printable.* Got \\x1b: remove",
    ),
    "lossy false": (document(provenance={"lossy": False}), "provenance.lossy", "expected true, or no such.* Got False"),
    "lossy text": (document(provenance={"lossy": "tr\nue" * 99}), "provenance.lossy", "expected true.* Got 'tr"),
    "step negative": (document(provenance={"step_s": -1}), "provenance.step_s", "at least 0. Got -1"),
}

# What only the loader refuses.
WRONG_MEANING = {
    "version 1.0": (document(version=1.0), "version", "whole number.* Got 1.0"),
    "value beyond 64 bits": (
        drafted(name="prompt-lookup", values={"length": 1, "ngram": 10**30}),
        "drafter.values.ngram",
        "whole",
    ),
    "parent after its child": (document(parents=[-1, 2, 0]), "parents", r"parents\[1\]: .*Got 2"),
    "out of order": (document(parents=[-1, 0, 1, 0]), "parents", r"parents\[3\]: expected level order"),
    "reach too short": (document(reach=[1, 0.5]), "reach", "expected 4 numbers, one per node"),
    "reach above its parent": (document(reach=[1, 0.5, 0.2, 0.51]), "reach", "more often than its parent"),
    "reach overflows": (with_text('"reach": [1, 1e999]'), "reach", "list of finite numbers"),
    "temperature overflows": (with_text('"provenance": {"temperature": 1e999}'), "provenance.temperature", "Got inf"),
}


def cases(table: dict[str, tuple]) -> list:
    return [pytest.param(*case, id=name) for name, case in table.items()]


class TestMalformed:
    @pytest.mark.parametrize(("data", "reason"), cases(NOT_JSON))
    def test_content_that_is_no_json_object_raises(self, tmp_path, data, reason):
        self.check(tmp_path / "t.json", data, "content", reason)

    @pytest.mark.parametrize(("data", "field", "reason"), cases(WRONG_SHAPE | WRONG_MEANING))
    def test_wrong_field_raises(self, tmp_path, data, field, reason):
        self.check(tmp_path / "t.json", data, field, reason)

    def check(self, path, data, field, reason):
        """Check that the error names the file, the field and the reason, and is short."""
        with pytest.raises(FormatError, match=reason) as caught:
            parse(path, data.decode("utf-8"))
        assert (caught.value.path, caught.value.field) == (path, field)
        assert str(caught.value).startswith(f"{path}: {field}: ")
        assert len(str(caught.value)) < len(str(path)) + 300
        assert "\n" not in str(caught.value)

    def test_drafter_model_equals_no_drafter(self, tmp_path):
        (tmp_path / "model.json").write_bytes(drafted(name="model"))
        (tmp_path / "none.json").write_bytes(document())
        assert load_file(tmp_path / "model.json") == load_file(tmp_path / "none.json")
        VALIDATOR.validate(json.loads((tmp_path / "model.json").read_bytes()))

    def test_schema_rejects_wrong_shapes(self):
        assert [name for name, (data, _, _) in WRONG_SHAPE.items() if VALIDATOR.is_valid(json.loads(data))] == []

    def test_schema_is_valid(self):
        VALIDATOR.check_schema(VALIDATOR.schema)


class TestUnreadable:
    def test_missing_file_raises(self, tmp_path):
        with pytest.raises(TreeoptError, match=r"none\.json: no such file"):
            load(tmp_path / "none.json")

    def test_other_encoding_raises(self, tmp_path):
        (tmp_path / "t.json").write_bytes(document()[:10] + b"\xff" + document()[10:])
        with pytest.raises(TreeoptError, match=r"t\.json: .*Got bytes that are no text"):
            load(tmp_path / "t.json")

    def test_too_large_file_raises(self, tmp_path):
        (tmp_path / "t.json").write_bytes(document() + b" " * MAX_TEXT_BYTES)
        with pytest.raises(TreeoptError, match=r"t\.json: content: expected at most 20000000 bytes of text"):
            load(tmp_path / "t.json")


@golden
def test_mutated_files_load_or_raise_treeopt_error(name, tmp_path):
    rng, original = random.Random(f"seed 1 {name}"), (DATA / name).read_bytes()
    valid = refused = unnamed = 0
    for number in range(200):
        path = tmp_path / f"{number}.json"  # a new file each time: overwriting one is slow on some disks
        path.write_bytes(mutate(rng, original))
        try:
            loaded = load_file(path)
        except TreeoptError as error:
            unnamed += not str(error).startswith(f"{path}: ")
            refused += 1
        else:
            assert TokenTree(loaded.tree.parents.tolist()) == loaded.tree
            again = path.with_suffix(".again")
            again.write_text(loaded.to_json(), "utf-8")
            assert load_file(again) == loaded
            valid += 1
    assert unnamed == 0
    assert valid > 1
    assert refused > 100


class TestRecords:
    def test_invalid_drafters_raise(self):
        with pytest.raises(InvalidValueError, match=r"the numbers length, width of redrafter\. Got no numbers"):
            TreeFile(tree=TokenTree([-1]), drafter=DrafterSetting(name="redrafter"))
        with pytest.raises(InvalidValueError, match="once each, in the order"):
            DrafterSetting(name="lookahead", values=(("b", 1), ("a", 1)))
        with pytest.raises(InvalidValueError, match=r"the setting width of lookahead\. Got none: plan again"):
            drafter_setting("lookahead", ngram=2).value("width")

    def test_files_with_other_drafters_differ(self):
        tree = TokenTree([-1, 0])
        drafters = (None, drafter_setting("medusa"), drafter_setting("eagle"))
        files = [TreeFile(tree=tree, drafter=drafter) for drafter in drafters]
        assert len({file.to_json() for file in files}) == len(set(files)) == 3

    @pytest.mark.parametrize("name", ["temperature", "tokens_per_step", "step_s", "speedup"])
    @pytest.mark.parametrize("value", [-0.1, float("nan")])
    def test_invalid_numbers_raise(self, name, value):
        with pytest.raises(InvalidValueError, match=f"{name}: expected a finite number"):
            Provenance(**{name: value})

    def test_no_threads_raise(self):
        with pytest.raises(InvalidValueError, match="threads: expected"):
            Provenance(threads=0)

    def test_saving_a_too_large_tree_raises(self, tmp_path):
        with pytest.raises(InvalidValueError, match=r"at most 65536 nodes\. Got 65537"):
            TokenTree([-1, *[0] * MAX_NODES]).save(tmp_path / "t.json")

    def test_rounded_reach_is_at_most_the_parents(self, tmp_path):
        reach = np.array([1, 0.5000005 + 1e-10, 0.5000005 - 1e-10, 0.5000005 - 1e-10])
        TreeFile(tree=TokenTree([-1, 0, 1, 2]), reach=reach).save(tmp_path / "t.json")
        assert load_file(tmp_path / "t.json").reach.tolist() == [1, 0.500001, 0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lookahead", {"candidates": 1, "ngram": 1, "window": 1}),
        ("ddtree", {"budget": 1}),
        ("eagle2", {"depth": 1, "nodes": 60, "top_k": 1}),
    ],
)
def test_values_that_no_drafter_takes_are_refused(name, values, tmp_path):
    content = {"format": "treeopt-tree", "version": 1, "parents": [-1, 0]}
    (tmp_path / "t.json").write_text(json.dumps(content | {"drafter": {"name": name, "values": values}}))
    with pytest.raises(FormatError, match=r"t\.json: drafter\.values: "):
        load_file(tmp_path / "t.json")
