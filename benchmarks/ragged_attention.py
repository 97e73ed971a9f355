"""Texts of unlike lengths in one pass: attention at once over slots that only the longest has, or one call for each text.

    python benchmarks/ragged_attention.py

Prints milliseconds of whole steps of the bundled pair, behind texts whose lengths lie evenly in a range, in either way and
as `treeopt.runtime.models.ragged_attention` decides, and the last beside the quicker of the two.  Ways take turns.
"""

import time
from collections.abc import Sequence
from unittest.mock import patch

import click
import numpy as np
from conditions import bar, conditions, say

from treeopt.profiler.latency.passes import ROOM_TOKENS, BatchSteps
from treeopt.runtime import Decoder
from treeopt.runtime.models import ragged_attention
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.texts.prompts import load_prompts
from treeopt.trees import TokenTree, chain

TREES = {"plain": chain(0), "chain of 6": chain(6), "chain of 12": chain(12)}
LENGTHS = ((160, 160), (75, 225), (200, 600))
STEPS = 6
"""Of a way's turn; the first of each is not timed."""
NEVER = float("inf")
WAYS = {
    "at once": (NEVER, NEVER),
    "in turn": (0.0, NEVER),
    "decided": (ragged_attention.MOST_PADDING, ragged_attention.CALL_BYTES),
}
"""MOST_PADDING and CALL_BYTES of each."""


def steps_behind(pair: ModelPair, tree: TokenTree, prompts: Sequence[Sequence[int]]) -> BatchSteps:
    longest = max(map(len, prompts)) + ROOM_TOKENS
    return BatchSteps(Decoder(pair.target, pair.draft, tree, temperature=0.0, max_text_tokens=longest), prompts)


def seconds_of(steps: BatchSteps, tree: TokenTree) -> float:
    steps.prepare(tree)
    start_s = time.perf_counter()
    steps.step()
    return time.perf_counter() - start_s


def step_ms(pair: ModelPair, tree: TokenTree, prompts: Sequence[Sequence[int]], seconds: float) -> dict[str, float]:
    """Return the median milliseconds of a step in each way, which take turns in a random order for so long."""
    steps = {way: steps_behind(pair, tree, prompts) for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    generator, end_s = np.random.default_rng(0), time.perf_counter() + seconds
    while time.perf_counter() < end_s or not all(times.values()):
        for way in generator.permutation(list(WAYS)).tolist():
            most_padding, call_bytes = WAYS[way]
            with (
                patch.object(ragged_attention, "MOST_PADDING", most_padding),
                patch.object(ragged_attention, "CALL_BYTES", call_bytes),
            ):
                times[way] += [seconds_of(steps[way], tree) for _ in range(STEPS)][1:]
    return {way: 1e3 * float(np.median(each)) for way, each in times.items()}


@click.command()
@click.option("--batch-sizes", default="2,8,16", help="How many texts, with commas.")
@click.option("--seconds", default=3.0, type=click.FloatRange(0.01), help="How long each line is timed.")
@click.option("--threads", type=click.IntRange(1), help="Threads of torch.")
def main(batch_sizes: str, seconds: float, threads: int | None) -> None:
    """Time steps of texts of unlike lengths."""
    pair = load_pair(threads=threads)
    print(conditions())
    tokens = np.concatenate([pair.tokenizer.encode(each) for each in load_prompts()])
    print(
        f"{'texts':>5}  {'tree':<12}{'lengths':>10}{'at once, ms':>13}{'in turn, ms':>13}{'decided, ms':>13}{'ratio':>7}"
    )
    for size in bar([int(each) for each in batch_sizes.split(",")], "texts"):
        for name, tree in TREES.items():
            for least, most in LENGTHS:
                ends = np.random.default_rng(1).permutation(np.linspace(least, most, size).astype(int))
                prompts = [np.roll(tokens, -200 * number)[:end].tolist() for number, end in enumerate(ends)]
                found = step_ms(pair, tree, prompts, seconds)
                times = "".join(f"{each:>13.2f}" for each in found.values())
                ratio = found["decided"] / min(found["at once"], found["in turn"])
                say(f"{size:>5}  {name:<12}{f'{least}-{most}':>10}{times}{ratio:>7.2f}")


if __name__ == "__main__":
    main()
