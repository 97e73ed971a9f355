"""Measure re-calibration: streams that change at one point, decoded with several strategies in interleaved runs.

    python benchmarks/recalibration.py [--streams all] [--repeats 3] [--tokens 4000] [--threads 1]
    python benchmarks/recalibration.py --streams all --tokens 6000 --times profile
    python benchmarks/recalibration.py --streams all --tokens 6000 --times "another profile" --profiles 4

`fixed` keeps the plan made before the change; `adapted` re-calibrates it while decoding; `learning` also trains the draft model;
`best` uses the plan of a profile measured after the change. Rates are tokens per second after the change, or over the whole
stream if nothing changes, without prefill. `share` is the gain of `adapted` over that of `best`.

With `--times profile`, each step takes as long as its profile predicts. This shows the choice of strategies without the machine's
noise, and also without the time of checks and of training. With `--times "another profile"`, each step takes as long as the
next of several profiles of the same models predicts, so re-calibration starts with times that are as wrong as profiles of this
machine are; a last line has the means over all, and the least that `adapted` gained.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from common import describe_environment, script_parser
from streams import RULE, Effort, Part, Stream, measure_profile, perturbed_model, plan_for, request_for, streams_of
from tqdm import tqdm

from treeopt import bundled
from treeopt.adaptation import Recalibration
from treeopt.adaptation.candidates import Candidates
from treeopt.adaptation.strategy import describe_strategy
from treeopt.profiler.bench.losslessness import greedy_losslessness
from treeopt.records.profile import Profile
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import Controller, Observer, StepEvent, StepSeconds, combine_observers
from treeopt.runtime.drafters.drafter import ROOT_ONLY
from treeopt.runtime.learning.learner import make_learning_copy
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.trees import TokenTree

FIXED, ADAPTED, LEARNING, BEST = "fixed", "adapted", "learning", "best"
WARM_UP_TOKENS = 32
MIN_GAIN = 0.02
"""Smallest gain of `best` for which the share is printed."""


@dataclass(slots=True)
class Decoded:
    """A stream decoded with one strategy, sequence by sequence."""

    tokens: list[list[int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def tokens_per_s(self, first: int) -> float:
        return sum(map(len, self.tokens[first:])) / sum(self.seconds[first:])


class ProfileClock:
    """A clock that each step advances by its time in a profile.

    Args:
        profiles: by the name of each part of a stream.
    """

    def __init__(self, profiles: dict[str, Profile]) -> None:
        self._profiles = profiles
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def time_steps(self, part: Part, observer: Observer | None) -> Observer:
        """Return an observer of a decoder of a part, which advances the clock and passes its times on."""
        candidates = Candidates(self._profiles[part.name], request_for(part), ROOT_ONLY, Effort().max_nodes)
        return _ProfileTimes(self, candidates, observer)


@dataclass(slots=True)
class _ProfileTimes:
    clock: ProfileClock
    candidates: Candidates
    observer: Observer | None

    def attach(self, decoder: Decoder) -> None:
        if isinstance(self.observer, Controller):
            self.observer.attach(decoder)

    def largest_tree_nodes(self, tree: TokenTree) -> int:
        return self.observer.largest_tree_nodes(tree) if isinstance(self.observer, Controller) else tree.nodes

    def __call__(self, step: StepEvent) -> None:
        context = self.candidates.costs.rounded(len(step.tokens))
        draft_s, verify_s = self.candidates.step_parts(step.proposal.tree, context)
        self.clock.now_s += draft_s + verify_s
        if self.observer is not None:
            self.observer(step._replace(seconds=StepSeconds(draft_s, verify_s, 0.0)))


def build_decoder(
    models: ModelPair,
    part: Part,
    plan: TokenTree,
    observer: Observer | None,
    draft: LanguageModel | None = None,
    *,
    clock: ProfileClock | None,
) -> Decoder:
    if clock is not None:
        observer = clock.time_steps(part, observer)
    return Decoder(models.target, draft or part.draft, plan, rule=RULE, sampling=part.sampling, on_step=observer)


def strategy_builders(
    models: ModelPair,
    stream: Stream,
    before: Profile,
    plans: Sequence[TokenTree],
    changes: list[str],
    clock: ProfileClock | None = None,
) -> dict[str, list[Callable[[], Decoder]]]:
    """Return functions that build each strategy's decoder before and after the change."""
    parts = (stream.before, stream.after)

    def recalibration(notes: list[str]) -> Recalibration:
        return Recalibration(
            before,
            request_for(stream.before),
            now_s=clock or time.perf_counter,
            on_change=lambda change: notes.append(
                f"{describe_strategy(change.before)} -> {describe_strategy(change.after)} ({change.why})"
            ),
        )

    adapting, learning = recalibration(changes), recalibration([])
    copies: dict[int, tuple[LanguageModel, Observer]] = {}

    def learning_decoder(part: Part) -> Decoder:
        if id(part.draft) not in copies:  # one copy of each draft, over both parts
            copies[id(part.draft)] = make_learning_copy(part.draft)
        draft, learner = copies[id(part.draft)]
        return build(part, plans[0], combine_observers(learning, learner), draft)

    build = partial(build_decoder, models, clock=clock)
    return {
        FIXED: [partial(build, part, plans[0], None) for part in parts],
        ADAPTED: [partial(build, part, plans[0], adapting) for part in parts],
        LEARNING: [partial(learning_decoder, part) for part in parts],
        BEST: [partial(build, part, plan, None) for part, plan in zip(parts, plans, strict=True)],
    }


