"""Map when trees win: the gain of the best tree over the best chain and over plain decoding, and where profiles lie.

Two numbers place a machine and a pair on the map: the number of tokens for which a verification pass takes twice as long as for
one token (flatness), and how often the draft model's first child is accepted. Fixed are the cost of a draft level, and the
acceptance of further children, in the proportions that Sequoia published.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from common import describe_environment, script_parser
from tqdm import tqdm

from treeopt.arrays import Float64
from treeopt.files.figure_file import write_figure
from treeopt.planner import PlanRequest, fastest_tree, requested_plan
from treeopt.planner.costs import StepCosts, step_costs
from treeopt.planner.step_parts import DRAFT, VERIFY, step_parts
from treeopt.plotting.labels import label_points
from treeopt.plotting.panels import Panel, compose
from treeopt.plotting.style import BLUE, CHOICE, INK, WHITE
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.operating_point import find_operating_point
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY
from treeopt.records.step_latency import StepLatency
from treeopt.report.table import Column, aligned
from treeopt.solver import solve
from treeopt.trees import chain

FLATNESS = tuple(2.0 ** (power / 2) for power in range(2, 20))
FIRST = tuple(round(0.3 + 0.05 * step, 2) for step in range(14))
BUDGET, DEPTH, WIDEST = 192, 16, 64
DRAFT_COST = 0.1
PROFILES = Path(__file__).resolve().parent.parent / "docs" / "profiles"
RANKS = (0.1039, 0.0402, 0.0206, 0.0128, 0.0081, 0.0064, 0.0043, 0.0035, 0.0026, 0.0025)
RANKS_FIRST = 0.7732
"""Acceptance by rank that Sequoia published: Llama3-8B drafting for 70B (Chen et al., 2024, arXiv 2402.12374v3)."""
OFFLOADED = (1, 4, 16, 64, 256), (15.9, 17.2, 18.7, 22.8, 42.0)
"""Tokens and milliseconds of docs/measurements/profiling.md: the bundled target on disk, two cores of an AMD EPYC, 2026-11-21."""
DEMO_TOKENS, DEMO_MS, DEMO_DRAFT_MS, DEMO_FIRST = (1, 2, 4, 8, 16, 32), (10, 10, 10, 12, 14, 18), 0.3, 0.6342
"""Times of Sequoia's demo-config.json, which names no machine, and the first entry of its acceptance-rate-vector.pt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPoint:
    """A machine with a pair, measured or published."""

    name: str
    flatness: float
    beyond: bool
    """Whether no timed pass takes twice as long; then `flatness` is a lower bound."""
    first: float
    draft_cost: float | None = None
    over_chain: float | None = None
    """As planned from its profile; None without one."""
    over_plain: float | None = None
    published: bool = False

    @property
    def on_map(self) -> bool:
        return FLATNESS[0] <= self.flatness <= FLATNESS[-1] and FIRST[0] <= self.first <= FIRST[-1]


def table_of(first: float) -> AcceptanceTable:
    """Return an acceptance table; further children divide the remaining probability as in Sequoia's table."""
    return AcceptanceTable([first, *(rank * (1 - first) / (1 - RANKS_FIRST) for rank in RANKS)])


def costs_of(flatness: float, draft_cost: float) -> StepCosts:
    """Return costs in passes over one token; a verification of `flatness` tokens takes twice as long as of one."""

    def line(max_tokens: int, scale: float) -> LatencyTable:
        seconds = [scale * (1 + (tokens - 1) / (flatness - 1)) for tokens in (1, max_tokens)]
        return LatencyTable([1, max_tokens], [Timing([sample]) for sample in seconds])

    latency = StepLatency(
        context_tokens=0,
        batch_size=1,
        verify=line(BUDGET, 1.0),
        draft=line(WIDEST, draft_cost),
        overhead=Timing([0.0], allow_negative=True),
    )
    return step_costs(find_operating_point([latency], GREEDY), rule="sequoia")


def gains(flatness: Sequence[float], first: Sequence[float], draft_cost: float) -> tuple[Float64, Float64]:
    """Return two arrays (first, flatness): the best tree's gain over the best chain or plain decoding, and over plain decoding."""
    over_chain, over_plain = np.ones((2, len(first), len(flatness)))
    costs = [costs_of(tokens, draft_cost) for tokens in flatness]
    for row, acceptance in enumerate(tqdm(first, desc="solving", leave=False, disable=None)):
        table = table_of(acceptance)
        solution = solve(table, BUDGET, DEPTH)
        for column, cost in enumerate(costs):
            best = fastest_tree(solution, cost).speedup
            chains = [chain(length) for length in range(DEPTH + 1)]
            tokens = np.array([table.expected_tokens(tree) for tree in chains])
            step_s = np.array([float(cost.tree_s(tree)) for tree in chains])
            over_plain[row, column] = best
            over_chain[row, column] = best / float(cost.speedup(tokens, step_s).max())
    return over_chain, over_plain


