"""What the reader of a page has to be careful with, each with what to do."""

from collections.abc import Iterator

from treeopt.planner.planned import Planned
from treeopt.records.identity import Identity
from treeopt.records.profile import Profile
from treeopt.records.warnings import (
    BatchesWithoutTimes,
    Caution,
    OtherPair,
    TextDiffers,
    TextsDiffer,
    TextsOfBatchDiffer,
    TextsOfStreamsDiffer,
)
from treeopt.report.batch_bench import differing_texts
from treeopt.report.context_warnings import context_warnings
from treeopt.report.drift_bench import differing_streams
from treeopt.report.html.contents import Contents
from treeopt.report.html.shapes import shortened
from treeopt.report.plan_text import warnings as plan_warnings
from treeopt.report.probe_text import doubts
from treeopt.report.times_warnings import warnings as times_warnings

NOT_RACED = (
    "nothing here was measured after it was promised: bars and numbers are predictions. Race the choice with {} --output bench.json, "
    "and name bench.json too."
)


def cautions(contents: Contents) -> tuple[str, ...]:
    """Return all warnings in words, each once."""
    found: list[str] = []
    if contents.planned is not None:
        found += map(str, _of_profile(contents.planned))
        raced = len(contents.benches) > len(contents.streams)  # streams race plans of their own
        found += [] if raced else [NOT_RACED.format(_bench_command(contents.planned.profile))]
        found += (str(each) for each in _of_trees(contents, contents.planned.profile))
    found += (f"{label}: {each}" for label, each in _of_benches(contents))
    return tuple(dict.fromkeys(_sentence(each) for each in found))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _of_profile(planned: Planned) -> list[Caution]:
    found = [
        *plan_warnings(planned.plan),
        *context_warnings(planned.plan, planned.profile, planned.schedule, planned.drafters),
        *times_warnings(planned.profile.latencies),
    ]
    return found + (list(doubts(planned.profile)) if planned.profile.engine is not None else [])


def _of_trees(contents: Contents, profile: Profile) -> Iterator[Caution]:
    here = Identity.of(profile.pair, profile.machine)
    for each in contents.trees:
        known = each.content.provenance
        if known is None or known.pair is None:
            continue
        if known.pair != here.pair:
            said = f"{shortened(each.label)} was planned for"
            yield OtherPair(said, known.pair, here.pair, "name its own profile")


def _of_benches(contents: Contents) -> Iterator[tuple[str, Caution]]:
    for label, tree in contents.tree_benches:
        if tree.identical_to_plain_decoding is False and not all(each.near_tie for each in tree.divergences or ()):
            yield shortened(label), TextDiffers()
    for label, grid in contents.grids:
        differing = sum(row.identical_to_plain_decoding is False for row in grid.trees)
        if differing:
            yield shortened(label), TextsDiffer(differing)
    for label, batches in contents.batches:
        if faults := differing_texts(batches):
            yield shortened(label), TextsOfBatchDiffer(faults)
        unknown = [
            size.batch_size for size in batches.sizes if all(row.predicted_tokens_per_s is None for row in size.rows)
        ]
        if unknown:
            yield shortened(label), BatchesWithoutTimes(tuple(unknown))
    for label, found in contents.streams:
        if differing_found := differing_streams(found.streams):
            yield shortened(label), TextsOfStreamsDiffer(differing_found)


def _bench_command(profile: Profile) -> str:
    return "treeopt bench tree.json" if profile.engine is None else f"treeopt bench --engine {profile.engine.name}"
