"""Systems whose trees hang on the text: each of some settings is tried, and the profile's times pick the fastest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treeopt.planner.trials import fastest_trial, predicted_speedup
from treeopt.profiler.trials import run_trial
from treeopt.runtime import DraftingDecoder
from treeopt.runtime.drafting import Drafter
from treeopt.systems.system import Grounds, System


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
    choices = [choice for choice in choices if choice.make().max_nodes <= model.costs.max_nodes]
    trials = [run_trial(_decoder(grounds, choice, seed=0), grounds.prompts, grounds.positions) for choice in choices]
    best = fastest_trial(trials, model)
    chosen = choices[best]
    return System(
        name=name,
        rule="target",
        setting=chosen.label,
        predicted=predicted_speedup(trials[best], model),
        make=lambda seed: _decoder(grounds, chosen, seed),
    )


def _decoder(grounds: Grounds, choice: Choice, seed: int) -> DraftingDecoder:
    sampling = grounds.sampling
    return DraftingDecoder(
        grounds.pair.target,
        choice.make(),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=seed,
    )
