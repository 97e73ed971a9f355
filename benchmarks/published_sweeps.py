"""Predict published sweeps over the draft length or the tree budget from half of their rows.

treeopt gets every other length, plain decoding included, and the longest.  It imports them as `treeopt profile --sweep` does and
plans as `treeopt solve` does.  Printed are the left-out rows next to their predictions, and the published length that treeopt
predicts to be the fastest next to the one that is.  Nothing is measured.  The rows and their sources are in published_sweeps.yaml.
"""

import csv
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median

import yaml
from common import script_parser

from treeopt.engines.importers import sweep_profile
from treeopt.engines.importers.sweep_profile import ESTIMATED, average_by_length
from treeopt.planner import plan, step_model
from treeopt.records.sampling import GREEDY
from treeopt.trees import chain

SWEEPS = Path(__file__).with_suffix(".yaml")
CONTEXT_TOKENS = 1
"""Sweeps are of one context length, which has no effect."""
WIDTH = 8


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One row of a sweep; what was not published is None."""

    length: int
    tokens_per_second: float | None
    accept_length: float | None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A published sweep."""

    name: str
    lengths: str
    """What varies: draft tokens or a budget."""
    rows: tuple[PublishedRow, ...]

    @property
    def speeds(self) -> dict[int, float]:
        """Tokens per second by length; empty if only accept lengths were published."""
        return average_by_length([(row.length, row.tokens_per_second) for row in self.rows])

    @property
    def accept_lengths(self) -> dict[int, float]:
        """Tokens per step by length."""
        return average_by_length([(row.length, row.accept_length) for row in self.rows])

    def published(self) -> dict[int, float]:
        """Return what is predicted: tokens per second, or tokens per step without speeds."""
        return self.speeds or self.accept_lengths

    def given(self) -> list[int]:
        """Return every other length, and the longest."""
        lengths = sorted({row.length for row in self.rows})
        return sorted({*lengths[::2], lengths[-1]})


@dataclass(frozen=True, kw_only=True)
class Result:
    """treeopt's predictions of a sweep, and its choice."""

    sweep: Sweep
    predicted: dict[int, float]
    """By published length."""
    planned: int
    """Draft tokens of the plan, which need not be a published length."""
    estimated: bool
    """Whether acceptance was estimated from the speeds."""

    @property
    def left_out(self) -> list[int]:
        return [length for length in self.predicted if length not in self.sweep.given()]

    @property
    def errors(self) -> dict[int, float]:
        """(predicted - published) / published, by left-out length."""
        published = self.sweep.published()
        return {length: self.predicted[length] / published[length] - 1 for length in self.left_out}

    @property
    def chosen(self) -> int:
        """The published length with the best prediction."""
        return max(self.predicted, key=self.predicted.__getitem__)

    @property
    def best(self) -> int:
        return max(self.sweep.speeds, key=self.sweep.speeds.__getitem__)

    @property
    def gap(self) -> float:
        """Fraction of the best published speed that the choice loses."""
        return 1 - self.sweep.speeds[self.chosen] / self.sweep.speeds[self.best]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rows", action="store_true", help="print every row that was left out")
    options = parser.parse_args()
    results = [predict(sweep) for sweep in read_sweeps(SWEEPS)]
    if options.rows:
        for result in results:
            print("\n".join(describe(result)), end="\n\n")
    print("\n".join(list_sweeps(results)), end="\n\n")
    print("\n".join(summarize(results)))


def read_sweeps(path: Path) -> Iterator[Sweep]:
    for entry in yaml.safe_load(path.read_text("utf-8")):
        columns = [dict(zip(entry["columns"], row, strict=True)) for row in entry["rows"]]
        lengths = entry["columns"][0]
        accept: list[float | None] = [row.get("accept_length") for row in columns]
        if "acceptance_rate" in entry["columns"]:
            accept = list(accumulate((row["acceptance_rate"] for row in columns), initial=1.0))[1:]
        speeds = [row.get("tokens_per_second") for row in columns]
        if "step_time_ms" in entry["columns"]:
            speeds = [1e3 * row["accept_length"] / row["step_time_ms"] for row in columns]
        yield Sweep(
            name=entry["name"],
            lengths=lengths.replace("_", " "),
            rows=tuple(
                PublishedRow(length=row[lengths], tokens_per_second=speed, accept_length=tokens)
                for row, speed, tokens in zip(columns, speeds, accept, strict=True)
            ),
        )


