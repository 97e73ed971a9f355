"""A whole contest: profile, plan and run all systems, temperature by temperature."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treeopt.planner import fastest_drafted_tree
from treeopt.profile import Profile
from treeopt.profiler import Journal, Measurement, Settings, clock_for
from treeopt.runtime.pair import ModelPair
from treeopt.sampling import Sampling
from treeopt.systems.bench import Row, bench_systems
from treeopt.systems.contest import checked_names, planned_systems
from treeopt.systems.system import Grounds

RULES = ("sequoia", "specinfer", "target", "traversal")
"""Measured above temperature 0; at temperature 0 all are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured, tried and decoded."""

    max_tokens: int = 256
    """Largest pass that is timed."""
    rounds: int = 15
    """Samples of every time."""
    positions: int = 3072
    """Generated tokens whose acceptance is counted, for each rule."""
    trial_prompts: int = 6
    """Prompts that every setting of a drafter is tried on."""
    trial_positions: int = 96
    """New tokens of each."""
    bench_prompts: int = 8
    """Held-out prompts, all decoded with every system."""
    bench_tokens: int = 192
    """New tokens of each."""
    repeats: int = 2


def run_contest(
    pair: ModelPair,
    measured_prompts: Sequence[Sequence[int]],
    held_out_prompts: Sequence[Sequence[int]],
    *,
    names: Sequence[str],
    temperatures: Sequence[float],
    effort: Effort,
    announce: Callable[[str], None] = lambda _: None,
    show_progress: bool = True,
) -> tuple[Row, ...]:
    """Return a row for every system and temperature.

    Args:
        pair: the models.
        measured_prompts: what is profiled and tried on, token ids.
        held_out_prompts: what is decoded for the table.
        names: of systems, or `all`.
        temperatures: of the target.
        effort: how much.
        announce: told what begins.
        show_progress: whether bars go to standard error.

    Raises InvalidValueError for unknown names, before anything runs.
    """
    wanted = checked_names(names)
    rows: list[Row] = []
    for temperature in temperatures:
        sampling = Sampling(temperature)
        announce(f"temperature {temperature:g}: profile")
        grounds = Grounds(
            pair=pair,
            profile=_profile(pair, measured_prompts, sampling, effort, show_progress),
            sampling=sampling,
            prompts=measured_prompts[: effort.trial_prompts],
            positions=effort.trial_positions,
        )
        announce(f"temperature {temperature:g}: plans")
        systems = planned_systems(grounds, wanted, show_progress=show_progress)
        announce(f"temperature {temperature:g}: decoding")
        rows += bench_systems(
            systems,
            pair.target,
            held_out_prompts[: effort.bench_prompts],
            sampling,
            max_new_tokens=effort.bench_tokens,
            repeats=effort.repeats,
            show_progress=show_progress,
        )
    return tuple(rows)


def _profile(
    pair: ModelPair, prompts: Sequence[Sequence[int]], sampling: Sampling, effort: Effort, show_progress: bool
) -> Profile:
    settings = Settings(
        rules=("sequoia",) if sampling.greedy else RULES,
        samplings=(sampling,),
        max_tokens=effort.max_tokens,
        rounds=effort.rounds,
        positions=effort.positions,
    )
    measurement = Measurement(
        pair.target,
        pair.draft,
        prompts,
        settings,
        clock=clock_for(pair.target.device),
        journal=Journal(None, ""),
        fastest_tree=fastest_drafted_tree,
    )
    return measurement.profile(show_progress=show_progress)
