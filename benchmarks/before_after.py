"""Compare the step times of two checkouts of treeopt: `python benchmarks/before_after.py OTHER`.

Each checkout decodes in its own process on the same processor. They alternate for every method and round, so drift of the
machine affects both. Without OTHER this checkout is compared with itself, which shows the noise. Prefill is not timed.

`--shape` takes random weights, of which nothing is accepted, so that every step has the same work. On a GPU the last line
compares plain decoding with the memory bandwidth that a copy reaches:

    python benchmarks/before_after.py OTHER --device cuda --dtype bfloat16 --shape 7b --draft-shape 68m --batch-size 8
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from common import describe_environment, floats, pair_drafters, planned_decoder, progress, script_parser
from tqdm import tqdm

HERE = Path(__file__).resolve().parents[1]
ROUNDS = 5
PROMPTS, NEW_TOKENS = 3, 48
RANDOM_PROMPT_TOKENS = 200
COPY = "copy"
COPY_BYTES = 2**32
Method = Callable[[], float]
"""Decodes, and returns the seconds of a step on average, without the first of each sequence."""
Builders = dict[str, Callable[[float], Method]]
"""Build each method for a temperature."""


def main() -> None:
    parser = script_parser(__doc__, pair=True)
    parser.add_argument("other", nargs="?", type=Path, default=HERE, help="the other checkout; by default this one")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measured rounds of each checkout")
    parser.add_argument("--temperatures", type=floats, default="0,0.6", help="comma-separated")
    parser.add_argument("--eagle", type=Path, help="folder of its EAGLE head")
    parser.add_argument("--shape", help="target of random weights, from tools/gallery_shapes.py")
    parser.add_argument("--draft-shape", default="68m", help="its draft model")
    parser.add_argument("--batch-size", type=int, default=8, help="sequences of the methods that decode a batch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--decode", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    folders = [args.target, args.draft, args.eagle]
    if any(folders) and not all(folders):
        parser.error("--target, --draft, --eagle: expected all three, or none for the bundled pair.")
    if any(folders) and args.shape:
        parser.error("--shape: expected no model folders with it. Leave one out.")
    if args.decode:
        decode(args)
        return
    models = f"random weights, {args.shape} and {args.draft_shape}" if args.shape else args.target or "the bundled pair"
    print(
        f"{describe_environment()}\n\nbefore: {args.other}, after: {HERE}; {models}, {args.dtype} on {args.device}; "
        f"one thread each, alternating\n"
    )
    checkouts = [Checkout(root.resolve(), args) for root in (args.other, HERE)]
    tqdm.write(f"{'method':<20}{'temperature':>12}{'before, ms':>12}{'after, ms':>11}{'after/before':>14}  rounds")
    conditions = [(name, temperature) for temperature in args.temperatures for name in checkouts[0].methods]
    plain_s = float("nan")
    for name, temperature in progress(conditions, "methods"):
        steps_s: dict[Checkout, list[float]] = {checkout: [] for checkout in checkouts}
        for number in range(1 + args.rounds):  # the order alternates; round 0 is the warm-up
            for checkout in checkouts if number % 2 else reversed(checkouts):
                steps_s[checkout].append(checkout.ask(name, temperature))
        ratios = sorted(after / before for before, after in list(zip(*steps_s.values(), strict=True))[1:])
        before_s, after_s = (statistics.median(rounds[1:]) for rounds in steps_s.values())
        plain_s = after_s if name == "plain" else plain_s
        tqdm.write(
            f"{name:<20}{temperature:>12g}{1000 * before_s:>12.3f}{1000 * after_s:>11.3f}{statistics.median(ratios):>14.3f}  "
            f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        )
    if args.device != "cpu":
        weights_bytes, copy_bytes_s = checkouts[1].weights_bytes, checkouts[1].ask(COPY, 0)
        print(
            f"\nplain decoding reads {weights_bytes / 1e9:.2f} GB of weights in {1000 * plain_s:.2f} ms, "
            f"{weights_bytes / plain_s / 1e12:.2f} TB/s: {100 * weights_bytes / plain_s / copy_bytes_s:.0f} % of what a copy "
            f"reads and writes, {copy_bytes_s / 1e12:.2f} TB/s"
        )


class Checkout:
    """A process that decodes with a checkout of treeopt."""

    def __init__(self, root: Path, args: argparse.Namespace) -> None:
        options = [
            *(
                f"--{name}={getattr(args, name).resolve()}"
                for name in ("target", "draft", "eagle")
                if getattr(args, name)
            ),
            *([f"--shape={args.shape}", f"--draft-shape={args.draft_shape}"] if args.shape else []),
            *(f"--batch-size={args.batch_size}", f"--device={args.device}", f"--dtype={args.dtype}"),
        ]
        command = [sys.executable, str(Path(__file__).resolve()), "--decode", *options]
        environment = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.methods, self.weights_bytes = self._read()

    def ask(self, name: str, temperature: float) -> float:
        """Return the seconds of a step of a method, on average; of `COPY` the bytes per second."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, temperature]) + "\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def decode(args: argparse.Namespace) -> None:
    """Print the methods and the bytes of the target's weights, then the seconds of a step for every request on stdin."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    builders, weights_bytes = random_methods(args) if args.shape else pair_methods(args)
    methods: dict[tuple[str, float], Method] = {}
    print(json.dumps([list(builders), weights_bytes]), flush=True)
    for line in sys.stdin:
        name, temperature = json.loads(line)
        if name == COPY:
            print(json.dumps(copy_rate(args.device)), flush=True)
            continue
        if (name, temperature) not in methods:
            methods[name, temperature] = builders[name](temperature)
        print(json.dumps(methods[name, temperature]()), flush=True)


def single_step_s(decoder: Any, prompts: list[list[int]]) -> float:
    """Decode prompts one after the other."""
    seconds, steps = 0.0, 0
    for prompt in prompts:
        stream = decoder.stream(prompt, NEW_TOKENS)
        next(stream)
        start_s = time.perf_counter()
        steps += sum(1 for _ in stream)
        seconds += time.perf_counter() - start_s
    return seconds / steps


def batch_step_s(decoder: Any, prompts: list[list[int]]) -> float:
    """Decode all prompts at a time."""
    from treeopt.runtime.decoding.batch import GenerationRequest

    requests = [GenerationRequest(prompt, NEW_TOKENS) for prompt in prompts]
    stream = decoder.stream_all(requests, batch_size=len(requests))
    for _ in requests:
        next(stream)
    start_s = time.perf_counter()
    steps = sum(1 for _ in stream) / len(requests)  # each ends after about as many
    return (time.perf_counter() - start_s) / steps


def build_methods(
    decoders: dict[str, Callable[[float], Any]], prompts: list[list[int]], batch_size: int, batched: Iterable[str]
) -> Builders:
    """Return functions that build each method: single sequences with every decoder, and a batch with those in `batched`."""

    def builder(name: str, measure: Callable[..., float], prompts: list[list[int]]) -> Callable[[float], Method]:
        return lambda temperature: partial(measure, decoders[name](temperature), prompts)

    singles = {name: builder(name, single_step_s, prompts[:PROMPTS]) for name in decoders}
    batches = {f"{name} x {batch_size}": builder(name, batch_step_s, prompts[:batch_size]) for name in batched}
    return singles | batches


def copy_rate(device: str) -> float:
    """Return bytes read and written per second of the fastest of ten copies."""
    import torch

    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    seconds = []
    for _ in range(10):
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        copy.copy_(source)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start_s)
    return 2 * COPY_BYTES / min(seconds)


def random_methods(args: argparse.Namespace) -> tuple[Builders, int]:
    """Return functions that build each method for random models, and the bytes of the target's weights."""
    import torch

    sys.path.append(str(HERE / "tools"))
    from gallery_shapes import SHAPES, random_model

    from treeopt.runtime.models.pair import ModelPair, describe_pair
    from treeopt.trees import TreeFile, chain, level_widths
    from treeopt.trees.drafter_setting import drafter_setting

    options = {"dtype": getattr(torch, args.dtype), "device": torch.device(args.device)}
    target, draft = random_model(args.shape, **options), random_model(args.draft_shape, seed=1, **options)
    without_tokenizer: Any = None
    models = ModelPair(target=target, draft=draft, tokenizer=without_tokenizer, described=describe_pair(target, draft))
    vocabulary = SHAPES[args.shape].vocabulary
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(vocabulary, (args.batch_size, RANDOM_PROMPT_TOKENS), generator=generator).tolist()
    tree, length = level_widths([8, 16, 16, 12, 8, 4]), 2 * RANDOM_PROMPT_TOKENS
    dynamic = drafter_setting("eagle2", top_k=8, depth=6, nodes=60)
    drafters = {
        "plain": TreeFile(tree=chain(0)),
        f"tree of {tree.nodes}": TreeFile(tree=tree),
        "eagle2 tree of 60": TreeFile(tree=chain(dynamic.longest_draft), drafter=dynamic),
    }
    decoders = {name: planned_decoder(models, planned, sequence_tokens=length) for name, planned in drafters.items()}
    return build_methods(decoders, prompts, args.batch_size, decoders), target.parameters * target.dtype.itemsize


def pair_methods(args: argparse.Namespace) -> tuple[Builders, int]:
    """Return functions that build each method for a trained pair, and the bytes of the target's weights."""
    from treeopt.runtime.models.pair import load_pair
    from treeopt.texts.prompts import bench_prompts, load_prompts

    threads = 1 if args.device == "cpu" else None
    models = load_pair(args.target, args.draft, device=args.device, dtype=args.dtype, threads=threads)
    heads = {} if args.eagle is None else {"eagle": args.eagle}
    decoders: dict[str, Callable[[float], Any]] = {}
    for name, planned in pair_drafters(models, heads).items():
        if name == "tree":  # once for each rule
            rules = "sequoia", "specinfer", "target", "traversal"
            decoders |= {f"tree, {rule}": planned_decoder(models, planned, rule=rule) for rule in rules}
        else:
            decoders[name] = planned_decoder(models, planned)
    prompts = [models.tokenizer.encode(text) for text in bench_prompts(load_prompts())]
    methods = build_methods(decoders, prompts, args.batch_size, ("plain", "chain of 6", "tree, sequoia", "eagle"))
    return methods, models.target.parameters * models.target.dtype.itemsize


if __name__ == "__main__":
    main()
