"""`treeopt solve` on profiles of several rules."""

from pathlib import Path

import pytest

from tests.cli.invented import FOUR_CONDITIONS, NOISY, STEEP, TABLE, invented, refused, saved, solved, solved_json
from treeopt.planner import plan
from treeopt.report.text import spread
from treeopt.trees import describe_tree, load_file

TWO = invented(others={"traversal": STEEP})
WITH_LOSSY = invented(others={"typical": STEEP})
FEW = ("--budget", 8)


def rule_rows(output: str) -> list[str]:
    """Return the lines of the table of rules, without its header."""
    lines = output.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  rule "))
    return lines[start + 1 : lines.index("", start)]


class TestTable:
    def test_best_tree_of_every_rule_is_a_row_before_the_verdict(self, folder: Path) -> None:
        output, expected = solved(folder, TWO), plan(TWO, 32)
        assert expected.rule == "traversal"
        rows, blocks = rule_rows(output), output.split("\n\n")
        assert [row[:12] for row in rows] == ["  sequoia   ", "* traversal "]
        for row, option in zip(rows, expected.rules, strict=True):
            assert row[12:].split()[:2] == [str(option.tree.nodes), str(option.tree.max_depth)]
            assert row.endswith(spread(option.speedup))
        assert [block.split()[0] for block in blocks[:5]] == ["big", "nodes", "plain", "rule", "Fastest:"]
        assert blocks[0].endswith(": traversal at temperature 0, 256 tokens of context")
        assert blocks[4].startswith(f"Fastest: a {describe_tree(expected.choice.tree)} under traversal, ")
        assert "nodes and depth 4 under traversal is faster." in blocks[4]
        assert "chance that this is within 1 % of the fastest under traversal." in blocks[4]

    @pytest.mark.parametrize(("profile", "options"), [(invented(), ()), (TWO, ("--rule", "sequoia")), (WITH_LOSSY, ())])
    def test_one_planned_rule_has_no_table(self, folder: Path, profile, options: tuple[str, ...]) -> None:
        output = solved(folder, profile, *FEW, *options)
        assert "  rule " not in output
        assert "under sequoia" not in output


class TestLossy:
    @pytest.mark.parametrize("options", [(), ("--lossy",), ("--rule", "typical", "--lossy")], ids=str)
    def test_lossy_rules_need_the_option_and_are_named_so(self, folder: Path, options: tuple[str, ...]) -> None:
        output = solved(folder, WITH_LOSSY, *FEW, *options)
        lossy = bool(options)
        label = "typical (lossy: the output's distribution changes) at temperature 0"
        assert (label in output.splitlines()[0]) == lossy
        assert (" --lossy --prompt TEXT" in output) == lossy
        assert ("typical" in output) == lossy
        provenance = load_file(folder / "tree.json").provenance
        assert provenance is not None
        assert (provenance.rule, provenance.lossy) == (("typical", True) if lossy else ("sequoia", None))

    def test_profile_of_lossy_rules_alone_is_refused(self, folder: Path) -> None:
        line = refused("solve", "--profile", saved(folder, invented(tables=[], others={"typical": TABLE})))
        assert line.startswith("Error: --rule: only lossy ones were measured, ")
        assert "--lossy" in line

    def test_segments_and_rows_are_marked(self, folder: Path) -> None:
        profile = invented(conditions=FOUR_CONDITIONS, others={"typical": STEEP})
        output = solved(folder, profile, *FEW, "--lossy")
        assert rule_rows(output)[1].startswith("* typical (lossy) ")
        assert "typical (lossy)   0  " in output[output.index("What to run where") :]


def test_json_has_an_entry_for_every_rule(folder: Path) -> None:
    report, expected = solved_json(folder, WITH_LOSSY, "--lossy"), plan(WITH_LOSSY, 32, lossy=True)
    assert (report["rule"], report["lossy"]) == ("typical", True)
    assert [(entry["rule"], entry["lossy"]) for entry in report["rules"]] == [("sequoia", False), ("typical", True)]
    for entry, option in zip(report["rules"], expected.rules, strict=True):
        assert entry["choice"]["kind"] == option.kind
        assert entry["choice"]["parents"] == option.tree.parents.tolist()
        assert entry["choice"].keys() == {"kind", *report["candidates"]["tree"]}
    one = solved_json(folder, invented(), *FEW)
    assert (one["rule"], one["lossy"], [entry["rule"] for entry in one["rules"]]) == ("sequoia", False, ["sequoia"])


class TestSchedule:
    def test_several_rules_at_one_condition_have_none(self, folder: Path) -> None:
        assert solved_json(folder, TWO, *FEW)["schedule"] is None

    def test_several_temperatures_have_one(self, folder: Path) -> None:
        profile = invented(tables=[TABLE, NOISY], others={"traversal": STEEP})
        report = solved_json(folder, profile, *FEW)
        plans = [(point["rule"], point["temperature"]) for point in report["schedule"]["plans"]]
        assert plans == [("traversal", 0.0), ("sequoia", 0.2)]
        assert solved_json(folder, profile, *FEW, "--temperature", 0.2)["schedule"] is None
