"""Warnings of a page, each with what to do."""

from collections.abc import Iterator

from treeopt.errors import Warning
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.records.bench_file import Bench, GridBench, TreeBench
from treeopt.records.identity import Identity, pair_mismatch_warning
from treeopt.records.profile import Profile
from treeopt.records.results import BatchBench
from treeopt.report.batch_bench import batch_outputs_warning, without_times_warning
from treeopt.report.bench_text import grid_outputs_warning, tree_outputs_warning
from treeopt.report.html.answer import bench_command
from treeopt.report.html.contents import Contents
from treeopt.report.html.parts import shortened
from treeopt.report.plan_warnings import profile_plan_warnings, times_warnings
from treeopt.report.probe_text import probe_warnings

NOT_MEASURED = "These numbers are predictions. Measure the choice with {}, and add that file."


def page_warnings(contents: Contents) -> tuple[str, ...]:
    """Return the text of every warning once."""
    texts: list[str] = []
    if contents.planned is not None:
        texts += (warning.sentence for warning in _of_profile(contents.planned))
        if not contents.benches and (command := bench_command(contents)) is not None:
            texts.append(NOT_MEASURED.format(command))
        texts += map(str, _of_trees(contents, contents.planned.profile))
    texts += map(str, _of_other_benches(contents))
    texts += (f"{label}: {warning}" for label, warning in _of_benches(contents))
    return tuple(dict.fromkeys(texts))


def _of_profile(planned: ProfilePlan) -> list[Warning]:
    profile = planned.profile
    warnings = [*profile_plan_warnings(planned), *times_warnings(profile.latencies)]
    return warnings + (list(probe_warnings(profile)) if profile.engine is not None else [])


def _of_trees(contents: Contents, profile: Profile) -> Iterator[Warning]:
    """Yield the trees that were planned for another pair than the profile's."""
    pair = Identity.of(profile.pair, profile.machine).pair
    for label, tree in contents.trees:
        provenance = tree.provenance
        if provenance is None or provenance.pair is None or provenance.pair == pair:
            continue
        yield pair_mismatch_warning(
            f"{shortened(label)} was planned for", provenance.pair, pair, "name its own profile"
        )


def _of_other_benches(contents: Contents) -> Iterator[Warning]:
    """Yield the benches of another pair, another machine or other conditions than the page's."""
    identity = contents.identity
    for bench in contents.sorted_benches:
        other = bench.heading.identity
        models = "other models of these names" if other.pair == identity.pair else f"{other.pair}, not {identity.pair}"
        pair = () if identity.same_pair(other) else (shortened(models, 200),)
        if differences := (*pair, *other.differences(identity)):
            yield Warning(
                f"{shortened(bench.label)} was measured with {'; '.join(differences)}: the answer ignores it.",
                "Name the profile that belongs to it, or bench here.",
            )


def _of_benches(contents: Contents) -> Iterator[tuple[str, Warning]]:
    for bench in contents.sorted_benches:
        yield from ((shortened(bench.label), warning) for warning in _of_bench(bench.content))


def _of_bench(bench: Bench) -> Iterator[Warning]:
    warning = None
    if isinstance(bench, TreeBench):
        warning = tree_outputs_warning(bench)
    elif isinstance(bench, GridBench):
        warning = grid_outputs_warning(bench)
    elif isinstance(bench, BatchBench):
        warning = batch_outputs_warning(bench)
    if warning is not None:
        yield warning
    if isinstance(bench, BatchBench):
        unpredicted = [
            size.batch_size for size in bench.sizes if all(row.predicted.speedup is None for row in size.rows)
        ]
        if unpredicted:
            yield without_times_warning(unpredicted)
