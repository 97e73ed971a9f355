"""The page itself: sections of figures and tables, written as one file that asks for nothing."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import TypeVar

from treeopt.pictures.themes import DARK, LIGHT, Theme
from treeopt.planner.planned import Planned
from treeopt.records.bench_heading import BenchHeading
from treeopt.report.batch_bench import verdicts
from treeopt.report.bench_heading import heading_words
from treeopt.report.drafter_contexts_text import drafter_switch_lines
from treeopt.report.html import acceptance, batches, benches, passes, schedules, speedups
from treeopt.report.html.cautions import cautions
from treeopt.report.html.contents import Contents, LabelledBench
from treeopt.report.html.facts import facts
from treeopt.report.html.shapes import Figure, shortened
from treeopt.report.html.tables import Table
from treeopt.report.html.tree_drawing import nodes_table, tree_figure
from treeopt.report.html.verdict import Verdict, verdict
from treeopt.report.plan_text import models_and_machine, remarks, subject
from treeopt.report.profile_words import labelled_acceptances
from treeopt.version import TOOL

B = TypeVar("B")
DENSITIES = range(101)
"""Steps in which legends show how dense a colour is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page."""

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    conditions: str = ""
    """What all its figures were drawn for: pair, machine, rule, temperature and date."""

    @property
    def where(self) -> str:
        """The conditions below every figure; the last part of the page has names of thousands of letters whole."""
        return shortened(self.conditions, 300)


def page(contents: Contents) -> str:
    """Return the whole page as HTML.

    Raises InvalidValueError only through what it is made from; texts of files and models are never more than text.
    """
    from jinja2 import Environment, StrictUndefined

    found, parts = verdict(contents), sections(contents)
    script, style = _part("page.js"), _style()
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_part("page.html.j2")).render(
        tool=TOOL,
        title=shortened(_title(contents), 120),
        verdict=found,
        sections=parts,
        cautions=cautions(contents),
        facts=facts(contents),
        script=script,
        style=style,
        script_hash=_checksum(script),
        style_hash=_checksum(style),
        summary=in_script(_summary(found)),
    )


def sections(contents: Contents) -> tuple[Section, ...]:
    """Return the parts that there is something to show of, in the order in which they are read."""
    found: list[Section] = []
    if contents.planned is not None:
        found += _planned(contents.planned)
    found += _trees(contents)
    found += _benches(contents)
    found += _batches(contents)
    return tuple(found)


def in_script(value: object) -> str:
    r"""Return a value as JSON for a script element, which no text in it can end.

    >>> in_script({"name": "</script>"})
    '{"name": "\\u003c/script>"}'
    """
    return json.dumps(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _planned(planned: Planned) -> list[Section]:
    profile, plan, said = planned.profile, planned.plan, _conditions(planned)
    whole = profile.engine is not None
    best = planned.best
    others = None if best is None or best.option.drafter.name == "model" else best
    timed = [passes.verification(planned)]
    tables = [passes.times(profile.step_latencies, "verify", "verify-times", "Steps" if whole else "Verification")]
    if not whole and profile.has_draft_model:
        timed += [passes.drafting(planned), passes.steps(planned)]
        tables += [
            passes.times(profile.latencies, "draft", "draft-times", "Drafting one level"),
            passes.overheads(profile),
        ]
    maps = [
        acceptance.heat_map(f"acceptance-{number}", label, measured)
        for number, (label, measured) in enumerate(labelled_acceptances(profile))
    ]
    speed = Section(
        name="speed",
        title="How fast which tree is" if others is None else "How fast which tree of the draft model is",
        sentences=tuple(remarks(plan, None)),
        figures=(speedups.budgets_and_depths(plan),),
        tables=(speedups.candidates(plan),),
        conditions=said,
    )
    found = [
        *([speed] if profile.has_draft_model else []),
        Section(name="times", title="What passes take", figures=tuple(timed), tables=tuple(tables), conditions=said),
    ]
    if maps:
        found.append(
            Section(
                name="acceptance",
                title="What is accepted",
                figures=tuple(maps),
                tables=(acceptance.numbers(profile),),
                conditions=f"{subject(profile)}, {profile.created[:10]}",
            )
        )
    if (compared := speedups.choices(planned)) is not None:
        figure, table = compared
        found.insert(
            int(profile.has_draft_model),
            Section(
                name="drafters", title="Every drafter and rule", figures=(figure,), tables=(table,), conditions=said
            ),
        )
    return found + _where_to_run(planned)


def _where_to_run(planned: Planned) -> list[Section]:
    profile, schedule, segments = planned.profile, planned.schedule, planned.over_contexts
    figures: list[Figure] = []
    tables: list[Table] = []
    if schedule is not None:
        drawn, table = schedules.schedules(schedule)
        figures, tables = [*figures, *drawn], [table]
    if segments:
        figure, table = schedules.drafters_over_contexts(segments, planned.plan.temperature)
        figures, tables = [*figures, figure], [*tables, table]
    if not tables:
        return []
    return [
        Section(
            name="schedule",
            title="What to run where",
            sentences=tuple(drafter_switch_lines(segments)) if segments else (),
            figures=tuple(figures),
            tables=tuple(tables),
            conditions=f"{subject(profile)}, {profile.created[:10]}",
        )
    ]


def _trees(contents: Contents) -> list[Section]:
    trees = [(each.label, each.content) for each in contents.trees]
    if not trees and contents.planned is not None:
        from treeopt.planner import tree_file

        planned = contents.planned
        best = planned.best
        option = planned.plan.choice if best is None else best.option
        if option.tree.nodes > 1 and not option.drafter.own_trees:
            trees = [("the choice", tree_file(planned.plan, planned.profile, source="this page", choice=best))]
    if not trees:
        return []
    return [
        Section(
            name="trees",
            title="The tree" if len(trees) == 1 else "The trees",
            figures=tuple(
                tree_figure(f"tree-{number}", label, content) for number, (label, content) in enumerate(trees)
            ),
            tables=tuple(
                nodes_table(f"nodes-{number}", label, content) for number, (label, content) in enumerate(trees)
            ),
            conditions=", ".join(
                filter(None, (known.created or "" for _, each in trees[:1] if (known := each.provenance)))
            ),
        )
    ]


def _benches(contents: Contents) -> list[Section]:
    drawn: list[tuple[Figure, Table]] = []
    if trees := contents.tree_benches:
        figure, table = benches.trees(trees)
        drawn.append((_raced(figure, *(each.heading for each in trees)), table))
    drawn += _numbered("grid", contents.grids, benches.grid)
    drawn += _numbered("engine", contents.engines, benches.engine)
    drawn += _numbered("methods", contents.methods, benches.methods)
    if not drawn:
        return []
    where = "" if contents.planned is None else _conditions(contents.planned)
    return [
        Section(
            name="measured",
            title="Predicted beside measured",
            figures=tuple(figure for figure, _ in drawn),
            tables=tuple(table for _, table in drawn),
            conditions=where,
        )
    ]


def _numbered(
    name: str, found: Sequence[LabelledBench[B]], draw: Callable[[str, str, B], tuple[Figure, Table]]
) -> Iterator[tuple[Figure, Table]]:
    """Yield the figure and the table of each bench of a kind."""
    for number, each in enumerate(found):
        figure, table = draw(f"{name}-{number}", each.label, each.bench)
        yield _raced(figure, each.heading), table


def _batches(contents: Contents) -> list[Section]:
    known = [(f"batch-{number}", each) for number, each in enumerate(contents.batches)]
    if not known:
        return []
    told = [(each.label, (*verdicts(each.bench), batches.overhead_in_words(each.bench))) for _, each in known]
    return [
        Section(
            name="several-texts",
            title="Several texts at a time",
            sentences=tuple(_of_file(label, said, len(told)) for label, each in told for said in each),
            figures=tuple(
                _raced(figure, each.heading)
                for name, each in known
                for figure in batches.figures(name, each.label, each.bench)
            ),
            tables=tuple(table for name, each in known for table in batches.tables(name, each.label, each.bench)),
            conditions=_subject(contents),
        )
    ]


def _of_file(label: str, said: str, files: int) -> str:
    """Return a sentence with the file that it is of, where there are several."""
    return said if files == 1 else f"{shortened(label, 50)}: {said}"


def _subject(contents: Contents) -> str:
    """Return the pair and machine of the profile, if there is one."""
    return "" if contents.planned is None else subject(contents.planned.profile)


def _raced(figure: Figure, *headings: BenchHeading) -> Figure:
    """Return the figure of some benches with what they are of."""
    words = dict.fromkeys(map(heading_words, headings))
    return replace(figure, conditions=shortened("; ".join(words), 300))


def _conditions(planned: Planned) -> str:
    return f"{subject(planned.profile)}, {planned.plan.conditions}, {planned.profile.created[:10]}"


def _title(contents: Contents) -> str:
    if contents.planned is not None:
        return subject(contents.planned.profile)
    for each in contents.trees:
        known = each.content.provenance
        if known is not None and known.pair is not None:
            return known.pair + ("" if known.machine is None else f" on {known.machine}")
    for bench in contents.sorted_benches:
        return models_and_machine(bench.heading.pair, bench.heading.machine)
    return "Speculative decoding"


def _summary(found: Verdict | None) -> dict[str, object]:
    if found is None:
        return {"tool": TOOL}
    return {
        "tool": TOOL,
        "choice": {"shape": found.shape, "nodes": found.nodes, "depth": found.depth},
        "promised_speedup": found.promised,
        "measured_speedup": found.measured,
    }


def _style() -> str:
    """Return the style sheet with the colours of both themes."""
    light, dark = _colours(LIGHT), _colours(DARK)
    dense = "".join(f".cell{share}{{fill-opacity:{share / 100:g}}}" for share in DENSITIES)
    themes = (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f":root[data-theme=light]{{color-scheme:light;{light}}}:root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"@media print{{:root,:root[data-theme]{{color-scheme:light;{light}}}}}"
    )
    return themes + dense + _part("page.css")


def _colours(theme: Theme) -> str:
    names = ("paper", "panel", "ink", "muted", "line", "pale", "tree", "chain", "plain", "choice")
    series = (f"--s{number}:{colour};" for number, colour in enumerate(theme.series, 1))
    return "".join((*(f"--{name}:{getattr(theme, name)};" for name in names), *series))


def _part(name: str) -> str:
    return resources.files("treeopt.report.html").joinpath(name).read_text("utf-8")


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