def predict(sweep: Sweep) -> Result:
    """Return treeopt's predictions and choice from the given rows of a sweep."""
    given = sweep.given()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.csv"
        write_rows(path, [row for row in sweep.rows if row.length in given])
        profile = sweep_profile([path], sampling=GREEDY, context_tokens=CONTEXT_TOKENS)
    model = step_model(profile)
    options = {length: model.predict(chain(length)).prediction for length in sweep.published()}
    assert profile.engine is not None  # a sweep is an engine's
    return Result(
        sweep=sweep,
        predicted={
            length: option.tokens_per_step.value / (option.step_s.value if sweep.speeds else 1.0)
            for length, option in options.items()
        },
        planned=plan(profile).choice.tree.max_depth,
        estimated=any(setting.name == ESTIMATED for setting in profile.engine.settings),
    )


def write_rows(path: Path, rows: list[PublishedRow]) -> None:
    """Write rows as the CSV that `treeopt profile --sweep` reads; without speeds a step time, which no accept length needs."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["draft_length", "tokens_per_second", "accept_length", "step_time_s"])
        for row in rows:
            speed = row.tokens_per_second
            writer.writerow([row.length, speed, row.accept_length, 1.0 if speed is None else None])


def describe(result: Result) -> Iterator[str]:
    sweep, left_out = result.sweep, result.left_out
    published = sweep.published()
    unit = "tokens/s" if sweep.speeds else "tokens/step"
    yield f"{sweep.name}: {unit}{', acceptance estimated' if result.estimated else ''}"
    yield f"  given: {', '.join(map(str, sweep.given()))}"
    yield _line(sweep.lengths, left_out, "d")
    yield _line("published", [published[length] for length in left_out], ".4g")
    yield _line("predicted", [result.predicted[length] for length in left_out], ".4g")
    yield _line("error, %", [100 * error for error in result.errors.values()], "+.1f")
    if sweep.speeds:
        plan_text = "" if result.planned == result.chosen else f" (plan: {result.planned}, not published)"
        yield f"  chosen: {result.chosen}{plan_text}, published best: {result.best}, gap: {100 * result.gap:.1f} %"


def list_sweeps(results: list[Result]) -> Iterator[str]:
    """Yield a line for each sweep: its left-out rows, errors, choice and gap."""
    yield f"{'':54}{'rows':>5}{'error, %':>10}{'largest':>9}{'chosen':>8}{'best':>6}{'gap, %':>8}"
    for result in results:
        errors = [100 * abs(error) for error in result.errors.values()]
        name = f"{result.sweep.name}{' *' if result.estimated else ''}"
        columns = f"{name:54}{len(errors):5}{median(errors):10.1f}{max(errors):9.1f}"
        yield columns + (f"{result.chosen:8}{result.best:6}{100 * result.gap:8.1f}" if result.sweep.speeds else "")


def summarize(results: list[Result]) -> Iterator[str]:
    kinds = {
        "accept lengths published": [result for result in results if result.sweep.speeds and not result.estimated],
        "acceptance estimated": [result for result in results if result.estimated],
        "accept lengths only": [result for result in results if not result.sweep.speeds],
    }
    yield f"{'':26}{'sweeps':>8}{'rows':>8}{'median':>8}{'largest error, %':>18}{'mean':>8}{'largest gap, %':>16}"
    for kind, members in kinds.items():
        errors = [100 * abs(error) for result in members for error in result.errors.values()]
        gaps = [100 * result.gap for result in members if result.sweep.speeds]
        columns = f"{kind:26}{len(members):8}{len(errors):8}{median(errors):8.1f}{max(errors):18.1f}"
        yield columns + (f"{fmean(gaps):8.1f}{max(gaps):16.1f}" if gaps else "")


def _line(label: str, values: list[float] | list[int], form: str) -> str:
    return f"  {label:12}" + "".join(f"{format(value, form):>{WIDTH}}" for value in values)


if __name__ == "__main__":
    main()
