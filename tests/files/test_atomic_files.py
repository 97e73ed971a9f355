"""Atomic writes, and errors that name the file."""

import errno
import gzip
import os
import stat
import tempfile
from pathlib import Path

import pytest

from treeopt.errors import TreeoptError
from treeopt.files.atomic_files import check_writable, read_text, read_unpacked, write_bytes, write_text


def refuse(*_args, **_kwargs):
    raise PermissionError(errno.EACCES, "Permission denied")


def test_text_is_read_up_to_a_limit_of_bytes(tmp_path):
    (tmp_path / "a").write_bytes("ä\r\n∑".encode())
    assert read_text(tmp_path / "a", limit_bytes=100) == read_text(str(tmp_path / "a"), limit_bytes=7) == "ä\r\n∑"
    with pytest.raises(TreeoptError, match="larger than 6 bytes"):
        read_text(tmp_path / "a", limit_bytes=6)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "no such file"),
        ("folder", "cannot be read"),
        ("file/below", "cannot be read"),
        ("bytes", r"not UTF-8 text \(byte 2\)"),
    ],
)
def test_unreadable_files_are_named(tmp_path, name, reason):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    with pytest.raises(TreeoptError, match=f"{tmp_path / name}: {reason}"):
        read_text(tmp_path / name, limit_bytes=5)


class TestReadUnpacked:
    @pytest.mark.parametrize("members", [1, 2])
    def test_gzip_archives_are_unpacked(self, tmp_path, members):
        (tmp_path / "text.gz").write_bytes(gzip.compress(b"text") * members)
        assert read_unpacked(tmp_path / "text.gz", limit_bytes=100) == b"text" * members
        (tmp_path / "text").write_bytes(b"text")
        assert read_unpacked(tmp_path / "text", limit_bytes=4) == b"text"

    def test_an_archive_that_unpacks_to_more_than_the_limit_is_refused(self, tmp_path):
        (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(2_000_000)))
        with pytest.raises(TreeoptError, match=r"bomb\.gz: larger than 10000 bytes unpacked"):
            read_unpacked(tmp_path / "bomb.gz", limit_bytes=10_000)

    @pytest.mark.parametrize(
        "change", [lambda data: data[:-3], lambda data: data[:2] + b"x" * 20, lambda data: data + b"x"]
    )
    def test_broken_archives_are_refused(self, tmp_path, change):
        (tmp_path / "broken.gz").write_bytes(change(gzip.compress(b"some text")))
        with pytest.raises(TreeoptError, match=r"broken\.gz: cannot be unpacked"):
            read_unpacked(tmp_path / "broken.gz", limit_bytes=100)


class TestCheckWritable:
    def test_no_file_changes(self, tmp_path):
        (tmp_path / "a").write_text("old")
        for path in (tmp_path / "a", str(tmp_path / "b"), "-", os.devnull):
            check_writable(path)
        assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("folder", "is a folder"),
            ("none/a", "its folder does not exist. Create .*none first"),
            ("file/a", "its folder does not exist"),
        ],
    )
    def test_paths_that_cannot_be_written_are_named(self, tmp_path, name, reason):
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").touch()
        with pytest.raises(TreeoptError, match=f"{tmp_path / name}: {reason}"):
            check_writable(tmp_path / name)

    def test_folder_without_permission_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
        with pytest.raises(TreeoptError, match=r"a: its folder cannot be written \(Permission denied\)"):
            check_writable(tmp_path / "a")


class TestWrite:
    def test_bytes_and_text(self, tmp_path):
        write_bytes(tmp_path / "a", b"\x00\xff")
        write_text(str(tmp_path / "b"), "a long old text")
        write_text(str(tmp_path / "b"), "ä\n")
        assert (tmp_path / "a").read_bytes() == b"\x00\xff"
        assert (tmp_path / "b").read_bytes() == b"\xc3\xa4\n"
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]
        with pytest.raises(TreeoptError, match="cannot be written"):
            write_text(tmp_path / ("a" * 300), "text")

    def test_standard_output(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_text("-", "ä\n")
        write_bytes(Path("-"), b"b\n")
        assert capsys.readouterr().out == "ä\nb\n"
        assert os.listdir(tmp_path) == []

    @pytest.mark.skipif(os.name != "posix", reason="permission bits are those of POSIX")
    @pytest.mark.parametrize("umask", [0o002, 0o077])
    def test_new_files_follow_the_umask(self, tmp_path, monkeypatch, umask):
        """The umask itself, which other threads share, is not changed to read it."""
        before = os.umask(umask)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, "umask", refuse)
                write_text(tmp_path / "a", "text")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~umask

    @pytest.mark.skipif(os.name != "posix", reason="permission bits are those of POSIX")
    @pytest.mark.parametrize("mode", [0o600, 0o444, 0o666])
    def test_replaced_files_keep_their_permissions(self, tmp_path, mode):
        (tmp_path / "a").write_text("old")
        (tmp_path / "a").chmod(mode)
        write_text(tmp_path / "a", "new")
        assert (tmp_path / "a").read_text() == "new"
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode

    @pytest.mark.parametrize("exists", [True, False])
    def test_link_is_followed(self, tmp_path, exists):
        """A rename onto the link would replace it and leave its target unchanged."""
        (tmp_path / "folder").mkdir()
        if exists:
            (tmp_path / "folder" / "a").write_text("old")
        (tmp_path / "link").symlink_to(tmp_path / "folder" / "a")
        write_text(tmp_path / "link", "new")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "a").read_text() == "new"
        assert os.listdir(tmp_path / "folder") == ["a"]

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_pipes_and_devices_are_not_replaced(self, tmp_path):
        """A rename onto /dev/null, which the root user may do, would break the whole machine."""
        os.mkfifo(tmp_path / "pipe")
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        try:
            write_text(tmp_path / "pipe", "text")
            assert os.read(reader, 100) == b"text"
        finally:
            os.close(reader)
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)

    @pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
    def test_failure_keeps_the_old_file(self, tmp_path, monkeypatch, step):
        (tmp_path / "a").write_text("old")
        monkeypatch.setattr(os, step, refuse)
        with pytest.raises(TreeoptError, match=r"a: cannot be written \(Permission denied\)"):
            write_text(tmp_path / "a", "new")
        assert (tmp_path / "a").read_text() == "old"
        assert os.listdir(tmp_path) == ["a"]

    def test_interrupt_leaves_no_file(self, tmp_path, monkeypatch):
        def interrupt(*_args):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_text(tmp_path / "a", "new")
        assert os.listdir(tmp_path) == []
