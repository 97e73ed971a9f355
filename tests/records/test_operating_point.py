"""Operating points: measured, or interpolated between what was measured around them."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.support.invented_machines import acceptance, latency, profile, seconds
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner import plan
from treeopt.planner.scheduling import schedule
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling

FULL = [(256, 1), (1024, 1), (4096, 1), (256, 8), (1024, 8), (4096, 8)]
ONE = [(512, 2)]
PARTIAL = [(256, 1), (1024, 1), (512, 4), (2048, 4), (1000, 16)]
"""Contexts measured at one batch size were not at another."""


def measured(conditions: list[tuple[int, int]]) -> Profile:
    machine = seconds(lambda n: 1.0 * n, lambda w: 0.1 * w)
    return profile(
        [latency(machine, context_tokens=context, batch_size=batch) for context, batch in conditions],
        [acceptance([0.5])],
    )


def at(known: Profile, temperature: float = 0.0, **asked: object) -> OperatingPoint:
    return known.at(sampling=Sampling(temperature), **asked)


def parts(point: OperatingPoint) -> dict[tuple[int, int], float]:
    """Return the weight of every measured condition in a point, by context and batch size."""
    pairs = zip(point.latencies, point.weights, strict=True)
    return {(latency.context_tokens, latency.batch_size): weight for latency, weight in pairs}


class TestMeasured:
    @pytest.mark.parametrize(("context", "batch"), FULL)
    def test_what_was_measured_is_taken_alone(self, context, batch):
        found = at(measured(FULL), context_tokens=context, batch_size=batch)
        assert parts(found) == {(context, batch): 1.0}
        assert (found.context_tokens, found.batch_size, found.extrapolated) == (context, batch, False)

    @pytest.mark.parametrize(
        ("asked", "expected"),
        [
            ({}, (1024, 8)),
            ({"batch_size": 1}, (256, 1)),
            ({"context_tokens": 256}, (256, 8)),
            ({"context_tokens": 1024, "batch_size": 1}, (1024, 1)),
        ],
        ids=str,
    )
    def test_by_default_the_first_measured(self, asked, expected):
        found = at(measured([(1024, 8), (256, 1), (256, 8), (1024, 1)]), **asked)
        assert (found.context_tokens, found.batch_size) == expected
        assert parts(found) == {expected: 1.0}


class TestBetween:
    def test_between_context_lengths(self):
        found = at(measured(FULL), context_tokens=640, batch_size=8)
        assert parts(found) == pytest.approx({(256, 8): 0.5, (1024, 8): 0.5})
        found = at(measured(FULL), context_tokens=1024 + 768, batch_size=1)
        assert parts(found) == pytest.approx({(1024, 1): 0.75, (4096, 1): 0.25})
        assert (found.context_tokens, found.extrapolated) == (1792, False)

    def test_between_batch_sizes(self):
        found = at(measured(FULL), context_tokens=1024, batch_size=3)
        assert parts(found) == pytest.approx({(1024, 1): 5 / 7, (1024, 8): 2 / 7})
        assert (found.batch_size, found.extrapolated) == (3, False)

    def test_between_both(self):
        found = at(measured(FULL), context_tokens=448, batch_size=6)
        expected = {(256, 1): 2 / 7 * 0.75, (1024, 1): 2 / 7 * 0.25, (256, 8): 5 / 7 * 0.75, (1024, 8): 5 / 7 * 0.25}
        assert parts(found) == pytest.approx(expected)

    @pytest.mark.parametrize("conditions", [FULL, PARTIAL], ids=["full", "partial"])
    def test_shares_make_the_condition_asked_for(self, conditions):
        """At every condition: shares sum to 1, and the same mixture of the measured conditions is the one asked for."""
        known, inside = measured(conditions), 0
        for context, batch in itertools.product(range(0, 4200, 61), range(1, 17)):
            found = at(known, context_tokens=context, batch_size=batch, extrapolate=True)
            shares = parts(found)
            assert len(shares) == len(found.latencies)
            assert sum(shares.values()) == pytest.approx(1)
            if found.extrapolated:
                continue
            inside += 1
            assert all(0 <= share <= 1 for share in shares.values())
            assert sum(share * length for (length, _), share in shares.items()) == pytest.approx(context)
            assert sum(share * size for (_, size), share in shares.items()) == pytest.approx(batch)
        assert inside > 50

    def test_a_grid_with_gaps(self):
        """At either batch size the contexts around are its own."""
        found = at(measured(PARTIAL), context_tokens=640, batch_size=2)
        by_batch = {1: 2 / 3, 4: 1 / 3}
        expected = {
            (256, 1): by_batch[1] * 0.5,
            (1024, 1): by_batch[1] * 0.5,
            (512, 4): by_batch[4] * (1 - 128 / 1536),
            (2048, 4): by_batch[4] * 128 / 1536,
        }
        assert parts(found) == pytest.approx(expected)
        assert not found.extrapolated


class TestOutside:
    @pytest.mark.parametrize(
        ("conditions", "context", "batch"),
        [
            (FULL, 255, 1),
            (FULL, 4097, 8),
            (FULL, 1024, 9),
            (FULL, 0, 4),
            (ONE, 511, 2),
            (ONE, 512, 1),
            (ONE, 512, 3),
            (PARTIAL, 300, 4),  # at batch 4 the shortest is 512
            (PARTIAL, 300, 2),
            (PARTIAL, 1001, 16),
            (PARTIAL, 700, 9),  # at batch 16 there is 1000 alone
        ],
    )
    def test_it_is_refused_with_what_was_measured_unless_allowed(self, conditions, context, batch):
        with pytest.raises(InfeasibleError) as refused:
            at(measured(conditions), context_tokens=context, batch_size=batch)
        message = str(refused.value)
        assert f"context {context} tokens x batch {batch} was not measured" in message
        assert all(f"{length} tokens x {size}" in message for length, size in conditions)
        assert "Profile there." in message
        found = at(measured(conditions), context_tokens=context, batch_size=batch, extrapolate=True)
        assert found.extrapolated
        assert (found.context_tokens, found.batch_size) == (context, batch)

    def test_on_the_line_through_the_nearest_two(self):
        found = at(measured(FULL), context_tokens=4096 + 768, batch_size=1, extrapolate=True)
        assert parts(found) == pytest.approx({(1024, 1): -0.25, (4096, 1): 1.25})
        found = at(measured(FULL), context_tokens=256, batch_size=15, extrapolate=True)
        assert parts(found) == pytest.approx({(256, 1): -1, (256, 8): 2})
        found = at(measured(FULL), context_tokens=64, batch_size=1, extrapolate=True)
        assert parts(found) == pytest.approx({(256, 1): 1.25, (1024, 1): -0.25})

    def test_as_the_nearest_where_there_is_one(self):
        found = at(measured(ONE), context_tokens=9999, batch_size=99, extrapolate=True)
        assert parts(found) == {(512, 2): 1.0}

    def test_what_lies_inside_is_not_marked(self):
        assert not at(measured(FULL), context_tokens=300, batch_size=2, extrapolate=True).extrapolated


class TestWays:
    """Times of greedy and of sampled steps in one profile."""

    def profile(self, *ways):
        """Return a profile of (context, batch, sampled), each with its own verify times."""
        latencies = [
            replace(
                latency(
                    seconds(lambda n, own=own: n + 100.0 * own, lambda w: 0.1 * w),
                    context_tokens=context,
                    batch_size=batch,
                ),
                sampled=sampled,
            )
            for own, (context, batch, sampled) in enumerate(ways)
        ]
        return profile(latencies, [acceptance([0.5], temperature=value) for value in (0.0, 0.6)])

    BOTH = ((256, 1, False), (1024, 1, False), (256, 1, True), (1024, 1, True))

    @pytest.mark.parametrize(("temperature", "sampled"), [(0.0, False), (0.6, True), (1.5, True)])
    def test_a_temperature_takes_its_own(self, temperature, sampled):
        known = self.profile(*self.BOTH)
        for context in (256, 640, 1024):
            found = at(known, temperature=temperature, context_tokens=context)
            assert {item.sampled for item in found.latencies} == {sampled}
            assert sum(found.weights) == pytest.approx(1)

    def test_what_does_not_say_serves_either(self):
        known = self.profile((256, 1, None))
        for temperature in (0.0, 0.6):
            assert at(known, temperature=temperature).latencies[0] is known.latencies[0]

    def test_where_none_was_timed_that_way_the_others_serve(self):
        known = self.profile((256, 1, False))
        assert at(known, temperature=0.6).latencies[0].sampled is False

    def test_where_one_way_was_timed_less_the_other_does_not_fill_in(self):
        known = self.profile((256, 1, False), (1024, 1, False), (256, 1, True))
        assert not at(known, temperature=0.0, context_tokens=640).extrapolated
        with pytest.raises(InfeasibleError, match=r"Measured: 256 tokens x 1\. Profile there"):
            at(known, temperature=0.6, context_tokens=640)

    @pytest.mark.parametrize("temperature", [0.0, 0.6])
    def test_plans_and_schedules_are_made_of_them(self, temperature):
        plain_s = {0.0: {256: 1.0, 1024: 101.0}, 0.6: {256: 201.0, 1024: 301.0}}[temperature]
        known = self.profile(*self.BOTH)
        for context, expected_s in plain_s.items():
            found = plan(known, 9, temperature=temperature, context_tokens=context)
            assert found.model.costs.verify_s[1] == pytest.approx(expected_s)
        scheduled = schedule(known, 9, temperature=temperature)
        assert [each.model.costs.verify_s[1] for each in scheduled.plans] == pytest.approx(list(plain_s.values()))


class TestInterpolate:
    def test_values_are_weighted(self):
        point = at(measured(FULL), context_tokens=448, batch_size=6)
        values = [np.array([latency.context_tokens, latency.batch_size]) for latency in point.latencies]
        assert point.interpolate(values).tolist() == pytest.approx([448, 6])

    @pytest.mark.parametrize(("context", "expected"), [(64, {10: 0.46, 110: 0.54}), (5, {10: 1}), (999, {310: 1})])
    def test_outside_the_measured_contexts_the_nearest_holds(self, context, expected):
        point = at(measured([(0, 1), (1000, 1)]), context_tokens=context)
        around = point.around({10: "short", 110: "middle", 310: "long"})
        names = {10: "short", 110: "middle", 310: "long"}
        assert {name: weight for weight, name in around} == pytest.approx(
            {names[length]: weight for length, weight in expected.items()}
        )

    @pytest.mark.parametrize(
        ("asked", "reason"),
        [
            ({"context_tokens": -1}, "context_tokens: expected at least 0. Got -1."),
            ({"batch_size": 0}, "batch_size: expected at least 1. Got 0."),
            ({"extrapolate": None}, "extrapolate: expected True or False. Got None"),
        ],
        ids=str,
    )
    def test_impossible_values_are_refused(self, asked, reason):
        with pytest.raises(InvalidValueError) as caught:
            at(measured(FULL), **asked)
        assert str(caught.value).startswith(reason)
