"""A tree that does not fit into memory is one line, and nothing is printed before it."""

from tests.cli.invented import call
from treeopt.runtime.models import memory
from treeopt.trees import k_ary


def test_run_refuses_a_tree_that_does_not_fit(folder, monkeypatch):
    k_ary(2, 15).save(folder / "large.json")
    monkeypatch.setattr(memory, "free_bytes", lambda _: 16_000_000_000)
    found = call("run", "large.json", "--prompt", "def ", "--threads", "1")
    assert found.exit_code == 1
    assert found.stdout == ""
    assert found.stderr.splitlines()[-1].startswith(
        "Error: memory: expected room for a decoder of trees of 65535 nodes"
    )
