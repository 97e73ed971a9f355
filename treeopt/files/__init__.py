"""Files: whole or not at all, read with limits, every wrong field named."""

from treeopt.files.whole_files import (
    STANDARD_STREAM,
    check_writable,
    file_path,
    is_stream,
    read_bytes,
    read_text,
    write_bytes,
    write_text,
)

__all__ = [
    "STANDARD_STREAM",
    "check_writable",
    "file_path",
    "is_stream",
    "read_bytes",
    "read_text",
    "write_bytes",
    "write_text",
]
