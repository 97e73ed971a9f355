"""Tables keep their columns apart, however long the numbers: the helper, and every command that prints one."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.cli.invented import TABLE, call, invented, saved, solved
from treeopt.report.profile_text import profile_summary
from treeopt.report.table import Column, aligned

CELLS = st.text("ab 1.", min_size=1, max_size=12).map(lambda cell: cell.replace(" ", "_"))
GAPS = st.tuples(st.sampled_from("<>"), st.integers(0, 9), st.integers(1, 4))
SECONDS = 134.89
"""Of a pass: tables of fixed widths ran together from 0.1 on."""


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(
            st.lists(GAPS, min_size=n, max_size=n),
            st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=5),
        )
    )
)
def test_cells_of_a_column_share_an_edge_and_stand_apart(
    table: tuple[list[tuple[str, int, int]], list[list[str]]],
) -> None:
    given_columns, rows = table
    columns = [Column(*each) for each in given_columns]
    lines = aligned(rows, columns)
    widths = [max(column.least, *(len(row[i]) for row in rows)) for i, column in enumerate(columns)]
    for row, line in zip(rows, lines, strict=True):
        assert line.split() == row
        start = 0
        for i, (cell, column, width) in enumerate(zip(row, columns, widths, strict=True)):
            start += column.gap if i else 0
            at = start if column.align == "<" else start + width - len(cell)
            assert line[at : at + len(cell)] == cell
            start += width


def test_the_last_cell_of_a_short_row_runs_on() -> None:
    rows = [("a", "b", "c"), ("d", "a long remark that is no number"), (), ("e",)]
    assert aligned(rows, [Column(least=2), Column(">", gap=1), Column(">", gap=1)]) == [
        "a  b c",
        "d  a long remark that is no number",
        "",
        "e",
    ]


def test_no_table_runs_together_on_slow_machines(folder: Path) -> None:
    profile = invented(
        verify=lambda n, context, _batch: SECONDS * (1 + 0.001 * n + 1e-5 * context),
        draft=lambda n, _context, _batch: SECONDS * (0.02 + 0.001 * n),
        conditions=[(256, 1), (4096, 1)],
        verify_noise=0.02,
        others={"specinfer": TABLE},
    )
    printed = solved(folder, profile, "--budget", 8) + "\n" + profile_summary(profile)
    exported = call("export", "tree.json", "--to", "sglang", "--profile", "profile.yaml", "-o", "setting.json")
    compared = call("compare", "tree.json", "--profile", saved(folder, profile))
    assert (exported.exit_code, compared.exit_code) == (0, 0)

    printed += exported.stdout + exported.stderr + compared.stdout
    spread = r"\d+\.\d\d \(\d+\.\d\d-\d+\.\d\d\)"
    assert len(re.findall(rf"{spread}  +{spread}  +{spread}$", printed, re.MULTILINE)) > 9
    assert re.findall(r"\)\d|\de\+", printed) == []
    times = [
        line for line in printed.splitlines() if line.startswith(("tokens in a pass", "verify, ms", "draft a level"))
    ]
    assert len(times) == 6
    assert len({len(re.findall(r"(?<=  )[\d.]+|(?<= )[\d.]{6,}", line)) for line in times}) == 1


def test_tables_on_fast_machines_look_as_they_did(folder: Path) -> None:
    lines = solved(folder, invented(), "--budget", 8).splitlines()
    assert lines[2] == "           nodes depth   tokens/step         step, ms              speedup"
    assert lines[3].index("1.70 (1.70-1.70)") == lines[2].index("tokens/step")
