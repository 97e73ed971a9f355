"""The first screen of the page: the answer in one sentence, the figure that explains it, and what to type next."""

from dataclasses import dataclass

from treeopt.planner import Option
from treeopt.planner.planned import Planned
from treeopt.records.batch_bench import BatchBench
from treeopt.records.bench_file import GridBench, MethodsBench, TreeBench
from treeopt.records.results import EngineBench, EngineRow
from treeopt.report.figures.rows import Speedup, SpeedupRow, speedup_panel, value_of
from treeopt.report.html.contents import Contents
from treeopt.report.html.parts import PageFigure, shortened
from treeopt.report.plan_text import decoding_options, planning_options
from treeopt.report.text import counted, quoted
from treeopt.trees import TokenTree, TreeFile, describe_tree

MOST_ROWS = 8
"""Rows of the figure, the fastest ones: it has to stay on the first screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to decode with; speedups over plain decoding."""

    shape: str
    """Such as `a tree of 8 nodes, depth 6`."""
    nodes: int
    depth: int
    predicted: float | None = None
    measured: float | None = None
    engine: str | None = None

    @property
    def sentence(self) -> str:
        """All of it in one sentence.

        >>> Answer(shape="a tree of 8 nodes", nodes=8, depth=6, predicted=2.07, measured=2.03).sentence
        'Fastest on this machine: a tree of 8 nodes, 2.03x plain decoding measured (2.07x predicted).'
        """
        where = "on this machine" if self.engine is None else f"in {shortened(self.engine, 40)} on this machine"
        if self.nodes == 1:
            return f"Fastest {where}: plain decoding. No draft pays for itself."
        if self.measured is not None:
            predicted = "" if self.predicted is None else f" ({self.predicted:.2f}x predicted)"
            return f"Fastest {where}: {self.shape}, {self.measured:.2f}x plain decoding measured{predicted}."
        predicted = "" if self.predicted is None else f", {self.predicted:.2f}x plain decoding predicted"
        return f"Fastest {where}: {self.shape}{predicted}."


@dataclass(frozen=True, slots=True)
class Command:
    """What to type next, and what it does."""

    text: str
    purpose: str


def answer(contents: Contents) -> Answer | None:
    """Return the answer of the plan, or else of the first tree, or else of the first bench; None if there are none.

    Benches of another pair, another machine or other conditions are left out.
    """
    contents = contents.measured_here
    if contents.planned is not None:
        return _of_plan(contents.planned, contents)
    if contents.trees:
        return _of_tree(contents.trees[0].content, contents)
    for bench in (each.content for each in contents.benches_of(TreeBench)):
        drafter = "" if bench.drafter == "model" else f"{bench.drafter}, "
        kind = "chain" if bench.depth == bench.nodes - 1 else "tree"
        shape = f"{drafter}a {kind} of {bench.nodes} nodes"
        return _answer(shape, bench.nodes, bench.depth, None, _Measured.of(bench))
    for engine in (each.content for each in contents.benches_of(EngineBench)):
        return _of_engine(engine.chosen, engine.engine)
    return None


def answer_figure(contents: Contents) -> PageFigure | None:
    """Return the speedups that the answer compares: of a plan its candidates, else those of the benches."""
    here = contents.measured_here
    rows: list[SpeedupRow] = []
    if here.planned is not None:
        rows = _planned_rows(here.planned, here)
    elif not contents.benches_of(TreeBench):
        methods = [row for each in here.benches_of(MethodsBench) for row in each.content.rows]
        rows = [
            SpeedupRow(
                name=f"{row.method} at temperature {row.temperature:g}",
                predicted=row.predicted_speedup,
                measured=row.speedup,
            )
            for row in methods
        ]
    if not rows:
        return None
    fastest = sorted(rows, key=lambda row: (not row.chosen, -_speedup(row.measured or row.predicted)))[:MOST_ROWS]
    caption = "Bars are tokens per second over plain decoding, on the prompts that were measured."
    return PageFigure.of(
        "answer", speedup_panel([row for row in rows if row in fastest], "Why: speedup of the candidates"), caption
    )


