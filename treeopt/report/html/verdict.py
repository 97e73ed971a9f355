"""The page's first sentence: what is best on this machine, what it was measured to do, and what was promised."""

from dataclasses import dataclass

from treeopt.planner.planned import Planned
from treeopt.records.latency import Estimate
from treeopt.records.results import EngineRow
from treeopt.report.html.contents import Contents
from treeopt.report.html.shapes import shortened
from treeopt.report.tree_bench import TreeBenchReport
from treeopt.trees import TokenTree, TreeFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the page comes to; speedups over plain decoding."""

    shape: str
    """Such as `a tree of 8 nodes`."""
    nodes: int
    depth: int
    promised: float | None
    measured: float | None
    engine: str | None = None

    @property
    def sentence(self) -> str:
        """All of it in one sentence.

        >>> Verdict(shape="a tree of 8 nodes", nodes=8, depth=6, promised=2.07, measured=2.03).sentence
        'On this machine: a tree of 8 nodes, 2.03 times plain, promised 2.07.'
        """
        parts = [self.shape]
        if self.nodes == 1:
            parts.append("no draft pays for itself")
        elif self.measured is not None:
            parts.append(f"{self.measured:.2f} times plain")
            parts += [] if self.promised is None else [f"promised {self.promised:.2f}"]
        elif self.promised is not None:
            parts.append(f"promised {self.promised:.2f} times plain")
        where = "On this machine" if self.engine is None else f"In {shortened(self.engine, 40)} on this machine"
        return f"{where}: {', '.join(parts)}."


def verdict(contents: Contents) -> Verdict | None:
    """Return the verdict on the plan, or else on the first tree, or else on the first bench; None of none of them.

    Benches of another pair, another machine or other conditions are left out.
    """
    contents = contents.raced_here
    if contents.planned is not None:
        return _of_plan(contents.planned, contents)
    if contents.trees:
        return _of_tree(contents.trees[0].content, contents)
    for each in contents.tree_benches:
        return _of_bench(each.bench)
    for raced in contents.engines:
        chosen = next(row for row in raced.bench.rows if row.chosen)
        return _of_row(chosen, raced.bench.engine)
    return None


def _of_plan(planned: Planned, contents: Contents) -> Verdict:
    plan, best, engine = planned.plan, planned.best, planned.profile.engine
    texts = plan.model.point.batch_size
    if best is not None and best.option.drafter.name != "model":
        option, drafter = best.option, best.option.drafter
        size = None if drafter.own_trees else (option.tree.nodes, option.tree.max_depth)
        words = drafter.words if drafter.own_trees else f"{drafter.words}, {option.shape}"
        # benches of several texts have no such drafters
        found = _bench(contents, size, option.rule, plan.temperature, drafter.words) if texts == 1 else None
        return _verdict(words, option.max_nodes, 0 if size is None else size[1], option.speedup.value, found)
    choice = plan.choice
    nodes, depth = choice.tree.nodes, choice.tree.max_depth
    shape = _shape(choice.kind, nodes)
    if engine is not None:
        row = next(
            (
                row
                for each in contents.engines
                if each.bench.engine == engine.name
                for row in each.bench.rows
                if row.length == depth
            ),
            None,
        )
        return Verdict(
            shape=shape,
            nodes=nodes,
            depth=depth,
            promised=row.predicted_speedup if row and row.predicted_speedup else choice.speedup.value,
            measured=None if row is None else row.speedup,
            engine=engine.name,
        )
    found = _batch_row(contents, texts, plan.rule, plan.temperature, choice.tree)
    if texts == 1:  # all other benches decode one text at a time
        found = (
            _bench(contents, (nodes, depth), plan.rule, plan.temperature, "model")
            or _grid_row(contents, plan.rule, plan.temperature, choice.tree.parents.tolist())
            or found
        )
    return _verdict(shape, nodes, depth, choice.speedup.value, found)


def _of_tree(content: TreeFile, contents: Contents) -> Verdict:
    from treeopt.trees import kind_of

    tree, known = content.tree, content.provenance
    rule, temperature = (known.rule, known.temperature) if known else (None, None)
    drafter = "model" if content.drafter is None else content.drafter.words
    found = _bench(contents, (tree.nodes, tree.max_depth), rule, temperature, drafter)
    shape = _shape(kind_of(tree), tree.nodes)
    shape = shape if content.drafter is None else f"{drafter}, {shape}"
    return _verdict(shape, tree.nodes, tree.max_depth, known.speedup if known else None, found)


def _of_bench(bench: TreeBenchReport) -> Verdict:
    kind = "plain" if bench.nodes == 1 else "chain" if bench.depth == bench.nodes - 1 else "tree"
    drafted = "" if bench.drafter == "model" else f"{bench.drafter}, "
    return _verdict(f"{drafted}{_shape(kind, bench.nodes)}", bench.nodes, bench.depth, None, _Found.of(bench))


def _of_row(row: EngineRow, engine: str) -> Verdict:
    return Verdict(
        shape=_shape("chain" if row.length else "plain", row.length + 1),
        nodes=row.length + 1,
        depth=row.length,
        promised=row.predicted_speedup,
        measured=row.speedup,
        engine=engine,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    measured: float
    promised: float | None

    @classmethod
    def of(cls, bench: TreeBenchReport) -> "_Found":
        promised = bench.predicted_speedup
        return cls(bench.measured_speedup.value, promised.value if isinstance(promised, Estimate) else promised)


def _bench(
    contents: Contents, size: tuple[int, int] | None, rule: str | None, temperature: float | None, drafter: str
) -> _Found | None:
    """Return the bench of what was planned, None where there is none; at temperature 0 all rules accept alike.

    Args:
        contents: with the benches.
        size: nodes and depth of the tree; None for a drafter that brings its own.
        rule: None where nobody knows.
        temperature: likewise.
        drafter: with its setting, in words.
    """
    for bench in (each.bench for each in contents.tree_benches):
        same_rule = rule in (None, bench.rule) or temperature == 0
        same_tree = size in (None, (bench.nodes, bench.depth)) and bench.drafter == drafter
        if same_tree and same_rule and temperature in (None, bench.temperature):
            return _Found.of(bench)
    return None


def _grid_row(contents: Contents, rule: str, temperature: float, parents: list[int]) -> _Found | None:
    for grid in (each.bench for each in contents.grids):
        if (grid.rule, grid.temperature) == (rule, temperature):
            for row in grid.trees:
                if row.parents == parents:
                    return _Found(row.measured_speedup.value, row.predicted_speedup)
    return None


def _batch_row(contents: Contents, texts: int, rule: str, temperature: float, tree: TokenTree) -> _Found | None:
    for bench in (each.bench for each in contents.batches):
        if (bench.rule, bench.temperature) == (rule, temperature):
            for row in (row for size in bench.sizes if size.batch_size == texts for row in size.rows):
                if row.tree == tree:
                    return _Found(row.measured.speedup, row.predicted_speedup)
    return None


def _verdict(shape: str, nodes: int, depth: int, promised: float | None, found: _Found | None) -> Verdict:
    if found is not None and found.promised is not None:
        promised = found.promised
    return Verdict(
        shape=shape, nodes=nodes, depth=depth, promised=promised, measured=None if found is None else found.measured
    )


def _shape(kind: str, nodes: int) -> str:
    if kind == "plain":
        return "plain decoding"
    return f"a {kind} of {nodes} nodes"
