"""A checkpoint stores every measurement at once, and resumes only measurements of the same conditions and treeopt."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from treeopt.errors import FormatError, TreeoptError
from treeopt.profiler import Checkpoint
from treeopt.profiler import checkpoint as checkpoint_module
from treeopt.profiler.checkpoint import check_origin, describe_origin
from treeopt.profiler.latency import passes
from treeopt.profiler.latency.steps import step_key
from treeopt.profiler.processes.processes import Processes
from treeopt.records.rules import RULES
from treeopt.trees import chain

HEADING = "machine A, rounds 3, größe 1"


class Second(Processes):
    """Process 1 of 2, which measures other prompts than process 0."""

    rank = 1
    count = 2


class Follower(Second):
    """Process 1 of 2, which measures what process 0 measures."""

    writes_checkpoint = False
    conditions = ", split"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "profile.yaml.partial"


def fill(path):
    checkpoint = Checkpoint(path, HEADING)
    for kind, key, values in (("verify", 4, (0.25,)), ("verify", 1, (0.125,)), ("acceptance", 0, (3.0, 1.5, 0.0))):
        checkpoint.append(kind, key, values)
    return checkpoint


def list_entries(checkpoint, kind):
    return [(entry.key, entry.values) for entry in checkpoint.entries(kind)]


@pytest.mark.parametrize("stored", [True, False])
def test_measurements_are_listed_by_kind_in_order(path, stored):
    checkpoint = fill(path if stored else None)
    checkpoint.append("verify", 4, (0.5,))
    assert list_entries(checkpoint, "verify") == [(4, (0.25,)), (1, (0.125,)), (4, (0.5,))]
    assert list(checkpoint.samples("verify").items()) == [(1, [0.125]), (4, [0.25, 0.5])]
    assert checkpoint.samples("step") == {}
    checkpoint.samples("verify")[4].append(9.0)
    assert checkpoint.samples("verify")[4] == [0.25, 0.5], "callers get copies"
    checkpoint.remove()
    checkpoint.remove()
    assert not path.exists()


def test_every_measurement_is_on_disk_at_once(path):
    checkpoint = Checkpoint(path, HEADING)
    for count in range(1, 4):
        checkpoint.append("verify", 2, (0.1 * count,))
        lines = list(map(json.loads, path.read_text("utf-8").splitlines()))
        assert lines[0] == {"conditions": HEADING}
        assert lines[1:] == [["verify", 2, [0.1 * number]] for number in range(1, count + 1)]


def test_resumed_checkpoint_has_all_entries_and_a_new_one_has_none(path):
    fill(path)
    resumed = Checkpoint(path, HEADING, resume=True)
    resumed.append("verify", 1, (1 / 3,))
    for checkpoint in (resumed, Checkpoint(path, HEADING, resume=True)):
        assert checkpoint.samples("verify") == {1: [0.125, 1 / 3], 4: [0.25]}
        assert list_entries(checkpoint, "acceptance") == [(0, (3.0, 1.5, 0.0))]
    assert Checkpoint(path, "other").samples("verify") == {}
    assert Checkpoint(path, "other", resume=True).samples("verify") == {}


@pytest.mark.parametrize("cut", [1, 2, 15, 30])
def test_incomplete_last_line_is_left_out(path, cut):
    fill(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    resumed = Checkpoint(path, HEADING, resume=True)
    assert list_entries(resumed, "acceptance") == []
    assert resumed.samples("verify") == {1: [0.125], 4: [0.25]}
    resumed.append("acceptance", 0, (3.0, 1.5, 0.0))
    assert path.read_bytes() == whole


def test_other_conditions_are_refused_and_the_file_stays(path):
    Checkpoint(path, "treeopt 1, device cpu, context_tokens (256, 512), rounds 25").append("verify", 1, (0.5,))
    before = path.read_bytes() + b'["ver'
    path.write_bytes(before)
    with pytest.raises(TreeoptError) as refused:
        Checkpoint(path, "treeopt 1, device cpu, context_tokens (256,), rounds 25", resume=True)
    reason = str(refused.value)
    assert "other conditions (context_tokens (256, 512)) than asked for now (context_tokens (256,))" in reason
    assert "device" not in reason
    assert path.read_bytes() == before


def test_resuming_without_a_file_starts_one(path):
    other = Path(f"{path}.1")
    other.write_text(json.dumps({"conditions": HEADING}) + '\n["acceptance", 1, [4.0]]\n')
    checkpoint = Checkpoint(path, HEADING, resume=True)
    checkpoint.append("verify", 4, (0.25,))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"conditions": HEADING},
        ["verify", 4, [0.25]],
    ]
    assert list_entries(checkpoint, "acceptance") == [(1, (4.0,))]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]\n",
        '{"heading": "x"}\n',
        '{"conditions": "c"}\n["verify", 1]\n',
        '{"conditions": "c"}\n["verify", "many", [0.1]]\n',
        '{"conditions": "c"}\n["verify", 1, ["long"]]\n',
        '{"conditions": "c"}\n["verify", 1, 0.1]\n',
        '{"conditions": "c"}\n["verify", 1, [0.1\n["verify", 1, [0.1]]\n',
    ],
)
def test_other_files_are_refused(path, content):
    path.write_text(content)
    with pytest.raises(FormatError, match=f"{path}: content: expected a checkpoint of measurements"):
        Checkpoint(path, "c", resume=True)
    assert path.read_text() == content


def test_unwritable_file_is_refused(path, monkeypatch):
    checkpoint = fill(path)
    before = path.read_bytes()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        for unwritable in (checkpoint, Checkpoint(path.with_name("new"), HEADING)):
            with pytest.raises(TreeoptError, match=r"(partial|new): cannot be written \(Permission denied\)"):
                unwritable.append("verify", 1, (0.1,))
    assert path.read_bytes() == before


def test_the_first_measurement_creates_the_file(path):
    """A run that failed before it would otherwise stop the next one with the advice to resume it."""
    fill(path)
    checkpoint = Checkpoint(path, HEADING)
    assert not path.exists(), "the old measurements were to be replaced"
    checkpoint.append("verify", 4, (0.25,))
    assert Checkpoint(path, HEADING, resume=True).samples("verify") == {4: [0.25]}


@contextmanager
def disk_of(limit_bytes):
    """Limit the size of files, with the system's own error beyond it, as on a full disk."""
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

    @pytest.mark.parametrize("room", [0, HEADING_BYTES + 10])
    def test_file_without_a_measurement_is_removed(self, path, room):
        with (
            disk_of(room),
            pytest.raises(TreeoptError, match=rf"{path}: cannot be written \(.+\)\. Make room, or choose another"),
        ):
            Checkpoint(path, HEADING).append("verify", 4, (0.25,))
        assert list(path.parent.iterdir()) == []

    def test_measurements_stay_and_the_next_run_resumes(self, path):
        checkpoint = fill(path)
        reason = rf"{path}: cannot be written \(.+\)\. What was measured is in .*--resume"
        with disk_of(path.stat().st_size + 7), pytest.raises(TreeoptError, match=reason):
            checkpoint.append("verify", 8, (0.5,))
        resumed = Checkpoint(path, HEADING, resume=True)
        assert resumed.samples("verify") == {1: [0.125], 4: [0.25]}
        resumed.append("verify", 8, (0.75,))
        assert Checkpoint(path, HEADING, resume=True).samples("verify") == {1: [0.125], 4: [0.25], 8: [0.75]}

    @pytest.mark.parametrize("measured", [False, True])
    def test_resumed_file_stays_only_with_a_measurement(self, path, measured):
        path.write_text(json.dumps({"conditions": HEADING}) + "\n")
        if measured:
            fill(path)
        checkpoint = Checkpoint(path, HEADING, resume=True)
        with disk_of(path.stat().st_size), pytest.raises(TreeoptError, match="cannot be written"):
            checkpoint.append("verify", 8, (0.5,))
        assert path.exists() is measured


