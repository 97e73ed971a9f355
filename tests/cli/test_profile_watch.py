"""`treeopt profile` beside other programs, and with a journal that another treeopt began."""

import json
from pathlib import Path

from tests.cli.invented import call

LITTLE = ("--max-tokens", "4", "--rounds", "2", "--positions", "240", "--context-tokens", "16")


def test_a_journal_of_an_older_treeopt_is_refused_in_one_line(folder: Path) -> None:
    journal = folder / "profile.yaml.partial"
    journal.write_text(json.dumps({"conditions": "device cpu, processor x"}) + '\n["step 16x1 greedy", 0, [0.1]]\n')
    before = journal.read_bytes()
    result = call("profile", *LITTLE, "--resume")
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    assert "profile.yaml.partial: was measured by a treeopt that does not tell its version" in line
    assert "Profile without --resume" in line
    assert journal.read_bytes() == before
    assert not (folder / "profile.yaml").exists()
