"""The page of the gallery: what the profiles of a folder hold, and what follows from them.

Nothing is measured for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from treeopt import Profile, plan
from treeopt.planner import Plan
from treeopt.planner.comparison import compare
from treeopt.records.latency import LatencyTable
from treeopt.records.profile import StepLatency
from treeopt.records.rules import rule_label
from treeopt.report.text import milliseconds, spread
from treeopt.trees.formats import NamedTree

VERIFIED, DRAFTED = (1, 8, 64, 256, 512), (1, 8)
"""Tokens of the passes whose times are shown."""
MAX_NODES = 512
BY = ", by "
"""In a profile's `tool`, what stands before the command that made it."""
BY_HAND = {
    "bundled-2-cores-llama-cpp-f16": "treeopt profile --target bundled-target.gguf --draft bundled-draft.gguf --threads 2 "
    "--max-tokens 128 --time-budget 80s",
    "bundled-2-cores": "treeopt profile",
    "bundled-2-cores-outcomes": "treeopt profile",
    "bundled-2-cores-surface": "treeopt profile --context-tokens 64,256,768 --batch-sizes 1,4 --temperature 0,0.6 "
    "--max-tokens 128 --time-budget 3m",
    "bundled-2-cores-rules": "treeopt profile --rules sequoia,specinfer,target,traversal --temperature 0.6",
}
"""Commands that made profiles which do not say so themselves."""
UNKNOWN = "-"

