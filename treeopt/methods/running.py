"""Profile, plan and benchmark all methods, temperature by temperature."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.methods.bench import bench_methods
from treeopt.methods.drafted import drafted
from treeopt.methods.method import Inputs, Method
from treeopt.methods.names import checked_names
from treeopt.methods.static_tree import STATIC, best_rule
from treeopt.planner import fastest_drafted_tree
from treeopt.profiler import Journal, Measurement, Settings, clock_for
from treeopt.profiler.bench.compare import Workload
from treeopt.profiler.bench.reference_passes import reference_passes
from treeopt.profiler.latency.passes import ROOM_TOKENS
from treeopt.records.profile import Profile
from treeopt.records.results import NotRun, Row
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.model import trained_tokens
from treeopt.runtime.models.pair import ModelPair

RULES = ("sequoia", "specinfer", "target", "traversal")
"""Measured above temperature 0; at temperature 0 all are one."""
CONTEXT_TOKENS = 256
"""Tokens in the cache while times are taken; fewer where the models were trained on less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured."""

    max_tokens: int = 256
    """Largest pass that is timed."""
    rounds: int = 15
    """Samples of every time."""
    positions: int = 3072
    """Generated tokens whose acceptance is counted, for each rule; fewer where the prompts leave less room."""
    setting_prompts: int = 12
    """Prompts that drafters are measured on."""
    setting_positions: int = 96
    """New tokens of each."""


DEFAULT_EFFORT = Effort()


def run_methods(
    pair: ModelPair,
    measured_prompts: Sequence[Sequence[int]],
    workload: Workload,
    *,
    names: Sequence[str],
    temperatures: Sequence[float],
    profile: Profile | None = None,
    effort: Effort = DEFAULT_EFFORT,
    announce: Callable[[str], None] = lambda _: None,
    show_progress: bool = True,
) -> tuple[Row | NotRun, ...]:
    """Return a row for every method and temperature; of a method that cannot run on the pair, the reason.

    Args:
        pair: the models.
        measured_prompts: token ids of the prompts that are profiled and tried on.
        workload: held-out prompts, decoded with every method.
        names: of methods, or `all`.
        temperatures: of the target.
        profile: what to plan from, of this pair and at these temperatures; None if it is to be measured.
        effort: how much is measured.
        announce: called with what begins.
        show_progress: whether bars go to standard error.

    Raises InvalidValueError for unknown names and for a profile whose draft sampled by a distribution of its own,
    InfeasibleError for a temperature that the profile does not contain, before anything runs.
    """
    names = checked_names(names)
    samplings = [Sampling(each) if profile is None else sampling_of(profile, each) for each in temperatures]
    rows: list[Row | NotRun] = []
    for sampling in samplings:
        at = f"temperature {sampling.temperature:g}"
        if profile is None:
            announce(f"{at}: profile")
        inputs = Inputs(
            pair=pair,
            profile=profile or _profile(pair, measured_prompts, sampling, effort, show_progress),
            sampling=sampling,
            prompts=measured_prompts[: effort.setting_prompts],
            positions=effort.setting_positions,
        )
        announce(f"{at}: plans")
        methods = planned_methods(inputs, names, show_progress=show_progress)
        announce(f"{at}: decoding")
        planned = [each for each in methods if isinstance(each, Method)]
        trees = [each.option.tree for each in planned if each.model is not None]
        references = reference_passes(planned[0].model, pair.target, pair.draft, trees, workload.prompts)
        found = bench_methods(
            methods, pair.target, workload, sampling, references=references, show_progress=show_progress
        )
        rows += found
        if rounds_of(found) < workload.rounds:  # Ctrl-C
            break
    return tuple(rows)


def planned_methods(inputs: Inputs, names: Sequence[str], *, show_progress: bool = True) -> list[Method | NotRun]:
    """Return methods with their fastest settings by the measurements, or why they cannot run on the inputs.

    `treeopt` is the one of the others, and of the best tree under the best rule, with the largest predicted speedup.
    """
    found: list[Method | NotRun] = []
    others = [name for name in names if name != "treeopt"]
    for name in tqdm(others, desc="planning  ", unit="method", disable=None if show_progress else True):
        try:
            found.append(STATIC[name](inputs) if name in STATIC else drafted(name, inputs))
        except TreeoptError as error:
            if name == "plain":  # without it there is nothing to compare with
                raise
            found.append(NotRun(method=name, temperature=inputs.sampling.temperature, reason=str(error)))
    if "treeopt" in names:
        able = [each for each in found if isinstance(each, Method)]
        best = max([best_rule(inputs), *able], key=lambda method: method.option.speedup.value)
        chosen = None if best.name in ("treeopt", "sequoia") else best.name
        found.append(replace(best, name="treeopt", chosen=chosen))
    return found


def rounds_of(rows: Sequence[Row | NotRun]) -> int:
    """Return the fewest rounds of any row; fewer than asked for after an interruption."""
    return min(row.rounds for row in rows if isinstance(row, Row))


def sampling_of(profile: Profile, temperature: float) -> Sampling:
    """Return how a profile's texts were sampled at a temperature, as all methods can sample.

    Raises InfeasibleError where it was not measured there, InvalidValueError where the draft sampled otherwise.
    """
    measured = profile.acceptance(temperature=temperature)
    if measured.draft_sampling is not None:
        raise InvalidValueError(
            f"profile: expected drafts sampled as the target's text at temperature {temperature:g}. Got a distribution of "
            "their own: leave the profile out, or measure one without --draft-temperature, --draft-top-p, --draft-top-k."
        )
    return measured.sampling


def _profile(
    pair: ModelPair, prompts: Sequence[Sequence[int]], sampling: Sampling, effort: Effort, show_progress: bool
) -> Profile:
    trained = trained_tokens(pair.target, pair.draft)
    room = trained - max(map(len, prompts))
    settings = Settings(
        rules=("sequoia",) if sampling.greedy else RULES,
        samplings=(sampling,),
        context_tokens=(max(1, min(CONTEXT_TOKENS, trained - ROOM_TOKENS)),),
        max_tokens=effort.max_tokens,
        rounds=effort.rounds,
        positions=max(1, min(effort.positions, room * len(prompts))),
    )
    measurement = Measurement(
        pair.target,
        pair.draft,
        prompts,
        settings,
        clock=clock_for(pair.target.device),
        journal=Journal(None, ""),
        fastest_tree=fastest_drafted_tree,
        pair=pair.described,
    )
    return measurement.profile(show_progress=show_progress)