def decode(
    stream: Stream,
    builders: dict[str, list[Callable[[], Decoder]]],
    effort: Effort,
    changed: int,
    now_s: Callable[[], float] = time.perf_counter,
) -> dict[str, Decoded]:
    """Decode every sequence with every strategy, in rotating order."""
    decoded = {name: Decoded() for name in builders}
    numbers = [range(changed), range(changed, effort.sequences)]
    for side, part in enumerate((stream.before, stream.after)):
        if not numbers[side]:
            continue
        decoders = {name: build[side]() for name, build in builders.items()}
        for number in numbers[side]:
            prompt = part.prompt(number - numbers[side].start)
            order = [*decoders][number % len(decoders) :] + [*decoders][: number % len(decoders)]
            for name in order:
                if number == 0:
                    _decode_one(decoders[name], prompt, WARM_UP_TOKENS, 0, now_s)
                tokens, seconds = _decode_one(decoders[name], prompt, effort.new_tokens, number, now_s)
                decoded[name].tokens.append(tokens)
                decoded[name].seconds.append(seconds)
    return decoded


def _decode_one(
    decoder: Decoder, prompt: Sequence[int], new_tokens: int, seed: int, now_s: Callable[[], float]
) -> tuple[list[int], float]:
    steps = decoder.stream(prompt, new_tokens, seed=seed)  # prefill
    if decoder.target.device.type == "cuda":
        torch.cuda.synchronize(decoder.target.device)
    start_s = now_s()
    tokens = [token for committed in steps for token in committed]
    return tokens, now_s() - start_s


def take_median_times(repeats: Sequence[dict[str, Decoded]]) -> dict[str, Decoded]:
    """Return the first repeat, with each sequence's median time over all of them."""
    return {
        name: Decoded(first.tokens, np.median([repeat[name].seconds for repeat in repeats], axis=0).tolist())
        for name, first in repeats[0].items()
    }


def compare_outputs(models: ModelPair, stream: Stream, decoded: dict[str, Decoded], changed: int) -> str:
    """Compare the outputs of all strategies, except after near-ties."""
    if not (stream.before.sampling.greedy and stream.after.sampling.greedy):
        return "sampled"
    prompts = [stream.before.prompt(number) for number in range(changed)]
    prompts += [stream.after.prompt(number) for number in range(len(decoded[FIXED].tokens) - changed)]
    same = (
        greedy_losslessness(models.target, prompts, decoded[FIXED].tokens, strategy.tokens).lossless
        for strategy in decoded.values()
    )
    return "identical" if all(same) else "DIFFER"


class Gains(NamedTuple):
    """Tokens per second of the best plan and of re-calibration, relative to the fixed plan, minus 1."""

    best: float
    adapted: float

    @property
    def share(self) -> str:
        return f"{self.adapted / self.best:.2f}" if self.best >= MIN_GAIN else "-"

    @property
    def columns(self) -> str:
        return f"{self.best:>+9.1%}{self.adapted:>+9.1%}{self.share:>7}"


