"""Predictions of left-out rows on sweeps of a known law."""

import numpy as np
import pytest
import yaml

from tests.scripts import ROOT, script

published = script(ROOT / "benchmarks" / "published_sweeps.py")
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12)


def accept_length(length: int, rate: float) -> float:
    return sum(rate**position for position in range(length + 1))


def step_s(length: int, cliff_after: int | None = None) -> float:
    """Return seconds of a step that drafts a block in one pass; after a cliff every step takes 40 % more."""
    seconds = 0.020 + 0.001 * (length > 0) + 0.0012 * length
    return seconds if cliff_after is None or length <= cliff_after else 1.4 * seconds


def sweep(rate: float, *, accept_lengths: bool, cliff_after: int | None = None):
    rows = tuple(
        published.PublishedRow(
            length=length,
            tokens_per_second=accept_length(length, rate) / step_s(length, cliff_after),
            accept_length=accept_length(length, rate) if accept_lengths else None,
        )
        for length in LENGTHS
    )
    return published.Sweep(name="law", lengths="draft tokens", rows=rows)


@pytest.mark.parametrize("rate", [0.55, 0.75, 0.9])
@pytest.mark.parametrize("accept_lengths", [True, False])
def test_left_out_rows_are_predicted_and_the_choice_is_the_optimum(rate, accept_lengths):
    result = published.predict(sweep(rate, accept_lengths=accept_lengths))
    assert result.estimated != accept_lengths
    assert result.left_out == [1, 3, 5, 8]
    assert max(map(abs, result.errors.values())) < 0.04
    speeds = {length: accept_length(length, rate) / step_s(length) for length in LENGTHS}
    assert result.best == max(speeds, key=speeds.__getitem__)
    assert result.chosen == result.best
    assert abs(result.planned - result.best) <= 2  # the speed is flat around its best


@pytest.mark.parametrize("accept_lengths", [True, False])
def test_a_cliff_between_given_rows_is_reported_as_an_error(accept_lengths):
    """Negative control: length 5 is left out, and between the given lengths 4 and 6."""
    result = published.predict(sweep(0.75, accept_lengths=accept_lengths, cliff_after=5))
    assert result.errors[5] < -0.1
    worst = [float(word) for line in published.describe(result) if "error" in line for word in line.split()[2:]]
    assert min(worst) < -10


def test_given_rows_are_predicted_as_published():
    result = published.predict(sweep(0.75, accept_lengths=True))
    for length in result.sweep.given():
        assert result.predicted[length] == pytest.approx(result.sweep.speeds[length])


def test_rows_of_the_file_are_read_by_their_columns(tmp_path):
    entries = [
        {"name": "a", "columns": ["budget", "step_time_ms", "accept_length"], "rows": [[0, 20, 1], [4, 40, 2.5]]},
        {"name": "b", "columns": ["draft_tokens", "acceptance_rate"], "rows": [[1, 0.5], [2, 0.25]]},
        {"name": "c", "columns": ["draft_tokens", "tokens_per_second"], "rows": [[0, 10], [1, 12], [1, 14]]},
    ]
    (tmp_path / "sweeps.yaml").write_text(yaml.safe_dump(entries))
    steps, rates, speeds = published.read_sweeps(tmp_path / "sweeps.yaml")
    assert steps.speeds == {0: 50.0, 4: 62.5}
    assert (rates.speeds, rates.accept_lengths) == ({}, {1: 1.5, 2: 1.75})
    assert speeds.speeds == {0: 10.0, 1: 13.0}


def test_every_published_sweep_has_a_source_and_rows_to_leave_out():
    entries = yaml.safe_load(published.SWEEPS.read_text("utf-8"))
    for entry, read in zip(entries, published.read_sweeps(published.SWEEPS), strict=True):
        assert entry["source"].startswith("https://")
        assert set(read.given()) < set(read.published())
        assert np.all(np.diff([row.length for row in read.rows]) >= 0)
