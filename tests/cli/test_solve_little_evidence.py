"""Plans from imported rates, whose uncertainty is unknown."""

from pathlib import Path

from tests.cli.invented import succeed


def test_rates_have_no_certainty(folder: Path) -> None:
    (folder / "rates.json").write_text("[1.0, 1.0, 1.0]")
    (folder / "times.csv").write_text(
        "tokens,ms,pass\n1,10,verify\n2,10.1,verify\n8,11,verify\n1,1,draft\n8,1.1,draft\n"
    )
    succeed("profile", "--latency", "times.csv", "--acceptance", "rates.json")
    output = succeed("solve").output
    assert "% chance" not in output
    assert "imported without counts" in output