class TestSeveralProcesses:
    def test_every_process_writes_its_own_file_and_reads_all(self, path):
        fill(path)
        second, file = Checkpoint(path, HEADING, resume=True, processes=Second()), Path(f"{path}.1")
        second.append("acceptance", 1, (4.0,))
        assert [json.loads(line) for line in file.read_text().splitlines()][1:] == [["acceptance", 1, [4.0]]]
        whole = file.read_bytes()
        file.write_bytes(whole + b'["torn')
        for processes in (Processes(), Second()):
            resumed = Checkpoint(path, HEADING, resume=True, processes=processes)
            assert list_entries(resumed, "acceptance") == [(0, (3.0, 1.5, 0.0)), (1, (4.0,))]
        assert file.read_bytes() == whole

    def test_starting_over_and_removing_delete_the_files_of_all(self, path):
        other = Path(f"{path}.notes")
        for name in (".1", ".11", ".notes"):
            Path(f"{path}{name}").write_text("left by an earlier run")
        path.write_text("left by an earlier run")
        checkpoint = Checkpoint(path, HEADING)
        assert list(path.parent.glob("*.partial*")) == [other]
        fill(path)
        Checkpoint(path, HEADING, resume=True, processes=Second()).append("verify", 4, (0.25,))
        assert sorted(path.parent.glob("*.partial*")) == [path, Path(f"{path}.1"), other]
        checkpoint.remove()
        assert sorted(path.parent.glob("*.partial*")) == [other]

    def test_file_of_another_process_under_other_conditions_is_refused(self, path):
        fill(path)
        Path(f"{path}.1").write_text(json.dumps({"conditions": "machine B"}) + "\n")
        with pytest.raises(TreeoptError, match=rf"{path}.1: was measured under other conditions"):
            Checkpoint(path, HEADING, resume=True)

    def test_follower_writes_nothing(self, path):
        fill(path)
        with pytest.raises(TreeoptError, match="other conditions"):
            Checkpoint(path, HEADING, resume=True, processes=Follower())
        path.write_text(path.read_text().replace('1"}', '1, split"}'))
        checkpoint = Checkpoint(path, HEADING, resume=True, processes=Follower())
        checkpoint.append("acceptance", 1, (4.0,))
        assert [key for key, _ in list_entries(checkpoint, "acceptance")] == [0, 1]
        assert list(path.parent.glob("*.partial*")) == [path]
        resumed = Checkpoint(path, HEADING + ", split", resume=True)
        assert [key for key, _ in list_entries(resumed, "acceptance")] == [0]


