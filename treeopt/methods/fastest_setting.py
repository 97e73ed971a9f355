"""Methods whose trees hang on the text: each of some settings is tried, and the profile's times pick the fastest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treeopt.methods.method import REST_ASSUMED, Inputs, Method
from treeopt.planner.decode_speedup import fastest_setting, predicted_speedup
from treeopt.profiler.bench.timed_steps import decode_stats
from treeopt.records.decode_stats import DecodeStats
from treeopt.runtime.drafters.drafter import Drafter


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting of a drafter."""

    label: str
    """In words."""
    make: Callable[[], Drafter]


def fastest_choice(name: str, inputs: Inputs, choices: Sequence[Choice]) -> Method:
    """Return the fastest of some settings of a drafter, by decoding the inputs' prompts with each.

    Settings whose passes may be larger than what was timed are left out.  Raises InfeasibleError where none is left.
    """
    model = inputs.model("target")
    tried: list[tuple[Choice, DecodeStats]] = []
    for choice in choices:
        drafter = choice.make()
        if drafter.max_tokens <= model.costs.max_nodes:
            tried.append((choice, decode_stats(inputs.decoder(drafter, 0), inputs.prompts, inputs.positions)))
    chosen, stats = tried[fastest_setting([each for _, each in tried], model)]
    return Method(
        name=name,
        rule="target",
        setting=chosen.label,
        predicted=predicted_speedup(stats, model),
        make=lambda seed: inputs.decoder(chosen.make(), seed),
        assumed=(REST_ASSUMED,),
    )
