"""The first screen of the page: the answer in one sentence, the figure that explains it, and the next commands."""

from dataclasses import dataclass

from treeopt.planner import Option
from treeopt.planner.options import DRAFT_MODEL
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.records.bench_file import GridBench, GridTree, MethodsBench, TreeBench
from treeopt.records.profile import IMPORTED
from treeopt.records.results import BatchBench, BatchRow, EngineBench
from treeopt.report.commands import (
    decoding_options,
    engine_command,
    missing_models,
    planning_options,
    profile_command,
)
from treeopt.report.figures.rows import Speedup, SpeedupRow, speedup_panel, value_of
from treeopt.report.html.contents import Contents
from treeopt.report.html.parts import PageFigure, shortened
from treeopt.report.text import counted, quoted
from treeopt.trees import Provenance, TokenTree, TreeFile, describe_tree

MAX_ROWS = 8
"""Rows of the figure, the fastest ones, so that it fits on the first screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The fastest way to decode; speedups are over plain decoding."""

    shape: str
    """Such as `a tree of 8 nodes, depth 6`."""
    nodes: int
    predicted: float | None = None
    measured: float | None = None
    engine: str | None = None

    @property
    def sentence(self) -> str:
        """The answer in one sentence.

        >>> Answer(shape="a tree of 8 nodes", nodes=8, predicted=2.07, measured=2.03).sentence
        'Fastest on this machine: a tree of 8 nodes, 2.03x plain decoding measured (2.07x predicted).'
        """
        machine = "on this machine" if self.engine is None else f"in {shortened(self.engine, 40)} on this machine"
        if self.nodes == 1:
            return f"Fastest {machine}: plain decoding. No draft pays for itself."
        if self.measured is not None:
            predicted = "" if self.predicted is None else f" ({self.predicted:.2f}x predicted)"
            return f"Fastest {machine}: {self.shape}, {self.measured:.2f}x plain decoding measured{predicted}."
        predicted = "" if self.predicted is None else f", {self.predicted:.2f}x plain decoding predicted"
        return f"Fastest {machine}: {self.shape}{predicted}."


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run next, and its purpose."""

    text: str
    purpose: str


def answer(contents: Contents) -> Answer | None:
    """Return the answer of the plan, else of the first tree, else of the first bench; None without any.

    Benches of another pair, another machine or other conditions are ignored.
    """
    contents = contents.measured_here
    if contents.planned is not None:
        return _answer_of_plan(contents.planned, contents)
    if contents.trees:
        return _answer_of_tree(contents.trees[0][1], contents)
    for tree_bench in contents.benches_of(TreeBench):
        bench = tree_bench.content
        drafter = "" if bench.drafter == "model" else f"{bench.drafter}, "
        kind = "chain" if bench.depth == bench.nodes - 1 else "tree"
        shape = f"{drafter}a {kind} of {bench.nodes} nodes"
        return _answer(shape, bench.nodes, None, _Result.of(bench))
    for engine_bench in contents.benches_of(EngineBench):
        row = engine_bench.content.chosen
        result = _Result(row.speedup, row.predicted.speedup)
        return _answer(counted(row.length, "draft token"), row.length + 1, None, result, engine_bench.content.engine)
    return None


def answer_figure(contents: Contents) -> PageFigure | None:
    """Return the speedups that the answer compares: those of the plan's candidates, else those of the benches."""
    comparable = contents.measured_here
    rows: list[SpeedupRow] = []
    if comparable.planned is not None:
        rows = _planned_rows(comparable.planned, comparable)
    elif not contents.benches_of(TreeBench):
        rows = [
            SpeedupRow(
                name=f"{row.method} at temperature {row.temperature:g}",
                predicted=row.predicted_speedup,
                measured=row.speedup,
            )
            for bench in comparable.benches_of(MethodsBench)
            for row in bench.content.rows
        ]
    if not rows:
        return None
    fastest = sorted(rows, key=lambda row: (not row.chosen, -_value(row.measured or row.predicted)))[:MAX_ROWS]
    caption = "Bars are tokens per second over plain decoding, on the measured prompts."
    return PageFigure.of(
        "answer", speedup_panel([row for row in rows if row in fastest], "Why: speedup of the candidates"), caption
    )


