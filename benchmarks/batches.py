"""What do batches bring?  Plain decoding and trees at several batch sizes, beside transformers' own batched generation.

    python benchmarks/batches.py
    python benchmarks/batches.py --heads --batch-sizes 1,8
    python benchmarks/batches.py --runner transformers --batch-sizes 1,8
    python benchmarks/batches.py --device cuda --dtype bfloat16 --shape 1b --draft-shape 68m

At each temperature and batch size the static trees below are raced on the first prompts; plain decoding, the fastest of
them and a dynamic tree then decode all: the default prompts, then their second halves.  Tokens per second are those of
all texts together, prefill included, and stand as ratios to plain decoding one text at a time, to plain decoding of as
many texts, and to transformers.  `steps to 1` is the first of these ratios with prefill left out of both, `rest` the
share of the steps' time in which no model runs; of a device neither is known.  `equal` counts the texts that are, token
by token, those decoded alone with the same seed.  At temperature 0 it is told of each of the others whether it parts at
a near-tie of the largest logits.

With `--heads` the heads that ship with the bundled target decode too; their passes count as `rest`, which is not told.
With `--runner transformers` these run both models, as all that treeopt does not run itself; `llama.cpp` runs them from
GGUF files of float32.
With `--shape`, models have random weights, and texts random prompts: then nothing is accepted, and what a batch takes
and whether texts are equal is all that is seen.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import click
import torch
import transformers
from conditions import bar, conditions, default_prompts, say

from treeopt import bundled as bundle
from treeopt.profiler.bench.divergence import divergence
from treeopt.runtime import Decoder, ExpandingDrafter, Transformer
from treeopt.runtime.decoding.batch import TextRequest
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.eagle import EagleDrafter, EagleDynamicDrafter, load_eagle
from treeopt.runtime.drafters.medusa import MedusaDrafter, load_medusa
from treeopt.runtime.drafters.redrafter import RedrafterDrafter, load_redrafter
from treeopt.runtime.models.gguf import load_gguf
from treeopt.runtime.models.hf import load_adapter
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.trees import TokenTree, chain, level_widths
from treeopt.trees.dynamic_tree import DynamicTree

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = bundle.TARGET, bundle.DRAFT
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
Heads = Callable[[Transformer, int], Drafter]
"""From a target and the longest text to a drafter."""
HEADS: dict[str, Heads] = {
    "EAGLE, chain of 4": lambda target, longest: EagleDrafter(
        load_eagle(bundle.EAGLE, target), chain(4), capacity=longest
    ),
    "EAGLE, dynamic tree": lambda target, longest: EagleDynamicDrafter(
        load_eagle(bundle.EAGLE, target), DYNAMIC, capacity=longest
    ),
    "Medusa, chain of 3": lambda target, _: MedusaDrafter(load_medusa(bundle.MEDUSA, target), chain(3)),
    "ReDrafter, 2 beams of 3": lambda target, _: RedrafterDrafter(load_redrafter(bundle.REDRAFTER, target), 2, 3),
}
Way = TokenTree | DynamicTree | Heads
FEW_PROMPTS = 16
"""Prompts that trees are raced on."""
RANDOM_LENGTHS = range(100, 356, 4)
"""Tokens of random prompts."""
RUNNERS = TREEOPT, TRANSFORMERS, _ = "treeopt", "transformers", "llama.cpp"


@dataclass(frozen=True, slots=True)
class Run:
    """All texts of one way of decoding."""

    texts: list[list[int]]
    seconds: float
    passes_s: float = 0.0
    prefill_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.texts)) / self.seconds

    @property
    def step_tokens_per_s(self) -> float:
        """Of the steps alone, prompts left out; on a device prefill is not known apart."""
        return sum(map(len, self.texts)) / (self.seconds - self.prefill_s)

    @property
    def rest(self) -> float:
        """Share of the steps' time that no pass takes."""
        return 1 - self.passes_s / (self.seconds - self.prefill_s)


