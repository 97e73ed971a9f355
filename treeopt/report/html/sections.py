"""The sections of the page: every figure with its caption and its tables."""

from collections.abc import Iterable, Sequence

from treeopt.files.record_form import written_record
from treeopt.pictures.panels import Panel
from treeopt.pictures.svg import svg_text
from treeopt.planner.planned import Planned
from treeopt.records.batch_bench import BatchBench
from treeopt.records.bench_file import GridBench, MethodsBench, TreeBench
from treeopt.records.bench_heading import BenchHeading
from treeopt.records.results import EngineBench
from treeopt.report.batch_bench import verdicts
from treeopt.report.bench_heading import heading_words
from treeopt.report.drafter_contexts_text import drafter_switch_lines
from treeopt.report.figures.acceptance import acceptance_panels
from treeopt.report.figures.benches import batches_panels, engine_panel, grid_panel, methods_panels, trees_panel
from treeopt.report.figures.rows import steps_panel
from treeopt.report.figures.schedules import drafters_panel, schedule_panels
from treeopt.report.figures.speedup_map import map_panel
from treeopt.report.figures.times import times_panels
from treeopt.report.html.contents import Contents, LabelledBench
from treeopt.report.html.parts import PageFigure, Section, Table, shortened
from treeopt.report.plan_text import remarks, subject
from treeopt.report.profile_words import labelled_acceptances
from treeopt.trees import TokenTree, TreeFile, describe_tree
from treeopt.trees.figure import node_tips, tree_figure
from treeopt.trees.layout import most_reached_first, rank_paths
from treeopt.trees.tree_file import headline

MOST_NODES = 500
"""Drawn nodes of a tree, the most reached ones; the table has all."""
BETWEEN = "Between measured conditions times are interpolated linearly."


def sections(contents: Contents) -> list[Section]:
    """Return the sections that have something to show, in the order in which they are read."""
    found: list[Section] = []
    if contents.planned is not None:
        found += _plan(contents.planned)
    trees = [(each.label, each.content) for each in contents.trees] or _planned_tree(contents.planned)
    found += [_trees(trees)] if trees else []
    return found + _benches(contents)


def _plan(planned: Planned) -> list[Section]:
    profile, plan = planned.profile, planned.plan
    where = f"{subject(profile)}, {plan.conditions}, {profile.created[:10]}"
    measured = f"{subject(profile)}, {profile.created[:10]}"
    pair = profile.engine is None and profile.has_draft_model
    found = []
    if profile.has_draft_model:
        drafters = [{"drafter": each.option.drafter.words, **each.option.row} for each in planned.drafters]
        caption = "Predicted for the tree of most tokens within each budget and depth: blue is faster than plain decoding, orange slower."
        found.append(
            Section(
                name="speed",
                title="Speed of every tree",
                sentences=tuple(remarks(plan, None)),
                figures=(PageFigure.of("map", map_panel(plan), caption),),
                tables=_filled(
                    Table.of("candidates", "Plain decoding, chain, tree and budgets", plan.to_records()),
                    Table.of("rules", "The best tree of every rule", [{"rule": e.rule, **e.row} for e in plan.rules]),
                    Table.of("drafters", "The best of every drafter", drafters),
                ),
                conditions=where,
            )
        )
    times = [
        PageFigure.of(name, panel, caption)
        for name, panel, caption in zip(
            ("verification", "drafting"),
            times_panels(profile, plan),
            (
                "Seconds of a whole step over 1 plus the draft tokens." if not pair else "One pass of the target.",
                "One pass of the draft model, which drafts one level of the tree.",
            ),
            strict=False,
        )
    ]
    if pair:
        caption = "Overhead that grows with nodes and levels counts as theirs."
        times.append(PageFigure.of("steps", steps_panel(plan), caption))
    found.append(
        Section(
            name="times",
            title="Measured times",
            figures=tuple(times),
            tables=_filled(Table.of("times", "Times of all conditions", profile.to_records())),
            conditions=where,
        )
    )
    if maps := acceptance_panels(profile):
        rows = [
            {"acceptance": label, **row}
            for label, measured in labelled_acceptances(profile)
            for row in measured.table.to_records()
        ]
        caption = "How often the child of each rank is accepted, given that its parent was reached."
        figures = (PageFigure.of(f"acceptance-{number}", panel, caption) for number, panel in enumerate(maps))
        table = Table.of("acceptance", "Acceptance by depth and rank", rows)
        found.append(
            Section(name="acceptance", title="Acceptance", figures=tuple(figures), tables=(table,), conditions=measured)
        )
    return [*found, *_where_to_run(planned, measured)]


