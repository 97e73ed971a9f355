"""`treeopt profile --record`: the draft record, and its interruption."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.invented import call, refused, succeed
from treeopt import Profile
from treeopt.records.draft_record import DraftRecord

LITTLE = (
    *("--max-tokens", "4", "--rounds", "1", "--positions", "24", "--context-tokens", "16"),
    *("--max-prompts", "8"),
)
SEQUENCES = 6
"""Three quarters of the prompts; the others are held out for benchmarks."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_record_is_written_next_to_the_profile(folder: Path) -> None:
    """Also with --resume and nothing to continue: sequences without a checkpoint are of an unknown run."""
    unknown = folder / "small.yaml.record.partial"
    unknown.mkdir()
    (unknown / "0.npz").touch()
    result = succeed("profile", "-o", "small.yaml", "--record", "--resume", *LITTLE)
    record = DraftRecord.load("small.record.npz")
    assert names(folder) == ["small.record.npz", "small.yaml"]
    assert (record.pair, record.temperature) == ("bundled target + bundled draft", 0.0)
    assert (record.roots, record.sequences, record.top_k, record.depth) == (24, SEQUENCES, 10, 10)
    assert f"draft record at temperature 0, 24 positions of {SEQUENCES} sequences" in result.stdout
    assert "Written to small.yaml. Next: treeopt solve --profile small.yaml" in result.stdout
    assert "Next: treeopt export small.yaml --to sglang" in result.stdout


@pytest.mark.slow
def test_record_has_a_file_of_any_name_and_the_targets_sampling(folder: Path) -> None:
    sampling = ("--temperature", "0.7", "--top-p", "0.9", "--top-k", "50")
    result = succeed("profile", "--record", "here.npz", "-o", "-", *sampling, *LITTLE)
    record = DraftRecord.load("here.npz")
    assert (record.temperature, record.top_p, record.target_top_k) == (0.7, 0.9, 50)
    assert "Draft record written to here.npz" in result.stderr
    (folder / "copy.yaml").write_text(result.stdout)
    assert Profile.load("copy.yaml").acceptance().temperature == 0.7
    assert names(folder) == ["copy.yaml", "here.npz"]


@pytest.mark.slow
def test_interrupted_record_is_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from treeopt.profiler.acceptance.expansion import Expander, Expansion

    expand, calls = Expander.expand, []

    def interrupted(self: Expander, text: list[int], roots: int) -> list[Expansion]:
        calls.append(text)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return expand(self, text, roots)

    monkeypatch.setattr(Expander, "expand", interrupted)
    command = ("profile", "--record", "rec.npz", *LITTLE)
    first = call(*command)
    assert first.exit_code == 130
    assert "--resume" in first.output
    assert names(folder) == ["profile.yaml.partial", "profile.yaml.record.partial"]
    assert len(names(folder / "profile.yaml.record.partial")) == 3
    assert "other conditions" in refused("profile", "--resume", *LITTLE)
    second = succeed(*command, "--resume")
    assert names(folder) == ["profile.yaml", "rec.npz"]
    assert len(calls) == SEQUENCES + 1
    assert "Next: treeopt export profile.yaml --record rec.npz --to sglang" in second.stdout
    succeed("profile", "--record", "whole.npz", *LITTLE)
    resumed, whole = DraftRecord.load("rec.npz"), DraftRecord.load("whole.npz")
    for name in ("sequence_starts", "node_starts", "parent", "rank", "log_probs", "accepted_ranks"):
        assert np.array_equal(getattr(resumed, name), getattr(whole, name))
