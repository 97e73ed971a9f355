"""JSON that is refused, and its errors."""

import pytest

from treeopt.errors import FormatError, TreeoptError
from treeopt.files.json_file import parse_json, read_object


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
