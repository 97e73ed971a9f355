"""Measure host overhead, the part of a decoding step outside the passes of target and drafter, for every drafter.

    python benchmarks/host_overhead.py
    python benchmarks/host_overhead.py --target build/real-model --draft examples/smollm2/draft --drafter eagle=examples/smollm2/eagle

A pass is a call of `Runner.forward`, from tokens to logits: embedding, layers, attention, its mask, and the writes to the KV
cache. Medusa's and ReDrafter's heads run outside of it, from hidden states or the root's embedding to logits or log-probabilities;
these calls are passes too, and so are the fusion of hidden states and other matrix products. The rest is host overhead: it builds
and fills trees, selects or samples tokens from logits, accepts a path, and commits it to the caches. Profiles time a pass until its
top tokens are on the host, so their host overhead is smaller.

Every method decodes the same held-out prompts, and only steps with a full batch count, without the first, which includes
prefill. Columns are means over all steps of a round, because means add up; the round with the median share is printed.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

from common import (
    default_prompts,
    describe_environment,
    floats,
    pair_drafters,
    planned_decoder,
    progress,
    script_parser,
)
from tqdm import tqdm

from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.drafters.eagle.head import StateFusion
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.runtime.drafters.redrafter import RedrafterHead
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.runtime.models.runner import Runner
from treeopt.texts.prompts import bench_prompts
from treeopt.trees import TreeFile, chain
from treeopt.trees.drafter_setting import drafter_setting

PROMPTS = 8
"""Prompts of every method, at least; more if a batch is larger."""
STEP, TARGET, DRAFTER, DRAFTING = "step", "target", "drafter", "drafting"
PASSES: tuple[tuple[type, str], ...] = (
    (Runner, "forward"),
    (MedusaHeads, "logits"),
    (RedrafterHead, "embed"),
    (RedrafterHead, "log_probs"),
    (RedrafterHead, "advance"),
    (StateFusion, "__call__"),
    (Linear, "__call__"),
)
"""Methods that run passes; those within a pass are part of it."""
Prompts = Sequence[list[int]]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean milliseconds of a step."""

    step: float
    target: float
    """In its pass."""
    drafter: float
    """In its passes."""
    drafting: float
    """While drafting, passes included."""

    @property
    def host(self) -> float:
        return self.step - self.target - self.drafter

    @property
    def host_share(self) -> float:
        return self.host / self.step


