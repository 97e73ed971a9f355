"""Operating points: measured, interpolated and extrapolated."""

import itertools
from dataclasses import replace

import pytest

from tests.support.invented_machines import acceptance, latency, profile, seconds
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner import plan
from treeopt.planner.scheduling import schedule
from treeopt.records.operating_point import OperatingPoint, weighted_neighbours
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


def at(known: Profile, temperature: float = 0.0, **options: object) -> OperatingPoint:
    return known.at(sampling=Sampling(temperature), **options)


def parts(point: OperatingPoint) -> dict[tuple[int, int], float]:
    """Return the weight of every measured condition in a point, by context and batch size."""
    pairs = zip(point.latencies, point.weights, strict=True)
    return {(latency.context_tokens, latency.batch_size): weight for latency, weight in pairs}


class TestMeasured:
    @pytest.mark.parametrize(("context", "batch"), FULL)
    def test_measured_point_has_one_latency(self, context, batch):
        result = at(measured(FULL), context_tokens=context, batch_size=batch)
        assert parts(result) == {(context, batch): 1.0}
        assert (result.context_tokens, result.batch_size, result.extrapolated) == (context, batch, False)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, (1024, 8)),
            ({"batch_size": 1}, (256, 1)),
            ({"context_tokens": 256}, (256, 8)),
            ({"context_tokens": 1024, "batch_size": 1}, (1024, 1)),
        ],
        ids=str,
    )
    def test_by_default_the_first_measured(self, options, expected):
        result = at(measured([(1024, 8), (256, 1), (256, 8), (1024, 1)]), **options)
        assert (result.context_tokens, result.batch_size) == expected
        assert parts(result) == {expected: 1.0}


class TestBetween:
    def test_between_context_lengths(self):
        result = at(measured(FULL), context_tokens=640, batch_size=8)
        assert parts(result) == pytest.approx({(256, 8): 0.5, (1024, 8): 0.5})
        result = at(measured(FULL), context_tokens=1024 + 768, batch_size=1)
        assert parts(result) == pytest.approx({(1024, 1): 0.75, (4096, 1): 0.25})
        assert (result.context_tokens, result.extrapolated) == (1792, False)

    def test_between_both(self):
        result = at(measured(FULL), context_tokens=448, batch_size=6)
        expected = {(256, 1): 2 / 7 * 0.75, (1024, 1): 2 / 7 * 0.25, (256, 8): 5 / 7 * 0.75, (1024, 8): 5 / 7 * 0.25}
        assert parts(result) == pytest.approx(expected)

    @pytest.mark.parametrize("conditions", [FULL, PARTIAL], ids=["full", "partial"])
    def test_weights_reproduce_requested_point(self, conditions):
        known, inside = measured(conditions), 0
        for context, batch in itertools.product(range(0, 4200, 131), range(1, 17, 3)):
            result = at(known, context_tokens=context, batch_size=batch, extrapolate=True)
            shares = parts(result)
            assert len(shares) == len(result.latencies)
            assert sum(shares.values()) == pytest.approx(1)
            if result.extrapolated:
                continue
            inside += 1
            assert all(0 <= share <= 1 for share in shares.values())
            assert sum(share * length for (length, _), share in shares.items()) == pytest.approx(context)
            assert sum(share * size for (_, size), share in shares.items()) == pytest.approx(batch)
        assert inside > 10

    def test_a_grid_with_gaps(self):
        result = at(measured(PARTIAL), context_tokens=640, batch_size=2)
        by_batch = {1: 2 / 3, 4: 1 / 3}
        expected = {
            (256, 1): by_batch[1] * 0.5,
            (1024, 1): by_batch[1] * 0.5,
            (512, 4): by_batch[4] * (1 - 128 / 1536),
            (2048, 4): by_batch[4] * 128 / 1536,
        }
        assert parts(result) == pytest.approx(expected)
        assert not result.extrapolated


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
    def test_raises_with_measured_points_unless_extrapolating(self, conditions, context, batch):
        with pytest.raises(InfeasibleError) as refused:
            at(measured(conditions), context_tokens=context, batch_size=batch)
        message = str(refused.value)
        assert f"context {context} tokens x batch {batch} was not measured" in message
        assert all(f"{length} tokens x {size}" in message for length, size in conditions)
        assert "Measure there." in message
        result = at(measured(conditions), context_tokens=context, batch_size=batch, extrapolate=True)
        assert result.extrapolated
        assert (result.context_tokens, result.batch_size) == (context, batch)

    def test_extrapolates_from_nearest_two(self):
        result = at(measured(FULL), context_tokens=4096 + 768, batch_size=1, extrapolate=True)
        assert parts(result) == pytest.approx({(1024, 1): -0.25, (4096, 1): 1.25})
        result = at(measured(FULL), context_tokens=256, batch_size=15, extrapolate=True)
        assert parts(result) == pytest.approx({(256, 1): -1, (256, 8): 2})
        result = at(measured(FULL), context_tokens=64, batch_size=1, extrapolate=True)
        assert parts(result) == pytest.approx({(256, 1): 1.25, (1024, 1): -0.25})

    def test_extrapolates_constantly_from_single_point(self):
        result = at(measured(ONE), context_tokens=9999, batch_size=99, extrapolate=True)
        assert parts(result) == {(512, 2): 1.0}


