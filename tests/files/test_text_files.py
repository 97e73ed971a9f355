"""JSON, YAML and text of other programs: what is read, what is refused, and why."""

import pytest

from treeopt.errors import FormatError, TreeoptError
from treeopt.files.foreign_text import decode_text, describe_bytes
from treeopt.files.json_file import parse_json, read_object
from treeopt.files.yaml_file import MAX_NESTING, parse_yaml, yaml_text


def test_an_object_is_returned(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, "é"]}', "utf-8")
    assert read_object(tmp_path / "a.json") == {"a": [1, "é"]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"content: expected JSON \(Expecting value"),
        ('{"a": 1', r"content: expected JSON .*Is it complete"),
        ('{"a": 1} {}', r"content: expected JSON \(Extra data"),
        ("[" * 100_000, r"content: expected JSON \(.*recursion"),
        (f'{{"a": {"9" * 5000}}}', r"content: expected JSON \(.*limit"),
        ("[1]", r"content: expected fields with names. Got \[1\]: is it another kind of file"),
        ("null", "content: expected fields with names"),
    ],
)
def test_anything_else_is_refused_in_one_line(tmp_path, text, reason):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=reason) as caught:
        read_object(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(path))


def test_files_are_limited_and_missing_ones_named(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    with pytest.raises(TreeoptError, match="larger than 7 bytes"):
        read_object(tmp_path / "a.json", limit_bytes=7)
    with pytest.raises(TreeoptError, match="no such file"):
        read_object(tmp_path / "b.json")


def test_extensions_of_python_can_be_refused():
    assert parse_json("a", '{"x": 1, "x": 2}') == {"x": 2}
    assert parse_json("a", "[NaN]")[0] != 0
    with pytest.raises(FormatError, match=r"a: line 3: expected JSON .the key 'x' appears twice"):
        parse_json("a", '{"x": 1, "x": 2}', field="line 3", unique_keys=True)
    with pytest.raises(FormatError, match="NaN is not a JSON number"):
        parse_json("a", "[NaN]", constants=False)


def test_what_is_written_is_read():
    content = {"b": [[1.5, 2.0], [3.0]], "a": {"text": "x: y", "none": 0}}
    text = yaml_text(content)
    assert parse_yaml("file", text, kind="a profile") == content
    assert text.startswith("b:\n- [1.5, 2.0]\n")


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("a: 1\na: 2", "content", r"line 1: a field appears twice.*Is it a profile\?"),
        ("a: [", "content", "expected YAML"),
        ("a: &x 1\nb: *x", "line 1", "anchors, aliases and tags"),
        ("a: !!python/object:os.system {}", "line 1", "anchors, aliases and tags"),
        ("a:\n  <<: {b: 1}", "content", "merging with <<"),
        ("[" * (MAX_NESTING + 1) + "]" * (MAX_NESTING + 1), "line 1", "nested more than"),
    ],
)
def test_ambiguous_yaml_is_refused(text, field, reason):
    with pytest.raises(FormatError, match=reason) as caught:
        parse_yaml("file", text, kind="a profile")
    assert caught.value.field == field


TEXT = "tokens,µs\n1,10\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends(encoding, line_end):
    assert decode_text(TEXT.replace("\n", line_end).encode(encoding), "cp1252") == TEXT


def test_colours_are_text():
    assert decode_text(b"\x1b[36mINFO\x1b[0m") == "\x1b[36mINFO\x1b[0m"


@pytest.mark.parametrize(
    ("data", "description"),
    [
        (b"", "an empty file"),
        (b"a\xff", "bytes that are no text"),
        (b"ab\x00", "bytes that are no text"),
        (TEXT.encode("utf-16")[:-1], "bytes that are no text"),
        (TEXT.encode("utf-32-le"), "bytes that are no text"),
        (b"\x1f\x8b\x08\x00", "a gzip archive: unpack it"),
        (b"\x28\xb5\x2f\xfd\x00", "a zstd archive: unpack it"),
        (b"BZh91AY\x00", "a bzip2 archive: unpack it"),
        (b"PK\x03\x04", "a zip archive: is it a workbook? Save its table as CSV"),
    ],
)
def test_other_bytes_are_described(data, description):
    assert not decode_text(data)
    assert describe_bytes(data) == description
