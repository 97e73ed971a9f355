"""What re-calibration itself may take: a share of decoding, and a start, anew where something changed for good."""

import pytest

from treeopt.adaptation.own_time import HEAD_START_S, OWN_SHARE, OwnTime


class Clock:
    def __init__(self):
        self.now_s = 0.0
        self.time = OwnTime(lambda: self.now_s)

    def spend(self, seconds):
        with self.time.counted(lambda: 0.0):
            self.now_s += seconds


@pytest.mark.parametrize("decoding_s", [0.0, 20.0])
def test_comparing_waits_behind_its_share_and_looking_behind_twice_as_much(decoding_s):
    clock = Clock()
    clock.time.decoding_s = decoding_s
    allowed_s = HEAD_START_S + OWN_SHARE * decoding_s
    clock.spend(0.99 * allowed_s)
    assert clock.time.may_solve
    clock.spend(0.02 * allowed_s)
    assert not clock.time.may_solve
    assert clock.time.may_look
    clock.spend(allowed_s)
    assert not clock.time.may_look


def test_a_change_for_good_has_a_start_of_its_own():
    clock = Clock()
    clock.time.decoding_s = 20.0
    clock.spend(1.0)
    assert not clock.time.may_look
    clock.time.changed()
    clock.spend(0.99 * HEAD_START_S)
    assert clock.time.may_solve
    clock.spend(0.02 * HEAD_START_S)
    assert not clock.time.may_solve


def test_changes_that_took_no_time_grant_none():
    clock = Clock()
    clock.time.decoding_s = 20.0
    for _ in range(9):
        clock.time.changed()
    clock.spend(1.01 * (HEAD_START_S + OWN_SHARE * 20.0))
    assert not clock.time.may_solve