class TestOrigin:
    OTHER_TREES = (chain(2), chain(1), *passes.PROBE_TREES[2:])

    @pytest.mark.parametrize(
        ("name", "value"), [("__version__", "0.0.7rc1"), ("CHECKPOINT_VERSION", 1), ("PROBE_TREES", OTHER_TREES)]
    )
    def test_checkpoint_of_another_version_or_other_probe_trees_is_refused(self, path, monkeypatch, name, value):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_module, name, value)
            other = describe_origin()
            Checkpoint(path, f"{other}, device cpu").append("verify", 4, (0.25,))
            check_origin(path)
        assert other != describe_origin()
        reason = f"^{path}: was measured by {other}, which .* than this {describe_origin()}. Start over with --force"
        with pytest.raises(TreeoptError, match=reason) as refused:
            check_origin(path)
        assert "\n" not in str(refused.value)
        with pytest.raises(TreeoptError, match="other conditions"):
            Checkpoint(path, f"{describe_origin()}, device cpu", resume=True)

    @pytest.mark.parametrize(
        "conditions", ["device cpu, processor x", "treeopt \x1b[2J, checkpoint 1, probe trees 00000000, device cpu"]
    )
    def test_checkpoint_without_version_is_refused(self, path, conditions):
        path.write_text(json.dumps({"conditions": conditions}) + "\n")
        with pytest.raises(TreeoptError, match="was measured by a treeopt of unknown version, which"):
            check_origin(path)

    @pytest.mark.parametrize(
        "content", [None, b"{", b"[]\n", b'{"conditions": 3}\n', b"\xff\n", b'{"conditions": "', b"[" * 100_000]
    )
    def test_unreadable_files_and_other_options_are_left_to_checkpoint(self, path, content):
        if content is None:
            check_origin(path)
            Checkpoint(path, f"{describe_origin()}, device cpu")
        else:
            path.write_bytes(content)
        check_origin(path)

    def test_every_rule_and_tree_has_its_own_key(self):
        steps = [(rule, tree) for rule in RULES for tree in passes.PROBE_TREES]
        assert len({step_key(rule, tree) for rule, tree in steps}) == len(steps) > 30
        assert step_key("sequoia", chain(2)) == step_key("sequoia", self.OTHER_TREES[0])
