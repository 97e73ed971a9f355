"""Decoding of text that other programs wrote."""

import pytest

from treeopt.files.foreign_text import decode_text, describe_bytes

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
