"""Files that try to run code or to exhaust memory, or that imitate another format."""

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trees.formats.read_files import read_trees, write_tree
from treeopt.errors import FormatError
from treeopt.trees import k_ary, load_file

TREE = k_ary(2, 3)
GROWMAP = write_tree("sequoia", TREE)


class Writes:
    """Something whose pickle writes a file when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"echo run > {self.target}",)


class Asks:
    """Something whose pickle calls what torch itself takes for safe, for 10 GB."""

    def __reduce__(self) -> tuple[object, ...]:
        return bytearray, (10_000_000_000,)


def torch_file(content: object, *, legacy: bool = False) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


def rewritten(data: bytes, change, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive whose every entry went through `change(name, bytes)`."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(file, "w", compression) as copy:
        for item in archive.infolist():
            copy.writestr(item.filename, change(item.filename, archive.read(item)))
    return file.getvalue()


class TestPickle:
    def test_the_pickle_that_follows_would_write_a_file(self, tmp_path):
        pickle.loads(pickle.dumps(Writes(tmp_path / "written")))
        assert (tmp_path / "written").read_text() == "run\n"

    @pytest.mark.parametrize("form", ["zip", "legacy", "bare", "bare, protocol 2"])
    def test_it_is_refused_and_writes_nothing(self, tmp_path, form):
        content = torch.load(io.BytesIO(GROWMAP), weights_only=True) | {"roots": Writes(tmp_path / "written")}
        forms = {
            "zip": lambda: torch_file(content),
            "legacy": lambda: torch_file(content, legacy=True),
            "bare": lambda: pickle.dumps(content["roots"]),
            "bare, protocol 2": lambda: pickle.dumps(content["roots"], protocol=2),
        }
        (tmp_path / "g.pt").write_bytes(forms[form]())
        reason = "a bare pickle" if "bare" in form else "asks for 'posix.system', which may be code and was not run"
        with pytest.raises(FormatError, match=reason):
            read_trees(tmp_path / "g.pt")
        assert [path.name for path in tmp_path.iterdir()] == ["g.pt"]

    @pytest.mark.parametrize("legacy", [False, True])
    def test_large_requested_allocations(self, tmp_path, legacy):
        (tmp_path / "g.pt").write_bytes(torch_file({"roots": Asks()}, legacy=legacy))
        with pytest.raises(FormatError, match=r"bytearray.* may be code"):
            read_trees(tmp_path / "g.pt")

    def test_memory_that_a_tensor_requests(self, tmp_path):
        data, shape = torch_file({"mask": torch.ones(11)}, legacy=True), b"K\x0b\x85"
        assert shape in data
        (tmp_path / "g.pt").write_bytes(data.replace(shape, b"J" + (2**30).to_bytes(4, "little") + b"\x85"))
        with pytest.raises(FormatError, match=r"shape \(1073741824,\) in a storage of 11"):
            read_trees(tmp_path / "g.pt")

    @pytest.mark.parametrize("legacy", [False, True])
    @pytest.mark.parametrize(
        "depth",
        [
            torch.zeros(1, dtype=torch.int64).as_strided((1,), (2**61,)),
            torch.zeros(1, dtype=torch.int64).expand(2**60),
        ],
    )
    def test_sizes_that_numpy_does_not_take(self, tmp_path, depth, legacy):
        content = torch.load(io.BytesIO(GROWMAP), weights_only=True) | {"depth": depth}
        (tmp_path / "g.pt").write_bytes(torch_file(content, legacy=legacy))
        with pytest.raises(FormatError, match=r"depth: expected an array of numbers. Got tensor of int64"):
            read_trees(tmp_path / "g.pt")

    def test_stack_global_is_refused(self, tmp_path):
        newer = pickle.dumps(Writes(tmp_path / "written"), protocol=4)
        (tmp_path / "g.pt").write_bytes(rewritten(GROWMAP, lambda name, data: newer if "pkl" in name else data))
        with pytest.raises(FormatError, match="which may be code and was not run"):
            read_trees(tmp_path / "g.pt")


class TestTorchArchive:
    def test_tensors_of_a_gpu_are_read_without_one(self, tmp_path):
        def moved(name: str, data: bytes) -> bytes:
            return data.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0") if name.endswith("data.pkl") else data

        data = rewritten(GROWMAP, moved)
        assert b"cuda:0" in data
        (tmp_path / "g.pt").write_bytes(data)
        if not torch.cuda.is_available():
            with pytest.raises(RuntimeError, match="CUDA"):
                torch.load(tmp_path / "g.pt", weights_only=True)
        assert load_file(tmp_path / "g.pt").tree == TREE

    def test_nothing_compressed_is_unpacked(self, tmp_path):
        (tmp_path / "g.pt").write_bytes(rewritten(GROWMAP, lambda _, data: data, zipfile.ZIP_DEFLATED))
        with pytest.raises(FormatError, match="an archive that is compressed, which torch's never are"):
            read_trees(tmp_path / "g.pt")

    def test_a_tensor_longer_than_what_is_stored(self, tmp_path):
        short = rewritten(GROWMAP, lambda name, data: data[:8] if name.endswith("data/0") else data)
        (tmp_path / "g.pt").write_bytes(short)
        with pytest.raises(FormatError, match="expected a torch file"):
            read_trees(tmp_path / "g.pt")


class TestPythonText:
    def module(self, target: Path) -> str:
        run = f"__import__('os').system('echo run > {target}')"
        return f"import os\n{run}\nother = {run}\nmine = [[0], [1], [0, 0]]\nlast = [[{run}]]\n"

    def test_the_module_that_follows_would_write_a_file(self, tmp_path):
        exec(self.module(tmp_path / "written"), {})  # noqa: S102, the control
        assert (tmp_path / "written").read_text() == "run\n"

    def test_nothing_in_it_is_run(self, tmp_path):
        (tmp_path / "choices.py").write_text(self.module(tmp_path / "written"))
        ((name, content),) = read_trees(tmp_path / "choices.py").items()
        assert (name, content.tree.nodes) == ("mine", 4)
        assert [path.name for path in tmp_path.iterdir()] == ["choices.py"]


class TestArchives:
    def test_an_archive_that_unpacks_to_gigabytes(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("parents.npy", bytes(300_000_000))
        with pytest.raises(FormatError, match="300000000 bytes, more than a file like this has"):
            read_trees(tmp_path / "bomb.npz")

    def test_object_arrays(self, tmp_path):
        np.savez(tmp_path / "o.npz", parents=np.array([Writes(tmp_path / "written")], object))
        with pytest.raises(FormatError, match="expected a numpy archive"):
            read_trees(tmp_path / "o.npz")
        assert not (tmp_path / "written").exists()
