"""Decode stats priced by a profile: against sums by hand, and the choice among several."""

import numpy as np
import pytest

from tests.cli.invented import invented, verify_s
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner import step_model
from treeopt.planner.decode_speedup import fastest_setting, predicted_speedup, predicted_step_s
from treeopt.records.decode_stats import DecodeStats
from treeopt.records.latency import Timing

OVERHEAD_S = 2e-4


def stats(*, tokens=(30, 40), steps=(10, 20), sizes=(1, 4, 8), passes=(5, 15, 10), draft_s=1e-3) -> DecodeStats:
    return DecodeStats(
        tokens=np.array(tokens),
        steps=np.array(steps),
        pass_tokens=np.array(sizes),
        passes=np.array(passes),
        draft=Timing([draft_s] * 9),
    )


@pytest.fixture(scope="module")
def model():
    return step_model(invented(overhead_s=OVERHEAD_S))


def test_a_step_costs_what_its_passes_cost(model):
    verify = sum(count * verify_s(size, 256, 1) for size, count in [(1, 5), (4, 15), (8, 10)]) / 30
    by_hand_s = 1e-3 + verify + OVERHEAD_S * 25 / 30  # a pass over the root alone is plain decoding
    assert predicted_step_s(stats(), model) == pytest.approx(by_hand_s)
    speedup = predicted_speedup(stats(), model)
    assert speedup.value == pytest.approx(70 / 30 / by_hand_s * verify_s(1, 256, 1))
    assert speedup.low <= speedup.value <= speedup.high


def test_texts_that_differ_widen_the_interval(model):
    alike, unlike = stats(tokens=(20, 40), steps=(10, 20)), stats(tokens=(12, 48), steps=(10, 20))
    widths = [predicted_speedup(each, model).high - predicted_speedup(each, model).low for each in (alike, unlike)]
    assert widths[0] < widths[1] / 5


def test_the_fastest_is_chosen_and_not_the_one_of_most_tokens(model):
    slow, fast, most = stats(draft_s=0.1), stats(draft_s=1e-4), stats(tokens=(60, 80), draft_s=0.2)
    assert fastest_setting([slow, fast, most], model) == 1
    assert fastest_setting([fast, fast], model) == 0


def test_what_cannot_be_priced_is_refused(model):
    with pytest.raises(InfeasibleError, match="decode stats of at least one"):
        fastest_setting([], model)
    with pytest.raises(InfeasibleError, match=r"1 to 32 tokens\. Got 64"):
        predicted_speedup(stats(sizes=(1, 4, 64)), model)


@pytest.mark.parametrize(
    "wrong", [{"steps": (0, 20)}, {"tokens": (5, 40)}, {"passes": (1, 1, 1)}, {"sizes": (1, 4)}, {"steps": (10,)}]
)
def test_counts_that_do_not_add_up_are_refused(wrong):
    with pytest.raises(InvalidValueError, match="expected"):
        stats(**wrong)
