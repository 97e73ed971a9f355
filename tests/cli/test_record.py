"""`treeopt profile --record`, as a user types it."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.invented import call
from treeopt import Profile
from treeopt.records.draft_record import DraftRecord

LITTLE = (
    *("--max-tokens", "4", "--rounds", "1", "--positions", "24", "--context-tokens", "16"),
    *("--max-prompts", "8"),
)
TEXTS = 6
"""Three quarters of the prompts; the rest are for the bench."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestRecord:
    def test_a_record_is_written_beside_the_profile(self, folder: Path) -> None:
        result = call("profile", "-o", "small.yaml", "--record", *LITTLE)
        assert result.exit_code == 0, result.output
        record = DraftRecord.load("small.record.npz")
        assert names(folder) == ["small.record.npz", "small.yaml"]
        assert (record.pair, record.temperature) == ("bundled target + bundled draft", 0.0)
        assert (record.roots, record.sequences, record.top_k, record.depth) == (24, TEXTS, 10, 10)
        assert f"draft record at temperature 0, 24 positions of {TEXTS} sequences" in result.stdout
        assert "Written to small.yaml. Next: treeopt solve --profile small.yaml" in result.stdout
        assert "Next: treeopt export small.yaml --to sglang" in result.stdout

    @pytest.mark.slow
    def test_a_record_has_a_file_of_any_name_and_the_targets_sampling(self, folder: Path) -> None:
        sampling = ("--temperature", "0.7", "--top-p", "0.9", "--top-k", "50")
        result = call("profile", "--record", "here.npz", "-o", "-", *sampling, *LITTLE)
        assert result.exit_code == 0, result.output
        record = DraftRecord.load("here.npz")
        assert (record.temperature, record.top_p, record.target_top_k) == (0.7, 0.9, 50)
        assert "Draft record written to here.npz" in result.stderr
        (folder / "copy.yaml").write_text(result.stdout)
        assert Profile.load("copy.yaml").acceptance().temperature == 0.7
        assert names(folder) == ["copy.yaml", "here.npz"]

    def test_without_the_option_nothing_is_recorded(self, folder: Path) -> None:
        result = call("profile", *LITTLE)
        assert result.exit_code == 0, result.output
        assert names(folder) == ["profile.yaml"]
        assert "ecord" not in result.stdout


@pytest.mark.slow
class TestInterruption:
    def test_a_record_goes_on_where_it_stopped(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        other = call("profile", "--resume", *LITTLE)
        assert other.exit_code == 1
        assert "other conditions" in other.output
        second = call(*command, "--resume")
        assert second.exit_code == 0, second.output
        assert names(folder) == ["profile.yaml", "rec.npz"]
        assert len(calls) == TEXTS + 1
        assert "Next: treeopt export profile.yaml --record rec.npz --to sglang" in second.stdout
        resumed = DraftRecord.load("rec.npz")
        assert call("profile", "--record", "whole.npz", *LITTLE).exit_code == 0
        whole = DraftRecord.load("whole.npz")
        for name in ("text_starts", "node_starts", "parent", "rank", "log_probs", "outcome"):
            assert np.array_equal(getattr(resumed, name), getattr(whole, name))


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (("-o", "-", "--record"), 2, "--record: expected a file, because the profile goes to standard output"),
            (("--record", "-"), 2, "--record: expected a file of its own. Got -"),
            (("--record", "profile.yaml"), 2, "--record: expected a file of its own. Got profile.yaml"),
            (("--record", "missing/rec.npz"), 1, "missing"),
            (("--record", "."), 1, "folder"),
            (("--record", "a.npz", "b.npz"), 2, "unexpected extra argument"),
        ],
    )
    def test_is_refused_before_any_work(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, said: str
    ) -> None:
        monkeypatch.setattr("treeopt.cli.options.pair.PairOptions.load", lambda _: pytest.fail("a model was loaded"))
        result = call("profile", *arguments, *LITTLE)
        assert result.exit_code == code
        assert said in result.stderr
        assert names(folder) == []