def _where_to_run(planned: Planned, conditions: str) -> list[Section]:
    schedule, segments = planned.schedule, planned.over_contexts
    panels: list[Panel] = [] if schedule is None else schedule_panels(schedule)
    panels += [drafters_panel(segments, planned.plan.temperature)] if segments else []
    tables = _filled(
        Table.of("schedule", "What to run where", () if schedule is None else schedule.to_records()),
        Table.of(
            "drafter-contexts",
            "The fastest of all drafters over context lengths",
            ({"drafter": each.option.drafter.words, **each.row} for each in segments),
        ),
    )
    if not tables:
        return []
    caption = f"The fastest way to decode, and where to switch. {BETWEEN}"
    return [
        Section(
            name="schedule",
            title="What to run where",
            sentences=tuple(drafter_switch_lines(segments)) if segments else (),
            figures=tuple(PageFigure.of(f"strips-{place}", panel, caption) for place, panel in enumerate(panels)),
            tables=tables,
            conditions=conditions,
        )
    ]


def _planned_tree(planned: Planned | None) -> list[tuple[str, TreeFile]]:
    """Return the tree of a plan, if it has one."""
    if planned is None:
        return []
    from treeopt.planner import tree_file

    option = planned.plan.choice if planned.best is None else planned.best.option
    if option.tree.nodes == 1 or option.drafter.own_trees:
        return []
    return [("the choice", tree_file(planned.plan, planned.profile, source="this page", choice=planned.best))]


def _trees(trees: Sequence[tuple[str, TreeFile]]) -> Section:
    dates = [each.provenance.created or "" for _, each in trees[:1] if each.provenance is not None]
    return Section(
        name="trees",
        title="The tree" if len(trees) == 1 else "The trees",
        figures=tuple(_tree(f"tree-{number}", label, content) for number, (label, content) in enumerate(trees)),
        tables=tuple(
            Table.of(
                f"nodes-{number}",
                f"Nodes of {shortened(label, 60)}",
                (
                    {**row, "path": " ".join(map(str, path)) or "root"}
                    for row, path in zip(
                        content.to_records(), rank_paths(content.tree.parents, content.tree.rank), strict=True
                    )
                ),
            )
            for number, (label, content) in enumerate(trees)
        ),
        conditions=", ".join(filter(None, dates)),
    )


def _tree(name: str, label: str, content: TreeFile) -> PageFigure:
    tree, reach = content.tree, content.reach
    nodes = sorted(most_reached_first(tree.parents, tree.rank, reach)[:MOST_NODES].tolist())
    place_of = {node: place for place, node in enumerate(nodes)}
    part = TokenTree([-1, *(place_of[int(tree.parents[node])] for node in nodes[1:])])
    tips = node_tips(tree, reach)
    figure = tree_figure(part, None if reach is None else reach[nodes], tips=[tips[node] for node in nodes])
    caption = ". ".join(filter(None, headline(content)))
    if tree.nodes > part.nodes:
        kind = "first" if reach is None else "most reached"
        caption += f". Drawn: the {part.nodes} {kind} nodes; the file of the table has {tree.nodes - part.nodes} more"
    return PageFigure(
        name=name,
        title=f"Tree of {shortened(label, 60)}",
        caption=f"{shortened(caption, 400)}.",
        svg=svg_text(figure, name=name, on_page=True),
        zoomed=True,
    )


