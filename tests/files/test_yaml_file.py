"""YAML: round trips, and features that are refused."""

import pytest

from treeopt.errors import FormatError
from treeopt.files.yaml_file import MAX_NESTING, parse_yaml, yaml_text


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
