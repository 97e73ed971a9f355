"""What decoding told as an acceptance: counted where it was tried, and of a rank that was not, what was counted of it elsewhere."""

import numpy as np
import pytest

from tests.support.invented_machines import acceptance
from treeopt.adaptation.counts import Outcomes
from treeopt.adaptation.learnt_profile import learnt_acceptance


def test_a_rank_that_was_not_tried_at_a_depth_has_what_was_counted_of_it_at_others():
    tried = np.array([[200.0, 100.0, 50.0], [100.0, 0.0, 0.0], [40.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
    found = learnt_acceptance(
        Outcomes(tried, tried * [[0.5, 0.4, 0.2], [0.4, 0, 0], [0.25, 0, 0], [0.2, 0, 0]]), acceptance([0.5]), texts=7
    )
    assert found.table.p.round(6).tolist() == [
        [0.5, 0.2, 0.06],
        [0.4, pytest.approx(0.6 * 0.4), pytest.approx(0.6 * 0.6 * 0.2)],
        [0.25, pytest.approx(0.75 * 0.4), pytest.approx(0.75 * 0.6 * 0.2)],
    ]
    assert found.table.counts.tolist() == [200, 100, 40]  # the fourth depth was hardly reached
    assert (found.prompts, found.positions, found.imported) == (7, 200, ())
    assert found.table.standard_error[0, 0] == pytest.approx(np.sqrt(0.25 / 200), rel=0.01)
