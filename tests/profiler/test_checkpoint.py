"""A checkpoint keeps every measurement and goes on after an interruption."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from treeopt.errors import FormatError, TreeoptError
from treeopt.profiler import Checkpoint
from treeopt.profiler.processes.processes import OneProcess

HEADING = "machine A, rounds 3, größe 1"


class Second(OneProcess):
    """Stands for process 1 of 2, where process 0 says nothing."""

    rank = 1
    count = 2


class Follower(Second):
    """Stands for process 1 of 2 that measures what process 0 measures."""

    writes_checkpoint = False
    conditions = ", split"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "profile.yaml.partial"


def filled(path):
    checkpoint = Checkpoint(path, HEADING)
    for kind, key, values in (("verify", 4, (0.25,)), ("verify", 1, (0.125,)), ("acceptance", 0, (3.0, 1.5, 0.0))):
        checkpoint.append(kind, key, values)
    return checkpoint


def listed(checkpoint, kind):
    return [(entry.key, entry.values) for entry in checkpoint.entries(kind)]


def test_measurements_by_kind_in_the_order_they_were_made(path):
    checkpoint = filled(path)
    checkpoint.append("verify", 4, (0.5,))
    assert listed(checkpoint, "verify") == [(4, (0.25,)), (1, (0.125,)), (4, (0.5,))]
    assert checkpoint.samples("verify") == {1: [0.125], 4: [0.25, 0.5]}
    assert list(checkpoint.samples("verify")) == [1, 4]
    assert listed(checkpoint, "acceptance") == [(0, (3.0, 1.5, 0.0))]
    assert checkpoint.samples("step") == {}


def test_every_measurement_is_on_disk_at_once(path):
    checkpoint = Checkpoint(path, HEADING)
    for count in range(1, 4):
        checkpoint.append("verify", 2, (0.1 * count,))
        lines = path.read_text("utf-8").splitlines()
        assert json.loads(lines[0]) == {"conditions": HEADING}
        assert len(lines) == 1 + count
        assert json.loads(lines[-1]) == ["verify", 2, [0.1 * count]]


def test_without_a_file_measurements_are_kept_in_memory():
    checkpoint = filled(None)
    assert checkpoint.samples("verify") == {1: [0.125], 4: [0.25]}
    checkpoint.remove()


def test_resuming_brings_everything_back(path):
    filled(path)
    resumed = Checkpoint(path, HEADING, resume=True)
    resumed.append("verify", 1, (1 / 3,))
    for checkpoint in (resumed, Checkpoint(path, HEADING, resume=True)):
        assert checkpoint.samples("verify") == {1: [0.125, 1 / 3], 4: [0.25]}
        assert listed(checkpoint, "acceptance") == [(0, (3.0, 1.5, 0.0))]


def test_not_resuming_starts_anew(path):
    filled(path)
    assert Checkpoint(path, "other").samples("verify") == {}
    assert Checkpoint(path, "other", resume=True).samples("verify") == {}


@pytest.mark.parametrize("cut", range(1, 31))
def test_a_torn_last_line_is_left_out(path, cut):
    filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    resumed = Checkpoint(path, HEADING, resume=True)
    assert listed(resumed, "acceptance") == []
    assert resumed.samples("verify") == {1: [0.125], 4: [0.25]}
    resumed.append("acceptance", 0, (3.0, 1.5, 0.0))
    assert path.read_bytes() == whole
    assert listed(Checkpoint(path, HEADING, resume=True), "acceptance") == [(0, (3.0, 1.5, 0.0))]


def test_other_conditions_are_refused_and_nothing_is_lost(path):
    filled(path)
    before = path.read_bytes() + b'["ver'
    path.write_bytes(before)
    with pytest.raises(TreeoptError, match=r"measured under other conditions \(machine A.*asked for now \(machine B\)"):
        Checkpoint(path, "machine B", resume=True)
    assert path.read_bytes() == before


def test_nothing_to_resume(path):
    with pytest.raises(TreeoptError, match=f"{path}: no such file"):
        Checkpoint(path, HEADING, resume=True)
    assert not path.exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        '{"cond',
        "[]\n",
        '{"heading": "x"}\n',
        '{"conditions": "c"}\n["verify", 1]\n',
        '{"conditions": "c"}\n["verify", 1, [0.1], 2]\n',
        '{"conditions": "c"}\n["verify", "many", [0.1]]\n',
        '{"conditions": "c"}\n["verify", 1, ["long"]]\n',
        '{"conditions": "c"}\n["verify", 1, 0.1]\n',
        '{"conditions": "c"}\n["verify", 1, [0.1\n["verify", 1, [0.1]]\n',
        '{"conditions": "c"}\n3\n',
    ],
)
def test_something_else_is_refused(path, content):
    path.write_text(content)
    with pytest.raises(FormatError, match=f"{path}: content: expected a checkpoint of measurements"):
        Checkpoint(path, "c", resume=True)
    assert path.read_text() == content


def test_removing(path):
    checkpoint = filled(path)
    checkpoint.remove()
    assert not path.exists()
    checkpoint.remove()


def test_a_file_that_cannot_be_written(path, monkeypatch):
    checkpoint = filled(path)
    before = path.read_bytes()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TreeoptError, match=rf"{path}: cannot be written \(Permission denied\)"):
        checkpoint.append("verify", 1, (0.1,))
    with pytest.raises(TreeoptError, match=rf"{path}: cannot be written"):
        Checkpoint(path, HEADING)
    monkeypatch.undo()
    assert path.read_bytes() == before


@contextmanager
def disk_of(limit_bytes):
    """Let files grow to so many bytes: the system's own error, as on a full disk."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no file's size")
