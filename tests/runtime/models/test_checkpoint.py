"""A written model has the tensors of the loaded one, in a folder that transformers loads; it is written whole or not at all."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file

from treeopt.errors import TreeoptError
from treeopt.runtime import load_model
from treeopt.runtime.models import checkpoint
from treeopt.runtime.models.checkpoint import CheckpointWriter
from treeopt.runtime.models.trainable import TrainableCopy, copy_model
from treeopt.runtime.models.weights import named_tensors

ARCHITECTURES = {
    "tied": {"tie_word_embeddings": True},
    "untied, with biases": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "large": {"hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": False},  # in oneDNN's order
}


def stored_tensors(folder):
    return load_file(folder / "model.safetensors")


def assert_same(tensors, expected):
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.fixture
def source(make_checkpoint):
    folder = make_checkpoint(seed=2, num_hidden_layers=1, tie_word_embeddings=True)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def change_weights(model):
    """Return a copy of a model with other weights."""
    changed = copy_model(model)
    trainable = TrainableCopy(changed)
    with torch.no_grad():
        for parameter in trainable.parameters:
            parameter += 1.0
    trainable.write()
    return changed


@pytest.mark.parametrize(
    ("name", "dtype"), [("tied", torch.float32), ("untied, with biases", torch.bfloat16), ("large", torch.float32)]
)
def test_tensors_equal_those_of_the_file(make_checkpoint, name, dtype):
    folder = make_checkpoint(seed=4, stored_dtype=dtype, **ARCHITECTURES[name])
    model = load_model(folder, dtype=dtype)
    assert_same(named_tensors(model), stored_tensors(folder))
    assert_same(named_tensors(copy_model(model)), stored_tensors(folder))


def test_norms_of_heads_equal_those_of_the_file(tmp_path):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"vocab_size": 23, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reference = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads))
        for name, parameter in reference.named_parameters():
            if "_norm" in name:
                torch.nn.init.normal_(parameter, 1.0)
    reference.save_pretrained(tmp_path)
    assert_same(named_tensors(load_model(tmp_path)), stored_tensors(tmp_path))


def test_written_model_equals_the_running_one(source, tmp_path):
    from transformers import AutoModelForCausalLM

    model, tokens = change_weights(load_model(source)), torch.tensor([3, 1, 4, 1, 5])
    CheckpointWriter(model, source, tmp_path / "new").save()
    expected = model.forward_uncached(tokens)
    assert torch.equal(load_model(tmp_path / "new").forward_uncached(tokens), expected)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "new", dtype=torch.float32)
    torch.testing.assert_close(reference(tokens[None]).logits[0], expected, rtol=1e-3, atol=1e-3)
    assert (tmp_path / "new" / "tokenizer.json").read_text() == "{}"
    content = json.loads((source / "config.json").read_text())
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == content | {"dtype": "float32"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


def test_dtype_is_that_of_the_running_model(source, tmp_path):
    CheckpointWriter(load_model(source, dtype=torch.bfloat16), source, tmp_path / "half").save()
    assert stored_tensors(tmp_path / "half")["model.norm.weight"].dtype == torch.bfloat16
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"


def test_only_files_of_the_model_are_replaced(source, tmp_path):
    folder, changed = tmp_path / "draft", change_weights(load_model(source))
    CheckpointWriter(load_model(source), source, folder).save()
    (folder / "notes.txt").write_text("mine")
    (folder / "config.json").write_text("{}")
    writer = CheckpointWriter(changed, source, folder)
    for _ in range(2):
        writer.save()
    assert_same(named_tensors(load_model(folder)), named_tensors(changed))
    assert (folder / "notes.txt").read_text() == "mine"


def test_folder_that_cannot_be_written_is_refused(source, tmp_path):
    with pytest.raises(TreeoptError, match=r"none/new: cannot be written .*Name another folder"):
        CheckpointWriter(load_model(source), source, tmp_path / "none" / "new").save()


@pytest.mark.parametrize("exists", [False, True])
def test_interrupt_leaves_the_weights_saved_before(source, tmp_path, monkeypatch, exists):
    model, folder = load_model(source), tmp_path / "draft"
    if exists:
        CheckpointWriter(model, source, folder).save()
    changed = change_weights(model)
    writer, replace, interrupts = CheckpointWriter(changed, source, folder), os.replace, 0
    for completed_calls in range(6):
        calls = iter(range(completed_calls))

        def interrupt(*paths, calls=calls):
            if next(calls, None) is None:
                raise KeyboardInterrupt
            return replace(*paths)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", interrupt)
            patched.setattr(checkpoint.Path, "replace", lambda path, to: os.replace(path, to))
            try:
                writer.save()
                break
            except KeyboardInterrupt:
                interrupts += 1
        assert folder.exists() == exists
        assert [path for path in tmp_path.iterdir() if path != folder] == []
        if exists:
            assert_same(stored_tensors(folder), named_tensors(model))
    assert interrupts > 0
    assert_same(stored_tensors(folder), named_tensors(changed))
