"""Curves and acceptance of a profile as text, no wider than it is asked for."""

import textwrap
from collections.abc import Sequence

from treeopt.records.latency import LatencyTable
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.report.plan_text import subject
from treeopt.report.profile_words import condition_name, labelled_acceptances, under
from treeopt.report.table import Column, aligned
from treeopt.report.text import milliseconds

LEAST_WIDTH = 24
LEAST_BAR = 4
"""Characters of the longest bar below which bars are left out."""
SHADES = " ░▒▓█"
LEAST_SHOWN = 5e-4
SPREAD = 0.45


def curve_text(profile: Profile, width: int) -> str:
    """Return the times of a profile as rows with bars, each condition a block.

    Args:
        profile: what was measured.
        width: most characters of a line, at least 24.
    """
    blocks = [_heading(profile, width)]
    for latency in profile.step_latencies:
        if profile.engine is not None:
            tables = [("a step of the engine, drafting included", latency.verify)]
        else:
            tables = [("verification", latency.verify)]
            tables += [] if latency.draft is None else [("drafting one level", latency.draft)]
        for name, table in tables:
            blocks.append("\n".join([*_fitted(f"{name}, {condition_name(latency)}", width), *_bars(table, width)]))
    return "\n\n".join(blocks)


def acceptance_text(profile: Profile, width: int) -> str:
    """Return every acceptance of a profile as a map of percentages, denser where more is accepted; arguments as above."""
    blocks = [_heading(profile, width)]
    for label, measured in labelled_acceptances(profile):
        title = f"accepted, %: {label}"
        blocks.append("\n".join([*_fitted(title, width), *_map(measured, width)]))
    return "\n\n".join(blocks)


def _heading(profile: Profile, width: int) -> str:
    return "\n".join(_fitted(f"{subject(profile)}: {under(profile)}", width))


def _fitted(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, LEAST_WIDTH), break_on_hyphens=False)


def _bars(table: LatencyTable, width: int) -> list[str]:
    """Return a row for each count: tokens, median, interval, and a bar as long as the median; what does not fit is left out."""
    rows = [("tokens", "ms", "95 %")]
    for tokens, timing in zip(table.tokens.tolist(), table.timings, strict=True):
        low, high = timing.interval_s
        rows.append((str(tokens), milliseconds(timing.median_s), f"{milliseconds(low)}-{milliseconds(high)}"))
    lines = aligned(rows, [Column(">"), Column(">"), Column(">")])
    if max(map(len, lines)) > width:
        lines = aligned([row[:2] for row in rows], [Column(">"), Column(">")])
    used = max(map(len, lines))
    room, most = width - used - 2, float(table.medians_s.max())
    if room < LEAST_BAR or most <= 0:
        return lines
    bars = [max(1, round(room * max(0.0, seconds) / most)) for seconds in table.medians_s.tolist()]
    return [lines[0], *(f"{line:{used}}  {'█' * bar}" for line, bar in zip(lines[1:], bars, strict=True))]


def _map(measured: MeasuredAcceptance, width: int) -> list[str]:
    """Return a row for each depth; below parents of rank 0 where the parent's rank matters."""
    table = measured.table
    rows = table.rows(table.max_depth or 1)[:, 0]
    used = max((rank + 1 for rank in range(table.branching) if rows[:, rank].max() >= LEAST_SHOWN), default=1)
    names = ["every"] if table.position_invariant else [str(depth + 1) for depth in range(len(rows))]
    first = max(len("depth"), *map(len, names))
    ranks = min(used, max(1, (width - first - 2) // 7))
    lines = [f"{'rank':{first}}" + "".join(f"{rank:>7}" for rank in range(ranks))]
    lines[0] += " …" if ranks < used else ""
    lines += [
        f"{name:>{first}}" + "".join(_cell(value) for value in row[:ranks].tolist())
        for name, row in zip(names, rows, strict=True)
    ]
    lines[0] = lines[0].rstrip()
    lines += _notes(measured, ranks, used, width)
    return [line.rstrip() for line in lines]


def _notes(measured: MeasuredAcceptance, ranks: int, used: int, width: int) -> Sequence[str]:
    notes = [] if ranks == used else _fitted(f"… left out: ranks from {ranks} on, to {used - 1}", width)
    if measured.table.parent_ranks > 1:
        notes += _fitted("below parents of rank 0", width)
    return notes


def _cell(value: float) -> str:
    """Return seven characters: a shade twice, and the percentage."""
    shade = SHADES[min(len(SHADES) - 1, round(value**SPREAD * (len(SHADES) - 1)))]
    number = f"{100 * value:.0f}" if value >= 0.0995 or value == 0 else f"{100 * value:.1f}"
    return f" {shade * 2} {number:>3}"
