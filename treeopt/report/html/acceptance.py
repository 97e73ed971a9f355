"""Acceptance by depth and rank as heat maps."""

from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.report.html.plot import Plot
from treeopt.report.html.shapes import Entry, Figure, shape, shortened
from treeopt.report.html.tables import Table
from treeopt.report.profile_words import labelled_acceptances

MOST_RANKS, MOST_DEPTHS = 24, 24
LEAST_SHOWN = 5e-4
"""Ranks that no depth accepts more often are left out at the end."""
LEGEND = (0.01, 0.1, 0.3, 0.6, 1.0)


def heat_map(name: str, label: str, measured: MeasuredAcceptance) -> Figure:
    """Return the map of one acceptance; below parents of rank 0 where the parent's rank matters."""
    table = measured.table
    rows = table.rows(table.max_depth or 1)[:, 0]
    depths, ranks = min(len(rows), MOST_DEPTHS), ranks_shown(table)
    height = 74.0 + max(9.0 * depths, 24.0) + 8.0 * min(depths, 8)
    left_out = [*([f"ranks up to {ranks - 1} of {table.branching - 1}"] if ranks < table.branching else [])]
    left_out += [f"depths up to {depths} of {len(rows)}"] if depths < len(rows) else []
    plot = Plot(
        (-0.5, ranks - 0.5), (depths + 0.5, 0.5), ("rank among siblings", "depth"), size=(460.0, height), whole=True
    )
    interval = table.interval()
    ends = None if interval is None else [each.reshape(len(rows), -1, table.branching)[:, 0] for each in interval]
    for depth in range(1, depths + 1):
        for rank in range(ranks):
            value = float(rows[depth - 1, rank])
            if value < 5e-5:
                continue
            where = "every depth" if table.position_invariant else f"depth {depth}"
            low_high = None if ends is None else [100 * float(end[depth - 1, rank]) for end in ends]
            give = "" if low_high is None else " ({:.1f}-{:.1f})".format(*low_high)
            x, y = plot.x(rank - 0.5), min(plot.y(depth - 0.5), plot.y(depth + 0.5))
            plot.add(
                shape(
                    "rect",
                    "cell tree",
                    x=x,
                    y=y,
                    width=plot.x(rank + 0.5) - x,
                    height=abs(plot.y(depth + 0.5) - plot.y(depth - 0.5)),
                    fill_opacity=f"{opacity(value):.2f}",
                    title=f"{where}, rank {rank}: accepted {100 * value:.1f}{give} % of the time",
                )
            )
    counted = "" if measured.positions is None else f" {measured.positions} positions."
    caption = (
        f"How often the child of each rank is the accepted one, given that its parent was reached.{counted}"
        + (" Below parents of rank 0." if table.parent_ranks > 1 else "")
        + (f" Shown: {', '.join(left_out)}." if left_out else "")
    )
    return plot.figure(
        name=name,
        title=f"Acceptance, {shortened(label)}",
        caption=caption,
        legend=tuple(Entry(f"cell{round(100 * opacity(value))}", "tree", f"{100 * value:g} %") for value in LEGEND),
    )


def numbers(profile: Profile) -> Table:
    """Return all acceptances as rows of a depth, a parent's rank and a rank."""
    rows = []
    for label, measured in labelled_acceptances(profile):
        table = measured.table
        low_high = table.interval()
        flat = table.p.reshape(-1, table.branching)
        ends = None if low_high is None else tuple(each.reshape(-1, table.branching) for each in low_high)
        for place, row in enumerate(flat):
            depth, parent = divmod(place, table.parent_ranks)
            for rank, value in enumerate(row.tolist()):
                low, high = (None, None) if ends is None else (float(ends[0][place, rank]), float(ends[1][place, rank]))
                rows.append((label, "every" if table.position_invariant else depth + 1, parent, rank, value, low, high))
    header = ("acceptance", "depth", "parent's rank", "rank", "probability", "low", "high")
    return Table(name="acceptance", title="Acceptance by depth and rank", header=header, rows=tuple(rows))


def ranks_shown(table: AcceptanceTable, most: int = MOST_RANKS) -> int:
    """Return how many ranks there are until the last that is accepted at all, at least one and at most so many."""
    rows = table.rows(table.max_depth or 1)[:, 0]
    used = [rank + 1 for rank in range(table.branching) if rows[:, rank].max() >= LEAST_SHOWN]
    return max(1, min(most, max(used, default=1)))


def opacity(value: float) -> float:
    """Return how dense a probability is drawn, spread out so that small ones can be told apart."""
    return float(value**0.45)