def _benches(contents: Contents) -> list[Section]:
    figures: list[PageFigure] = []
    tables: list[Table] = []
    trees = contents.benches_of(TreeBench)
    if trees:
        conditions = _conditions(each.heading for each in trees)
        panel = trees_panel([each.content for each in trees])
        figures.append(PageFigure.of("benches", panel, "Tokens per second over plain decoding.", conditions=conditions))
        rows = ({"file": each.label, **written_record(each.content)} for each in trees)
        tables.append(Table.of("benches", panel.title, rows))
    for number, grid in enumerate(contents.benches_of(GridBench)):
        bench = grid.content
        caption = f"Rule {shortened(bench.rule)} at temperature {bench.temperature:g}."
        figures += _figures(f"grid-{number}", [grid_panel(bench)], caption, grid)
        rows = ({"tree": describe_tree(each.tree), **written_record(each)} for each in bench.trees)
        tables.append(Table.of(f"grid-{number}", f"Trees of a grid, {shortened(grid.label, 50)}", rows))
    for number, engine in enumerate(contents.benches_of(EngineBench)):
        caption = "Tokens per second over plain decoding in the same engine."
        figures += _figures(f"engine-{number}", [engine_panel([engine.content])], caption, engine)
        rows = (written_record(each) for each in engine.content.rows)
        tables.append(Table.of(f"engine-{number}", f"Draft lengths, {shortened(engine.label, 50)}", rows))
    for number, methods in enumerate(contents.benches_of(MethodsBench)):
        caption = "Tokens per second over plain decoding on the same prompts."
        figures += _figures(f"methods-{number}", methods_panels(methods.content), caption, methods)
        rows = (written_record(each) for each in (*methods.content.rows, *methods.content.not_run))
        tables.append(Table.of(f"methods-{number}", f"All methods, {shortened(methods.label, 50)}", rows))
    found = []
    if figures:
        title = "Predicted and measured"
        found.append(Section(name="measured", title=title, figures=tuple(figures), tables=tuple(tables)))
    batches = contents.benches_of(BatchBench)
    return [*found, _batches(batches)] if batches else found


def _batches(batches: Sequence[LabelledBench[BatchBench]]) -> Section:
    figures: list[PageFigure] = []
    tables: list[Table] = []
    sentences: list[str] = []
    for number, each in enumerate(batches):
        bench = each.content
        caption = f"Rule {shortened(bench.rule)} at temperature {bench.temperature:g}."
        figures += _figures(f"batch-{number}", batches_panels(bench), caption, each)
        rows = (
            {"batch_size": size.batch_size, "tree": describe_tree(row.tree), **written_record(row)}
            for size in bench.sizes
            for row in size.rows
        )
        tables.append(Table.of(f"batch-{number}", f"Batches, {shortened(each.label, 50)}", rows))
        of_file = f"{shortened(each.label, 50)}: " if len(batches) > 1 else ""
        sentences += [f"{of_file}{line}" for line in (*verdicts(bench), _overhead(bench))]
    return Section(
        name="batches", title="Batches", sentences=tuple(sentences), figures=tuple(figures), tables=tuple(tables)
    )


def _overhead(bench: BatchBench) -> str:
    """Return the range of the host overhead over trees and batch sizes in a sentence."""
    shares = sorted(row.measured.overhead for size in bench.sizes for row in size.rows)
    low, high = (f"{100 * each:.0f}" for each in (shares[0], shares[-1]))
    return f"{low if low == high else f'{low} to {high}'} % of a step's time is host overhead."


def _figures(name: str, panels: Sequence[Panel], caption: str, bench: LabelledBench[object]) -> list[PageFigure]:
    """Return the panels of a bench with its file and conditions."""
    names = [name, *(f"{name}-{place}" for place in range(1, len(panels)))]
    conditions = _conditions([bench.heading])
    return [
        PageFigure.of(each, panel, caption, label=bench.label, conditions=conditions)
        for each, panel in zip(names, panels, strict=True)
    ]


def _conditions(headings: Iterable[BenchHeading]) -> str:
    """Return what some benches were measured with."""
    return shortened("; ".join(dict.fromkeys(map(heading_words, headings))), 300)


def _filled(*tables: Table) -> tuple[Table, ...]:
    return tuple(table for table in tables if table.rows)
