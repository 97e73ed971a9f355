"""`treeopt report`: one page with profiles, trees and benchmarks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import PROFILE, file, is_profile, load_profile, output_option, read_any_tree
from treeopt.cli.options.plan import PlanOptions
from treeopt.cli.options.record import argument, group, refuse_other_options
from treeopt.cli.outputs import is_stdout
from treeopt.cli.plan_profile import plan_profile
from treeopt.errors import TreeoptError
from treeopt.files.atomic_files import read_bytes, write_text
from treeopt.planner import PlanRequest
from treeopt.records.bench_file import MAX_BYTES, Bench, is_bench, parse_benches
from treeopt.report.html.contents import Contents, LabelledBench
from treeopt.trees import TreeFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    paths: tuple[Path, ...] = argument(type=file, metavar="[FILE]…", nargs=-1)
    plan: PlanOptions = group(PlanOptions)
    written: Path = output_option("Page to write; - for standard output.", default=Path("report.html"))


@click.command(cls=Command, record=ReportOptions)
def report(args: ReportOptions) -> None:
    """Write one page with a profile, trees and benchmarks.

    Each FILE is a profile, a tree in any known format (treeopt import --list), or results that treeopt bench wrote with
    --output; the default is profile.yaml.  The page is self-contained: it can be opened, sent and printed as it is.
    """
    contents = _load_contents(args.paths or (PROFILE,), args.plan.request)
    from treeopt.report.html.page import page

    write_text(args.written, page(contents))
    if not is_stdout(args.written):
        click.echo(f"Written to {args.written}", err=True)


def _load_contents(paths: Sequence[Path], request: PlanRequest) -> Contents:
    """Read all files, whose kind is recognised by content, and plan from the profile."""
    profiles = [path for path in paths if is_profile(path) or (path == PROFILE and not path.exists())]
    if len(profiles) > 1:
        raise click.UsageError(f"expected one profile. Got {', '.join(map(str, profiles))}: write a page for each.")
    if not profiles:
        reason = "expected a profile to plan from. Got none: name one, or leave the option out."
        refuse_other_options(["written"], reason)
    profile = load_profile(profiles[0]) if profiles else None
    trees: list[tuple[str, TreeFile]] = []
    benches: list[LabelledBench[Bench]] = []
    for path in paths:
        if path in profiles:
            continue
        if path.is_file() and is_bench(data := read_bytes(path, limit_bytes=MAX_BYTES)):
            benches += _parse_benches(path, data)
        else:
            trees.append((str(path), read_any_tree(path)))
    return Contents(
        planned=None if profile is None else plan_profile(profile, request),
        profile_name=str(profiles[0]) if profiles else "",
        trees=tuple(trees),
        benches=tuple(benches),
    )


def _parse_benches(path: Path, data: bytes) -> list[LabelledBench[Bench]]:
    try:
        results = parse_benches(path, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise TreeoptError(f"{path}: not UTF-8 text (byte {error.start}). Is it another kind of file?") from None
    names = [str(path)] if len(results) == 1 else [f"{path}, number {number + 1}" for number in range(len(results))]
    return [LabelledBench(name, result.bench, result.heading) for name, result in zip(names, results, strict=True)]