def doubling(tokens: Sequence[int], seconds: Sequence[float]) -> tuple[float, bool]:
    """Return the tokens for which a pass takes twice as long as for one, and whether that is beyond all timed passes."""
    rising = np.maximum.accumulate(np.array(seconds))
    if rising[-1] < 2 * rising[0]:
        return float(tokens[-1]), True
    right = int(np.argmax(rising >= 2 * rising[0]))
    (low, high), (start, end) = tokens[right - 1 : right + 1], rising[right - 1 : right + 1]
    return float(low + (2 * rising[0] - start) / (end - start) * (high - low)), False


def points_of(paths: Iterable[Path]) -> list[MapPoint]:
    """Return the point of each profile, at its first operating point and acceptance."""
    points = []
    for path in paths:
        profile = Profile.load(path)
        point = _point_of_passes(path, profile) if profile.engine is None else _point_of_engine(path, profile)
        if point is None:
            print(
                f"{path.name}: expected steps of several batch sizes, to separate the time of a pass. Probe more batch sizes.",
                file=sys.stderr,
            )
        else:
            points.append(point)
    return points


def _point_of_passes(path: Path, profile: Profile) -> MapPoint:
    plan = requested_plan(profile, PlanRequest(rule=profile.acceptances[0].rule))
    verify, draft = (getattr(plan.model.point.latencies[0], part) for part in ("verify", "draft"))
    flatness, beyond = doubling(verify.tokens.tolist(), verify.medians_s.tolist())
    best_other = max(plan.chain.speedup.value, 1.0)
    return MapPoint(
        name=path.stem,
        flatness=flatness,
        beyond=beyond,
        first=float(plan.model.acceptance.table.rows(1)[0, 0, 0]),
        draft_cost=float(draft.medians_s[0] / verify.medians_s[0]),
        over_chain=max(plan.tree.speedup.value, best_other) / best_other,
        over_plain=max(plan.tree.speedup.value, best_other),
    )


def _point_of_engine(path: Path, profile: Profile) -> MapPoint | None:
    """Return the point of an engine, its passes fitted to steps of several batch sizes; it runs chains only."""
    fitted = [part for part in step_parts(profile.chain_latencies) if part.seconds is not None]
    seconds = {(part.part, part.size): part.seconds.value for part in fitted if part.seconds is not None}
    verify = sorted((size, value) for (part, size), value in seconds.items() if part == VERIFY)
    if len(verify) < 2 or verify[0][0] != 1:
        return None
    flatness, beyond = doubling([size for size, _ in verify], [value for _, value in verify])
    plan, draft_s = requested_plan(profile, PlanRequest()), seconds.get((DRAFT, 1))
    return MapPoint(
        name=path.stem,
        flatness=flatness,
        beyond=beyond,
        first=float(plan.model.acceptance.table.rows(1)[0, 0, 0]),
        draft_cost=None if draft_s is None else draft_s / verify[0][1],
        over_plain=max(plan.chain.speedup.value, 1.0),
    )


def offloaded() -> MapPoint:
    """Return the bundled pair with its target on disk: the times of docs/measurements/profiling.md, the acceptance of docs/profiles."""
    flatness, beyond = doubling(*OFFLOADED)
    table = Profile.load(PROFILES / "bundled-2-cores-outcomes.yaml").acceptances[0].table
    return MapPoint(
        name="bundled, target on disk",
        flatness=flatness,
        beyond=beyond,
        first=float(table.rows(1)[0, 0, 0]),
    )


def published() -> MapPoint:
    """Return Sequoia's demonstration, for which only a configuration is published."""
    flatness, beyond = doubling(DEMO_TOKENS, DEMO_MS)
    return MapPoint(
        name="Sequoia's demo configuration (published)",
        flatness=flatness,
        beyond=beyond,
        first=DEMO_FIRST,
        draft_cost=DEMO_DRAFT_MS / DEMO_MS[0],
        published=True,
    )


def draw(path: Path, maps: tuple[Float64, Float64], points: Sequence[MapPoint], draft_cost: float) -> None:
    panels = [
        Panel(
            draw=partial(_draw_panel, gain=gain, levels=levels, points=points),
            title=title,
            x="tokens for which a pass takes twice as long",
            y="first child accepted",
            height=320.0,
        )
        for gain, levels, title in (
            (maps[0], [1.02, 1.05, 1.1, 1.2, 1.3], "over the best chain or plain decoding"),
            (maps[1], [1.25, 1.5, 2.0, 3.0, 4.0], "over plain decoding"),
        )
    ]
    subtitle = (
        "Gain of the best tree, solved for acceptance that falls by rank as Sequoia published; a level of drafting costs "
        f"{draft_cost:g} of a pass, no overhead. Numbers are lines of the table: measured profiles, and published numbers."
    )
    write_figure(compose(panels, title="When trees win", subtitle=subtitle, columns=2), path)


