"""Sections of the page: figures with captions, and tables."""

from collections.abc import Iterable, Sequence

from treeopt.files.serialization import serialize_record
from treeopt.planner import tree_file
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.plotting.panels import Panel
from treeopt.plotting.svg import svg_text
from treeopt.records.bench_file import BenchHeading, GridBench, MethodsBench, TreeBench
from treeopt.records.profile import Profile
from treeopt.records.results import BatchBench, EngineBench
from treeopt.report.batch_bench import verdicts
from treeopt.report.bench_text import describe_heading
from treeopt.report.figures.acceptance import acceptance_panels
from treeopt.report.figures.benches import batches_panels, engine_panel, grid_panel, methods_panels, trees_panel
from treeopt.report.figures.rows import steps_panel
from treeopt.report.figures.schedules import drafters_panel, schedule_panels
from treeopt.report.figures.speedup_map import map_panel
from treeopt.report.figures.times import times_panels
from treeopt.report.html.contents import Contents, LabelledBench
from treeopt.report.html.parts import PageFigure, Section, Table, shortened
from treeopt.report.plan_text import conclusions
from treeopt.report.profile_text import labelled_acceptances
from treeopt.report.text import range_text, subject
from treeopt.trees import TokenTree, TreeFile, describe_tree
from treeopt.trees.figure import node_tooltips, tree_figure
from treeopt.trees.layout import rank_paths, sort_by_reach
from treeopt.trees.tree_file import headline

MAX_NODES = 500
"""Drawn nodes of a tree, the most reached ones; the table contains all."""


def sections(contents: Contents) -> list[Section]:
    """Return the sections that have content, in reading order."""
    result: list[Section] = []
    if contents.planned is not None:
        result += _profile_sections(contents.planned)
    trees = contents.trees or _planned_tree(contents.planned)
    result += [_trees(trees)] if trees else []
    return result + _benches(contents)


def _profile_sections(planned: ProfilePlan) -> list[Section]:
    profile, plan = planned.profile, planned.plan
    measured = f"{subject(profile)}, {profile.created[:10]}"
    planned_for = f"{subject(profile)}, {plan.conditions}, {profile.created[:10]}"
    return [
        *([_speed(planned, planned_for)] if profile.has_draft_model else []),
        _times(planned, planned_for),
        *_acceptance(profile, measured),
        *_schedule(planned, measured),
    ]


def _speed(planned: ProfilePlan, conditions: str) -> Section:
    plan = planned.plan
    rules = [{"rule": option.rule, **option.row} for option in plan.rules]
    drafters = [{"drafter": choice.option.drafter.description, **choice.option.row} for choice in planned.drafters]
    caption = (
        "Predicted for the tree with the most tokens within each budget and depth: blue is faster than plain decoding, orange "
        "slower."
    )
    return Section(
        name="speed",
        title="Speed of every tree",
        sentences=tuple(conclusions(planned)),
        figures=(PageFigure.of("map", map_panel(plan), caption),),
        tables=_filled(
            Table.of("candidates", "Plain decoding, chain, tree and budgets", plan.to_records()),
            Table.of("rules", "The best tree of every rule", rules),
            Table.of("drafters", "The best of every drafter", drafters),
        ),
        conditions=conditions,
    )


def _times(planned: ProfilePlan, conditions: str) -> Section:
    profile, plan = planned.profile, planned.plan
    of_engine = profile.engine is not None
    captions = (
        "One step of the engine, by 1 plus its draft tokens." if of_engine else "One pass of the target.",
        "One pass of the draft model, which drafts one level of the tree.",
    )
    figures = [
        PageFigure.of(name, panel, caption)
        for name, panel, caption in zip(
            ("verification", "drafting"), times_panels(profile, plan), captions, strict=False
        )
    ]
    if profile.has_draft_model and not of_engine:
        caption = "Overhead that grows with nodes and levels is included in their parts."
        figures.append(PageFigure.of("steps", steps_panel(plan), caption))
    return Section(
        name="times",
        title="Measured times",
        figures=tuple(figures),
        tables=_filled(Table.of("times", "Times at all operating points", profile.to_records())),
        conditions=conditions,
    )