class TestFullDisk:
    HEADING_BYTES = len(json.dumps({"conditions": HEADING})) + 1

    @pytest.mark.parametrize("room", [0, 10, HEADING_BYTES, HEADING_BYTES + 10])
    def test_a_file_without_a_measurement_is_removed(self, path, room):
        with (
            disk_of(room),
            pytest.raises(TreeoptError, match=rf"{path}: cannot be written \(.+\)\. Make room, or choose another"),
        ):
            Checkpoint(path, HEADING).append("verify", 4, (0.25,))
        assert list(path.parent.iterdir()) == []

    def test_measurements_are_kept_and_the_next_run_goes_on(self, path):
        checkpoint = filled(path)
        with (
            disk_of(path.stat().st_size + 7),
            pytest.raises(
                TreeoptError, match=rf"{path}: cannot be written \(.+\)\. What was measured is in .*--resume"
            ),
        ):
            checkpoint.append("verify", 8, (0.5,))
        resumed = Checkpoint(path, HEADING, resume=True)
        assert resumed.samples("verify") == {1: [0.125], 4: [0.25]}
        resumed.append("verify", 8, (0.75,))
        assert Checkpoint(path, HEADING, resume=True).samples("verify") == {1: [0.125], 4: [0.25], 8: [0.75]}

    @pytest.mark.parametrize(("measured", "kept"), [(False, False), (True, True)])
    def test_so_it_is_with_a_resumed_file(self, path, measured, kept):
        checkpoint = Checkpoint(path, HEADING)
        if measured:
            checkpoint.append("verify", 4, (0.25,))
        checkpoint = Checkpoint(path, HEADING, resume=True)
        with disk_of(path.stat().st_size), pytest.raises(TreeoptError, match="cannot be written"):
            checkpoint.append("verify", 8, (0.5,))
        assert path.exists() is kept


def test_samples_are_the_callers_own(path):
    checkpoint = filled(path)
    checkpoint.samples("verify")[4].append(9.0)
    checkpoint.samples("verify")[5] = [9.0]
    assert checkpoint.samples("verify") == {1: [0.125], 4: [0.25]}


class TestSeveralProcesses:
    def test_each_has_a_file_of_its_own_and_all_begin_with_all(self, path):
        filled(path)
        second = Checkpoint(path, HEADING, resume=True, processes=Second())
        second.append("acceptance", 1, (4.0,))
        assert json.loads(Path(f"{path}.1").read_text().splitlines()[-1]) == ["acceptance", 1, [4.0]]
        assert len(Path(f"{path}.1").read_text().splitlines()) == 2
        whole = Path(f"{path}.1").read_bytes()
        Path(f"{path}.1").write_bytes(whole + b'["torn')
        for processes in (OneProcess(), Second()):
            resumed = Checkpoint(path, HEADING, resume=True, processes=processes)
            assert listed(resumed, "acceptance") == [(0, (3.0, 1.5, 0.0)), (1, (4.0,))]
        assert Path(f"{path}.1").read_bytes() == whole

    def test_starting_anew_and_ending_leave_no_file_of_any(self, path):
        theirs = Path(f"{path}.notes")
        for name in (".1", ".2", ".11", ".notes"):
            Path(f"{path}{name}").write_text("left by an earlier run")
        checkpoint = Checkpoint(path, HEADING)
        assert sorted(path.parent.glob("*.partial*")) == [path, theirs]
        Checkpoint(path, HEADING, resume=True, processes=Second())
        checkpoint.remove()
        assert sorted(path.parent.glob("*.partial*")) == [theirs]

    def test_a_file_of_another_under_other_conditions_is_refused(self, path):
        filled(path)
        Path(f"{path}.1").write_text(json.dumps({"conditions": "machine B"}) + "\n")
        with pytest.raises(TreeoptError, match=rf"{path}.1: was measured under other conditions"):
            Checkpoint(path, HEADING, resume=True)

    def test_what_process_0_measures_too_is_kept_once(self, path):
        filled(path)
        with pytest.raises(TreeoptError, match="other conditions"):
            Checkpoint(path, HEADING, resume=True, processes=Follower())
        path.write_text(path.read_text().replace('1"}', '1, split"}'))
        checkpoint = Checkpoint(path, HEADING, resume=True, processes=Follower())
        checkpoint.append("acceptance", 1, (4.0,))
        assert [key for key, _ in listed(checkpoint, "acceptance")] == [0, 1]
        assert list(path.parent.glob("*.partial*")) == [path]
        assert [key for key, _ in listed(Checkpoint(path, HEADING + ", split", resume=True), "acceptance")] == [0]


def test_refused_conditions_name_the_parts_that_differ(path):
    Checkpoint(path, "treeopt 1, device cpu, context_tokens (256, 512), rounds 25").append("verify", 1, (0.5,))
    with pytest.raises(TreeoptError) as refused:
        Checkpoint(path, "treeopt 1, device cpu, context_tokens (256,), rounds 25", resume=True)
    reason = str(refused.value)
    assert "(context_tokens (256, 512)) than asked for now (context_tokens (256,))" in reason
    assert "device" not in reason
