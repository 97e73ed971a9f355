"""Compare plain decoding, static trees and dynamic trees at several batch sizes, also with transformers' generation.

    python benchmarks/batches.py
    python benchmarks/batches.py --heads --batch-sizes 1,8
    python benchmarks/batches.py --runner transformers --batch-sizes 1,8

At each temperature and batch size, the static trees below are compared on the first prompts. Then plain decoding, the fastest
of them and a dynamic tree decode all prompts: the default prompts and their second halves. `tokens/s` includes prefill. The
next columns are its ratios to plain decoding at the same batch size, and to transformers. `equal` counts outputs that equal
those of the same seed at batch size 1. At temperature 0 every diverging output is checked for a near-tie of the two largest
logits.

`--heads` adds the heads of the bundled target. `--runner transformers` runs both models in transformers, like any model that
is not built in; `--runner llama.cpp` runs float32 GGUF files.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from common import default_prompts, describe_environment, floats, progress, script_parser, write_gguf
from tqdm import tqdm

from treeopt import bundled as bundle
from treeopt.profiler.bench.divergence import divergence
from treeopt.runtime import Decoder, ExpandingDrafter, Transformer
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.runtime.drafters.medusa import MedusaDrafter, load_medusa
from treeopt.runtime.drafters.redrafter import RedrafterDrafter, load_redrafter
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.runtime.models.gguf import load_gguf
from treeopt.runtime.models.hf import load_adapter
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.trees import TokenTree, chain, level_widths
from treeopt.trees.drafter_parameters import DynamicTree

PLAIN = chain(0)
TREES = {
    "chain of 1": chain(1),
    "chain of 2": chain(2),
    "chain of 4": chain(4),
    "4 nodes": level_widths([2, 1]),
    "8 nodes": level_widths([2, 2, 2, 1]),
    "16 nodes": level_widths([4, 4, 3, 2, 2]),
}
DYNAMIC = DynamicTree(top_k=2, depth=3, nodes=6)
BuildHeads = Callable[[Transformer, int], Drafter]
"""Builds a drafter from a target and the maximum number of tokens."""
HEADS: dict[str, BuildHeads] = {
    "EAGLE, chain of 4": lambda target, longest: StaticTreeDrafter(
        load_eagle(bundle.EAGLE, target), chain(4), capacity=longest
    ),
    "EAGLE, dynamic tree": lambda target, longest: ExpandingDrafter(
        load_eagle(bundle.EAGLE, target), DYNAMIC, capacity=longest
    ),
    "Medusa, chain of 3": lambda target, _: MedusaDrafter(load_medusa(bundle.MEDUSA, target), chain(3)),
    "ReDrafter, 2 beams of 3": lambda target, _: RedrafterDrafter(load_redrafter(bundle.REDRAFTER, target), 2, 3),
}
Strategy = TokenTree | DynamicTree | BuildHeads
FEW_PROMPTS = 16
"""Prompts on which static trees are compared."""
RUNNERS = TREEOPT, TRANSFORMERS, _ = "treeopt", "transformers", "llama.cpp"


@dataclass(frozen=True, slots=True)
class Run:
    """The outputs of one strategy."""

    outputs: list[list[int]]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.outputs)) / self.seconds


@dataclass(frozen=True, slots=True)
class Setup:
    """The models and prompts."""

    target: Any
    draft: Any
    transformers_target: Any
    prompts: list[list[int]]
    max_new_tokens: int

    def requests(self, count: int | None = None) -> list[GenerationRequest]:
        return [
            GenerationRequest(prompt, self.max_new_tokens, seed=seed)
            for seed, prompt in enumerate(self.prompts[:count])
        ]

    def decoder(self, strategy: Strategy, temperature: float) -> Decoder:
        longest = max(map(len, self.prompts)) + self.max_new_tokens
        drafter: Drafter | Transformer = self.draft
        static: TokenTree | None = None
        if isinstance(strategy, TokenTree):
            static = strategy
        elif isinstance(strategy, DynamicTree):
            drafter = ExpandingDrafter(self.draft, strategy, capacity=longest)
        else:
            drafter = strategy(self.target, longest)
        return Decoder(
            self.target,
            drafter,
            static,
            temperature=temperature,
            max_sequence_tokens=longest,
            cuda_graphs=False,
        )

    def decode_single(self, strategy: Strategy, temperature: float) -> list[list[int]]:
        decoder = self.decoder(strategy, temperature)
        requests = progress(self.requests(), "batch size 1")
        return [
            list(decoder.generate(request.token_ids, request.max_new_tokens, seed=request.seed)) for request in requests
        ]

    def decode_batches(self, strategy: Strategy, temperature: float, size: int, count: int | None = None) -> Run:
        decoder, requests = self.decoder(strategy, temperature), self.requests(count)
        for _ in decoder.stream_all(requests[:size], batch_size=size):
            pass  # warm-up
        outputs: list[list[int]] = [[] for _ in requests]
        self.synchronize()
        start_s = time.perf_counter()
        for step in decoder.stream_all(requests, batch_size=size):
            outputs[step.request] += step.tokens
        self.synchronize()
        return Run(outputs, time.perf_counter() - start_s)

    def decode_with_transformers(self, temperature: float, size: int) -> Run:
        """Decode plainly with transformers, in left-padded batches."""
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        self.synchronize()
        start_s, outputs = time.perf_counter(), []
        for first in range(0, len(self.prompts), size):
            prompts = self.prompts[first : first + size]
            longest = max(map(len, prompts))
            tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
            mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            generated = self.transformers_target.generate(
                tokens.to(self.target.device),
                attention_mask=mask.to(self.target.device),
                max_new_tokens=self.max_new_tokens,
                pad_token_id=0,
                **sampling,
            )
            outputs += generated[:, longest:].tolist()
        self.synchronize()
        return Run(outputs, time.perf_counter() - start_s)

    def synchronize(self) -> None:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison at one temperature."""

    setup: Setup
    temperature: float
    heads: bool
    """Whether to include them."""
    single_outputs: dict[str, list[list[int]]] = field(default_factory=dict)
    """Outputs at batch size 1, by strategy."""

    def run(self, sizes: Sequence[int]) -> None:
        """Print a line for each batch size and strategy."""
        print(f"\ntemperature {self.temperature:g}")
        print(
            f"{'batch':>5}  {'':<24}{'tokens/s':>9}{'to plain':>10}{'to transformers':>17}{'equal':>8}",
            flush=True,
        )
        for size in sizes:
            rates = {
                name: self.setup.decode_batches(tree, self.temperature, size, FEW_PROMPTS).tokens_per_s
                for name, tree in progress(TREES.items(), "trees")
            }
            best = max(rates, key=lambda name: rates[name])
            transformers_rate = self.setup.decode_with_transformers(self.temperature, size).tokens_per_s
            tqdm.write(f"{size:>5}  {'transformers, plain':<24}{transformers_rate:>9.0f}")
            plain_rate = None
            strategies: dict[str, Strategy] = {"plain": PLAIN, best: TREES[best], "dynamic tree": DYNAMIC}
            for name, strategy in (strategies | (HEADS if self.heads else {})).items():
                run = self.setup.decode_batches(strategy, self.temperature, size)
                plain_rate = plain_rate or run.tokens_per_s
                ratios = run.tokens_per_s / plain_rate, run.tokens_per_s / transformers_rate
                self.print_run(size, name, strategy, run, ratios)

    def print_run(self, size: int, name: str, strategy: Strategy, run: Run, ratios: tuple[float, float]) -> None:
        """Print the line of a strategy, and one for each output that differs from that at batch size 1."""
        if name not in self.single_outputs:
            self.single_outputs[name] = self.setup.decode_single(strategy, self.temperature)
        lines = self.describe_divergences(self.single_outputs[name], run)
        tqdm.write(
            f"{size:>5}  {name:<24}{run.tokens_per_s:>9.0f}{ratios[0]:>10.2f}{ratios[1]:>17.2f}"
            f"{f'{len(run.outputs) - len(lines)}/{len(run.outputs)}':>8}"
        )
        for line in lines:
            tqdm.write(line)

    def describe_divergences(self, single: Sequence[list[int]], run: Run) -> list[str]:
        """Return a line for each output that differs from that at batch size 1."""
        lines = []
        for number, (prompt, expected, output) in enumerate(zip(self.setup.prompts, single, run.outputs, strict=True)):
            diverged = divergence(self.setup.target, number, prompt, expected, output)
            if diverged is not None:
                kind = "a near-tie" if diverged.near_tie else "NOT a near-tie"
                cause = "" if self.temperature else f", {kind}, logits {diverged.gap:.1e} apart"
                lines.append(f"    output {number} diverges at token {diverged.position}{cause}")
        return lines


