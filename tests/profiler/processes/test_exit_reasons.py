"""The error that a process ends with, given the exit reasons of others."""

import pytest
import torch.distributed as dist

from treeopt.errors import TreeoptError
from treeopt.profiler.processes.exit_reasons import FOLLOWED, INTERRUPTED, ExitReasons

LOST = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
CAUSED_BY_LOST = TreeoptError("model: Connection closed")
CAUSED_BY_LOST.__cause__ = LOST
UNKNOWN = RuntimeError("out of memory")
SILENT = object()
"""For a process that exits with 1 without a message."""


@pytest.fixture
def final_error(monkeypatch, tmp_path):
    """Return a function from an error, the rank of its process, and the reasons of others to the error to end with."""
    monkeypatch.setattr("treeopt.profiler.processes.exit_reasons.WAIT_S", 0.2)
    (tmp_path / "checkpoint").touch()

    def final_error(error, rank, reasons, checkpoint=tmp_path / "checkpoint"):
        store = dist.HashStore()
        for other, reason in reasons.items():
            store.set(str(other), reason)
        return ExitReasons(rank, 3, store)._final_error(error, checkpoint)

    return final_error


@pytest.mark.parametrize(
    ("error", "rank", "reasons", "message"),
    [
        (LOST, 0, {1: FOLLOWED}, "process 2 of 3 ended (killed, or cut off)"),
        (LOST, 0, {1: "no disk"}, "process 1 of 3 ended (no disk)"),
        (
            LOST,
            0,
            {1: "no disk", 2: "no memory"},
            "process 1 of 3 ended (no disk), process 2 of 3 ended (no memory)",
        ),
        (TreeoptError("no disk"), 2, {}, "process 2 of 3 ended (no disk)"),
        (UNKNOWN, 0, {}, UNKNOWN),  # with its traceback
        (CAUSED_BY_LOST, 0, {1: "no disk", 2: FOLLOWED}, "process 1 of 3 ended (no disk)"),
        (LOST, 1, {0: FOLLOWED, 2: "no disk"}, SILENT),  # process 0 reports
        (LOST, 1, {0: "no disk", 2: FOLLOWED}, "process 0 of 3 ended (no disk)"),
        (KeyboardInterrupt(), 0, {1: INTERRUPTED}, "interrupted"),
        (KeyboardInterrupt(), 1, {}, SILENT),
        (LOST, 0, {1: FOLLOWED, 2: FOLLOWED}, FOLLOWED),  # the launcher ended all
        (TreeoptError("no  disk."), 0, {1: "no disk", 2: "no disk"}, "no disk"),
        (TreeoptError("no disk"), 1, {0: "no disk", 2: "no disk"}, SILENT),
    ],
)
def test_one_process_reports_the_ones_that_ended_first(final_error, error, rank, reasons, message):
    final = final_error(error, rank, reasons)
    if message is SILENT:
        assert isinstance(final, SystemExit)
    elif message is UNKNOWN:
        assert final is UNKNOWN
    else:
        assert str(final).split(". What was")[0] == message


def test_error_without_a_checkpoint_has_no_hint_to_resume(final_error):
    final = final_error(TreeoptError("no disk"), 0, {}, checkpoint=None)
    assert str(final) == "process 0 of 3 ended (no disk). Nothing was written."
