"""Scaling sums of acceptance by a gain."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from treeopt.records.acceptance import SequenceSums
from treeopt.records.acceptance_counts import scale_acceptance


class TestScaleAcceptance:
    def test_measured_ranks_are_multiplied_by_gain(self):
        sums = SequenceSums([[10.0, 8.0], [20.0, 10.0]], [[[2.0, 1.0], [2.0, 1.0]], [[4.0, 4.0], [2.0, 2.0]]])
        result = scale_acceptance(sums, np.array([[1.5, np.nan], [np.nan, 0.5]]))
        assert result.reached.tolist() == sums.reached.tolist()
        np.testing.assert_allclose(result.accepted, [[[3.0, 0.875], [15 / 7, 0.5]], [[6.0, 3.5], [2.25, 1.0]]])

    def test_without_a_gain_nothing_changes(self):
        sums = SequenceSums([[10.0], [20.0]], [[[2.0, 1.0]], [[4.0, 16.0]]])
        assert scale_acceptance(sums, np.full((1, 2), np.nan)).accepted.tolist() == sums.accepted.tolist()

    @settings(max_examples=examples(100), deadline=None)
    @given(st.integers(0, 10_000), st.floats(0, 4), st.booleans())
    def test_accepted_does_not_exceed_reached(self, seed, most, unreached):
        generator = np.random.default_rng(seed)
        reached = generator.uniform(0.1, 50, (3, 2))
        reached[0, 1] *= not unreached
        accepted = generator.dirichlet(np.ones(4), (3, 2))[:, :, :3] * reached[:, :, None]
        gain = generator.uniform(0, 1, (2, 3)) * most
        result = scale_acceptance(SequenceSums(reached, accepted), gain)
        rows = result.accepted.sum(axis=2)
        assert np.all(rows <= reached * (1 + 1e-12))
        free = (accepted * gain).sum(axis=2) <= reached
        np.testing.assert_allclose(result.accepted[free], (accepted * gain)[free])
        np.testing.assert_allclose(rows[~free], reached[~free])