@contextmanager
def passes_timed(model: type) -> Iterator[dict[str, float]]:
    """Collect the seconds of passes of a kind of model by method while the block runs."""
    seconds = dict.fromkeys(("forward", "prefill"), 0.0)

    def timed(name: str) -> Any:
        method = getattr(model, name)

        def run(*arguments: Any, **keywords: Any) -> Any:
            start_s = time.perf_counter()
            found = method(*arguments, **keywords)
            seconds[name] += time.perf_counter() - start_s
            return found

        return run

    with patch.multiple(model, **{name: timed(name) for name in seconds}):
        yield seconds


@dataclass(frozen=True, slots=True)
class Setup:
    """What is decoded."""

    target: Any
    draft: Any
    theirs: Any
    prompts: list[list[int]]
    max_new_tokens: int

    def requests(self, count: int | None = None) -> list[TextRequest]:
        return [TextRequest(prompt, self.max_new_tokens, seed=seed) for seed, prompt in enumerate(self.prompts[:count])]

    def decoder(self, way: Way, temperature: float) -> Decoder:
        longest = max(map(len, self.prompts)) + self.max_new_tokens
        drafter: Drafter | Transformer = self.draft
        static: TokenTree | None = None
        if isinstance(way, TokenTree):
            static = way
        elif isinstance(way, DynamicTree):
            drafter = ExpandingDrafter(self.draft, way, capacity=longest)
        else:
            drafter = way(self.target, longest)
        return Decoder(
            self.target,
            drafter,
            static,
            temperature=temperature,
            max_text_tokens=longest,
            cuda_graphs=False,
        )

    def alone(self, way: Way, temperature: float) -> list[list[int]]:
        decoder = self.decoder(way, temperature)
        wanted = bar(self.requests(), "alone")
        return [list(decoder.generate(each.token_ids, each.max_new_tokens, seed=each.seed)) for each in wanted]

    def together(self, way: Way, temperature: float, size: int, count: int | None = None) -> Run:
        decoder, requests = self.decoder(way, temperature), self.requests(count)
        for _ in decoder.steps_of_all(requests[:size], batch_size=size):
            pass  # makes the caches, and compiles what is compiled
        texts: list[list[int]] = [[] for _ in requests]
        self.wait()
        with passes_timed(type(self.target)) as passes_s:
            start_s = time.perf_counter()
            for step in decoder.steps_of_all(requests, batch_size=size):
                texts[step.text] += step.tokens
            self.wait()
            seconds = time.perf_counter() - start_s
        return Run(texts, seconds, passes_s["forward"], passes_s["prefill"])

    def transformers(self, temperature: float, size: int) -> Run:
        """Decode plainly with transformers, in batches of texts that are padded on the left."""
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        self.wait()
        start_s, texts = time.perf_counter(), []
        for first in range(0, len(self.prompts), size):
            prompts = self.prompts[first : first + size]
            longest = max(map(len, prompts))
            tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
            seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            found = self.theirs.generate(
                tokens.to(self.target.device),
                attention_mask=seen.to(self.target.device),
                max_new_tokens=self.max_new_tokens,
                pad_token_id=0,
                **sampling,
            )
            texts += found[:, longest:].tolist()
        self.wait()
        return Run(texts, time.perf_counter() - start_s)

    def wait(self) -> None:
        """Wait for the device."""
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything at one temperature."""

    setup: Setup
    temperature: float
    heads: bool
    """Whether they decode too."""
    alone: dict[str, list[list[int]]] = field(default_factory=dict)
    """The texts of each way, decoded one after the other."""

    def run(self, sizes: Sequence[int]) -> None:
        """Measure all batch sizes, and print a line for each way of decoding."""
        print(f"\ntemperature {self.temperature:g}")
        print(
            f"{'batch':>5}  {'':<24}{'tokens/s':>9}{'to 1, plain':>13}{'steps to 1':>12}{'to plain':>10}{'to transformers':>17}"
            f"{'rest':>8}{'equal':>8}",
            flush=True,
        )
        first = None
        for size in sizes:
            raced = {
                name: self.setup.together(tree, self.temperature, size, FEW_PROMPTS).tokens_per_s
                for name, tree in bar(TREES.items(), "trees")
            }
            best = max(raced, key=lambda name: raced[name])
            theirs = self.setup.transformers(self.temperature, size).tokens_per_s
            say(f"{size:>5}  {'transformers, plain':<24}{theirs:>9.0f}")
            plain = None
            ways: dict[str, Way] = {"plain": PLAIN, best: TREES[best], "dynamic tree": DYNAMIC}
            for name, way in (ways | (HEADS if self.heads else {})).items():
                found = self.setup.together(way, self.temperature, size)
                plain, first = plain or found, first or found
                steps = found.step_tokens_per_s / first.step_tokens_per_s
                ratios = [found.tokens_per_s / each for each in (first.tokens_per_s, plain.tokens_per_s, theirs)]
                self.tell(size, name, way, found, [ratios[0], steps, *ratios[1:]])

    def tell(self, size: int, name: str, way: Way, run: Run, ratios: Sequence[float]) -> None:
        """Print the line of a way of decoding, and one for each text that is not the one decoded alone."""
        if name not in self.alone:
            self.alone[name] = self.setup.alone(way, self.temperature)
        lines = self.differing(self.alone[name], run)
        on_host = self.setup.target.device.type != "cuda"  # of a device it is not known what its passes take
        steps = f"{ratios[1]:.2f}" if on_host else "-"
        rest = f"{run.rest:.1%}" if on_host and name not in HEADS else "-"
        say(
            f"{size:>5}  {name:<24}{run.tokens_per_s:>9.0f}{ratios[0]:>13.2f}{steps:>12}{ratios[2]:>10.2f}{ratios[3]:>17.2f}"
            f"{rest:>8}{f'{len(run.texts) - len(lines)}/{len(run.texts)}':>8}"
        )
        for line in lines:
            say(line)

    def differing(self, alone: Sequence[list[int]], run: Run) -> list[str]:
        """Return a line for each text that is not the one decoded alone."""
        found = []
        for number, (prompt, expected, text) in enumerate(zip(self.setup.prompts, alone, run.texts, strict=True)):
            parted = divergence(self.setup.target, number, prompt, expected, text)
            if parted is not None:
                kind = "a near-tie" if parted.near_tie else "NOT a near-tie"
                of = "" if self.temperature else f", {kind}, logits {parted.gap:.1e} apart"
                found.append(f"    text {number} parts at token {parted.place}{of}")
        return found


def run_by(runner: str, pair: ModelPair, folders: tuple[Path, Path]) -> tuple[Any, Any]:
    """Return the models of a pair as something else runs them."""
    if runner == TREEOPT:
        return pair.target, pair.draft
    if runner == TRANSFORMERS:
        options: Any = {"dtype": pair.target.dtype, "device": pair.target.device}
        target, draft = (load_adapter(folder, **options) for folder in folders)
        return target, draft
    sys.path.append(str(ROOT / "tools"))
    from make_gguf import make_gguf

    with TemporaryDirectory() as name:
        files = [Path(name) / f"{folder.name}.gguf" for folder in folders]
        for folder, file in zip(folders, files, strict=True):
            make_gguf(folder, file, "f32")
        return load_gguf(files[0]), load_gguf(files[1])


def pair_setup(
    folders: tuple[Path, Path], count: int, max_new_tokens: int, dtype: str, device: str, runner: str
) -> Setup:
    """Return a pair with its prompts."""
    pair = load_pair(*(None, None) if folders == BUNDLED else folders, dtype=dtype, device=device)
    target, draft = run_by(runner, pair, folders)
    load: Any = transformers.AutoModelForCausalLM.from_pretrained  # its own types refuse their own models
    theirs = load(folders[0], dtype=pair.target.dtype).eval().to(device)
    whole = default_prompts(pair)
    halves = [prompt[len(prompt) // 2 :] for prompt in whole]
    prompts = list(islice(cycle([*whole, *halves]), count))  # taken again, with other seeds, where they are too few
    return Setup(target, draft, theirs, prompts, max_new_tokens)


def random_setup(shapes: tuple[str, str], count: int, max_new_tokens: int, dtype: str, device: str) -> Setup:
    """Return models of known shapes with random weights, and random prompts."""
    sys.path.append(str(ROOT / "tools"))
    from gallery_shapes import SHAPES, random_model

    options = {"dtype": getattr(torch, dtype), "device": torch.device(device)}
    target, draft = (random_model(shape, seed=seed, **options) for seed, shape in enumerate(shapes))
    shape = SHAPES[shapes[0]]
    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_size,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=shape.tied_head,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device(device):
        theirs = transformers.LlamaForCausalLM._from_config(config, dtype=target.dtype).eval()
    noise = torch.Generator().manual_seed(0)
    lengths = [RANDOM_LENGTHS[number % len(RANDOM_LENGTHS)] for number in range(count)]
    prompts = [torch.randint(shape.vocabulary, (length,), generator=noise).tolist() for length in lengths]
    return Setup(target, draft, theirs, prompts, max_new_tokens)


@click.command()
@click.option("--prompts", "count", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--batch-sizes", default="1,2,4,8,16", show_default=True, help="With commas between.")
@click.option("--temperatures", default="0,0.7", show_default=True, help="With commas between.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True)
@click.option("--target", type=Path, default=bundle.TARGET, help="Model folder; by default the bundled pair.")
@click.option("--draft", type=Path, default=bundle.DRAFT, help="Folder of its draft model.")
@click.option("--shape", help="Of a target with random weights (tools/gallery_shapes.py); by default the bundled pair.")
@click.option("--draft-shape", default="30m", show_default=True, help="Of its draft model.")
@click.option("--heads", is_flag=True, help="Those of the bundled target decode too.")
@click.option("--runner", type=click.Choice(RUNNERS), default=TREEOPT, show_default=True, help="Of the pair.")
def main(
    count: int,
    max_new_tokens: int,
    batch_sizes: str,
    temperatures: str,
    device: str,
    dtype: str,
    target: Path,
    draft: Path,
    shape: str | None,
    draft_shape: str,
    heads: bool,
    runner: str,
) -> None:
    """Decode the same prompts at every temperature and batch size, and print a line for each way of decoding."""
    folders = target, draft
    if heads and (shape is not None or folders != BUNDLED):
        raise click.UsageError("--heads: expected the bundled pair, whose they are. Got another: leave one out.")
    if runner != TREEOPT and (heads or shape is not None):
        raise click.UsageError(
            "--runner: expected a pair with weights alone. Got --heads or --shape with it: leave it out."
        )
    torch.manual_seed(0)
    transformers.utils.logging.set_verbosity_error()
    options = (count, max_new_tokens, dtype, device)
    if shape is None:
        setup, what = pair_setup(folders, *options, runner), f"{target} + {draft}, run by {runner}"
    else:
        setup, what = random_setup((shape, draft_shape), *options), f"random weights, {shape} and {draft_shape}"
    lengths = [len(prompt) for prompt in setup.prompts]
    print(
        f"{conditions()}\ntransformers {transformers.__version__}; {what}, {dtype} on {device}; {len(lengths)} prompts "
        f"of {min(lengths)} to {max(lengths)} tokens, {max_new_tokens} new tokens each"
    )
    for temperature in map(float, temperatures.split(",")):
        Comparison(setup, temperature, heads).run([int(each) for each in batch_sizes.split(",")])


if __name__ == "__main__":
    main()
