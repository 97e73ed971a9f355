"""Figures of measured times: verification, drafting and overhead; of an engine its whole steps."""

from collections.abc import Sequence

from treeopt.planner.costs import sizes, step_costs
from treeopt.planner.planned import Planned
from treeopt.records.latency import LatencyTable
from treeopt.records.profile import Profile
from treeopt.records.step_latency import StepLatency
from treeopt.report.html.curve import MS, Curve, drawn
from treeopt.report.html.plot import ROW, TOP, Plot
from treeopt.report.html.shapes import Entry, Figure, shape
from treeopt.report.html.tables import Table
from treeopt.report.profile_words import condition_name
from treeopt.report.text import milliseconds

PARTS = (("drafting", "draft", "chain"), ("verification", "verify", "tree"), ("overhead", "overhead", "plain"))
"""Name, field of `StepParts`, and colour."""


def verification(planned: Planned) -> Figure:
    """Return passes of the target over tokens: samples, medians with intervals, and what is planned with."""
    plan = planned.plan
    whole = planned.profile.engine is not None
    alone = step_costs(plan.model.point, rule=plan.rule, max_nodes=plan.model.costs.max_nodes, passes_only=True)
    tables, others = _tables(planned, "verify")
    what = "a step, drafting included" if whole else "a pass of the target"
    curve = Curve(
        name="verification",
        title="Steps of the engine" if whole else "Verification",
        caption=f"Seconds of {what} over the tokens verified: dots are samples, bars 95 % intervals of medians, the line is what is "
        f"planned with at {plan.context_tokens} tokens of context, batch of {plan.model.point.batch_size}.",
        planned_s=alone.verify_s,
        measured=tables,
        others=others,
        colour="tree",
        mark=plan.choice.verify_tokens,
    )
    return drawn(curve)


def drafting(planned: Planned) -> Figure:
    """Return passes of the draft model over the nodes of a level."""
    plan = planned.plan
    alone = step_costs(plan.model.point, rule=plan.rule, max_nodes=plan.model.costs.max_nodes, passes_only=True)
    tables, others = _tables(planned, "draft")
    curve = Curve(
        name="drafting",
        title="Drafting one level",
        caption="Seconds that the draft model takes for one level of the tree, over the nodes of the level that have children.",
        planned_s=alone.draft_s,
        measured=tables,
        others=others,
        colour="chain",
    )
    return drawn(curve)


def steps(planned: Planned) -> Figure:
    """Return what a step of plain decoding, of the best chain and of the best tree is made of."""
    plan = planned.plan
    ways = [each for each in (plan.plain, plan.chain, plan.tree) if each.tree.nodes > 1 or each is plan.plain]
    ways = [each for place, each in enumerate(ways) if all(each.tree != other.tree for other in ways[:place])]
    parts = [plan.model.costs.parts(*sizes([each.tree])) for each in ways]
    most = max(MS * float(each.step_s[0]) for each in parts)
    plot = Plot.of_rows((0.0, 1.04 * most), "ms", len(ways))
    for place, (way, each) in enumerate(zip(ways, parts, strict=True)):
        top, at = TOP + ROW * place, 0.0
        whole = MS * float(each.step_s[0])
        plot.row_name(place, f"{way.shape}: {whole:.3g} ms")
        for name, seconds, colour in PARTS:
            ms = MS * float(getattr(each, seconds)[0])
            start, end = plot.x(max(0.0, at)), plot.x(max(0.0, at + ms))
            if end > start:
                said = f"{way.shape}, {name}: {ms:.3g} of {whole:.3g} ms"
                plot.add(shape("rect", f"bar {colour}", x=start, y=top + 16, width=end - start, height=12, title=said))
            at += ms
    return plot.figure(
        name="steps",
        title="What a step is made of",
        caption="Milliseconds of one step as planned; overhead is all beside the passes of both models, and what it grows by "
        "with nodes and levels is part of theirs.",
        legend=tuple(Entry("cell80", colour, name) for name, _, colour in PARTS),
    )


def overheads(profile: Profile) -> Table:
    """Return the rest of a step, rule by rule and condition by condition."""
    rows = []
    for latency in profile.latencies:
        timed = [(each.rule, each.overhead) for each in latency.rule_overheads]
        if not timed and latency.overhead is not None:
            timed = [("every rule", latency.overhead)]
        for rule, timing in timed:
            low, high = timing.interval_s
            ends = f"{MS * low:.3g} to {MS * high:.3g}"
            rows.append((condition_name(latency), rule, MS * timing.median_s, ends, len(timing.samples_s)))
    header = ("condition", "rule", "overhead of a step, ms", "95 % interval, ms", "samples")
    return Table(name="overhead", title="Overhead of a step", header=header, rows=tuple(rows))


def times(latencies: Sequence[StepLatency], part: str, name: str, title: str) -> Table:
    """Return the measured times of one part with their samples."""
    rows = []
    for latency in latencies:
        table: LatencyTable | None = getattr(latency, part)
        if table is None:
            continue
        for tokens, timing in zip(table.tokens.tolist(), table.timings, strict=True):
            low, high = timing.interval_s
            samples = " ".join(milliseconds(each) for each in timing.samples_s)
            rows.append((condition_name(latency), tokens, MS * timing.median_s, MS * low, MS * high, samples))
    header = ("condition", "tokens", "median, ms", "low, ms", "high, ms", "samples, ms")
    return Table(name=name, title=title, header=header, rows=tuple(rows))


def _tables(planned: Planned, part: str) -> tuple[tuple[LatencyTable, ...], tuple[tuple[str, LatencyTable], ...]]:
    """Return the tables that are planned with, and the others of the profile that could be."""
    plan = planned.plan
    used = plan.model.point.latencies
    names = [(each.context_tokens, each.batch_size, each.sampled) for each in used]
    others = tuple(
        (condition_name(each), getattr(each, part))
        for each in planned.profile.step_latencies
        if (each.context_tokens, each.batch_size, each.sampled) not in names
    )
    return tuple(getattr(each, part) for each in used), others