def _acceptance(profile: Profile, conditions: str) -> list[Section]:
    panels = acceptance_panels(profile)
    if not panels:
        return []
    caption = "How often the child of each rank is accepted, given that its parent was reached."
    rows = [
        {"acceptance": label, **row}
        for label, measured in labelled_acceptances(profile)
        for row in measured.table.to_records()
    ]
    return [
        Section(
            name="acceptance",
            title="Acceptance",
            figures=tuple(PageFigure.of(f"acceptance-{index}", panel, caption) for index, panel in enumerate(panels)),
            tables=(Table.of("acceptance", "Acceptance by depth and rank", rows),),
            conditions=conditions,
        )
    ]


def _schedule(planned: ProfilePlan, conditions: str) -> list[Section]:
    schedule, segments = planned.schedule, planned.over_contexts
    panels: list[Panel] = [] if schedule is None else schedule_panels(schedule)
    panels += [drafters_panel(segments, planned.plan.temperature)] if segments else []
    tables = _filled(
        Table.of("schedule", "What to run where", () if schedule is None else schedule.to_records()),
        Table.of(
            "drafter-contexts",
            "The fastest of all drafters over context lengths",
            ({"drafter": segment.option.drafter.description, **segment.row} for segment in segments),
        ),
    )
    if not tables:
        return []
    caption = (
        "The fastest option, and where to switch. Between measured operating points times are interpolated linearly."
    )
    return [
        Section(
            name="schedule",
            title="What to run where",
            figures=tuple(PageFigure.of(f"strips-{index}", panel, caption) for index, panel in enumerate(panels)),
            tables=tables,
            conditions=conditions,
        )
    ]


def _planned_tree(planned: ProfilePlan | None) -> tuple[tuple[str, TreeFile], ...]:
    """Return the tree of a plan under a label; none for plain decoding and drafters that build their own trees."""
    if planned is None:
        return ()
    option = planned.option
    if option.tree.nodes == 1 or option.drafter.builds_own_trees:
        return ()
    return (("the choice", tree_file(planned.plan, planned.profile, source="this page", choice=planned.best)),)


def _trees(trees: Sequence[tuple[str, TreeFile]]) -> Section:
    _, first = trees[0]
    created = "" if first.provenance is None else first.provenance.created or ""
    return Section(
        name="trees",
        title="The tree" if len(trees) == 1 else "The trees",
        figures=tuple(_tree(f"tree-{index}", label, content) for index, (label, content) in enumerate(trees)),
        tables=tuple(
            Table.of(
                f"nodes-{index}",
                f"Nodes of {shortened(label, 60)}",
                (
                    {**row, "path": " ".join(map(str, path)) or "root"}
                    for row, path in zip(content.to_records(), rank_paths(content.tree), strict=True)
                ),
            )
            for index, (label, content) in enumerate(trees)
        ),
        conditions=created,
    )