def commands(contents: Contents) -> list[Command]:
    """Return the commands to run next."""
    planned = contents.planned
    if planned is None:
        measure = [Command(f"treeopt bench tree {quoted(name)}", "measure a tree") for name, _ in contents.trees[:1]]
        return [Command(f"treeopt profile{contents.identity.model_options}", "measure this machine"), *measure]
    profile, tree, engine = quoted(contents.profile_name), _tree_name(contents), planned.profile.engine
    result = answer(contents)
    if result is not None and result.nodes == 1 and engine is None:
        measure_lookup = f"{profile_command(planned.profile)} --drafter prompt-lookup"
        return [Command(measure_lookup, "try a drafter that needs no model")]
    solve = Command(
        f"treeopt solve --profile {profile}{planning_options(planned.request)} --output tree.json", "write the tree"
    )
    write = [solve] if _chosen_tree(contents) is None else []
    if engine is not None and engine.name == IMPORTED:
        return [*write, Command(engine_command(planned.profile, profile, tree), "write the setting of an engine")]
    bench, measured = bench_command(contents), result is not None and result.measured is not None
    measure = [] if measured or bench is None else [Command(bench, "measure the prediction here")]
    if engine is not None:
        return measure
    use = [
        Command(
            f'treeopt run {tree}{decoding_options(planned.profile, planned.plan, planned.option)} --prompt "…"',
            "decode with it",
        ),
        Command("treeopt export --list", "list the engines that it can be written for"),
    ]
    return [*write, *measure, *use]


def bench_command(contents: Contents) -> str | None:
    """Return the command that measures the choice of a plan; None if there is none.

    Imported measurements are of an unknown engine, and `bench batches` has no drafters other than the draft model.
    """
    planned, profile, tree = contents.planned, quoted(contents.profile_name), _tree_name(contents)
    assert planned is not None  # without a plan there is no choice
    if planned.profile.engine is not None:
        imported = planned.profile.engine.name == IMPORTED
        return None if imported else f"{engine_command(planned.profile, profile, tree)} --output bench.json"
    lossy = " --lossy" if planned.plan.lossy else ""
    options = f"{missing_models(planned.profile)}{lossy} --profile {profile} --output bench.json"
    batch_size = planned.plan.model.point.batch_size
    if batch_size == 1:
        return f"treeopt bench tree {tree}{options}"
    if planned.option.drafter.name != "model":
        return None
    return f"treeopt bench batches {tree} --batch-sizes {batch_size}{options}"


def _tree_name(contents: Contents) -> str:
    """Return the file of a plan's choice, quoted: one of the page's, or that which `treeopt solve` writes."""
    return _chosen_tree(contents) or "tree.json"


def _chosen_tree(contents: Contents) -> str | None:
    """Return the page's first tree file with a plan's choice, quoted; None without one."""
    option = None if contents.planned is None else contents.planned.option
    return next(
        (
            quoted(name)
            for name, file in contents.trees
            if option is not None and (file.tree, file.drafter or DRAFT_MODEL) == (option.tree, option.drafter)
        ),
        None,
    )


@dataclass(frozen=True, slots=True)
class _Result:
    """Measured speedup of an option, and what the bench predicted."""

    speedup: Speedup
    predicted: float | None

    @classmethod
    def of(cls, row: TreeBench | GridTree | BatchRow) -> "_Result":
        return cls(row.measured.speedup, row.predicted.speedup)


def _planned_rows(planned: ProfilePlan, contents: Contents) -> list[SpeedupRow]:
    """Return a row for each candidate of the draft model, for the other rules, and for the drafters."""
    plan, choice = planned.plan, planned.option
    rules = plan.rules if len(plan.rules) > 1 else ()
    options = [(option, "") for option in (plan.plain, plan.chain, plan.tree)]
    options += [(option, f", rule {option.rule}") for option in rules]
    options += [(drafter.option, "") for drafter in planned.drafters]
    rows: dict[tuple[str, TokenTree, str], SpeedupRow] = {}
    for option, rule in options:
        drafter = option.drafter
        name = describe_tree(option.tree) if drafter.name == "model" else _drafter_shape(option)
        result = _result_of_option(option, planned, contents)
        rows.setdefault(
            (drafter.description, option.tree, option.rule),
            SpeedupRow(
                name=name + rule,
                predicted=option.speedup,
                measured=None if result is None else result.speedup,
                chosen=option is choice or option == choice,
            ),
        )
    return list(rows.values())


def _drafter_shape(option: Option) -> str:
    """Return a drafter with its tree, or with its parameters if it builds its own trees."""
    description = option.drafter.description
    return description if option.drafter.builds_own_trees else f"{description}, {option.shape}"