def load_runner(runner: str, pair: ModelPair, folders: tuple[Path, Path]) -> tuple[Any, Any]:
    """Return the models of a pair in treeopt, transformers or llama.cpp."""
    if runner == TREEOPT:
        return pair.target, pair.draft
    if runner == TRANSFORMERS:
        options: Any = {"dtype": pair.target.dtype, "device": pair.target.device}
        target, draft = (load_adapter(folder, **options) for folder in folders)
        return target, draft
    with TemporaryDirectory() as name:
        target_file, draft_file = write_gguf(folders, Path(name), "f32")
        return load_gguf(target_file), load_gguf(draft_file)


def load_setup(args: argparse.Namespace) -> Setup:
    folders = args.target or bundle.TARGET, args.draft or bundle.DRAFT
    pair = load_pair(args.target, args.draft, dtype=args.dtype, device=args.device)
    target, draft = load_runner(args.runner, pair, folders)
    load: Any = transformers.AutoModelForCausalLM.from_pretrained  # its own types refuse their own models
    transformers_target = load(folders[0], dtype=pair.target.dtype).eval().to(args.device)
    whole = default_prompts(pair)
    halves = [prompt[len(prompt) // 2 :] for prompt in whole]
    prompts = list(islice(cycle([*whole, *halves]), args.prompts))  # repeated, with other seeds, if there are too few
    return Setup(target, draft, transformers_target, prompts, args.max_new_tokens)


def main() -> None:
    parser = script_parser(__doc__, pair=True)
    parser.add_argument("--prompts", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="of each prompt (default: %(default)s)")
    parser.add_argument(
        "--batch-sizes", type=floats, default="1,2,4,8,16", help="comma-separated (default: %(default)s)"
    )
    parser.add_argument("--temperatures", type=floats, default="0,0.7", help="comma-separated (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="default: %(default)s")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="default: %(default)s"
    )
    parser.add_argument("--heads", action="store_true", help="include the heads of the bundled target")
    parser.add_argument("--runner", choices=RUNNERS, default=TREEOPT, help="what runs the pair (default: %(default)s)")
    args = parser.parse_args()
    if args.heads and (args.target or args.draft):
        parser.error("--heads: expected the bundled pair. Got other models: leave out --heads or the models.")
    if args.heads and args.runner != TREEOPT:
        parser.error("--heads: expected --runner treeopt. Leave one of them out.")
    torch.manual_seed(0)
    transformers.utils.logging.set_verbosity_error()
    setup = load_setup(args)
    lengths = [len(prompt) for prompt in setup.prompts]
    print(
        f"{describe_environment()}\ntransformers {transformers.__version__}; {args.target or 'the bundled pair'}, run by {args.runner}, "
        f"{args.dtype} on {args.device}; {len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens, {args.max_new_tokens} new "
        "tokens each"
    )
    for temperature in args.temperatures:
        Comparison(setup, temperature, args.heads).run(list(map(int, args.batch_sizes)))


if __name__ == "__main__":
    main()