def run(
    models: ModelPair,
    stream: Stream,
    profiles: dict[str, Profile],
    effort: Effort,
    repeats: int,
    step_times: dict[str, Profile] | None = None,
) -> Gains:
    """Print one stream's result, with the times that `step_times` predict for steps, or the machine's."""
    clock = None if step_times is None else ProfileClock(step_times)
    changed = 0 if stream.steady else max(1, round(effort.change_at * effort.sequences))
    plans = [plan_for(profiles[part.name], part) for part in (stream.before, stream.after)]
    repeated, first_changes = [], None
    for _ in range(repeats):
        changes: list[str] = []
        builders = strategy_builders(models, stream, profiles[stream.before.name], plans, changes, clock)
        repeated.append(decode(stream, builders, effort, changed, clock or time.perf_counter))
        first_changes = changes if first_changes is None else first_changes
    decoded = take_median_times(repeated)
    rates = {name: strategy.tokens_per_s(changed) for name, strategy in decoded.items()}
    gains = Gains(*(rates[name] / rates[FIXED] - 1 for name in (BEST, ADAPTED)))
    columns = "".join(f"{rates[name]:>9.0f}" for name in (FIXED, ADAPTED, LEARNING, BEST))
    tqdm.write(f"{stream.name:<27}{columns}{gains.columns}  {compare_outputs(models, stream, decoded, changed)}")
    tqdm.write(f"  plan: {describe_strategy(plans[0])}; after the change: {describe_strategy(plans[1])}")
    for change in first_changes or ():
        tqdm.write(f"  {change}")
    return gains


class Profiles:
    """The profiles of parts by name and number, each measured once.

    Args:
        models: target and draft of the parts.
        effort: of a measurement.
        folder: keeps them; those that it contains are not measured.
    """

    def __init__(self, models: ModelPair, effort: Effort, folder: Path | None) -> None:
        self._models, self._effort, self._folder = models, effort, folder
        self._measured: dict[str, Profile] = {}

    def of(self, stream: Stream, number: int) -> dict[str, Profile]:
        """Return the profile of each part of a stream."""
        return {part.name: self._profile(part, f"{part.name}-{number}") for part in (stream.before, stream.after)}

    def _profile(self, part: Part, name: str) -> Profile:
        if name not in self._measured:
            path = None if self._folder is None else self._folder / f"{name}.yaml"
            if path is not None and path.exists():
                self._measured[name] = Profile.load(path)
            else:
                self._measured[name] = measure_profile(self._models, part, self._effort)
                if path is not None:
                    self._measured[name].save(path)
        return self._measured[name]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--streams", default="draft perturbed", help="all, or comma-separated parts of names")
    parser.add_argument("--repeats", type=int, default=1, help="the median counts (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=1000, help="new tokens of each stream")
    parser.add_argument("--new-tokens", type=int, default=Effort().new_tokens, help="of each sequence")
    parser.add_argument(
        "--noise",
        type=float,
        default=0.5,
        help="standard deviation of the noise on the perturbed draft's weights, relative to theirs",
    )
    parser.add_argument(
        "--times", choices=["machine", "profile", "another profile"], default="machine", help="default: %(default)s"
    )
    parser.add_argument(
        "--profiles", type=int, default=1, help="of each part; plans are made from each (default: %(default)s)"
    )
    parser.add_argument("--folder", type=Path, help="keeps the profiles; those that it contains are not measured")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    args = parser.parse_args()
    next_profile = int(args.times == "another profile")
    if args.profiles <= next_profile:
        parser.error(
            f"--profiles: expected at least {1 + next_profile} with --times {args.times}. Got {args.profiles}."
        )
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    tqdm.write(describe_environment())
    models = load_pair(threads=args.threads)
    effort = Effort(tokens=args.tokens, new_tokens=args.new_tokens)
    all_streams = streams_of(
        models, perturbed_model(bundled.DRAFT, args.noise, dtype=models.draft_model.dtype), effort.new_tokens
    )
    chosen = [
        stream
        for name, stream in all_streams.items()
        if args.streams == "all" or any(part in name for part in args.streams.split(","))
    ]
    if not chosen:
        parser.error(f"--streams: expected all, or parts of {', '.join(all_streams)}. Got {args.streams}.")
    tqdm.write(
        f"{'stream':<27}{FIXED:>9}{ADAPTED:>9}{LEARNING:>9}{BEST:>9}{'gain':>9}{ADAPTED:>9}{'share':>7}  outputs"
    )
    profiles = Profiles(models, effort, args.folder)
    for stream in chosen:
        gains = []
        for number in range(args.profiles):
            timed = None if args.times == "machine" else profiles.of(stream, (number + next_profile) % args.profiles)
            gains.append(run(models, stream, profiles.of(stream, number), effort, args.repeats, timed))
        if len(gains) > 1:
            mean, least = Gains(*np.mean(gains, axis=0).tolist()), min(gain.adapted for gain in gains)
            tqdm.write(f"{f'mean of {len(gains)}':<63}{mean.columns}  least {least:+.1%}")


if __name__ == "__main__":
    main()
