"""Warnings about disturbed, drifting and scattered times."""

import pytest

from tests.records.test_timing_quality import STEADY, latency, table
from treeopt.records.step_latency import Interference
from treeopt.report.plan_warnings import times_warnings


def warnings(latencies):
    return [str(each) for each in times_warnings(latencies)]


class TestWarnings:
    def test_steady_times_give_no_warning(self):
        assert warnings([latency(STEADY)]) == []

    def test_too_few_samples_give_no_warning(self):
        assert warnings([latency([1.0, 5.0, 9.0])]) == []

    @pytest.mark.parametrize(
        ("samples", "said"),
        [
            ([1.0] * 4 + [1.1] * 4, "the machine became 10 % slower while it was timed"),
            ([1.0] * 4 + [0.8] * 4, "the machine became 20 % faster while it was timed"),
            ([1.0, 1.5] * 4, "single calls vary by 40 %"),
        ],
    )
    def test_each_warning_names_the_operating_point_and_an_action(self, samples, said):
        (found,) = warnings([latency(STEADY, context_tokens=64), latency(samples)])
        assert found.startswith("256 tokens of context, batch 2: ")
        assert said in found
        action = found.split(". ", 1)[1]
        assert "profile again" in action or "use more --rounds" in action
        assert action.endswith(".")

    def test_drift_and_spread_are_separate_warnings(self):
        assert len(warnings([latency([1.0, 1.5] * 3 + [2.0, 3.0] * 3)])) == 2

    def test_draft_times_are_checked(self):
        slower = table(*[[1.0] * 4 + [1.2] * 4] * 4)
        assert len(warnings([latency(STEADY, draft=slower)])) == 1

    def test_disturbed_samples_give_the_disturbance_only(self):
        """That the machine became slower while another program computed says nothing of the machine."""
        slower = [1.0] * 4 + [59.0] * 4
        disturbed = Interference(calls=0.4, samples=0.25, processors=0.95)
        (found,) = warnings([latency(slower, interference=disturbed)])
        assert found.startswith(
            "256 tokens of context, batch 2: other programs used 95 % of the processors during 40 % of the timed calls. "
        )
        assert "25 % of the samples" in found
        assert "became" not in found
        assert found.endswith("Close them, or wait for quiet with --wait 10m, and profile again.")

    def test_undisturbed_samples_are_checked(self):
        """Also where disturbed ones were left out."""
        for interference in (
            Interference(calls=0.0, samples=0.0),
            Interference(calls=0.5, samples=0.0, processors=1.0),
        ):
            found = warnings([latency([1.0, 1.5] * 3 + [2.0, 3.0] * 3, interference=interference)])
            assert len(found) == 2
            assert "the machine became" in found[0]
            assert not any("of the timed calls" in each for each in found)
            assert warnings([latency(STEADY, interference=interference)]) == []

    def test_one_outlier_is_no_drift(self):
        odd = table(STEADY, [1.0] * 4 + [9.0] * 4, STEADY)
        assert warnings([latency(STEADY, verify=odd)]) == []
