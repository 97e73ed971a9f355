"""`treeopt bench --systems`: all ways of speculating on one machine, as a table and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options import PairOptions
from treeopt.cli.outputs import TOOL
from treeopt.cli.text import milliseconds
from treeopt.figure_file import checked_suffix
from treeopt.files import STANDARD_STREAM, write_text

if TYPE_CHECKING:
    from treeopt.systems.bench import Row


def bench_all(systems: str, temperatures: str, pair: PairOptions, path: Path | None, plot: Path | None) -> None:
    """Profile, plan and run systems, print the table and write the JSON."""
    degrees = _temperatures(temperatures)
    if plot is not None:
        checked_suffix(plot)
    from treeopt.errors import InvalidValueError
    from treeopt.profiler.machine import describe_machine
    from treeopt.runtime.prompts import bench_prompts, load_prompts, profile_prompts
    from treeopt.systems.contest import checked_names
    from treeopt.systems.running import Effort, run_contest

    names = [name.strip() for name in systems.split(",")]
    try:
        checked_names(names)
    except InvalidValueError as error:
        raise click.UsageError(f"--{error}") from None
    models = pair.load()
    encode, texts = models.tokenizer.encode, load_prompts()
    rows = run_contest(
        models,
        [encode(text) for text in profile_prompts(texts)],
        [encode(text) for text in bench_prompts(texts)],
        names=names,
        temperatures=degrees,
        effort=Effort(),
        announce=lambda what: click.echo(what, err=True),
    )
    only_json = path is not None and str(path) == STANDARD_STREAM
    click.echo(table(rows), err=only_json)
    if path is not None:
        write_text(path, report(rows))
    if plot is not None:
        from treeopt.systems.figure import save_systems_figure

        save_systems_figure(
            rows, plot, title=f"{models.target.name} on {describe_machine(models.target.device).processor}"
        )


def report(rows: "Sequence[Row]") -> str:
    """Return the rows as one JSON object, a row a line; seconds and tokens."""
    lines = ",\n".join(f"    {json.dumps(asdict(row), allow_nan=False)}" for row in rows)
    return f'{{\n  "tool": {json.dumps(TOOL)},\n  "rows": [\n{lines}\n  ]\n}}\n'


def table(rows: "Sequence[Row]") -> str:
    """Return one line per system, temperature by temperature."""
    blocks = []
    for temperature in dict.fromkeys(row.temperature for row in rows):
        chosen = [row for row in rows if row.temperature == temperature]
        width = max(len(row.setting) for row in chosen)
        lines = [
            f"temperature {temperature:g}",
            "",
            (
                f"{'system':<14}{'rule':<10}{'setting':<{width}}{'tokens':>8}{'step':>8}{'draft':>8}{'verify':>8}{'rest':>7}"
                f"{'tokens':>8}{'speedup':>9}{'predicted':>10}  lossless"
            ),
            f"{'':<24}{'':<{width}}{'/step':>8}{'ms':>8}{'ms':>8}{'ms':>8}{'ms':>7}{'/s':>8}",
        ]
        lines += [_line(row, width) for row in chosen]
        blocks.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(blocks)


def _line(row: "Row", width: int) -> str:
    times = [milliseconds(each) if each > 0 else "0" for each in (row.step_s, row.draft_s, row.verify_s, row.rest_s)]
    step, draft, verify, rest = times
    return (
        f"{row.system:<14}{row.rule:<10}{row.setting:<{width}}{row.tokens_per_step:>8.2f}{step:>8}{draft:>8}{verify:>8}"
        f"{rest:>7}{row.tokens_per_s:>8.0f}{row.speedup:>9.2f}{row.predicted_speedup:>10.2f}"
        f"  {'yes' if row.lossless else 'NO'} ({row.evidence})"
    )


def _temperatures(given: str) -> list[float]:
    try:
        degrees = [float(each) for each in given.split(",")]
    except ValueError:
        raise click.UsageError(f"--temperatures: expected numbers with commas between. Got {given!r}.") from None
    if not all(0 <= each < float("inf") for each in degrees):
        raise click.UsageError(f"--temperatures: expected numbers of at least 0. Got {given!r}.")
    return degrees
