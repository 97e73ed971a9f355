"""What the reader of a page has to be careful with, each with what to do."""

from collections.abc import Iterator

from treeopt.errors import Warning
from treeopt.planner.planned import Planned
from treeopt.records.identity import Identity, other_pair_warning
from treeopt.records.profile import Profile
from treeopt.report import batch_bench, grid_bench
from treeopt.report.batch_bench import differing_texts
from treeopt.report.context_warnings import context_warnings
from treeopt.report.html.contents import Contents
from treeopt.report.html.shapes import shortened
from treeopt.report.plan_text import warnings as plan_warnings
from treeopt.report.probe_text import doubts
from treeopt.report.times_warnings import warnings as times_warnings
from treeopt.report.tree_bench import OUTPUT_DIFFERS

NOT_RACED = (
    "nothing here was measured after it was promised: bars and numbers are predictions. Race the choice with {} --output bench.json, "
    "and name bench.json too."
)


def cautions(contents: Contents) -> tuple[str, ...]:
    """Return all warnings in words, each once."""
    found: list[str] = []
    if contents.planned is not None:
        found += map(str, _of_profile(contents.planned))
        found += [] if contents.benches else [NOT_RACED.format(_bench_command(contents.planned.profile))]
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
    """Yield what benches are of where it is not the page's pair, machine and conditions."""
    here = contents.identity
    for each in contents.sorted_benches:
        raced = each.heading.identity
        same_name = "other models of these names" if raced.pair == here.pair else f"{raced.pair}, not {here.pair}"
        pair = () if here.same_pair(raced) else (shortened(same_name, 200),)
        if differing := (*pair, *raced.differences(here)):
            yield Warning(
                f"{shortened(each.label)} was measured with {'; '.join(differing)}: the verdict leaves it out.",
                "Name the profile that belongs to it, or bench here.",
            )


def _of_benches(contents: Contents) -> Iterator[tuple[str, Warning]]:
    for tree in contents.tree_benches:
        parted = tree.bench.divergences or ()
        if tree.bench.identical_to_plain_decoding is False and not all(each.near_tie for each in parted):
            yield shortened(tree.label), OUTPUT_DIFFERS
    for grid in contents.grids:
        differing = sum(row.identical_to_plain_decoding is False for row in grid.bench.trees)
        if differing:
            yield shortened(grid.label), grid_bench.outputs_warning(differing)
    for batches in contents.batches:
        if faults := differing_texts(batches.bench):
            yield shortened(batches.label), batch_bench.outputs_warning(faults)
        unknown = [
            size.batch_size
            for size in batches.bench.sizes
            if all(row.predicted_tokens_per_s is None for row in size.rows)
        ]
        if unknown:
            yield shortened(batches.label), batch_bench.without_times_warning(unknown)


def _bench_command(profile: Profile) -> str:
    return "treeopt bench tree tree.json" if profile.engine is None else f"treeopt bench engine {profile.engine.name}"
