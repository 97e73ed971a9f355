"""Width limits on tables that are not monotone, or depend on the parent's rank, are refused; all others are best-first."""

import numpy as np
import pytest

from tests.solver.oracles import depth_of
from tests.solver.tables import NAMED
from treeopt.errors import InvalidValueError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import solve

NOT_MONOTONE = {name: p for name, p in NAMED.items() if np.ndim(p) < 3 and np.any(np.diff(np.array(p)) > 0)}


@pytest.mark.parametrize("name", NOT_MONOTONE)
@pytest.mark.parametrize("limits", [{"level_widths": 2}, {"draft_widths": 1}, {"level_widths": 9, "draft_widths": 9}])
def test_where_a_row_is_not_monotone(name, limits):
    with pytest.raises(InvalidValueError, match="expected none where a higher rank is accepted more often") as refused:
        solve(AcceptanceTable(NOT_MONOTONE[name]), 6, depth_of(NOT_MONOTONE[name], 3), **limits)
    assert refused.value.field == next(iter(limits))


def test_where_acceptance_depends_on_the_parents_rank():
    table = AcceptanceTable(NAMED["worse below a later child"])
    with pytest.raises(InvalidValueError, match="level_widths: expected none where acceptance depends on the parent"):
        solve(table, 6, 2, level_widths=2)
    assert solve(table, 6, 2).expected_tokens[-1, -1] > 1