def commands(contents: Contents) -> list[Command]:
    """Return what to type next."""
    planned, here = contents.planned, contents.measured_here
    if planned is None:
        first = quoted(contents.trees[0].label) if contents.trees else "tree.json"
        return [
            Command("treeopt profile", "measure this machine"),
            Command(f"treeopt bench tree {first}", "measure a tree"),
        ]
    profile, engine = quoted(contents.profile_name), planned.profile.engine
    found = answer(contents)
    if found is not None and found.nodes == 1 and engine is None:
        return [Command("treeopt profile --drafter prompt-lookup", "try a drafter that needs no model")]
    bench = Command(f"{bench_command(contents)} --profile {profile} --output bench.json", "measure the prediction here")
    measured = found is not None and found.measured is not None
    if engine is not None:
        return [] if measured else [bench]
    solve = Command(
        f"treeopt solve --profile {profile}{planning_options(planned.request)} --output tree.json", "write the tree"
    )
    tree = quoted(here.trees[0].label) if here.trees else "tree.json"
    use = [
        Command(f'treeopt run {tree}{decoding_options(planned.plan)} --prompt "…"', "decode with it"),
        Command("treeopt export --list", "write it for an engine of this list"),
    ]
    return [*([] if here.trees else [solve]), *([] if measured else [bench]), *use]


def bench_command(contents: Contents) -> str:
    """Return the command that measures the choice."""
    engine = None if contents.planned is None else contents.planned.profile.engine
    if engine is not None:
        return f"treeopt bench engine {engine.name}"
    tree = quoted(contents.trees[0].label) if contents.trees else "tree.json"
    lossy = " --lossy" if contents.planned is not None and contents.planned.plan.lossy else ""
    return f"treeopt bench tree {tree}{lossy}"


@dataclass(frozen=True, slots=True)
class _Measured:
    speedup: Speedup
    predicted: float | None

    @classmethod
    def of(cls, bench: TreeBench) -> "_Measured":
        return cls(bench.measured.speedup, bench.predicted.speedup)


def _planned_rows(planned: Planned, contents: Contents) -> list[SpeedupRow]:
    """Return the candidates of the draft model, the other rules, and the drafters, each with its measurement."""
    plan, best = planned.plan, planned.best
    choice = plan.choice if best is None else best.option
    options = {"": [plan.plain, plan.chain, plan.tree], "rule": list(plan.rules) if len(plan.rules) > 1 else []}
    options["drafter"] = [each.option for each in planned.drafters]
    rows: dict[tuple[str, TokenTree, str], SpeedupRow] = {}
    for kind, option in ((kind, option) for kind, found in options.items() for option in found):
        name = (
            describe_tree(option.tree) if option.drafter.name == "model" else f"{option.drafter.words}, {option.shape}"
        )
        name = f"{name}, rule {option.rule}" if kind == "rule" else name
        found = _of_option(option, planned, contents)
        key = (option.drafter.words, option.tree, option.rule)
        rows.setdefault(
            key,
            SpeedupRow(
                name=name,
                predicted=option.speedup,
                measured=None if found is None else found.speedup,
                chosen=option is choice or option == choice,
            ),
        )
    return list(rows.values())


def _of_plan(planned: Planned, contents: Contents) -> Answer:
    plan, best, engine = planned.plan, planned.best, planned.profile.engine
    option = plan.choice if best is None else best.option
    found = _of_option(option, planned, contents)
    if option.drafter.name != "model":
        drafter = option.drafter
        shape = drafter.words if drafter.own_trees else f"{drafter.words}, {option.shape}"
        depth = 0 if drafter.own_trees else option.tree.max_depth
        return _answer(shape, option.max_nodes, depth, option.speedup.value, found)
    tree = option.tree
    name = None if engine is None else engine.name
    return _answer(_shape(tree), tree.nodes, tree.max_depth, option.speedup.value, found, name)


def _of_tree(content: TreeFile, contents: Contents) -> Answer:
    tree, known = content.tree, content.provenance
    rule, temperature, predicted = (known.rule, known.temperature, known.speedup) if known else (None, None, None)
    drafter = "model" if content.drafter is None else content.drafter.words
    found = _tree_bench(contents, (tree.nodes, tree.max_depth), rule, temperature, drafter)
    shape = _shape(tree) if content.drafter is None else f"{drafter}, {describe_tree(tree)}"
    return _answer(shape, tree.nodes, tree.max_depth, predicted, found)


