"""Does re-calibration hold? Streams that change at one point, decoded with several strategies in turn.

    python benchmarks/recalibration.py [--streams all] [--repeats 3] [--tokens 4000] [--threads 1]

`fixed` keeps the plan made before the change; `adapted` re-calibrates it while decoding; `learning` also has the draft
learn; `best` takes the plan made from a profile that was measured after the change.  Sequences are decoded in rotating
order, and prefill is not timed.  The table has tokens per second after the change, or over the whole stream where
nothing changes; `share` is what re-calibration gets of the gain of `best`.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from conditions import conditions, say
from streams import (
    RULE,
    Effort,
    Part,
    Stream,
    busy_machine,
    measure_profile,
    perturbed_model,
    plan_for,
    request_for,
    strategy_of,
    streams_of,
)

from treeopt import bundled
from treeopt.adaptation import Recalibration
from treeopt.adaptation.strategy import Strategy, apply_strategy, pass_tokens, shape_of
from treeopt.profiler.bench.losslessness import greedy_losslessness
from treeopt.records.profile import Profile
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import Observer, Steering, observers
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.learning.learner import learning_copy
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.trees import TokenTree

FIXED, ADAPTED, LEARNING, BEST = "fixed", "adapted", "learning", "best"
WARM_UP_TOKENS = 32
LEAST_GAIN = 0.02
"""A share of a smaller gain means nothing."""


@dataclass(slots=True)
class Decoded:
    """A stream decoded with one strategy, sequence by sequence."""

    tokens: list[list[int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def tokens_per_s(self, first: int) -> float:
        return sum(map(len, self.tokens[first:])) / sum(self.seconds[first:])


def decoder_of(
    models: ModelPair, part: Part, plan: Strategy, observer: Observer | None, draft: LanguageModel | None = None
) -> Decoder:
    """Return the decoder of one part; an observer that steers takes up the plan itself."""
    steered = isinstance(observer, Steering)
    decoder = Decoder(
        models.target,
        draft or part.draft,
        plan if isinstance(plan, TokenTree) else ROOT_ALONE,
        rule=RULE,
        sampling=part.sampling,
        max_nodes=None if steered else pass_tokens(plan),
        on_step=observer,
    )
    if not steered:
        apply_strategy(decoder, plan)
    return decoder


def strategies(
    models: ModelPair, stream: Stream, before: Profile, plans: Sequence[Strategy], changes: list[str]
) -> dict[str, list[Callable[[], Decoder]]]:
    """Return how each strategy makes its decoder before and after the change."""
    parts = (stream.before, stream.after)

    def recalibration(notes: list[str]) -> Recalibration:
        return Recalibration(
            before,
            request_for(stream.before),
            begin_with=None if isinstance(plans[0], TokenTree) else plans[0],
            on_change=lambda change: notes.append(
                f"{shape_of(change.before)} -> {shape_of(change.after)} ({change.why})"
            ),
        )

    adapting, learning = recalibration(changes), recalibration([])
    copies: dict[int, tuple[LanguageModel, Observer]] = {}

    def learning_decoder(part: Part) -> Decoder:
        if id(part.draft) not in copies:  # one copy of each draft, over both parts
            copies[id(part.draft)] = learning_copy(part.draft)
        draft, learner = copies[id(part.draft)]
        return decoder_of(models, part, plans[0], observers(learning, learner), draft)

    return {
        FIXED: [partial(decoder_of, models, part, plans[0], None) for part in parts],
        ADAPTED: [partial(decoder_of, models, part, plans[0], adapting) for part in parts],
        LEARNING: [partial(learning_decoder, part) for part in parts],
        BEST: [partial(decoder_of, models, part, plan, None) for part, plan in zip(parts, plans, strict=True)],
    }


def decode(
    stream: Stream, ways: dict[str, list[Callable[[], Decoder]]], effort: Effort, changed: int
) -> dict[str, Decoded]:
    """Decode every sequence with every strategy, in rotating order."""
    found = {name: Decoded() for name in ways}
    numbers = [range(changed), range(changed, effort.sequences)]
    for place, part in enumerate((stream.before, stream.after)):
        if not numbers[place]:
            continue
        with busy_machine(part.busy):
            decoders = {name: made[place]() for name, made in ways.items()}
            for number in numbers[place]:
                prompt = part.prompt(number - numbers[place].start)
                order = [*decoders][number % len(decoders) :] + [*decoders][: number % len(decoders)]
                for name in order:
                    if number == 0:
                        _decode_one(decoders[name], prompt, WARM_UP_TOKENS, 0)
                    tokens, seconds = _decode_one(decoders[name], prompt, effort.new_tokens, number)
                    found[name].tokens.append(tokens)
                    found[name].seconds.append(seconds)
    return found


def _decode_one(decoder: Decoder, prompt: Sequence[int], new_tokens: int, seed: int) -> tuple[list[int], float]:
    steps = decoder.steps(prompt, new_tokens, seed=seed)  # prefill
    if decoder.target.device.type == "cuda":
        torch.cuda.synchronize(decoder.target.device)
    start_s = time.perf_counter()
    tokens = [token for committed in steps for token in committed]
    return tokens, time.perf_counter() - start_s


def with_median_times(repeats: Sequence[dict[str, Decoded]]) -> dict[str, Decoded]:
    """Return the first repeat, with each sequence's median time over all of them."""
    return {
        name: Decoded(first.tokens, np.median([each[name].seconds for each in repeats], axis=0).tolist())
        for name, first in repeats[0].items()
    }


