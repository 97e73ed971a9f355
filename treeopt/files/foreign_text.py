"""Text of files that other programs wrote, in any common encoding and with any line ends."""

import codecs
import re

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before the mark of UTF-16, with which it begins
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Characters that text never contains; the escape character is not among them, because logs are coloured."""
ARCHIVES = {
    b"\x1f\x8b": "a gzip archive: unpack it",
    b"\x28\xb5\x2f\xfd": "a zstd archive: unpack it",
    b"\xfd7zXZ\0": "an xz archive: unpack it",
    b"BZh": "a bzip2 archive: unpack it",
    b"PK": "a zip archive: is it a workbook? Save its table as CSV",
}
"""Descriptions by first bytes."""


def decode_text(data: bytes, *other_encodings: str) -> str | None:
    """Return text with Unix line ends; None for bytes that are no text.

    Args:
        data: text in UTF-8, UTF-16 or UTF-32; with a byte order mark except for UTF-8 and UTF-16.
        other_encodings: tried for bytes without such a mark that are not UTF-8.
    """
    for encoding in _find_encodings(data) or ("utf-8", *other_encodings):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if CONTROL.search(text):
            return None
        text = text.replace("\r\n", "\n")
        return text if "\n" in text else text.replace("\r", "\n")  # as spreadsheets wrote on old Macs
    return None


def describe_bytes(data: bytes) -> str:
    """Return a description of bytes without text."""
    for start, description in ARCHIVES.items():
        if data.startswith(start):
            return description
    return "bytes that are no text" if data.strip() else "an empty file"


def _find_encodings(data: bytes) -> tuple[str, ...]:
    """Return the encoding that a byte order mark, or a 0 next to the first ASCII character, names; empty without."""
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return (encoding,)
    if data[:1] == b"\0":
        return ("utf-16-be",)
    return ("utf-16-le",) if data[1:2] == b"\0" else ()
