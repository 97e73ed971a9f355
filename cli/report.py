"""`treeopt report`: one page of all that was measured and planned."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import PROFILE, file, is_profile, load_profile, output_option, read_any_tree
from treeopt.cli.options.plan import PlanOptions
from treeopt.cli.options.record import argument, group, options
from treeopt.cli.plan_profile import plan_profile
from treeopt.errors import TreeoptError
from treeopt.files.whole_files import STANDARD_STREAM, read_bytes, write_text

if TYPE_CHECKING:
    from treeopt.planner import PlanRequest
    from treeopt.records.bench_file import Bench
    from treeopt.report.html.contents import Contents, LabelledBench, LabelledTree


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What is shown, planned how, and where the page goes."""

    paths: tuple[Path, ...] = field(metadata=argument(type=file, metavar="[FILE]…", nargs=-1))
    plan: PlanOptions = field(metadata=group(PlanOptions))
    written: Path = field(
        metadata=output_option(
            "written", "Page to write; - is standard output.", default=Path("report.html"), show_default=True
        )
    )


@click.command(cls=Command)
@options(ReportOptions)
def report(asked: ReportOptions) -> None:
    """Write one page that shows a profile, trees and benches.

    FILEs are a profile, trees in any known format (treeopt import --list) and what treeopt bench wrote with --output, in any order;
    without any it is profile.yaml.  The page asks for nothing: it can be opened, sent and printed as it is.
    """
    contents = _contents(asked.paths or (PROFILE,), asked.plan.request)
    from treeopt.report.html.page import page

    write_text(asked.written, page(contents))
    if str(asked.written) != STANDARD_STREAM:
        click.echo(f"Written to {asked.written}", err=True)


def _contents(paths: Sequence[Path], request: "PlanRequest") -> "Contents":
    """Return what the files hold, told apart by their content, and the plan of the profile among them."""
    from treeopt.report.html.contents import Contents

    profiles = [path for path in paths if is_profile(path) or (path == PROFILE and not path.exists())]
    if len(profiles) > 1:
        raise click.UsageError(f"expected one profile. Got {', '.join(map(str, profiles))}: write a page for each.")
    profile = load_profile(profiles[0]) if profiles else None
    trees: list[LabelledTree] = []
    benches: list[LabelledBench[Bench]] = []
    for path in paths:
        if path not in profiles:
            _read(path, trees, benches)
    planned = None if profile is None else plan_profile(profile, request)
    name = str(profiles[0]) if profiles else ""
    return Contents(planned=planned, profile_name=name, trees=tuple(trees), benches=tuple(benches))


def _read(path: Path, trees: "list[LabelledTree]", benches: "list[LabelledBench[Bench]]") -> None:
    """Add the trees or the benches that a file holds."""
    from treeopt.records.bench_file import MAX_BYTES, is_bench, parse_benches
    from treeopt.report.html.contents import LabelledBench, LabelledTree

    if path.is_file():
        data = read_bytes(path, limit_bytes=MAX_BYTES)
        if is_bench(data):
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise TreeoptError(
                    f"{path}: not UTF-8 text (byte {error.start}). Is it another kind of file?"
                ) from None
            found = parse_benches(path, text)
            names = [str(path)] if len(found) == 1 else [f"{path}, number {place + 1}" for place in range(len(found))]
            benches += [LabelledBench(name, each.bench, each.heading) for name, each in zip(names, found, strict=True)]
            return
    trees.append(LabelledTree(str(path), read_any_tree(path)))