HEAD = """# Profiles that were measured

The times of every file here were measured on the machine it names.
Each is a [profile file](../profile-file.md), which all commands take: `treeopt solve --profile docs/profiles/NAME.yaml`.

- **Random weights.** A model named `-random` has the shape of the model in its name and random weights. Times do not depend on weights. Acceptance does, so there it is imported: the vectors that Sequoia published. Sequoia's files name no temperature; the profile gives the one that was timed.
- **Overhead.** Random drafts are hardly ever accepted, so the overhead in these files is that of steps which keep short paths.
- **Several vectors.** Where a file holds several, `treeopt solve` plans with the first. This page plans with each alone.
- **Passes.** `graphs` are replayed as CUDA graphs, `eager` ones are launched kernel by kernel. On a CPU all are eager.

`tools/gallery.py` measures, and writes this page. From the files alone it is written anew by `python tools/gallery.py --page-only --trees FILE…`.
`sh tools/gpu_checks.sh FOLDER ACCEPTANCE TREES…` does all of it on a machine with a GPU, after the tests that need one.
"""
TIMES = """## Times

Medians in milliseconds: verification of so many tokens, and drafting of one level of so many nodes.
"""
BEST = """## The best trees

What [planning](../planning.md) makes of each curve and acceptance, with 95 % intervals: the fastest of all trees, chains and plain decoding (1 node) of up to 512 nodes.
Where several rules were measured, it is that of the best of them.
"""
SHIPPED = """## Beside the trees that Sequoia ships

Predicted speedup of each on the same curves and under the same rule, nodes in parentheses, as by [`treeopt compare`](../comparing.md).
A tree larger or deeper than what was measured is not predicted.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One profile of the gallery."""

    name: str
    profile: Profile

    @property
    def way(self) -> str:
        """`graphs` or `eager`, as its name ends."""
        return "graphs" if self.name.endswith("-graphs") else "eager"

    @property
    def command(self) -> str:
        """The command that made it."""
        return self.profile.tool.partition(BY)[2] or BY_HAND.get(self.name, UNKNOWN)

    @property
    def machine(self) -> str:
        """The processor, and on a CPU the threads that were used."""
        machine = self.profile.machine
        return machine.processor if machine.device != "cpu" else f"{machine.processor}, threads: {machine.threads}"

    @property
    def pair(self) -> str:
        """Both models."""
        return self.profile.pair.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What follows from one profile under one acceptance and one condition."""

    entry: Entry
    acceptance: str
    """In words."""
    plan: Plan

    @property
    def where(self) -> tuple[str, ...]:
        """The first cells of its row."""
        condition = self.plan.model.condition
        return self.entry.name, self.acceptance, f"{condition.context_tokens} x {condition.batch_size}"


def gallery_page(folder: Path, trees: Sequence[NamedTree]) -> str:
    """Return the page of all profiles of a folder, beside these trees."""
    entries = [Entry(name=path.stem, profile=Profile.load(path)) for path in sorted(folder.glob("*.yaml"))]
    planned = [each for entry in entries for each in plans(entry)]
    parts = [HEAD, "## Files\n", files_table(entries), TIMES, times_table(entries), BEST, best_table(planned)]
    if trees:
        parts += [SHIPPED, shipped_table(planned, trees)]
    return "\n".join(parts)


def plans(entry: Entry) -> Iterator[Planned]:
    """Yield what follows under every acceptance and condition of a profile."""
    for acceptance, profile in by_acceptance(entry.profile):
        for latency in profile.latencies_at(profile.acceptances[0].temperature):
            found = plan(
                profile,
                min(MAX_NODES, latency.verify.max_tokens),
                context_tokens=latency.context_tokens,
                batch_size=latency.batch_size,
            )
            yield Planned(entry=entry, acceptance=acceptance, plan=found)


def by_acceptance(profile: Profile) -> Iterator[tuple[str, Profile]]:
    """Yield the profile with each imported acceptance alone, and with the measured ones of each temperature."""
    for each in profile.acceptances:
        if each.imported:
            yield each.imported[0].source, replace(profile, acceptances=(each,))
    measured = [each for each in profile.acceptances if not each.imported]
    for temperature in dict.fromkeys(each.temperature for each in measured):
        of_it = tuple(each for each in measured if each.temperature == temperature)
        yield f"measured at temperature {temperature:g}", replace(profile, acceptances=of_it)


def files_table(entries: Sequence[Entry]) -> str:
    """Return which files there are, and where they come from."""
    header = ("file", "machine", "pair", "dtype", "passes", "date", "command")
    rows = [
        (
            f"[{entry.name}]({entry.name}.yaml)",
            entry.machine,
            entry.pair,
            entry.profile.pair.dtype,
            entry.way,
            entry.profile.created[:10],
            f"`{entry.command}`",
        )
        for entry in entries
    ]
    return table(header, rows)


def times_table(entries: Sequence[Entry]) -> str:
    """Return the medians of passes of a few sizes."""
    header = (
        "file",
        "context x batch",
        "timed",
        *(f"verify {tokens}" for tokens in VERIFIED),
        *(f"draft {tokens}" for tokens in DRAFTED),
    )
    rows = [
        (
            entry.name,
            f"{latency.context_tokens} x {latency.batch_size}",
            timed(latency),
            *(median(latency.verify, tokens) for tokens in VERIFIED),
            *(median(latency.draft, tokens) for tokens in DRAFTED),
        )
        for entry in entries
        for latency in entry.profile.latencies
    ]
    return table(header, rows)


def timed(latency: StepLatency) -> str:
    """Return how the timed steps chose tokens."""
    return UNKNOWN if latency.sampled is None else "sampled" if latency.sampled else "greedy"


def median(measured: LatencyTable, tokens: int) -> str:
    """Return the milliseconds of a pass, if it was measured."""
    return milliseconds(float(measured.seconds(tokens))) if tokens <= measured.max_tokens else UNKNOWN


def best_table(planned: Sequence[Planned]) -> str:
    """Return the fastest of all trees under every condition."""
    header = ("file", "acceptance", "context x batch", "rule", "nodes", "depth", "tokens/step", "step, ms", "speedup")
    rows = [
        (
            *each.where,
            rule_label(each.plan.rule),
            str(best.tree.nodes),
            str(best.tree.max_depth),
            spread(best.tokens_per_step),
            spread(best.step_s, 1000),
            spread(best.speedup),
        )
        for each in planned
        for best in (each.plan.choice,)
    ]
    return table(header, rows)


def shipped_table(planned: Sequence[Planned], trees: Sequence[NamedTree]) -> str:
    """Return what other trees come to, one column each."""
    names = (f"{each.name} ({each.tree.nodes})" for each in trees)
    header = ("file", "acceptance", "context x batch", "the best", *names)
    rows = [
        (
            *each.where,
            f"{each.plan.choice.speedup.value:.2f}",
            *(
                UNKNOWN if one.prediction is None else f"{one.prediction.speedup.value:.2f}"
                for one in compare(each.plan.model, [given.tree for given in trees])
            ),
        )
        for each in planned
    ]
    return table(header, rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, an empty line behind it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
