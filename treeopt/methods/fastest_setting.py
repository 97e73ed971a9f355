"""Systems whose trees hang on the text: each of some settings is tried, and the profile's times pick the fastest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treeopt.methods.method import REST_ASSUMED, Grounds, System
from treeopt.planner.decode_speedup import fastest_trial, predicted_speedup
from treeopt.profiler.bench.timed_steps import run_trial
from treeopt.records.decode_stats import Trial
from treeopt.runtime.drafters.drafter import Drafter


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting of a drafter."""

    label: str
    """In words."""
    make: Callable[[], Drafter]


def fastest_choice(name: str, grounds: Grounds, choices: Sequence[Choice]) -> System:
    """Return the fastest of some settings of a drafter, by trials on the grounds' prompts.

    Settings whose passes may be larger than what was timed are left out.  Raises InfeasibleError where none is left.
    """
    model = grounds.model("target")
    tried: list[tuple[Choice, Trial]] = []
    for choice in choices:
        drafter = choice.make()
        if drafter.max_tokens <= model.costs.max_nodes:
            tried.append((choice, run_trial(grounds.decoder(drafter, 0), grounds.prompts, grounds.positions)))
    chosen, trial = tried[fastest_trial([each for _, each in tried], model)]
    return System(
        name=name,
        rule="target",
        setting=chosen.label,
        predicted=predicted_speedup(trial, model),
        make=lambda seed: grounds.decoder(chosen.make(), seed),
        assumed=(REST_ASSUMED,),
    )
