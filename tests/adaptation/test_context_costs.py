"""What steps cost by context: all of it is at hand before the first step."""

import pytest

from tests.support.invented_machines import MACHINES, TABLES, acceptance, latency, profile
from treeopt.adaptation import context_costs
from treeopt.adaptation.context_costs import ContextCosts
from treeopt.planner.request import Where


@pytest.mark.parametrize("contexts", [(64, 896), (164, 480, 960), (100, 130), (300,)])
def test_nothing_is_worked_out_while_decoding(contexts, monkeypatch):
    measured = [latency(MACHINES["nodes cost"], context_tokens=each) for each in contexts]
    costs = ContextCosts(
        profile(measured, [acceptance(TABLES["falling"])]), "sequoia", 0.6, Where(context_tokens=contexts[0])
    )
    costs.prepare()

    def refuse(*_, **__):
        raise AssertionError("worked out while decoding")

    monkeypatch.setattr(context_costs, "step_costs", refuse)
    monkeypatch.setattr(context_costs, "pass_costs", refuse)
    for context in (None, *range(1, 1200)):
        assert costs.at(context).max_nodes == costs.max_nodes
        assert len(costs.passes_s(context)) == 1 + costs.max_nodes
