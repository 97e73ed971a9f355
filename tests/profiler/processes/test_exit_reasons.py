"""What a process says when it ends, on a store with the reasons of others."""

import pytest
import torch.distributed as dist

from treeopt.errors import TreeoptError
from treeopt.profiler.processes.exit_reasons import FOLLOWED, INTERRUPTED, ExitReasons


class TestExitReasons:
    @pytest.fixture
    def final(self, monkeypatch, tmp_path):
        monkeypatch.setattr("treeopt.profiler.processes.exit_reasons.WAIT_S", 0.2)
        kept = tmp_path / "checkpoint"
        kept.touch()

        def final(error, rank=0, **others):
            store = dist.HashStore()
            for other, reason in others.items():
                store.set(other[1:], reason)
            said = ExitReasons(rank, 3, store)._final_error(error, kept)
            return str(said).split(". What was")[0] if isinstance(said, TreeoptError) else said

        return final

    lost = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")

    def test_the_one_that_left_no_reason_was_killed(self, final):
        assert final(self.lost, _1=FOLLOWED) == "process 2 of 3 ended (killed, or cut off)"

    def test_a_reason_comes_before_silence(self, final):
        assert final(self.lost, _1="no disk") == "process 1 of 3 ended (no disk)"

    def test_all_that_have_reasons_are_named(self, final):
        ended = "process 1 of 3 ended (no disk), process 2 of 3 ended (no memory)"
        assert final(self.lost, _1="no disk", _2="no memory") == ended

    def test_an_error_of_ones_own_is_told_with_ones_number(self, final):
        assert final(TreeoptError("no disk"), rank=2) == "process 2 of 3 ended (no disk)"

    def test_an_unknown_error_keeps_its_traceback(self, final):
        error = RuntimeError("out of memory")
        assert final(error) is error

    def test_what_comes_of_a_lost_process_is_no_error_of_ones_own(self, final):
        error = TreeoptError("model: Connection closed")
        error.__cause__ = self.lost
        assert final(error, _1="no disk", _2=FOLLOWED) == "process 1 of 3 ended (no disk)"

    def test_only_the_first_of_those_that_follow_speaks(self, final):
        assert isinstance(final(self.lost, rank=1, _0=FOLLOWED, _2="no disk"), SystemExit)
        assert final(self.lost, rank=1, _0="no disk", _2=FOLLOWED) == "process 0 of 3 ended (no disk)"

    def test_an_interruption_of_all(self, final):
        assert final(KeyboardInterrupt(), _1=INTERRUPTED) == "interrupted"
        assert isinstance(final(KeyboardInterrupt(), rank=1), SystemExit)

    def test_a_launcher_that_ends_all(self, final):
        assert final(self.lost, _1=FOLLOWED, _2=FOLLOWED) == FOLLOWED

    def test_an_error_that_all_have_is_told_once(self, final):
        assert final(TreeoptError("no  disk."), _1="no disk", _2="no disk") == "no disk"
        assert isinstance(final(TreeoptError("no disk"), rank=1, _0="no disk", _2="no disk"), SystemExit)

    def test_without_a_checkpoint_nothing_is_kept(self, monkeypatch):
        monkeypatch.setattr("treeopt.profiler.processes.exit_reasons.WAIT_S", 0.2)
        said = ExitReasons(0, 2, dist.HashStore())._final_error(TreeoptError("no disk"), None)
        assert str(said) == "process 0 of 2 ended (no disk). Nothing was written."
