"""What changes of step times say, and what they do not."""

import pytest

from treeopt.adaptation.times import KNOWN_STEPS, ExpectedSeconds, StepTimes
from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.trees import chain

EXPECTED = ExpectedSeconds(draft=0.4, target=1.0)


def decode(times, tree, steps, draft, target, expected=EXPECTED):
    for _ in range(0, steps, 16):
        times.add(tree, [StepSeconds(draft, 0.8 * target, 0.2 * target)] * 16, expected)


def test_a_machine_that_is_slower_as_a_whole_changes_no_quotient():
    times = StepTimes(32)
    decode(times, chain(2), 96, 0.4, 1.0)
    decode(times, chain(2), 320, 0.8, 2.0)
    assert times.drafting == 1.0
    assert times.slower == pytest.approx(2.0, rel=0.02)
    assert times.own(chain(2)) / times.own(chain(5)) == pytest.approx(1.0)


def test_drafting_that_becomes_slower_is_noticed_whatever_the_profile_said_of_it():
    times = StepTimes(32)
    decode(times, chain(2), 96, 0.6, 1.0)  # the profile's draft times are wrong by half: no drift
    assert times.drafting == 1.0
    decode(times, chain(2), 320, 1.2, 1.0)
    assert times.drafting == pytest.approx(2.0 / 1.15, rel=0.03)  # less the tolerance
    decode(times, chain(4), 96, 1.2, 1.0, ExpectedSeconds(0.8, 1.0))
    assert times.drafting == pytest.approx(2.0 / 1.15, rel=0.05)  # another tree does not undo it


def test_a_tree_that_takes_longer_than_expected_is_known_by_that_beside_another():
    times = StepTimes(32)
    decode(times, chain(2), 2 * KNOWN_STEPS, 0.4, 1.0)
    decode(times, chain(4), 2 * KNOWN_STEPS, 0.4, 1.3)
    assert times.own(chain(4)) / times.own(chain(2)) == pytest.approx((1.7 / 1.4) ** 0.7, rel=0.02)
    assert times.own(chain(2)) < times.own(chain(7)) < times.own(chain(4))  # of others nothing is known


def test_an_interruption_counts_as_a_few_steps():
    times = StepTimes(32)
    decode(times, chain(2), 96, 0.4, 1.0)
    times.add(chain(2), [StepSeconds(0.4, 1000.0, 0.0)], EXPECTED)
    assert times.slower < 1.1
