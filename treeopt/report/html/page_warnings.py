"""Warnings of a page, each with what to do."""

from collections.abc import Iterator

from treeopt.errors import Warning
from treeopt.planner.planned import Planned
from treeopt.records.batch_bench import BatchBench
from treeopt.records.bench_file import Bench, GridBench, TreeBench
from treeopt.records.identity import Identity, other_pair_warning
from treeopt.records.profile import Profile
from treeopt.report import batch_bench, grid_bench
from treeopt.report.context_warnings import context_warnings
from treeopt.report.html.answer import bench_command
from treeopt.report.html.contents import Contents
from treeopt.report.html.parts import shortened
from treeopt.report.plan_text import warnings as plan_warnings
from treeopt.report.probe_text import doubts
from treeopt.report.times_warnings import warnings as times_warnings
from treeopt.report.tree_bench import OUTPUT_DIFFERS

NOT_MEASURED = "These numbers are predictions. Measure the choice with {}, and add the file that it writes."


def page_warnings(contents: Contents) -> tuple[str, ...]:
    """Return all warnings in words, each once."""
    found: list[str] = []
    if contents.planned is not None:
        found += map(str, _of_profile(contents.planned))
        found += [] if contents.benches else [NOT_MEASURED.format(bench_command(contents))]
        found += (str(each) for each in _of_trees(contents, contents.planned.profile))
    found += map(str, _of_other_benches(contents))
    found += (f"{label}: {each}" for label, each in _of_benches(contents))
    return tuple(dict.fromkeys(_sentence(each) for each in found))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _of_profile(planned: Planned) -> list[Warning]:
    found = [
        *plan_warnings(planned.plan),
        *context_warnings(planned.plan, planned.profile, planned.schedule, planned.drafters),
        *times_warnings(planned.profile.latencies),
    ]
    return found + (list(doubts(planned.profile)) if planned.profile.engine is not None else [])


def _of_trees(contents: Contents, profile: Profile) -> Iterator[Warning]:
    here = Identity.of(profile.pair, profile.machine)
    for each in contents.trees:
        known = each.content.provenance
        if known is None or known.pair is None:
            continue
        if known.pair != here.pair:
            said = f"{shortened(each.label)} was planned for"
            yield other_pair_warning(said, known.pair, here.pair, "name its own profile")


def _of_other_benches(contents: Contents) -> Iterator[Warning]:
    """Yield the benches of another pair, machine or other conditions than the page's."""
    here = contents.identity
    for each in contents.sorted_benches:
        other = each.heading.identity
        same_name = "other models of these names" if other.pair == here.pair else f"{other.pair}, not {here.pair}"
        pair = () if here.same_pair(other) else (shortened(same_name, 200),)
        if differing := (*pair, *other.differences(here)):
            yield Warning(
                f"{shortened(each.label)} was measured with {'; '.join(differing)}: the answer leaves it out.",
                "Name the profile that belongs to it, or bench here.",
            )


def _of_benches(contents: Contents) -> Iterator[tuple[str, Warning]]:
    for each in contents.sorted_benches:
        yield from ((shortened(each.label), warning) for warning in _of_bench(each.content))


def _of_bench(bench: Bench) -> Iterator[Warning]:
    if isinstance(bench, TreeBench):
        if not all(each.near_tie for each in bench.measured.divergences or ()):
            yield OUTPUT_DIFFERS
    elif isinstance(bench, GridBench):
        if differing := sum(each.measured.identical is False for each in bench.trees):
            yield grid_bench.outputs_warning(differing)
    elif isinstance(bench, BatchBench):
        if faults := batch_bench.differing_texts(bench):
            yield batch_bench.outputs_warning(faults)
        unknown = [
            size.batch_size for size in bench.sizes if all(row.predicted_tokens_per_s is None for row in size.rows)
        ]
        if unknown:
            yield batch_bench.without_times_warning(unknown)
