"""Heads are planned from what was measured: no profile is made of them, and no time that nobody took."""

import pytest
import torch

from tests.cli.invented import invented, verify_s
from tests.methods.toys import pair_of
from treeopt.errors import InfeasibleError
from treeopt.methods import heads as headed
from treeopt.methods.method import Inputs
from treeopt.records.latency import Timing
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.trees import chain, k_ary

OVERHEAD_S = 2e-4


@pytest.fixture
def inputs(target, draft, prompts):
    return Inputs(
        pair=pair_of(target, draft),
        profile=invented(overhead_s=OVERHEAD_S),
        sampling=Sampling(0.0),
        prompts=prompts,
        positions=12,
    )


@pytest.fixture
def heads(target):
    hidden = target.config.hidden
    return MedusaHeads(target, torch.zeros(3, hidden, hidden), torch.zeros(3, hidden))


@pytest.fixture
def timed(monkeypatch):
    """Collect the samples of every timing that is made."""
    found, init = [], Timing.__init__

    def collecting(self, samples_s, **options):
        init(self, samples_s, **options)
        found.append(self)

    monkeypatch.setattr(Timing, "__init__", collecting)
    return found


def test_no_profile_and_no_number_is_invented(inputs, heads, timed, monkeypatch):
    def never(_):
        raise AssertionError("a profile was made that nobody measured")

    monkeypatch.setattr(Profile, "__post_init__", never)
    model = headed.medusa_model(inputs, inputs.pair.target, heads)
    assert timed == [model.drafted_at_once], "the one timing is of the heads' pass"
    assert len(timed[0].samples_s) > 2
    assert timed[0].samples_s.min() > 1e-8
    pass_s = timed[0].median_s
    for tree in (chain(3), k_ary(2, 2)):
        assert model.step_s(tree) == pytest.approx(verify_s(tree.nodes, 256, 1) + OVERHEAD_S + pass_s)
    assert model.acceptance.rule == "target"
    assert model.acceptance.table.max_depth == 3


def test_the_bundled_heads_are_the_bundled_targets(inputs):
    for method in (headed.medusa, headed.redrafter):
        with pytest.raises(InfeasibleError, match="Got large: train heads on it, or do without"):
            method(inputs)
