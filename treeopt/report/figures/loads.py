"""Simulated settings: tokens per second and time per token over the rate at which sequences arrive."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.plotting.panels import Panel
from treeopt.plotting.style import INK, MUTED, SERIES, grid_lines
from treeopt.simulation.outcome import Outcome
from treeopt.simulation.settings import PLAIN, SCHEDULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def load_panels(outcomes: Sequence[Outcome]) -> list[Panel]:
    """Return throughput and latency of settings at two or more rates."""
    x = "sequences arriving per second"
    return [
        Panel(draw=lambda axes: _draw(axes, outcomes, latency=False), title="Throughput", x=x, y="tokens per second"),
        Panel(draw=lambda axes: _draw(axes, outcomes, latency=True), title="Latency", x=x, y="ms per token"),
    ]


def drawn_settings(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the names of plain decoding, the schedule, and the fixed settings that are fast at some rate."""
    best: dict[str, float] = {}
    for rate in {outcome.rate_per_s for outcome in outcomes}:
        at_rate = [outcome for outcome in outcomes if outcome.rate_per_s == rate]
        min_s = min(outcome.token_s for outcome in at_rate)
        for outcome in at_rate:
            # in outputs of one step, the tokens after the first take no time
            ratio = min_s / outcome.token_s if outcome.token_s > min_s else 1.0
            best[outcome.name] = max(best.get(outcome.name, 0.0), ratio)
    fixed = sorted((name for name in best if name not in (PLAIN, SCHEDULE)), key=lambda name: -best[name])
    order = list(dict.fromkeys(outcome.name for outcome in outcomes))
    return [name for name in order if name in (PLAIN, SCHEDULE, *fixed[: len(SERIES)])]


def _draw(axes: "Axes", outcomes: Sequence[Outcome], *, latency: bool) -> None:
    colours = iter(SERIES)
    for name in drawn_settings(outcomes):
        by_rate = sorted(
            (outcome for outcome in outcomes if outcome.name == name), key=lambda outcome: outcome.rate_per_s
        )
        axes.plot(
            [outcome.rate_per_s for outcome in by_rate],
            [1000 * outcome.token_s if latency else outcome.tokens_per_s for outcome in by_rate],
            color={PLAIN: MUTED, SCHEDULE: INK}.get(name) or next(colours),
            linewidth=2.0 if name == SCHEDULE else 1.3,
            linestyle="--" if name == PLAIN else "-",
            marker="o",
            markersize=3.5,
            label=name,
        )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    grid_lines(axes)
