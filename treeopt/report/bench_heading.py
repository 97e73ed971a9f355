"""What a bench measured: above its table, and in words."""

from treeopt.records.bench_heading import BenchHeading
from treeopt.records.profile import UNKNOWN
from treeopt.records.results import Pace, PacedPrediction
from treeopt.report.plan_text import models_and_machine
from treeopt.report.text import counted


def headed_table(heading: BenchHeading, table: str) -> str:
    """Return a table below a line that says what it is of."""
    return f"{heading_words(heading)}\n{table}"


def pace_lines(pace: Pace | None, where: str = "") -> list[str]:
    """Return the pace of a benchmark in a line, none without one; `where` is part of what it was measured for."""
    if pace is None:
        return []
    passes = [f"{pace.plain:.2f}x (1 token)", f"{pace.verify:.2f}x ({counted(pace.verify_tokens, 'token')})"]
    passes += [] if pace.draft is None else [f"{pace.draft:.2f}x (draft level)"]
    return [f"Pace{where}: reference passes took {', '.join(passes)} the profile's time."]


def paced_speedup(prediction: PacedPrediction | None) -> float | None:
    """Return the predicted speedup at the pace of a benchmark; None where there is none."""
    return None if prediction is None else prediction.speedup


def heading_words(heading: BenchHeading) -> str:
    """Return the pair, machine, dtype and date, such as `big + small on AMD EPYC (2 threads), float32, measured 2026-11-23`."""
    dtype = "" if heading.pair.dtype == UNKNOWN else heading.pair.dtype
    parts = (models_and_machine(heading.pair, heading.machine), dtype, f"measured {heading.created[:10]}")
    return ", ".join(filter(None, parts))
