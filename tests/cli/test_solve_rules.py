"""`treeopt solve` on profiles of several rules: what is compared, printed and written."""

from dataclasses import replace
from pathlib import Path

from tests.cli.invented import FOUR_CONDITIONS, NOISY, STEEP, TABLE, call, invented, saved, solved, solved_json
from treeopt.planner import plan
from treeopt.report.text import spread
from treeopt.trees import describe_tree, load_file

TWO = invented(others={"traversal": STEEP})
WITH_LOSSY = invented(others={"typical": STEEP})


def rows(said: str) -> list[str]:
    """Return the lines of the block of rules, without its header."""
    lines = said.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  rule "))
    return lines[start + 1 : lines.index("", start)]


class TestBlock:
    def test_it_has_the_best_of_every_rule_and_marks_the_chosen_one(self, folder: Path) -> None:
        said = solved(folder, TWO)

        found = plan(TWO, 32)
        assert found.rule == "traversal"
        assert [row[:12] for row in rows(said)] == ["  sequoia   ", "* traversal "]
        for row, each in zip(rows(said), found.rules, strict=True):
            tree = each.tree
            assert row[12:].split()[:2] == [str(tree.nodes), str(tree.max_depth)]
            assert row.endswith(spread(each.speedup))

    def test_it_stands_between_the_table_and_the_verdict(self, folder: Path) -> None:
        blocks = solved(folder, TWO).split("\n\n")

        found = plan(TWO, 32)
        assert [text.split()[0] for text in blocks[:5]] == ["big", "nodes", "plain", "rule", "Fastest:"]
        assert blocks[0].endswith(": traversal at temperature 0, 256 tokens of context")
        assert blocks[4].startswith(f"Fastest: a {describe_tree(found.choice.tree)} under traversal, ")
        assert "nodes and depth 4 under traversal is faster." in blocks[4]
        assert "chance that this is within 1 % of the fastest under traversal." in blocks[4]

    def test_its_columns_are_aligned(self, folder: Path) -> None:
        said = solved(folder, WITH_LOSSY, "--lossy")

        header = next(line for line in said.splitlines() if line.startswith("  rule "))
        assert len({row.rindex(" (") for row in rows(said)}) == 1
        assert all(row[header.index("nodes") + 4] != " " == row[header.index("nodes") + 5] for row in rows(said))

    def test_where_one_rule_was_planned_there_is_none(self, folder: Path) -> None:
        for said in (solved(folder, invented()), solved(folder, TWO, "--rule", "sequoia"), solved(folder, WITH_LOSSY)):
            assert "  rule " not in said
            assert "under sequoia" not in said


class TestLossy:
    def test_it_is_chosen_with_leave_only_and_labelled_everywhere(self, folder: Path) -> None:
        without, leave = solved(folder, WITH_LOSSY), solved(folder, WITH_LOSSY, "--lossy")

        label = "typical (lossy: the text's distribution changes) at temperature 0"
        assert "typical" not in without
        assert label in leave.splitlines()[0]
        assert rows(leave)[1].startswith("* typical (lossy) ")
        assert "treeopt run tree.json --lossy --prompt" in leave
        assert "--lossy" not in without

    def test_by_name_with_leave(self, folder: Path) -> None:
        assert "typical (lossy: " in solved(folder, WITH_LOSSY, "--rule", "typical", "--lossy").splitlines()[0]

    def test_the_tree_file_tells_it(self, folder: Path) -> None:
        for asked, rule, lossy in (((), "sequoia", None), (("--lossy",), "typical", True)):
            solved(folder, WITH_LOSSY, *asked)
            provenance = load_file(folder / "tree.json").provenance
            assert provenance is not None
            assert (provenance.rule, provenance.lossy) == (rule, lossy)

    def test_a_profile_of_lossy_rules_alone_is_one_clear_line(self, folder: Path) -> None:
        profile = invented(tables=[], others={"typical": TABLE})
        result = call("solve", "--profile", saved(folder, profile))

        (line,) = result.stderr.splitlines()
        assert result.exit_code == 1
        assert line.startswith("Error: --rule: only lossy ones were measured, ")
        assert "--lossy" in line

    def test_a_segment_under_a_lossy_rule_is_marked(self, folder: Path) -> None:
        said = solved(folder, invented(conditions=FOUR_CONDITIONS, others={"typical": STEEP}), "--lossy")

        start = said.index("What to run where")
        assert "typical (lossy)   0  " in said[start:]


class TestJson:
    def test_every_rule_is_an_entry(self, folder: Path) -> None:
        found = solved_json(folder, WITH_LOSSY, "--lossy")

        made = plan(WITH_LOSSY, 32, lossy=True)
        assert (found["rule"], found["lossy"]) == ("typical", True)
        assert [(each["rule"], each["lossy"]) for each in found["rules"]] == [("sequoia", False), ("typical", True)]
        for each, expected in zip(found["rules"], made.rules, strict=True):
            assert each["choice"]["kind"] == expected.kind
            assert each["choice"]["parents"] == expected.tree.parents.tolist()
            assert each["choice"].keys() == {"kind", *found["candidates"]["tree"]}

    def test_one_rule_is_an_entry_too(self, folder: Path) -> None:
        found = solved_json(folder, invented())

        assert (found["rule"], found["lossy"]) == ("sequoia", False)
        assert [each["rule"] for each in found["rules"]] == ["sequoia"]


class TestSchedule:
    def test_several_rules_alone_have_none(self, folder: Path) -> None:
        assert "What to run where" not in solved(folder, TWO)
        assert solved_json(folder, TWO)["schedule"] is None

    def test_several_temperatures_have_one(self, folder: Path) -> None:
        found = solved_json(folder, invented(tables=[TABLE, NOISY], others={"traversal": STEEP}))

        assert [(each["rule"], each["temperature"]) for each in found["schedule"]["plans"]] == [
            ("traversal", 0.0),
            ("sequoia", 0.2),
        ]

    def test_a_temperature_of_lossy_rules_alone_does_not_count(self, folder: Path) -> None:
        profile = invented(tables=[TABLE, NOISY])
        first, second = profile.acceptances
        lossy = replace(profile, acceptances=(first, replace(second, rule="typical")))
        assert solved_json(folder, lossy)["schedule"] is None
        assert len(solved_json(folder, lossy, "--lossy")["schedule"]["plans"]) == 2

    def test_every_condition_has_the_fastest_of_all_rules(self, folder: Path) -> None:
        profile = invented(conditions=FOUR_CONDITIONS, others={"traversal": STEEP})
        found = solved_json(folder, profile)["schedule"]

        assert len(found["plans"]) == 4
        for each in found["plans"]:
            where = {"context_tokens": each["context_tokens"], "batch_size": each["batch_size"]}
            best = max(plan(profile, 32, rule=rule, **where).choice.speedup.value for rule in ("sequoia", "traversal"))
            assert each["choice"]["speedup"] == best
        assert all("lossy" in segment for segment in found["over_contexts"])