def outputs(models: ModelPair, stream: Stream, found: dict[str, Decoded], changed: int) -> str:
    """Return whether all strategies decoded the same sequences, near-ties aside."""
    if not (stream.before.sampling.greedy and stream.after.sampling.greedy):
        return "sampled"
    prompts = [stream.before.prompt(number) for number in range(changed)]
    prompts += [stream.after.prompt(number) for number in range(len(found[FIXED].tokens) - changed)]
    same = (
        greedy_losslessness(models.target, prompts, found[FIXED].tokens, each.tokens).lossless
        for each in found.values()
    )
    return "identical" if all(same) else "DIFFER"


def run(models: ModelPair, stream: Stream, profiles: dict[int, Profile], effort: Effort, repeats: int) -> list[str]:
    """Return the lines of one stream's result."""
    changed = 0 if stream.steady else max(1, round(effort.change_at * effort.sequences))
    plans = [strategy_of(plan_for(profiles[id(part)], part)) for part in (stream.before, stream.after)]
    decoded, first_changes = [], None
    for _ in range(repeats):
        changes: list[str] = []
        ways = strategies(models, stream, profiles[id(stream.before)], plans, changes)
        decoded.append(decode(stream, ways, effort, changed))
        first_changes = changes if first_changes is None else first_changes
    found = with_median_times(decoded)
    rates = {name: each.tokens_per_s(changed) for name, each in found.items()}
    gain, adapted = (rates[name] / rates[FIXED] - 1 for name in (BEST, ADAPTED))
    share = f"{adapted / gain:.2f}" if gain >= LEAST_GAIN else "-"
    same = outputs(models, stream, found, changed)
    return [
        f"{stream.name:<27}"
        + "".join(f"{rates[name]:>9.0f}" for name in (FIXED, ADAPTED, LEARNING, BEST))
        + f"{gain:>+9.1%}{adapted:>+9.1%}{share:>7}  {same}",
        f"  planned: {shape_of(plans[0])}; after the change: {shape_of(plans[1])}",
        *(f"  {each}" for each in first_changes or ()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="draft perturbed", help="all, or parts of names with commas between")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1000, help="of each stream")
    parser.add_argument("--new-tokens", type=int, default=Effort().new_tokens, help="of each sequence")
    parser.add_argument("--noise", type=float, default=0.5, help="on the weights of the perturbed draft")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    say(conditions())
    models = load_pair(threads=args.threads)
    effort = Effort(tokens=args.tokens, new_tokens=args.new_tokens)
    every = streams_of(
        models, perturbed_model(bundled.DRAFT, args.noise, dtype=models.draft_model.dtype), effort.new_tokens
    )
    chosen = [
        each
        for name, each in every.items()
        if args.streams == "all" or any(part in name for part in args.streams.split(","))
    ]
    if not chosen:
        parser.error(f"--streams: expected all, or parts of {', '.join(every)}. Got {args.streams}.")
    say(f"{'stream':<27}{FIXED:>9}{ADAPTED:>9}{LEARNING:>9}{BEST:>9}{'gain':>9}{ADAPTED:>9}{'share':>7}  outputs")
    profiles: dict[int, Profile] = {}
    for stream in chosen:
        for part in (stream.before, stream.after):
            if id(part) not in profiles:
                profiles[id(part)] = measure_profile(models, part, effort)
        for line in run(models, stream, profiles, effort, args.repeats):
            say(line)


if __name__ == "__main__":
    main()
