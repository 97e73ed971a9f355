"""The picture of races: every engine has a panel that shows what was promised and measured of each length."""

from pathlib import Path

import pytest

from tests.support.pictures import drawn
from treeopt.records.results import EngineBench, EngineRow
from treeopt.report.engine_figure import _draw, save_engine_figure


def bench(engine, speedups, predicted, chosen=0):
    rows = tuple(
        EngineRow(
            length=length,
            chosen=length == chosen,
            tokens_per_step=1.0 + length / 2,
            predicted_tokens_per_step=1.0 + length / 2,
            tokens_per_s=100 * speedup,
            predicted_tokens_per_s=None if promise is None else 100 * promise,
            speedup=speedup,
            predicted_speedup=promise,
            spread=0.01,
            identical=True,
        )
        for length, (speedup, promise) in enumerate(zip(speedups, predicted, strict=True))
    )
    return EngineBench(engine=engine, version="1", rows=rows, regret=0.0)


BENCHES = [
    bench("llama-server", (1.0, 0.7, 0.6), (1.0, 0.72, 0.61)),
    bench("llama-server", (1.0, 0.71, 0.59), (1.0, 0.7, None)),
    bench("an-engine-with-a-long-name", (1.0, 1.5, 1.9), (1.0, 1.4, 2.0), chosen=2),
]


def test_every_engine_is_named_and_nothing_is_cut(tmp_path: Path):
    found = drawn(lambda at: save_engine_figure(BENCHES, at, title="pair on machine"), tmp_path / "engines.png")
    for text in ("llama-server", "an-engine-with-a-long-name", "promised", "measured", "chosen", "pair on machine"):
        assert text in found.words
    assert found.cut_off() == []
    assert found.overlapping() == []


def test_panels_hold_what_was_promised_and_measured():
    first, second = _draw(BENCHES, title="t", subtitle="").axes
    lines = [line.get_xydata().tolist() for line in first.lines]
    assert [[0, 1.0], [1, 0.72], [2, 0.61]] in lines
    assert [[0, 1.0], [1, 0.7]] in lines, "a length without a promise has no point on its line"
    assert [[0, 1.0], [1, 0.71], [2, 0.59]] in lines
    assert [[2, 1.9]] in [line.get_xydata().tolist() for line in second.lines], "the choice"


@pytest.mark.parametrize("engines", [1, 2, 5])
def test_any_number_of_engines_fits(tmp_path: Path, engines: int):
    benches = [bench(f"engine {number}", (1.0, 1.2), (1.0, 1.1)) for number in range(engines)]
    found = drawn(lambda at: save_engine_figure(benches, at, title="t"), tmp_path / "engines.png")
    assert found.cut_off() == []
    assert found.overlapping() == []
