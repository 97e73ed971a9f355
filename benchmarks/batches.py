"""What do batches bring?  Plain decoding and trees at several batch sizes, beside transformers' own batched generation.

    python benchmarks/batches.py

At each temperature and batch size, the trees below are raced on the first prompts; plain decoding and the fastest of
them then decode all.  Tokens per second are those of all texts together, prefill included.  `rest` is the share of that
time in which no model runs, and `equal` counts the texts that are, token by token, those decoded alone with the same
seed.  At temperature 0 it is told of each of the others whether it parts at a near-tie of the two largest logits.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import click
import torch
import transformers
from conditions import bar, conditions, say

from treeopt import bundled as bundle
from treeopt.profiler.bench.divergence import divergence
from treeopt.runtime import Decoder, Transformer
from treeopt.runtime.decoding.batch import TextRequest
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.texts.prompts import load_prompts
from treeopt.trees import TokenTree, chain, level_widths

PLAIN = chain(0)
TREES = {
    "chain of 2": chain(2),
    "chain of 4": chain(4),
    "4 nodes": level_widths([2, 1]),
    "8 nodes": level_widths([2, 2, 2, 1]),
    "16 nodes": level_widths([4, 4, 3, 2, 2]),
}
FEW_PROMPTS = 16
"""Prompts that trees are raced on."""
PASSES = ("prefill", "forward", "forward_ragged")


@dataclass(frozen=True, slots=True)
class Run:
    """All texts of one way of decoding."""

    texts: list[list[int]]
    seconds: float
    passes_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.texts)) / self.seconds


@contextmanager
def passes_timed() -> Iterator[list[float]]:
    """Collect the seconds of all model passes while the block runs."""
    seconds = [0.0]

    def timed(method: Any) -> Any:
        def run(*arguments: Any, **keywords: Any) -> Any:
            start_s = time.perf_counter()
            found = method(*arguments, **keywords)
            seconds[0] += time.perf_counter() - start_s
            return found

        return run

    with patch.multiple(Transformer, **{name: timed(getattr(Transformer, name)) for name in PASSES}):
        yield seconds


@dataclass(frozen=True, slots=True)
class Setup:
    """What is decoded."""

    pair: ModelPair
    theirs: Any
    prompts: list[list[int]]
    max_new_tokens: int

    def requests(self, count: int | None = None) -> list[TextRequest]:
        return [TextRequest(prompt, self.max_new_tokens, seed=seed) for seed, prompt in enumerate(self.prompts[:count])]

    def decoder(self, tree: TokenTree, temperature: float) -> Decoder:
        longest = max(map(len, self.prompts)) + self.max_new_tokens
        return Decoder(self.pair.target, self.pair.draft, tree, temperature=temperature, max_text_tokens=longest)

    def alone(self, tree: TokenTree, temperature: float) -> list[list[int]]:
        decoder = self.decoder(tree, temperature)
        wanted = bar(self.requests(), "alone")
        return [list(decoder.generate(each.token_ids, each.max_new_tokens, seed=each.seed)) for each in wanted]

    def together(self, tree: TokenTree, temperature: float, size: int, count: int | None = None) -> Run:
        decoder, requests = self.decoder(tree, temperature), self.requests(count)
        for _ in decoder.steps_of_all(
            requests[:size], batch_size=size
        ):  # makes the caches, and compiles what is compiled
            pass
        texts: list[list[int]] = [[] for _ in requests]
        with passes_timed() as passes_s:
            start_s = time.perf_counter()
            for step in decoder.steps_of_all(requests, batch_size=size):
                texts[step.text] += step.tokens
            return Run(texts, time.perf_counter() - start_s, passes_s[0])

    def transformers(self, temperature: float, size: int) -> Run:
        """Decode plainly with transformers, in batches of texts that are padded on the left."""
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        start_s, texts = time.perf_counter(), []
        for first in range(0, len(self.prompts), size):
            prompts = self.prompts[first : first + size]
            longest = max(map(len, prompts))
            tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
            seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            found = self.theirs.generate(
                tokens, attention_mask=seen, max_new_tokens=self.max_new_tokens, pad_token_id=0, **sampling
            )
            texts += found[:, longest:].tolist()
        return Run(texts, time.perf_counter() - start_s)


def differing(setup: Setup, alone: Sequence[list[int]], run: Run, temperature: float) -> list[str]:
    """Return a line for each text that is not the one decoded alone."""
    found = []
    for number, (prompt, expected, text) in enumerate(zip(setup.prompts, alone, run.texts, strict=True)):
        parted = divergence(setup.pair.target, number, prompt, expected, text)
        if parted is not None:
            kind = "" if temperature else (", a near-tie" if parted.near_tie else ", NOT a near-tie")
            found.append(f"    text {number} parts at token {parted.place}{kind}")
    return found


def compare(setup: Setup, temperature: float, sizes: Sequence[int]) -> None:
    """Measure everything at one temperature."""
    alone: dict[str, list[list[int]]] = {}
    print(f"\ntemperature {temperature:g}\n{'batch':>5}  {'':<22}{'tokens/s':>9}{'rest':>8}{'equal':>10}", flush=True)
    for size in sizes:
        raced = {
            name: setup.together(tree, temperature, size, FEW_PROMPTS).tokens_per_s
            for name, tree in bar(TREES.items(), "trees")
        }
        best = max(raced, key=lambda name: raced[name])
        for name, tree in {"plain": PLAIN, best: TREES[best]}.items():
            if name not in alone:
                alone[name] = setup.alone(tree, temperature)
            run = setup.together(tree, temperature, size)
            lines = differing(setup, alone[name], run, temperature)
            equal = f"{len(run.texts) - len(lines)}/{len(run.texts)}"
            say(f"{size:>5}  {name:<22}{run.tokens_per_s:>9.0f}{1 - run.passes_s / run.seconds:>8.1%}{equal:>10}")
            for line in lines:
                say(line)
        say(f"{size:>5}  {'transformers, plain':<22}{setup.transformers(temperature, size).tokens_per_s:>9.0f}")


@click.command()
@click.option("--prompts", "count", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--batch-sizes", default="1,2,4,8,16", show_default=True, help="With commas between.")
@click.option("--temperatures", default="0,0.7", show_default=True, help="With commas between.")
def main(count: int, max_new_tokens: int, batch_sizes: str, temperatures: str) -> None:
    """Decode the same prompts at every temperature and batch size, and print a line for each way of decoding."""
    torch.manual_seed(0)
    transformers.utils.logging.set_verbosity_error()
    pair = load_pair()
    prompts = [pair.tokenizer.encode(text) for text in load_prompts()][:count]
    load: Any = transformers.AutoModelForCausalLM.from_pretrained  # its own types refuse their own models
    theirs = load(bundle.TARGET, dtype=torch.float32).eval()
    print(
        f"{conditions()}\ntransformers {transformers.__version__}; the bundled pair, float32; {len(prompts)} prompts of "
        f"{min(map(len, prompts))} to {max(map(len, prompts))} tokens, {max_new_tokens} new tokens each"
    )
    for temperature in map(float, temperatures.split(",")):
        compare(
            Setup(pair, theirs, prompts, max_new_tokens), temperature, [int(each) for each in batch_sizes.split(",")]
        )


if __name__ == "__main__":
    main()