def _answer_of_plan(planned: ProfilePlan, contents: Contents) -> Answer:
    option, engine = planned.option, planned.profile.engine
    drafter, tree, predicted = option.drafter, option.tree, option.speedup.value
    result = _result_of_option(option, planned, contents)
    if drafter.name != "model":
        return _answer(_drafter_shape(option), option.max_nodes, predicted, result)
    return _answer(_shape(tree), tree.nodes, predicted, result, None if engine is None else engine.name)


def _answer_of_tree(content: TreeFile, contents: Contents) -> Answer:
    tree, provenance = content.tree, content.provenance or Provenance()
    drafter = "model" if content.drafter is None else content.drafter.description
    result = _result_of_tree(contents, (tree.nodes, tree.max_depth), provenance.rule, provenance.temperature, drafter)
    shape = _shape(tree) if content.drafter is None else f"{drafter}, {describe_tree(tree)}"
    return _answer(shape, tree.nodes, provenance.speedup, result)


def _result_of_option(option: Option, planned: ProfilePlan, contents: Contents) -> _Result | None:
    """Return what a bench measured for an option under the plan's conditions; None without such a bench."""
    plan, engine, tree = planned.plan, planned.profile.engine, option.tree
    batch_size = plan.model.point.batch_size
    if engine is not None:
        return _result_in_engine(contents, engine.name, tree.max_depth)
    if option.drafter.name != "model":  # `bench batches` has no such drafters
        if batch_size > 1:
            return None
        size = None if option.drafter.builds_own_trees else (tree.nodes, tree.max_depth)
        return _result_of_tree(contents, size, option.rule, plan.temperature, option.drafter.description)
    result = None
    if batch_size == 1:
        result = _result_of_tree(contents, (tree.nodes, tree.max_depth), option.rule, plan.temperature, "model")
    return result or _result_of_row(contents, tree, batch_size, option.rule, plan.temperature)


def _result_in_engine(contents: Contents, engine: str, length: int) -> _Result | None:
    for bench in contents.benches_of(EngineBench):
        for row in bench.content.rows:
            if bench.content.engine == engine and row.length == length:
                return _Result(row.speedup, row.predicted.speedup)
    return None


def _result_of_tree(
    contents: Contents, size: tuple[int, int] | None, rule: str | None, temperature: float | None, drafter: str
) -> _Result | None:
    """Return the result of `treeopt bench tree`; at temperature 0 all rules accept alike.

    Args:
        contents: with the benches.
        size: nodes and depth of the tree; None for a drafter that builds its own.
        rule: None if unknown.
        temperature: None if unknown.
        drafter: with its settings.
    """
    for bench in (tree_bench.content for tree_bench in contents.benches_of(TreeBench)):
        same_rule = rule in (None, bench.rule) or temperature == 0
        same_tree = size in (None, (bench.nodes, bench.depth)) and bench.drafter == drafter
        if same_tree and same_rule and temperature in (None, bench.temperature):
            return _Result.of(bench)
    return None


def _result_of_row(
    contents: Contents, tree: TokenTree, batch_size: int, rule: str, temperature: float
) -> _Result | None:
    """Return the result of `treeopt bench grid`, which decodes one sequence at a time, or of `treeopt bench batches`."""
    rows: list[tuple[GridBench | BatchBench, int, GridTree | BatchRow]] = []
    for grid in contents.benches_of(GridBench):
        rows += [(grid.content, 1, row) for row in grid.content.trees]
    for batches in contents.benches_of(BatchBench):
        rows += [(batches.content, size.batch_size, row) for size in batches.content.sizes for row in size.rows]
    for bench, size, row in rows:
        if (row.tree, size, bench.rule, bench.temperature) == (tree, batch_size, rule, temperature):
            return _Result.of(row)
    return None


def _answer(
    shape: str, nodes: int, predicted: float | None, result: _Result | None, engine: str | None = None
) -> Answer:
    if result is not None and result.predicted is not None:
        predicted = result.predicted
    measured = None if result is None else value_of(result.speedup)
    return Answer(shape=shape, nodes=nodes, predicted=predicted, measured=measured, engine=engine)


def _shape(tree: TokenTree) -> str:
    return describe_tree(tree) if tree.nodes == 1 else f"a {describe_tree(tree)}"


def _value(speedup: Speedup | None) -> float:
    return 0.0 if speedup is None else value_of(speedup)