class TestSampling:
    """Times of greedy and of sampled steps in one profile."""

    def profile(self, *conditions):
        """Return a profile of (context, batch, sampled), each with its own verify times."""
        latencies = [
            replace(
                latency(
                    seconds(lambda n, index=index: n + 100.0 * index, lambda w: 0.1 * w),
                    context_tokens=context,
                    batch_size=batch,
                ),
                sampled=sampled,
            )
            for index, (context, batch, sampled) in enumerate(conditions)
        ]
        return profile(latencies, [acceptance([0.5], sampling=Sampling(value)) for value in (0.0, 0.6)])

    BOTH = ((256, 1, False), (1024, 1, False), (256, 1, True), (1024, 1, True))

    @pytest.mark.parametrize(("temperature", "sampled"), [(0.0, False), (0.6, True), (1.5, True)])
    def test_temperature_selects_sampled_or_greedy_times(self, temperature, sampled):
        known = self.profile(*self.BOTH)
        for context in (256, 640, 1024):
            result = at(known, temperature=temperature, context_tokens=context)
            assert {item.sampled for item in result.latencies} == {sampled}
            assert sum(result.weights) == pytest.approx(1)

    def test_falls_back_to_other_sampling(self):
        known = self.profile((256, 1, False))
        assert at(known, temperature=0.6).latencies[0].sampled is False
        (warning,) = plan(known, 9, temperature=0.6).warnings
        assert str(warning).startswith("only greedy steps were timed; steps at temperature 0.6 ")
        assert plan(known, 9, temperature=0.0).warnings == ()

    def test_other_sampling_does_not_fill_gaps(self):
        known = self.profile((256, 1, False), (1024, 1, False), (256, 1, True))
        assert not at(known, temperature=0.0, context_tokens=640).extrapolated
        with pytest.raises(InfeasibleError, match=r"Measured: 256 tokens x 1\. Measure there"):
            at(known, temperature=0.6, context_tokens=640)

    @pytest.mark.parametrize("temperature", [0.0, 0.6])
    def test_plans_and_schedules_use_matching_times(self, temperature):
        plain_s = {0.0: {256: 1.0, 1024: 101.0}, 0.6: {256: 201.0, 1024: 301.0}}[temperature]
        known = self.profile(*self.BOTH)
        for context, expected_s in plain_s.items():
            result = plan(known, 9, temperature=temperature, context_tokens=context)
            assert result.model.costs.verify_s[1] == pytest.approx(expected_s)
        scheduled = schedule(known, max_nodes=9, temperature=temperature)
        assert [item.model.costs.verify_s[1] for item in scheduled.plans] == pytest.approx(list(plain_s.values()))


class TestInterpolate:
    @pytest.mark.parametrize(("context", "expected"), [(64, {10: 0.46, 110: 0.54}), (5, {10: 1}), (999, {310: 1})])
    def test_outside_measured_contexts_nearest_has_weight_1(self, context, expected):
        names = {10: "short", 110: "middle", 310: "long"}
        around = weighted_neighbours(names, context)
        assert {name: weight for weight, name in around} == pytest.approx(
            {names[length]: weight for length, weight in expected.items()}
        )

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"context_tokens": -1}, "context_tokens: expected at least 0. Got -1."),
            ({"batch_size": 0}, "batch_size: expected at least 1. Got 0."),
            ({"extrapolate": None}, "extrapolate: expected True or False. Got None"),
        ],
        ids=str,
    )
    def test_invalid_values_raise(self, options, reason):
        with pytest.raises(InvalidValueError) as caught:
            at(measured(FULL), **options)
        assert str(caught.value).startswith(reason)
