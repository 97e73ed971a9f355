"""Atomic writes, and errors that name the file."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from treeopt.errors import TreeoptError
from treeopt.files.atomic_files import check_writable, read_text, write_bytes, write_text


def refuse(*_args, **_kwargs):
    raise PermissionError(errno.EACCES, "Permission denied")


class TestReadText:
    def test_text_is_unchanged(self, tmp_path):
        (tmp_path / "a").write_bytes("ä\r\n∑".encode())
        assert read_text(tmp_path / "a", limit_bytes=100) == read_text(str(tmp_path / "a"), limit_bytes=7) == "ä\r\n∑"

    def test_limit_counts_bytes(self, tmp_path):
        (tmp_path / "a").write_bytes(b"12345")
        assert read_text(tmp_path / "a", limit_bytes=5) == "12345"
        with pytest.raises(TreeoptError, match="larger than 4 bytes"):
            read_text(tmp_path / "a", limit_bytes=4)

    def test_missing(self, tmp_path):
        with pytest.raises(TreeoptError, match=f"{tmp_path / 'a'}: no such file"):
            read_text(tmp_path / "a", limit_bytes=5)

    def test_folder(self, tmp_path):
        with pytest.raises(TreeoptError, match=f"{tmp_path}: cannot be read"):
            read_text(tmp_path, limit_bytes=5)

    def test_below_a_file(self, tmp_path):
        (tmp_path / "a").touch()
        with pytest.raises(TreeoptError, match=f"{tmp_path / 'a' / 'b'}: cannot be read"):
            read_text(tmp_path / "a" / "b", limit_bytes=5)

    def test_forbidden(self, tmp_path, monkeypatch):
        (tmp_path / "a").touch()
        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(TreeoptError, match=r"a: cannot be read \(Permission denied\)"):
            read_text(tmp_path / "a", limit_bytes=5)

    def test_not_utf8(self, tmp_path):
        (tmp_path / "a").write_bytes(b"ab\xff")
        with pytest.raises(TreeoptError, match=r"not UTF-8 text \(byte 2\)"):
            read_text(tmp_path / "a", limit_bytes=5)


class TestCheckWritable:
    def test_no_temporary_file_remains(self, tmp_path):
        check_writable(tmp_path / "a")
        check_writable(str(tmp_path / "a"))
        assert list(tmp_path.iterdir()) == []

    def test_an_existing_file_stays_as_it_is(self, tmp_path):
        (tmp_path / "a").write_text("old")
        check_writable(tmp_path / "a")
        assert (tmp_path / "a").read_text() == "old"

    def test_standard_output_is_always_writable(self):
        check_writable("-")

    def test_the_null_device_is_writable(self):
        check_writable(os.devnull)

    def test_folder(self, tmp_path):
        with pytest.raises(TreeoptError, match=f"{tmp_path}: is a folder"):
            check_writable(tmp_path)

    def test_no_folder(self, tmp_path):
        with pytest.raises(TreeoptError, match=f"b: its folder does not exist. Create {tmp_path / 'a'} first"):
            check_writable(tmp_path / "a" / "b")

    def test_below_a_file(self, tmp_path):
        (tmp_path / "a").touch()
        with pytest.raises(TreeoptError, match="b: its folder does not exist"):
            check_writable(tmp_path / "a" / "b")

    def test_a_folder_that_refuses(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
        with pytest.raises(TreeoptError, match=r"a: its folder cannot be written \(Permission denied\)"):
            check_writable(tmp_path / "a")

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the root user may write anywhere")
    def test_a_folder_without_permission(self, tmp_path):
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(TreeoptError, match="a: its folder cannot be written"):
            check_writable(tmp_path / "closed" / "a")

    def test_a_name_too_long(self, tmp_path):
        with pytest.raises(TreeoptError, match="cannot be written"):
            write_text(tmp_path / ("a" * 300), "text")


class TestWrite:
    def test_bytes_and_text(self, tmp_path):
        write_bytes(tmp_path / "a", b"\x00\xff")
        write_text(str(tmp_path / "b"), "ä\n")
        assert (tmp_path / "a").read_bytes() == b"\x00\xff"
        assert (tmp_path / "b").read_bytes() == b"\xc3\xa4\n"

    def test_the_old_file_is_replaced(self, tmp_path):
        write_text(tmp_path / "a", "a long old text")
        write_text(tmp_path / "a", "new")
        assert (tmp_path / "a").read_text() == "new"
        assert os.listdir(tmp_path) == ["a"]

    def test_standard_output(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_text("-", "ä\n")
        write_bytes(Path("-"), b"b\n")
        assert capsys.readouterr().out == "ä\nb\n"
        assert os.listdir(tmp_path) == []

    @pytest.mark.skipif(os.name != "posix", reason="permission bits are those of POSIX")
    def test_the_file_has_the_usual_permissions(self, tmp_path):
        """A temporary file is private; the one it becomes is readable as if it had simply been opened."""
        (tmp_path / "a").touch()
        write_text(tmp_path / "b", "text")
        assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == stat.S_IMODE((tmp_path / "a").stat().st_mode)

    @pytest.mark.skipif(os.name != "posix", reason="permission bits are those of POSIX")
    @pytest.mark.parametrize("umask", [0o002, 0o077])
    def test_new_files_follow_the_umask(self, tmp_path, umask):
        before = os.umask(umask)
        try:
            write_text(tmp_path / "a", "text")
        finally:
            after = os.umask(before)
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~umask
        assert after == umask

    @pytest.mark.skipif(os.name != "posix", reason="permission bits are those of POSIX")
    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666])
    def test_an_overwritten_file_keeps_its_permissions(self, tmp_path, mode):
        (tmp_path / "a").write_text("old")
        (tmp_path / "a").chmod(mode)
        write_text(tmp_path / "a", "new")
        assert (tmp_path / "a").read_text() == "new"
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode

    def test_umask_is_constant_for_other_threads(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "umask", refuse)
        write_text(tmp_path / "a", "text")
        assert (tmp_path / "a").read_text() == "text"

    @pytest.mark.parametrize("exists", [True, False])
    def test_a_link_is_followed(self, tmp_path, exists):
        """A rename onto the link would leave the file it points to as it was, and no link."""
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
