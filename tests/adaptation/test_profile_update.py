"""The learnt acceptance: counts where a rank was tried, and the share of all depths where it was not."""

import numpy as np
import pytest

from tests.support.invented_machines import acceptance
from treeopt.adaptation.averages import Outcomes
from treeopt.adaptation.profile_update import update_acceptance


def test_a_rank_untried_at_one_depth_takes_its_share_of_all_depths():
    tried = np.array([[200.0, 100.0, 50.0], [100.0, 0.0, 0.0], [40.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
    found = update_acceptance(
        Outcomes(tried, tried * [[0.5, 0.4, 0.2], [0.4, 0, 0], [0.25, 0, 0], [0.2, 0, 0]]),
        acceptance([0.5]),
        sequences=7,
    )
    assert found.table.p.round(6).tolist() == [
        [0.5, 0.2, 0.06],
        [0.4, pytest.approx(0.6 * 0.4), pytest.approx(0.6 * 0.6 * 0.2)],
        [0.25, pytest.approx(0.75 * 0.4), pytest.approx(0.75 * 0.6 * 0.2)],
    ]
    assert found.table.counts.tolist() == [200, 100, 40]  # the fourth depth was hardly reached
    assert (found.prompts, found.positions, found.imported) == (7, 200, ())
    assert found.table.standard_error[0, 0] == pytest.approx(np.sqrt(0.25 / 200), rel=0.01)
