"""Dynamic trees: what replaying a draft record says beside running the same rule for real, on the bundled pair.

At temperature 0 both walk the same texts.  Above it texts are drawn anew each time, so the same is shown twice: on texts
of the same distribution, with errors, and along the very texts that the decoder drew, where no error is left.
"""

import argparse
import math
import time
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from conditions import bar, conditions, default_prompts, say

from treeopt import Profile
from treeopt.planner import step_model
from treeopt.planner.dynamic import fastest_dynamic_tree, predict_dynamic
from treeopt.planner.replay import Replay
from treeopt.profiler import Recording, RecordSize, Settings, TextFiles
from treeopt.profiler.acceptance.draft_record import joined
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, ExpandingDrafter
from treeopt.runtime.models.pair import load_pair
from treeopt.texts.prompts import profile_prompts
from treeopt.trees.dynamic_tree import DynamicTree

TREES = [
    DynamicTree.chain(3),
    DynamicTree.chain(6),
    DynamicTree(top_k=2, depth=5, nodes=9),
    DynamicTree(top_k=4, depth=5, nodes=8),
    DynamicTree(top_k=4, depth=6, nodes=17),
    DynamicTree(top_k=10, depth=6, nodes=61),
    DynamicTree(top_k=10, depth=8, nodes=60),
]
ROOM_TOKENS = 64
OWN_TEXTS = 2
"""Prompts whose decoded texts are recorded again."""


@dataclass
class Decoded:
    """Texts decoded with dynamic trees."""

    steps: list[list[list[int]]]
    """The tokens of every step of every text."""
    step_s: float
    """Median seconds of a step."""

    def counts(self) -> np.ndarray:
        """Return (J, 2): tokens and steps of each text."""
        return np.array([(sum(map(len, steps)), len(steps)) for steps in self.steps])


def decoded(decoder: Decoder, prompts: list[list[int]], lengths: list[int], seed: int) -> Decoded:
    """Decode each text as far as it was recorded; the last step may go beyond."""
    texts, seconds = [], []
    for number, (prompt, positions) in enumerate(bar(list(zip(prompts, lengths, strict=True)), "decoding")):
        room = min(positions + ROOM_TOKENS, decoder.max_text_tokens - len(prompt))
        stepping = decoder.steps(prompt, room, seed=1000 * seed + number)
        steps: list[list[int]] = []
        while sum(map(len, steps)) < positions:
            start_s = time.perf_counter()
            committed = next(stepping, None)
            if committed is None:
                break
            seconds.append(time.perf_counter() - start_s)
            steps.append(committed)
        texts.append(steps)
    return Decoded(texts, float(np.median(seconds)))


def with_error(counts: np.ndarray) -> str:
    """Return tokens per step with its standard error, texts as clusters."""
    tokens, steps = counts.T
    value = tokens.sum() / steps.sum()
    return f"{value:.3f} +- {math.sqrt(((tokens - value * steps) ** 2).sum()) / steps.sum():.3f}"


def per_step(counts: np.ndarray) -> float:
    return float(counts[:, 0].sum() / counts[:, 1].sum())


def replayed(replay: Replay, tree: DynamicTree) -> np.ndarray:
    found = replay.texts(tree.top_k, tree.depth, np.array([tree.nodes]))
    return np.stack([found.tokens[:, 0], found.steps[:, 0]], axis=1)


def own_texts(recording: Recording, prompts: list[list[int]], run: Decoded, tree: DynamicTree) -> float:
    """Return replayed over decoded tokens per step, along texts that the decoder itself drew."""
    records, counts = [], []
    for prompt, steps in zip(prompts, run.steps[: len(prompts)], strict=True):
        text = [token for committed in steps for token in committed]
        roots = len(text) - tree.depth  # steps that begin behind them may go beyond the text
        begun = [len(committed) for at, committed in zip(begins(steps), steps, strict=True) if at < roots]
        records.append(recording.along(prompt, text, roots))
        counts.append((sum(begun), len(begun)))
    return per_step(replayed(Replay(joined(records)), tree)) / per_step(np.array(counts))


def begins(steps: list[list[int]]) -> list[int]:
    return [0, *accumulate(map(len, steps[:-1]))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", type=Path, help="profile of this machine, for predicted seconds")
    parser.add_argument("--temperatures", default="0,0.6")
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--target", type=Path, help="model folder; by default the bundled pair")
    parser.add_argument("--draft", type=Path, help="folder of its draft model")
    asked = parser.parse_args()
    print(conditions())
    pair = load_pair(asked.target, asked.draft)
    prompts = profile_prompts(default_prompts(pair))
    profile = Profile.load(asked.profile) if asked.profile else None
    for temperature in map(float, asked.temperatures.split(",")):
        settings = Settings(samplings=(Sampling(temperature),), positions=asked.positions, record=RecordSize())
        recording = Recording(pair.target, pair.draft_model, prompts, settings, files=TextFiles(None))
        start_s = time.perf_counter()
        record = recording.record()
        took_s = time.perf_counter() - start_s
        print(f"\ntemperature {temperature:g}: {record.roots} positions of {record.texts} texts, {took_s:.0f} s")
        replay, trees, model = Replay(record), list(TREES), None
        if profile is not None and profile.acceptances_of(rule=None, temperature=temperature):
            model = step_model(profile, temperature=temperature)
            start_s = time.perf_counter()
            trees.append(fastest_dynamic_tree(replay, model, max_nodes=model.costs.max_nodes)[0])
            print(f"the fastest of all settings, in {time.perf_counter() - start_s:.1f} s: {trees[-1]}")
        titles = ["top-k", "depth", "nodes", "replayed", "decoded", "ratio", "own texts", "step, ms", "predicted"]
        print("".join(f"{title:>{width}}" for title, width in zip(titles, WIDTHS, strict=True)))
        for tree in bar(trees, "trees"):
            said = replayed(replay, tree)
            drafter = ExpandingDrafter(pair.draft_model, tree, capacity=pair.draft_model.config.max_positions)
            decoder = Decoder(pair.target, drafter, temperature=temperature)
            run = decoded(decoder, prompts, np.diff(record.text_starts).tolist(), seed=1)
            cells = [
                *map(str, (tree.top_k, tree.depth, tree.nodes)),
                with_error(said),
                with_error(run.counts()),
                f"{per_step(said) / per_step(run.counts()):.4f}",
                f"{own_texts(recording, prompts[:OWN_TEXTS], run, tree):.4f}",
                f"{1000 * run.step_s:.2f}",
                "" if model is None else f"{1000 * predict_dynamic(replay, model, tree).step_s.value:.2f}",
            ]
            say("".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))


WIDTHS = (5, 6, 6, 17, 17, 8, 11, 10, 11)

if __name__ == "__main__":
    main()
