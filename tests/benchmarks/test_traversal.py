"""The comparison of traversal verification with `sequoia`."""

import sys

import pytest

from tests.scripts import ROOT, script

traversal = script(ROOT / "benchmarks" / "traversal.py")


@pytest.mark.parametrize("positions", [40, 200])
def test_too_few_positions_end_in_one_line(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 positions are too few for any acceptance, 200 for the deepest tree."""
    monkeypatch.setattr(sys, "argv", ["traversal.py", "--positions", str(positions), "--sequences", "2"])
    with pytest.raises(SystemExit) as caught:
        traversal.main()
    message = str(caught.value)
    assert message.startswith(f"--positions: expected more than {positions}")
    assert "\n" not in message