def _draw_panel(axes, gain: Float64, levels: list[float], points: Sequence[MapPoint]) -> None:  # type: ignore[no-untyped-def]
    _draw_map(axes, gain, levels)
    _draw_points(axes, points)


def _draw_map(axes, gain: Float64, levels: list[float]) -> None:  # type: ignore[no-untyped-def]
    axes.set_xscale("log", base=2)
    edges = [
        np.concatenate([[axis[0]], (axis[1:] + axis[:-1]) / 2, [axis[-1]]])
        for axis in (np.log2(FLATNESS), np.array(FIRST))
    ]
    axes.pcolormesh(2 ** edges[0], edges[1], gain, cmap="YlGnBu", vmin=1.0, vmax=float(gain.max()))
    lines = axes.contour(FLATNESS, FIRST, gain, levels=levels, colors=[INK], linewidths=0.8)
    axes.clabel(lines, fmt="%g", fontsize=7)
    axes.set_xlim(FLATNESS[0], FLATNESS[-1])
    axes.set_ylim(FIRST[0], FIRST[-1])
    axes.xaxis.set_major_formatter("{x:g}")


def _draw_points(axes, all_points: Sequence[MapPoint]) -> None:  # type: ignore[no-untyped-def]
    """Draw the points that lie on the map, with the numbers of their rows."""
    numbers, points = zip(*((number, point) for number, point in enumerate(all_points, 1) if point.on_map), strict=True)
    positions = np.array([[point.flatness, point.first] for point in points])
    for is_published, marker, colour, label in (
        (False, "o", BLUE, "measured"),
        (True, "s", CHOICE, "published, not measured"),
    ):
        group = positions[[point.published == is_published for point in points]]
        axes.plot(
            group[:, 0],
            group[:, 1],
            marker,
            color=colour,
            markeredgecolor=WHITE,
            markersize=6,
            linestyle="none",
            label=label,
            zorder=4,
        )
    beyond = positions[[point.beyond for point in points]]
    axes.plot(
        1.12 * beyond[:, 0],
        beyond[:, 1],
        ">",
        color=INK,
        markersize=3.5,
        linestyle="none",
        label="or flatter",
        zorder=4,
    )
    label_points(axes, positions, list(map(str, numbers)))


def rows_of(maps: tuple[Float64, Float64], points: Sequence[MapPoint]) -> list[tuple[str, ...]]:
    """Return a line for each point: its position, the gains on the map, and the gains planned from its profile."""
    rows: list[tuple[str, ...]] = [("", "", "flat to", "first", "draft", "map: chain", "plain", "plan: chain", "plain")]
    for number, point in enumerate(points, 1):
        mapped = [f"{_interpolate(gain, point):.2f}" for gain in maps]
        planned = ["-" if gain is None else f"{gain:.2f}" for gain in (point.over_chain, point.over_plain)]
        cost = "-" if point.draft_cost is None else f"{point.draft_cost:.2f}"
        flat = f"{'>' if point.beyond else ''}{point.flatness:.0f}"
        rows.append((str(number), point.name, flat, f"{point.first:.2f}", cost, *mapped, *planned))
    return rows


def _interpolate(gain: Float64, point: MapPoint) -> float:
    """Interpolate a map linearly at a point; points outside are moved to its edge."""
    by_first = [np.interp(np.log(point.flatness), np.log(FLATNESS), row) for row in gain]
    return float(np.interp(point.first, FIRST, by_first))


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument(
        "profiles", nargs="*", type=Path, help="of models or engines; by default those of docs/profiles"
    )
    parser.add_argument(
        "--draft-cost", type=float, default=DRAFT_COST, help="of a draft level, in passes over one token"
    )
    parser.add_argument("--plot", type=Path, help="figure to write: .svg, .png or .pdf")
    args = parser.parse_args()
    paths = args.profiles or sorted(PROFILES.glob("*.yaml"))
    print(describe_environment())
    maps = gains(FLATNESS, FIRST, args.draft_cost)
    points = [*points_of(paths), offloaded(), published()]
    for gain, name in zip(maps, ("the best chain or plain decoding", "plain decoding"), strict=True):
        print(f"\nthe best tree over {name}; columns: flatness in tokens; rows: acceptance of the first child\n")
        columns = range(0, len(FLATNESS), 2)
        rows = [("", *(f"{FLATNESS[column]:.0f}" for column in columns))]
        rows += [
            (f"{first:.2f}", *(f"{gain[row, column]:.2f}" for column in columns)) for row, first in enumerate(FIRST)
        ]
        print("\n".join(aligned(rows, [Column(">")] * len(rows[0]))))
    print("\nprofiles\n")
    print("\n".join(aligned(rows_of(maps, points), [Column(">"), Column(), *[Column(">")] * 7])))
    if args.plot is not None:
        draw(args.plot, maps, points, args.draft_cost)


if __name__ == "__main__":
    main()
