"""`treeopt show` on a profile: what passes take, and what is accepted."""

from pathlib import Path

import pytest

from tests.cli.invented import FOUR_CONDITIONS, call, invented, saved


def test_a_profile_as_text_and_as_picture(folder: Path) -> None:
    saved(folder, invented(conditions=FOUR_CONDITIONS))
    curve, heat = call("show", "profile.yaml"), call("show", "profile.yaml", "--acceptance")
    assert "verification, 4096 tokens of context, batch of 16" in curve.stdout
    assert "accepted, %: sequoia at temperature 0" in heat.stdout
    for arguments in (("-o", "curve.svg"), ("--acceptance", "-o", "heat.svg")):
        assert call("show", "profile.yaml", *arguments).exit_code == 0
    assert (folder / "curve.svg").read_bytes() != (folder / "heat.svg").read_bytes()
    assert call("show", "profile.yaml", "-o", "curve.svg").exit_code == 0  # its own may be replaced


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("profile.yaml", "--budget", 4), 2, "is a profile, which has no tree"),
        (("profile.yaml", "-o", "a.json"), 1, "expected a file name ending in .svg"),
        (("tree.json", "--acceptance"), 2, "is no profile"),
    ],
)
def test_what_does_not_go_together(folder: Path, arguments: tuple[object, ...], code: int, said: str) -> None:
    saved(folder, invented())
    call("solve", "--output", "tree.json")
    result = call("show", *arguments)
    assert result.exit_code == code
    assert said in result.stderr
