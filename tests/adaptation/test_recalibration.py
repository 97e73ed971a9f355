"""Re-calibration beside an enumeration of all trees: a drift leads to what is fastest then, no drift to no change."""

import pytest

from tests.support.invented_machines import DEPTH, NODES, profile_of, seconds
from tests.support.planner_oracles import every_speedup, speedup
from tests.support.simulated_decoding import SimulatedDecoder
from treeopt.adaptation import Recalibration
from treeopt.planner import plan

GOOD = [[0.8, 0.08, 0.03, 0.01]] * DEPTH
BAD = [[0.15, 0.1, 0.06, 0.04]] * DEPTH
MIDDLE = [[0.5, 0.2, 0.1, 0.05]] * DEPTH
MACHINE = seconds(lambda n: 0.9 + 0.05 * n, lambda w: 0.12 + 0.01 * w, 0.05)
DRAFTS_DEAR = MACHINE._replace(draft=[4 * each for each in MACHINE.draft])


def begun(profile, table, machine, *, seed=0, tree=None, **asked):
    """Return a decoder with a plan's tree, and its re-calibration on a clock that stands still."""
    tree = tree or plan(profile, NODES).choice.tree
    decoder = SimulatedDecoder(tree, table, machine, max_nodes=NODES, temperature=0.0, seed=seed)
    recalibration = Recalibration(profile, now_s=lambda: 0.0, **asked)
    recalibration.attach(decoder)
    return decoder, recalibration


def share_of_best(tree, table, machine):
    """Return the speed of a tree as a share of the fastest's, over all trees there are."""
    return speedup(tree.parents.tolist(), table, machine) / every_speedup(table, machine, NODES, DEPTH).max()


@pytest.mark.parametrize(("before", "after"), [(GOOD, BAD), (GOOD, MIDDLE), (MIDDLE, GOOD), (BAD, GOOD), (BAD, MIDDLE)])
@pytest.mark.parametrize("seed", range(2))
def test_a_drift_of_acceptance_leads_to_a_tree_that_is_as_fast_as_any(before, after, seed):
    profile = profile_of(MACHINE, before)
    decoder, recalibration = begun(profile, before, MACHINE, seed=seed)
    first = decoder.tree
    decoder.decode(recalibration, 200)
    assert decoder.tree == first
    decoder.table = after
    decoder.decode(recalibration, 1500)
    assert share_of_best(first, after, MACHINE) < 0.93
    assert share_of_best(decoder.tree, after, MACHINE) > 0.95, recalibration.changes


@pytest.mark.parametrize("table", [GOOD, MIDDLE, BAD])
@pytest.mark.parametrize("seed", range(2))
def test_without_a_drift_nothing_changes(table, seed):
    decoder, recalibration = begun(profile_of(MACHINE, table), table, MACHINE, seed=seed)
    decoder.decode(recalibration, 3000)
    assert len(decoder.trees) == 1, recalibration.changes
