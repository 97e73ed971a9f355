"""Settings of a drafter, tried on prompts: which are tried, and which is taken."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.invented import COUNTS, invented
from treeopt.errors import InfeasibleError
from treeopt.methods.fastest_setting import Choice, fastest_choice
from treeopt.methods.method import Inputs
from treeopt.planner import step_model
from treeopt.records.decode_stats import DecodeStats
from treeopt.records.latency import Timing

LARGEST = COUNTS[-1]
"""Tokens of the largest pass that was timed."""


@pytest.fixture
def chosen(monkeypatch):
    """Return the function from the sizes of some drafters to the chosen one's label, and those that were tried.

    Drafters accept more the larger they are, and passes cost hardly more.
    """
    profile = invented(verify=lambda n, *_: 1.0 + 1e-4 * n)
    inputs = SimpleNamespace(prompts=[[1]], positions=9, model=lambda _: step_model(profile))
    inputs.decoder = lambda drafter, _: drafter.max_tokens

    def chosen(sizes):
        tried = []

        def stats(size, prompts, positions):
            assert (prompts, positions) == (inputs.prompts, inputs.positions)
            tried.append(size)
            one = np.array([1])
            return DecodeStats(tokens=size * one, steps=one, pass_tokens=size * one, passes=one, draft=Timing([1e-3]))

        monkeypatch.setattr("treeopt.methods.fastest_setting.decode_stats", stats)
        choices = [Choice(f"of {size}", lambda size=size: SimpleNamespace(max_tokens=size)) for size in sizes]
        found = fastest_choice("drafter", inputs, choices)
        assert found.make(3) == int(found.setting.removeprefix("of "))
        return found.setting, tried

    assert set(vars(inputs)) <= {*Inputs.__dataclass_fields__, "model", "decoder"}
    return chosen


def test_the_fastest_of_those_whose_passes_were_timed_is_taken(chosen):
    sizes = (2, LARGEST - 1, LARGEST, LARGEST + 1)
    assert chosen(sizes) == (f"of {LARGEST}", [2, LARGEST - 1, LARGEST])


def test_where_none_was_timed_there_is_one_clear_error(chosen):
    with pytest.raises(InfeasibleError, match="settings: expected decode stats of at least one"):
        chosen((LARGEST + 1,))
