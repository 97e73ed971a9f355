"""The tensor reader: every tensor is read once, and hostile files neither run code nor allocate memory."""

import io
import zipfile
from collections import Counter

import pytest
import torch
from safetensors.torch import save_file

from tests.support import eagle_heads as layouts
from treeopt import bundled
from treeopt.errors import FormatError
from treeopt.runtime import load_model
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.runtime.drafters.medusa import load_medusa
from treeopt.runtime.drafters.redrafter import load_redrafter
from treeopt.runtime.models import tensor_reader
from treeopt.runtime.models.tensor_reader import TensorReader, TorchFile

WIDE = (200_000_000).to_bytes(4, "little")


def open_folder(folder, dtype=torch.float32):
    return TensorReader.open_folder(folder, device=torch.device("cpu"), dtype=dtype)


@pytest.fixture
def reads(monkeypatch):
    """Return the number of reads of each tensor."""
    counter = Counter()
    for kind in (tensor_reader.SafetensorsFile, TorchFile):

        def read(self, name, original=kind.read):
            counter[name] += 1
            return original(self, name)

        monkeypatch.setattr(kind, "read", read)
    return counter


def torch_bytes(content, *, legacy=False):
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


def change_pickle(data, old, new):
    """Replace bytes in the pickle of a torch file."""
    if not data.startswith(b"PK"):
        assert old in data
        return data.replace(old, new)
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(file, "w") as copy:
        for item in archive.infolist():
            content = archive.read(item)
            if item.filename.endswith("data.pkl"):
                assert old in content
                content = content.replace(old, new)
            copy.writestr(item.filename, content)
    return file.getvalue()


class TestReads:
    def test_bundled_models_and_heads_read_each_tensor_once(self, bundled_pair, reads):
        load_model(bundled.TARGET)
        assert set(reads.values()) == {1}
        heads = {load_eagle: bundled.EAGLE, load_medusa: bundled.MEDUSA, load_redrafter: bundled.REDRAFTER}
        for load, folder in heads.items():
            reads.clear()
            load(folder, bundled_pair.target)
            assert set(reads.values()) == {1}

    def test_pickled_head_reads_each_tensor_once(self, target, tmp_path, reads):
        head = layouts.make_head(target, layer_ids=(), eagle1=True)
        layouts.save_head(layouts.eagle1, tmp_path, head, target)
        load_eagle(tmp_path, target)
        assert set(reads.values()) == {1}

    @pytest.mark.parametrize("pickled", [False, True])
    def test_shapes_are_read_without_data(self, tmp_path, reads, pickled):
        tensors = {"a": torch.ones(2, 3), "b": torch.zeros(0)}
        torch.save(tensors, tmp_path / "pytorch_model.bin")
        if not pickled:
            save_file(tensors, tmp_path / "model.safetensors")
        reader = open_folder(tmp_path)
        assert {name: reader.shape(name) for name in reader} == {"a": (2, 3), "b": (0,)}
        with pytest.raises(FormatError, match=r"a: expected shape \(3, 2\). Got \(2, 3\): take"):
            reader.get("a", (3, 2))
        assert not reads

    def test_second_read_is_counted(self, tmp_path, reads):
        save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
        reader = open_folder(tmp_path)
        for _ in range(2):
            reader.get("a", (2,))
        assert reads == {"a": 2}


class TestPickles:
    @pytest.mark.parametrize("legacy", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_read_tensors_equal_saved_ones(self, tmp_path, legacy, dtype):
        whole = torch.randn(6, 4, dtype=torch.float64).to(dtype)
        tensors = {
            "whole": whole,
            "rows": whole[2:4],
            "turned": whole.t(),
            "parameter": torch.nn.Parameter(whole[1].clone()),
            "number": torch.tensor(3.0),
            "none": torch.zeros(0, 3),
        }
        (tmp_path / "pytorch_model.bin").write_bytes(torch_bytes(tensors, legacy=legacy))
        reader = open_folder(tmp_path, dtype)
        for name, tensor in tensors.items():
            assert torch.equal(reader.get(name, tuple(tensor.shape)), tensor)

    def test_integers(self, tmp_path):
        torch.save({"ids": torch.tensor([3, 1], dtype=torch.int32)}, tmp_path / "pytorch_model.bin")
        assert open_folder(tmp_path).get_integers("ids", (2,)).tolist() == [3, 1]
        with pytest.raises(FormatError, match=r"ids: expected float32.*Got torch.int32: take"):
            open_folder(tmp_path).get("ids", (2,))

    @pytest.mark.parametrize("legacy", [False, True])
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b"K\x0b\x85", b"J" + WIDE + b"\x85"),  # the shape
            (b"K\x00K\x0b\x85", b"J" + WIDE + b"K\x0b\x85"),  # the offset
            (b"K\x01\x85", b"J" + WIDE + b"\x85"),  # the stride
            (b"torch FloatStorage".replace(b" ", b"\n"), b"torch\nDoubleStorage"),
            (b"\x89ccollections", b"R\x89ccollections"),
        ],
        ids=["shape", "offset", "stride", "dtype", "call of a tensor"],
    )
    def test_tensor_larger_than_the_file_is_refused(self, tmp_path, legacy, old, new):
        data = change_pickle(torch_bytes({"a": torch.ones(11)}, legacy=legacy), old, new)
        (tmp_path / "pytorch_model.bin").write_bytes(data)
        with pytest.raises(FormatError, match=r"pytorch_model.bin: content: expected a torch file"):
            open_folder(tmp_path)

    def test_expanded_tensor_is_refused(self, tmp_path):
        torch.save({"a": torch.ones(1).expand(1_000_000_000)}, tmp_path / "pytorch_model.bin")
        with pytest.raises(FormatError, match=r"a: expected at most 1 numbers.*Got shape \(1000000000,\): take"):
            open_folder(tmp_path)

    @pytest.mark.parametrize("legacy", [False, True])
    def test_truncated_file_is_refused(self, tmp_path, legacy):
        data = torch_bytes({"a": torch.ones(100), "b": torch.ones(3)}, legacy=legacy)
        for length in range(0, len(data) - 1, 29):
            (tmp_path / "pytorch_model.bin").write_bytes(data[:length])
            with pytest.raises(FormatError):
                open_folder(tmp_path)

    @pytest.mark.parametrize("content", [[torch.ones(2)], {"a": 3}, torch.ones(2)])
    def test_other_content_is_refused(self, tmp_path, content):
        torch.save(content, tmp_path / "pytorch_model.bin")
        with pytest.raises(FormatError, match="expected tensors by name"):
            open_folder(tmp_path)
