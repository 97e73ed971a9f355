"""Tables: columns stay apart, however long the numbers are."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.cli.invented import TABLE, invented, saved, solved, succeed
from treeopt.report.profile_text import profile_summary
from treeopt.report.table import Column, aligned

CELLS = st.text("ab 1.", min_size=1, max_size=12).map(lambda cell: cell.replace(" ", "_"))
COLUMNS = st.builds(Column, st.sampled_from("<>"), st.integers(0, 9), st.integers(1, 4))


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(
            st.lists(COLUMNS, min_size=n, max_size=n),
            st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=5),
        )
    )
)
def test_cells_of_a_column_share_an_edge_and_stand_apart(table: tuple[list[Column], list[list[str]]]) -> None:
    columns, rows = table
    widths = [max(column.least, *(len(row[i]) for row in rows)) for i, column in enumerate(columns)]
    for row, line in zip(rows, aligned(rows, columns), strict=True):
        assert line.split() == row
        start = 0
        for i, (cell, column, width) in enumerate(zip(row, columns, widths, strict=True)):
            start += column.gap if i else 0
            position = start if column.align == "<" else start + width - len(cell)
            assert line[position : position + len(cell)] == cell
            start += width


def test_last_cell_of_a_short_row_extends() -> None:
    rows = [("a", "b", "c"), ("d", "a long remark that is no number"), (), ("e",)]
    assert aligned(rows, [Column(least=2), Column(">", gap=1), Column(">", gap=1)]) == [
        "a  b c",
        "d  a long remark that is no number",
        "",
        "e",
    ]


def test_no_columns_touch_on_slow_machines(folder: Path) -> None:
    seconds = 134.89  # of a pass
    profile = invented(
        verify=lambda n, context, _batch: seconds * (1 + 0.001 * n + 1e-5 * context),
        draft=lambda n, _context, _batch: seconds * (0.02 + 0.001 * n),
        conditions=[(256, 1), (4096, 1)],
        verify_noise=0.02,
        others={"specinfer": TABLE},
    )
    output = solved(folder, profile, "--budget", 8) + "\n" + profile_summary(profile)
    output += succeed("export", "tree.json", "--to", "sglang", "--profile", "profile.yaml", "-o", "setting.json").output
    output += succeed("compare", "tree.json", "--profile", saved(folder, profile)).stdout
    spread = r"\d+\.\d\d \(\d+\.\d\d-\d+\.\d\d\)"
    assert len(re.findall(rf"{spread}  +{spread}  +{spread}$", output, re.MULTILINE)) > 9
    assert re.findall(r"\)\d|\de\+", output) == []
    starts = ("tokens in a pass", "verify, ms", "draft a level")
    times = [line for line in output.splitlines() if line.startswith(starts)]
    assert len(times) == 6
    assert len({len(re.findall(r"(?<=  )[\d.]+|(?<= )[\d.]{6,}", line)) for line in times}) == 1


def test_columns_of_fast_machines_have_fixed_places(folder: Path) -> None:
    lines = solved(folder, invented(), "--budget", 8).splitlines()
    assert lines[2] == "           nodes depth   tokens/step         step, ms              speedup"
    assert lines[3].index("1.70 (1.70-1.70)") == lines[2].index("tokens/step")