def _of_engine(row: EngineRow, engine: str) -> Answer:
    shape = counted(row.length, "draft token")
    return Answer(
        shape=shape,
        nodes=row.length + 1,
        depth=row.length,
        predicted=row.predicted_speedup,
        measured=row.speedup,
        engine=engine,
    )


def _of_option(option: Option, planned: Planned, contents: Contents) -> _Measured | None:
    """Return the bench of an option under the conditions of the plan, None where there is none."""
    plan, engine, tree = planned.plan, planned.profile.engine, option.tree
    batch_size = plan.model.point.batch_size
    if engine is not None:
        rows = (
            row
            for each in contents.benches_of(EngineBench)
            if each.content.engine == engine.name
            for row in each.content.rows
        )
        return next(
            (_Measured(row.speedup, row.predicted_speedup) for row in rows if row.length == tree.max_depth), None
        )
    if option.drafter.name != "model":  # benches of several sequences have no such drafters
        size = None if option.drafter.own_trees else (tree.nodes, tree.max_depth)
        alone = batch_size == 1
        return _tree_bench(contents, size, option.rule, plan.temperature, option.drafter.words) if alone else None
    if batch_size == 1:  # all other benches decode one sequence at a time
        found = _tree_bench(contents, (tree.nodes, tree.max_depth), option.rule, plan.temperature, "model")
        found = found or _in_grids(contents, tree, option.rule, plan.temperature)
        if found is not None:
            return found
    return _in_batches(contents, tree, batch_size, option.rule, plan.temperature)


def _tree_bench(
    contents: Contents, size: tuple[int, int] | None, rule: str | None, temperature: float | None, drafter: str
) -> _Measured | None:
    """Return the bench of one tree; at temperature 0 all rules accept alike.

    Args:
        contents: with the benches.
        size: nodes and depth of the tree; None for a drafter that builds its own.
        rule: None if unknown.
        temperature: None if unknown.
        drafter: with its settings.
    """
    for bench in (each.content for each in contents.benches_of(TreeBench)):
        same_rule = rule in (None, bench.rule) or temperature == 0
        same_tree = size in (None, (bench.nodes, bench.depth)) and bench.drafter == drafter
        if same_tree and same_rule and temperature in (None, bench.temperature):
            return _Measured.of(bench)
    return None


def _in_grids(contents: Contents, tree: TokenTree, rule: str, temperature: float) -> _Measured | None:
    grids = (each.content for each in contents.benches_of(GridBench))
    rows = (row for grid in grids if (grid.rule, grid.temperature) == (rule, temperature) for row in grid.trees)
    return next((_Measured(row.measured.speedup, row.predicted.speedup) for row in rows if row.tree == tree), None)


def _in_batches(
    contents: Contents, tree: TokenTree, batch_size: int, rule: str, temperature: float
) -> _Measured | None:
    benches = (each.content for each in contents.benches_of(BatchBench))
    sizes = (
        size for bench in benches if (bench.rule, bench.temperature) == (rule, temperature) for size in bench.sizes
    )
    rows = (row for size in sizes if size.batch_size == batch_size for row in size.rows)
    return next((_Measured(row.measured.speedup, row.predicted_speedup) for row in rows if row.tree == tree), None)


def _answer(
    shape: str, nodes: int, depth: int, predicted: float | None, found: _Measured | None, engine: str | None = None
) -> Answer:
    if found is not None and found.predicted is not None:
        predicted = found.predicted
    measured = None if found is None else value_of(found.speedup)
    return Answer(shape=shape, nodes=nodes, depth=depth, predicted=predicted, measured=measured, engine=engine)


def _shape(tree: TokenTree) -> str:
    return describe_tree(tree) if tree.nodes == 1 else f"a {describe_tree(tree)}"


def _speedup(speedup: Speedup | None) -> float:
    return 0.0 if speedup is None else value_of(speedup)
