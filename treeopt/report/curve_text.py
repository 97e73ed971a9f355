"""Times and acceptance of a profile as charts of characters, within a given width."""

import textwrap

from treeopt.arrays import Float64
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.latency import LatencyTable
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.report.profile_text import describe_conditions, describe_point, labelled_acceptances
from treeopt.report.table import Column, aligned
from treeopt.report.text import milliseconds, milliseconds_range, subject

MIN_WIDTH = 24
MIN_BAR = 4
"""If the longest bar would have fewer characters, bars are left out."""
SHADES = " ░▒▓█"
MIN_SHOWN = 5e-4
"""Trailing ranks that are accepted less often at every depth are left out."""
EXPONENT = 0.45
"""Makes small probabilities denser, so that they can be distinguished."""


def curve_text(profile: Profile, width: int) -> str:
    """Return the times of a profile as rows with bars, a block for each operating point.

    Args:
        profile: what was measured.
        width: most characters of a line, at least `MIN_WIDTH`.
    """
    blocks = [_heading(profile, width)]
    for latency in profile.step_latencies:
        if profile.engine is not None:
            tables = [("a step of the engine, drafting included", latency.verify)]
        else:
            tables = [("verification", latency.verify)]
            tables += [] if latency.draft is None else [("drafting one level", latency.draft)]
        for name, table in tables:
            blocks.append("\n".join([*_fitted(f"{name}, {describe_point(latency)}", width), *_bars(table, width)]))
    return "\n\n".join(blocks)


def acceptance_text(profile: Profile, width: int) -> str:
    """Return every acceptance of a profile as a shaded table of percentages; arguments as for `curve_text`."""
    blocks = [_heading(profile, width)]
    for label, measured in labelled_acceptances(profile):
        title = f"accepted, %: {label}"
        blocks.append("\n".join([*_fitted(title, width), *_map(measured, width)]))
    return "\n\n".join(blocks)


def shown_rows(table: AcceptanceTable) -> Float64:
    """Return float64 (depths, ranks) without trailing ranks; below parents of rank 0 if the parent's rank matters."""
    rows = table.rows(table.max_depth or 1)[:, 0]
    last_rank = max((rank for rank in range(table.branching) if rows[:, rank].max() >= MIN_SHOWN), default=0)
    return rows[:, : last_rank + 1]


def _heading(profile: Profile, width: int) -> str:
    return "\n".join(_fitted(f"{subject(profile)}: {describe_conditions(profile)}", width))


def _fitted(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, MIN_WIDTH), break_on_hyphens=False)


def _bars(table: LatencyTable, width: int) -> list[str]:
    """Return a row for each number of tokens: median, interval and bar; columns that do not fit are left out."""
    rows = [("tokens", "ms", "95 %")]
    for tokens, timing in zip(table.tokens.tolist(), table.timings, strict=True):
        rows.append((str(tokens), milliseconds(timing.median_s), milliseconds_range(timing.interval_s)))
    lines = aligned(rows, [Column(">"), Column(">"), Column(">")])
    if max(map(len, lines)) > width:
        lines = aligned([row[:2] for row in rows], [Column(">"), Column(">")])
    text_width = max(map(len, lines))
    bar_width, max_s = width - text_width - 2, float(table.medians_s.max())
    if bar_width < MIN_BAR or max_s <= 0:
        return lines
    bars = [max(1, round(bar_width * max(0.0, seconds) / max_s)) for seconds in table.medians_s.tolist()]
    return [lines[0], *(f"{line:{text_width}}  {'█' * bar}" for line, bar in zip(lines[1:], bars, strict=True))]


def _map(measured: MeasuredAcceptance, width: int) -> list[str]:
    """Return a row for each depth; below parents of rank 0 if the parent's rank matters."""
    table = measured.table
    rows = shown_rows(table)
    last_rank = rows.shape[1] - 1
    names = ["every"] if table.position_invariant else [str(depth + 1) for depth in range(len(rows))]
    name_width = max(len("depth"), *map(len, names))
    ranks = min(last_rank + 1, max(1, (width - name_width - 2) // 7))
    lines = [f"{'rank':{name_width}}" + "".join(f"{rank:>7}" for rank in range(ranks))]
    lines[0] += " …" if ranks <= last_rank else ""
    lines += [
        f"{name:>{name_width}}" + "".join(_cell(value) for value in row[:ranks].tolist())
        for name, row in zip(names, rows, strict=True)
    ]
    lines[0] = lines[0].rstrip()
    if ranks <= last_rank:
        lines += _fitted(f"… ranks {ranks} to {last_rank} left out", width)
    if table.parent_ranks > 1:
        lines += _fitted("below parents of rank 0", width)
    return [line.rstrip() for line in lines]


def _cell(value: float) -> str:
    """Return seven characters: two of shade, and the percentage."""
    shade = SHADES[min(len(SHADES) - 1, round(value**EXPONENT * (len(SHADES) - 1)))]
    number = f"{100 * value:.0f}" if value >= 0.0995 or value == 0 else f"{100 * value:.1f}"
    return f" {shade * 2} {number:>3}"