def _tree(name: str, label: str, content: TreeFile) -> PageFigure:
    tree, reach = content.tree, content.reach
    nodes = sorted(sort_by_reach(tree, reach)[:MAX_NODES].tolist())
    indices = {node: index for index, node in enumerate(nodes)}
    part = TokenTree([-1, *(indices[int(tree.parents[node])] for node in nodes[1:])])
    tooltips = node_tooltips(tree, reach)
    figure = tree_figure(part, None if reach is None else reach[nodes], tooltips=[tooltips[node] for node in nodes])
    caption = ". ".join(filter(None, headline(content)))
    if tree.nodes > part.nodes:
        kind = "first" if reach is None else "most reached"
        caption += f". Drawn: the {part.nodes} {kind} nodes; the CSV file contains {tree.nodes - part.nodes} more"
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
        conditions = _conditions(bench.heading for bench in trees)
        panel = trees_panel([bench.content for bench in trees])
        figures.append(PageFigure.of("benches", panel, "Tokens per second over plain decoding.", conditions=conditions))
        rows = ({"file": bench.label, **serialize_record(bench.content)} for bench in trees)
        tables.append(Table.of("benches", panel.title, rows))
    for index, grid in enumerate(contents.benches_of(GridBench)):
        content = grid.content
        caption = f"Rule {shortened(content.rule)} at temperature {content.temperature:g}."
        figures += _figures(f"grid-{index}", [grid_panel(content)], caption, grid)
        rows = ({"tree": describe_tree(row.tree), **serialize_record(row)} for row in content.trees)
        tables.append(Table.of(f"grid-{index}", f"Trees of a grid, {shortened(grid.label, 50)}", rows))
    for index, engine in enumerate(contents.benches_of(EngineBench)):
        caption = "Tokens per second over plain decoding in the same engine."
        figures += _figures(f"engine-{index}", [engine_panel([engine.content])], caption, engine)
        rows = (serialize_record(row) for row in engine.content.rows)
        tables.append(Table.of(f"engine-{index}", f"Draft lengths, {shortened(engine.label, 50)}", rows))
    for index, methods in enumerate(contents.benches_of(MethodsBench)):
        caption = "Tokens per second over plain decoding on the same prompts."
        figures += _figures(f"methods-{index}", methods_panels(methods.content), caption, methods)
        rows = (serialize_record(row) for row in (*methods.content.rows, *methods.content.not_run))
        tables.append(Table.of(f"methods-{index}", f"All methods, {shortened(methods.label, 50)}", rows))
    result = []
    if figures:
        title = "Predicted and measured"
        result.append(Section(name="measured", title=title, figures=tuple(figures), tables=tuple(tables)))
    batches = contents.benches_of(BatchBench)
    return [*result, _batches(batches)] if batches else result


def _batches(batches: Sequence[LabelledBench[BatchBench]]) -> Section:
    figures: list[PageFigure] = []
    tables: list[Table] = []
    sentences: list[str] = []
    for index, labelled in enumerate(batches):
        bench = labelled.content
        caption = f"Rule {shortened(bench.rule)} at temperature {bench.temperature:g}."
        figures += _figures(f"batch-{index}", batches_panels(bench), caption, labelled)
        rows = (
            {"batch_size": size.batch_size, "tree": describe_tree(row.tree), **serialize_record(row)}
            for size in bench.sizes
            for row in size.rows
        )
        tables.append(Table.of(f"batch-{index}", f"Batches, {shortened(labelled.label, 50)}", rows))
        prefix = f"{shortened(labelled.label, 50)}: " if len(batches) > 1 else ""
        sentences += [f"{prefix}{line}" for line in (*verdicts(bench), _overhead(bench))]
    return Section(
        name="batches", title="Batches", sentences=tuple(sentences), figures=tuple(figures), tables=tuple(tables)
    )


def _overhead(bench: BatchBench) -> str:
    """Return the range of the host overhead over trees and batch sizes in a sentence."""
    percentages = [round(100 * row.measured.overhead) for size in bench.sizes for row in size.rows]
    return f"{range_text((min(percentages), max(percentages)))} % of a step's time is host overhead."


def _figures(name: str, panels: Sequence[Panel], caption: str, bench: LabelledBench[object]) -> list[PageFigure]:
    """Return the panels of a bench as figures with its label and conditions."""
    names = [name, *(f"{name}-{index}" for index in range(1, len(panels)))]
    conditions = _conditions([bench.heading])
    return [
        PageFigure.of(figure_name, panel, caption, label=bench.label, conditions=conditions)
        for figure_name, panel in zip(names, panels, strict=True)
    ]


def _conditions(headings: Iterable[BenchHeading]) -> str:
    """Return the distinct headings of some benches."""
    return shortened("; ".join(dict.fromkeys(map(describe_heading, headings))), 300)


def _filled(*tables: Table) -> tuple[Table, ...]:
    return tuple(table for table in tables if table.rows)