class PassClock:
    """Adds up the seconds in passes and in drafting while it is installed.

    Args:
        target: the model whose passes are not the drafter's.
    """

    def __init__(self, target: object) -> None:
        self._target = target
        self._in_pass = False
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name in PASSES:
                stack.enter_context(patch.object(owner, name, self._time_pass(getattr(owner, name))))
            stack.enter_context(patch.object(Stepper, "draft", self._time_drafting(Stepper.draft)))
            yield

    def _time_pass(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(owner: Any, *args: Any, **options: Any) -> Any:
            if self._in_pass:
                return function(owner, *args, **options)
            self._in_pass, start_s = True, perf_counter()
            try:
                return function(owner, *args, **options)
            finally:
                is_target = isinstance(owner, Runner) and owner.model is self._target
                self.seconds[TARGET if is_target else DRAFTER] += perf_counter() - start_s
                self._in_pass = False

        return timed

    def _time_drafting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start_s = perf_counter()
            result = function(*args)
            self.seconds[DRAFTING] += perf_counter() - start_s
            return result

        return timed


def time_steps(decoder: Decoder, prompts: Prompts, batch_size: int, new_tokens: int) -> StepTimes:
    """Decode prompts in batches, and return the mean times of steps with a full batch."""
    clock, steps = PassClock(decoder.target), 0
    seconds: defaultdict[str, float] = defaultdict(float)
    with clock.installed():
        for first in range(0, len(prompts), batch_size):
            requests = [
                GenerationRequest(prompt, new_tokens, ignore_end_tokens=True)
                for prompt in prompts[first : first + batch_size]
            ]
            outputs = decoder.stream_all(requests, batch_size=batch_size)
            step = list(islice(outputs, batch_size))  # includes prefill
            while not any(output.finished for output in step):
                clock.seconds.clear()
                start_s = perf_counter()
                step = list(islice(outputs, batch_size))  # a step yields one output per sequence
                seconds[STEP] += perf_counter() - start_s
                for part, part_s in clock.seconds.items():
                    seconds[part] += part_s
                steps += 1
    return StepTimes(*(1e3 * seconds[part] / steps for part in (STEP, TARGET, DRAFTER, DRAFTING)))


def list_methods(models: ModelPair, heads: dict[str, Path], budgets: Sequence[float]) -> dict[str, TreeFile]:
    """Return the tree files of all methods by name, DDTree's with each budget."""
    methods: dict[str, TreeFile] = {}
    for name, planned in pair_drafters(models, heads).items():
        if name != "ddtree":
            methods[name] = planned
            continue
        assert planned.drafter is not None  # its head
        for budget in map(int, budgets):
            setting = drafter_setting("ddtree", source=planned.drafter.source, budget=budget)
            methods[f"ddtree {budget}"] = TreeFile(tree=chain(budget - 1), drafter=setting)
    return methods


def head_folder(text: str) -> tuple[str, Path]:
    """Return name and folder of `NAME=DIR`."""
    name, _, folder = text.partition("=")
    if not folder:
        raise argparse.ArgumentTypeError(f"expected NAME=DIR. Got {text!r}.")
    return name, Path(folder)


def main() -> None:
    parser = script_parser(__doc__, pair=True)
    parser.add_argument("--drafter", type=head_folder, action="append", metavar="NAME=DIR", help="a head of the target")
    parser.add_argument("--methods", help="comma-separated; by default all")
    parser.add_argument("--batch-sizes", type=floats, default="1,4,8", help="comma-separated (default: %(default)s)")
    parser.add_argument("--budgets", type=floats, default="8,16,32,64", help="of DDTree (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="default: %(default)s")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="of each prompt (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch; by default its own choice")
    args = parser.parse_args()
    models = load_pair(args.target, args.draft, device="cpu", threads=args.threads)
    print(f"{describe_environment()}\n{models.described.label}, temperature {args.temperature:g}")
    prompts = bench_prompts(default_prompts(models))
    capacity = max(map(len, prompts)) + args.max_new_tokens
    methods = list_methods(models, dict(args.drafter or ()), args.budgets)
    names = list(methods) if args.methods is None else args.methods.split(",")
    if unknown := set(names) - set(methods):
        parser.error(f"--methods: expected some of {', '.join(methods)}. Got {', '.join(unknown)}.")
    if max(args.batch_sizes) > len(prompts):
        parser.error(f"--batch-sizes: expected at most {len(prompts)}, the prompts. Got {max(args.batch_sizes):g}.")
    print("\nms per step        batch      step    target   drafter  host: drafting     other   share, %")
    for name in progress(names, "methods"):
        decoder = planned_decoder(models, methods[name], sequence_tokens=capacity)(args.temperature)
        for batch_size in map(int, args.batch_sizes):
            count = max(PROMPTS, batch_size) // batch_size * batch_size
            rounds = [
                time_steps(decoder, prompts[:count], batch_size, args.max_new_tokens) for _ in range(1 + args.rounds)
            ]
            times = sorted(rounds[1:], key=lambda times: times.host_share)[args.rounds // 2]  # the first is the warm-up
            drafting = times.drafting - times.drafter
            tqdm.write(
                f"{name:<18}{batch_size:>6}{times.step:>10.2f}{times.target:>10.2f}{times.drafter:>10.2f}"
                f"{drafting:>16.3f}{times.host - drafting:>10.3f}{100 * times.host_share:>11.1f}"
            )


if __name__ == "__main__":
    main()
