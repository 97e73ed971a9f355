"""Trained heads are written once training is complete, and whole."""

from pathlib import Path

import pytest
import torch

from tests.scripts import together

pytest.importorskip("transformers", reason="needs the hf extra")


def train(folder: Path, *, steps: int = 3, interrupted_at: int | None = None) -> None:
    """Train a linear head of 12 tokens on random states, into `folder`."""
    (head_training,) = together("tools", "head_training")
    head = torch.nn.ModuleDict({"layers": torch.nn.Linear(4, 4), "output": torch.nn.Linear(4, 12)})
    calls = []

    def predict(batch, _):
        calls.append(batch)
        if len(calls) == interrupted_at:
            raise KeyboardInterrupt
        return [(head["output"](head["layers"](batch.last)), torch.zeros(*batch.tokens.shape, 12))]

    def save(folder: Path) -> None:
        for name in ("config.json", "model.safetensors"):
            (folder / name).write_text("new")
            if interrupted_at == 0:
                raise KeyboardInterrupt

    sequences = head_training.HELD_OUT_SEQUENCES + 4
    states = head_training.TargetStates(
        torch.randn(sequences, 10, 4), torch.zeros(sequences, 10).long(), torch.empty(0)
    )
    states = states._replace(layers=torch.empty(sequences, 10, 0))
    head_training.train_head(
        head, predict, states, depth_weight=1.0, steps=steps, learning_rate=0.01, title="head", save=save, output=folder
    )


@pytest.fixture(autouse=True)
def same_dtype_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    (head_training,) = together("tools", "head_training")
    monkeypatch.setattr(head_training, "measure_fastest_dtype", lambda: torch.float32)


@pytest.mark.parametrize(("steps", "interrupted_at"), [(200, 102), (3, 0)], ids=["training", "saving"])
def test_interrupted_training_leaves_the_output_as_it_was(tmp_path: Path, steps: int, interrupted_at: int) -> None:
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        train(folder, steps=steps, interrupted_at=interrupted_at)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("config.json", "old")]
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_finished_training_writes_all_files(tmp_path: Path) -> None:
    train(tmp_path / "new" / "head")
    files = (tmp_path / "new" / "head").iterdir()
    assert {path.name: path.read_text() for path in files} == {"config.json": "new", "model.safetensors": "new"}
