"""Prompts of lengths that were not read before: oneDNN makes code for each count of rows, and keeps some of it.

    python benchmarks/prompt_lengths.py

Texts of the bundled pair begin, one of each length in random order; then all of them once more in the same order, and
then each length five times on end.  Beside it without `padded_rows`, which makes some lengths share their code.  Each
runs in a process of its own, in turn, since what was made stays until others have taken its room.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from random import Random
from statistics import mean, median
from unittest.mock import patch

import click
from conditions import bar, conditions, say

from treeopt.runtime import Decoder
from treeopt.runtime.models.pair import load_pair
from treeopt.texts.prompts import load_prompts
from treeopt.trees import chain

COLUMNS = ("new", "once more", "on end")
REPEATS = 5


def begin_ms(decoder: Decoder, text: Sequence[int]) -> float:
    """Return the milliseconds that a text takes to begin."""
    start_s = time.perf_counter()
    decoder.start(text)
    return 1000 * (time.perf_counter() - start_s)


def times_ms(padded: bool, shortest: int, longest: int) -> tuple[float, ...]:
    """Return the milliseconds of a prompt for each column, on average over all lengths."""
    as_they_are = patch("treeopt.runtime.models.transformer.padded_rows", lambda rows, _: rows)
    with nullcontext() if padded else as_they_are:
        pair = load_pair()
        tokens = pair.tokenizer.encode("\n".join(load_prompts()))[:longest]
        decoder = Decoder(pair.target, pair.draft, chain(5), max_text_tokens=2 * longest)
        for _ in range(REPEATS):
            decoder.start(tokens)
        lengths = list(range(shortest, longest + 1))
        Random(0).shuffle(lengths)
        new, again = ([begin_ms(decoder, tokens[:each]) for each in lengths] for _ in range(2))
        on_end = [median([begin_ms(decoder, tokens[:each]) for _ in range(REPEATS)]) for each in lengths]
    return mean(new), mean(again), mean(on_end)


@click.command()
@click.option("--shortest", default=32, show_default=True, help="Tokens of the shortest prompt.")
@click.option("--longest", default=128, show_default=True, help="Tokens of the longest.")
@click.option("--rounds", default=5, show_default=True, help="Processes of each kind, in turn.")
def main(shortest: int, longest: int, rounds: int) -> None:
    """Print milliseconds of a prompt, the median over processes, and how many times as quick padded rows make it."""
    print(f"{conditions()}; prompts of {shortest} to {longest} tokens, {rounds} processes of each kind")
    found: dict[bool, list[tuple[float, ...]]] = {False: [], True: []}
    for _ in bar(range(rounds), "processes"):
        for padded, each in found.items():
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                each.append(process.submit(times_ms, padded, shortest, longest).result())
    say(f"{'ms':>12}{'as they are':>14}{'padded':>10}{'ratio':>8}")
    for column, name in enumerate(COLUMNS):
        plain_ms, padded_ms = (median(each[column] for each in found[kind]) for kind in (False, True))
        say(f"{name:>12}{plain_ms:>14.2f}{padded_ms:>10.2f}{plain_ms / padded_ms:>8.2f}")


if __name__ == "__main__":
    main()
