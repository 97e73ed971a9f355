"""Profile, plan and benchmark all methods, temperature by temperature."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.methods.bench import bench_methods
from treeopt.methods.drafters import plan_drafter
from treeopt.methods.method import Inputs, Method
from treeopt.methods.names import select_methods
from treeopt.methods.static_tree import PLANNERS, plan_best_rule
from treeopt.profiler import Checkpoint, Measurement, Settings, clock_for
from treeopt.profiler.bench.compare import Workload
from treeopt.profiler.bench.reference_passes import reference_passes
from treeopt.profiler.latency.passes import ROOM_TOKENS
from treeopt.records.profile import Profile
from treeopt.records.results import MethodRow, NotRun
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.model import max_sequence_tokens
from treeopt.runtime.models.pair import ModelPair

RULES = ("sequoia", "specinfer", "target", "traversal")
"""Measured above temperature 0; at temperature 0 all rules are equivalent."""
CONTEXT_TOKENS = 256
"""Cached tokens of timed passes; fewer if the models' maximum is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured."""

    max_tokens: int = 256
    """Largest pass that is timed."""
    rounds: int = 15
    """Samples of each time."""
    positions: int = 4608
    """Positions whose acceptance is counted under each rule and for each drafter."""

    def select_prompts(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Sequence[Sequence[int]]:
        """Return the prompts whose sequences of `new_tokens` have no more positions, at least two."""
        return prompts[: max(2, self.positions // new_tokens)]


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
) -> tuple[MethodRow | NotRun, ...]:
    """Return a row for every method and temperature, or the reason why the method cannot run on the pair.

    Args:
        pair: the models.
        measured_prompts: token ids of the prompts for profiling and for measuring drafters.
        workload: held-out prompts for the benchmark.
        names: of methods, or `all`.
        temperatures: of the target.
        profile: of this pair at these temperatures; None to measure it.
        effort: how much is measured.
        announce: called with a description of each stage.

    Before anything runs, raises InvalidValueError for unknown names and for a profile whose draft sampled from another
    distribution, InfeasibleError for a temperature that the profile does not contain.
    """
    names = select_methods(names)
    measured_prompts = effort.select_prompts(measured_prompts, workload.max_new_tokens)
    samplings = [
        Sampling(temperature) if profile is None else profile_sampling(profile, temperature)
        for temperature in temperatures
    ]
    rows: list[MethodRow | NotRun] = []
    for sampling in samplings:
        prefix = f"temperature {sampling.temperature:g}"
        if profile is None:
            announce(f"{prefix}: profile")
        inputs = Inputs(
            pair=pair,
            profile=profile or _profile(pair, measured_prompts, workload.max_new_tokens, sampling, effort),
            sampling=sampling,
            prompts=measured_prompts,
            positions=workload.max_new_tokens,
            rounds=effort.rounds,
        )
        announce(f"{prefix}: plans")
        methods = plan_methods(inputs, names)
        announce(f"{prefix}: decoding")
        planned = [method for method in methods if isinstance(method, Method)]
        trees = [method.option.tree for method in planned if method.model is not None]
        references = reference_passes(planned[0].model, pair.target, pair.draft, trees, workload.prompts)
        results = bench_methods(methods, pair.target, workload, sampling, references=references)
        rows += results
        if completed_rounds(results) < workload.rounds:  # Ctrl-C
            break
    return tuple(rows)


def plan_methods(inputs: Inputs, names: Sequence[str]) -> list[Method | NotRun]:
    """Return methods with their fastest settings, or the reasons why they cannot run on the inputs.

    `treeopt` is the method with the largest predicted speedup: one of the others, or the best tree under the best rule.
    """
    methods: list[Method | NotRun] = []
    others = [name for name in names if name != "treeopt"]
    for name in tqdm(others, desc="planning  ", unit="method", disable=None):
        try:
            methods.append(PLANNERS[name](inputs) if name in PLANNERS else plan_drafter(name, inputs))
        except TreeoptError as error:
            if name == "plain":  # the baseline
                raise
            methods.append(NotRun(method=name, temperature=inputs.sampling.temperature, reason=str(error)))
    if "treeopt" in names:
        planned = [method for method in methods if isinstance(method, Method)]
        best = max([plan_best_rule(inputs), *planned], key=lambda method: method.option.speedup.value)
        chosen = None if best.name in ("treeopt", "sequoia") else best.name
        methods.append(replace(best, name="treeopt", chosen=chosen))
    return methods


def completed_rounds(rows: Sequence[MethodRow | NotRun]) -> int:
    """Return the fewest rounds of any row; fewer than requested after an interruption."""
    return min(row.rounds for row in rows if isinstance(row, MethodRow))


def profile_sampling(profile: Profile, temperature: float) -> Sampling:
    """Return how a profile's sequences were sampled at a temperature.

    Raises InfeasibleError if it was not measured at the temperature, InvalidValueError if the draft sampled otherwise.
    """
    measured = profile.acceptance(temperature=temperature)
    if measured.draft_sampling is not None:
        raise InvalidValueError(
            f"profile: expected drafts sampled like the target at temperature {temperature:g}. Got another distribution: leave the "
            "profile out, or measure one without --draft-temperature, --draft-top-p, --draft-top-k."
        )
    return measured.sampling


def _profile(
    pair: ModelPair,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    sampling: Sampling,
    effort: Effort,
) -> Profile:
    trained = max_sequence_tokens(pair.target, pair.draft)
    positions = max(1, min(new_tokens, trained - max(map(len, prompts))))
    settings = Settings(
        rules=("sequoia",) if sampling.greedy else RULES,
        samplings=(sampling,),
        context_tokens=(max(1, min(CONTEXT_TOKENS, trained - ROOM_TOKENS)),),
        max_tokens=effort.max_tokens,
        rounds=effort.rounds,
        positions=positions * len(prompts),
    )
    measurement = Measurement(
        pair.target,
        pair.draft,
        prompts,
        settings,
        clock=clock_for(pair.target.device),
        checkpoint=Checkpoint(None, ""),
        pair=pair.described,
    )
    return measurement.profile()
