"""A model is written as it was read: by name and number, in a folder that transformers load, whole or not at all."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from treeopt.errors import TreeoptError
from treeopt.runtime import load_model
from treeopt.runtime.models import checkpoint
from treeopt.runtime.models.checkpoint import CheckpointWriter, named_tensors
from treeopt.runtime.models.trainable import TrainableCopy, copy_model

ARCHITECTURES = {
    "tied": {"tie_word_embeddings": True},
    "untied, with biases": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "large": {"hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": False},  # in oneDNN's order
}


def tensors_of(folder):
    return load_file(folder / "model.safetensors")


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.fixture
def source(make_checkpoint):
    folder = make_checkpoint(seed=2, num_hidden_layers=1, tie_word_embeddings=True)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def changed(model):
    """Return a copy of a model with other weights."""
    found = copy_model(model)
    trainable = TrainableCopy(found)
    with torch.no_grad():
        for each in trainable.parameters:
            each += 1.0
    trainable.write()
    return found


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tensors_are_those_of_the_file(make_checkpoint, name, dtype):
    folder = make_checkpoint(seed=4, stored_dtype=dtype, **ARCHITECTURES[name])
    model = load_model(folder, dtype=dtype)
    expected = tensors_of(folder)
    assert_same(named_tensors(model), expected)
    assert_same(named_tensors(copy_model(model)), expected)


def test_so_they_are_of_norms_of_single_heads(tmp_path):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"vocab_size": 23, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads))
        for name, each in theirs.named_parameters():
            if "_norm" in name:
                torch.nn.init.normal_(each, 1.0)
    theirs.save_pretrained(tmp_path)
    assert_same(named_tensors(load_model(tmp_path)), tensors_of(tmp_path))


def test_a_written_model_is_the_running_one_here_and_in_transformers(source, tmp_path):
    from transformers import AutoModelForCausalLM

    model, tokens = changed(load_model(source)), torch.tensor([3, 1, 4, 1, 5])
    CheckpointWriter(model, source, tmp_path / "new").save()
    expected = model.forward_uncached(tokens)
    assert torch.equal(load_model(tmp_path / "new").forward_uncached(tokens), expected)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new", dtype=torch.float32)
    torch.testing.assert_close(theirs(tokens[None]).logits[0], expected, rtol=1e-3, atol=1e-3)
    assert (tmp_path / "new" / "tokenizer.json").read_text() == "{}"
    content = json.loads((source / "config.json").read_text())
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == content | {"dtype": "float32"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


def test_the_number_format_is_the_running_models(source, tmp_path):
    CheckpointWriter(load_model(source, dtype=torch.bfloat16), source, tmp_path / "half").save()
    assert tensors_of(tmp_path / "half")["model.norm.weight"].dtype == torch.bfloat16
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"


def test_files_of_the_model_are_replaced_and_nothing_else(source, tmp_path):
    folder = tmp_path / "draft"
    CheckpointWriter(load_model(source), source, folder).save()
    (folder / "notes.txt").write_text("mine")
    (folder / "config.json").write_text("{}")
    again = CheckpointWriter(changed(load_model(source)), source, folder)
    again.save()
    again.save()
    assert_same(named_tensors(load_model(folder)), named_tensors(changed(load_model(source))))
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_written(source, tmp_path):
    with pytest.raises(TreeoptError, match=r"none/new: cannot be written .*Name another folder"):
        CheckpointWriter(load_model(source), source, tmp_path / "none" / "new").save()


@pytest.mark.parametrize("there", [False, True])
def test_where_writing_is_broken_off_the_last_whole_one_stays(source, tmp_path, monkeypatch, there):
    model, folder = load_model(source), tmp_path / "draft"
    if there:
        CheckpointWriter(model, source, folder).save()
    saved, replace = CheckpointWriter(changed(model), source, folder), os.replace
    for calls in range(6):
        left = [calls]

        def broken_off(*paths, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return replace(*paths)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", broken_off)
            patched.setattr(checkpoint.Path, "replace", lambda path, to: os.replace(path, to))
            try:
                saved.save()
            except KeyboardInterrupt:
                assert folder.exists() == there
                assert [path for path in tmp_path.iterdir() if path != folder] == []
                if there:
                    assert_same(tensors_of(folder), named_tensors(model))
                continue
        break
    assert calls == (1 if there else 5) or left[0] >= 0
    assert_same(tensors_of(folder), named_tensors(saved._model))


SAVES = """
import sys
from treeopt.runtime import load_model
from treeopt.runtime.models.checkpoint import CheckpointWriter
saved = CheckpointWriter(load_model(sys.argv[1]), sys.argv[1], sys.argv[2])
saved.save()
print("saved", flush=True)
while True:
    saved.save()
"""


@pytest.mark.slow
@pytest.mark.process
def test_killed_while_it_saves_again_and_again_it_leaves_a_whole_one(source, tmp_path):
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVES, source, tmp_path / "draft"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "saved\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert_same(named_tensors(load_model(tmp_path / "draft")), tensors_of(source))
