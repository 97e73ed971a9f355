"""Does this machine keep its speed?  Steps of plain decoding, a chain and a tree in turn, medians of every 10 seconds."""

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import product

import numpy as np
from conditions import conditions
from tqdm import tqdm

from treeopt.runtime import Decoder
from treeopt.runtime.models.pair import load_pair
from treeopt.texts.prompts import load_prompts, profile_prompts
from treeopt.trees import chain, level_widths

TREES = {"plain": chain(0), "chain of 7": chain(6), "tree of 26": level_widths([4, 6, 6, 4, 3, 2])}
PROMPTS, NEW_TOKENS, TEXT_TOKENS, WINDOW_S = 6, 171, 450, 10
Steps = dict[tuple[int, str], list[float]]
"""Seconds of every step, by window of time and tree."""


def timed_steps(decoders: Mapping[str, Decoder], prompts: list[list[int]], seconds: float) -> Steps:
    """Decode all prompts in turn with all decoders for so many seconds."""
    steps: Steps = defaultdict(list)
    began_s = time.perf_counter()
    with tqdm(total=round(seconds), desc="decoding", unit="s", leave=False, disable=None) as shown:
        while time.perf_counter() - began_s < seconds:
            for prompt, (name, decoder) in product(prompts, decoders.items()):
                decoder.start(prompt)
                tokens = 0
                while tokens < NEW_TOKENS:
                    start_s = time.perf_counter()
                    tokens += len(decoder.step())
                    end_s = time.perf_counter()
                    steps[int((end_s - began_s) // WINDOW_S), name].append(end_s - start_s)
                shown.update(min(seconds, end_s - began_s) - shown.n)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    pair = load_pair()
    prompts = [pair.tokenizer.encode(text) for text in profile_prompts(load_prompts())[:PROMPTS]]
    decoders = {
        name: Decoder(
            pair.target, pair.draft if tree.nodes > 1 else None, tree, temperature=0.0, max_text_tokens=TEXT_TOKENS
        )
        for name, tree in TREES.items()
    }
    print(conditions())
    print("ms a step, medians")
    print(f"{'from s':>8}" + "".join(f"{name:>14}" for name in TREES))
    steps = timed_steps(decoders, prompts, seconds)
    for window in sorted({window for window, _ in steps}):
        medians = (1000 * np.median(steps[window, name]) for name in TREES)
        print(f"{WINDOW_S * window:>8}" + "".join(f"{median:>14.3f}" for median in medians))


if __name__ == "__main__":
    main()
