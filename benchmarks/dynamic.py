"""Compare dynamic trees replayed from a draft record with the same trees decoded, on the bundled pair.

At temperature 0 both have the same sequences. Above it, sequences are sampled again, so there are two comparisons: on sequences
of the same distribution, with standard errors, and along the sampled sequences themselves (`own`), which has no sampling error.
"""

import argparse
import math
import time
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from common import default_prompts, describe_environment, progress
from tqdm import tqdm

from treeopt import Profile
from treeopt.planner import step_model
from treeopt.planner.dynamic import fastest_dynamic_tree, predict_dynamic
from treeopt.planner.replay import Replay
from treeopt.profiler import RecordFiles, Recording, RecordSize, Settings
from treeopt.profiler.acceptance.draft_record import join_records
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, ExpandingDrafter
from treeopt.runtime.models.pair import load_pair
from treeopt.texts.prompts import profile_prompts
from treeopt.trees.drafter_parameters import DynamicTree

TREES = [
    DynamicTree.chain(3),
    DynamicTree.chain(6),
    DynamicTree(top_k=2, depth=5, nodes=9),
    DynamicTree(top_k=4, depth=5, nodes=8),
    DynamicTree(top_k=4, depth=6, nodes=17),
    DynamicTree(top_k=10, depth=6, nodes=61),
    DynamicTree(top_k=10, depth=8, nodes=60),
]
MARGIN_TOKENS = 64
OWN_SEQUENCES = 2
"""Prompts whose decoded sequences are recorded too."""


@dataclass
class Decoded:
    """Sequences decoded with a dynamic tree."""

    steps: list[list[list[int]]]
    """The tokens of every step of every sequence."""
    step_s: float
    """Median seconds of a step."""

    def counts(self) -> np.ndarray:
        """Return (sequences, 2): tokens and steps."""
        return np.array([(sum(map(len, steps)), len(steps)) for steps in self.steps])


def decode(decoder: Decoder, prompts: list[list[int]], lengths: list[int], seed: int) -> Decoded:
    """Decode each sequence to at least its recorded length."""
    sequences, seconds = [], []
    for number, (prompt, positions) in enumerate(progress(list(zip(prompts, lengths, strict=True)), "decoding")):
        max_new_tokens = min(positions + MARGIN_TOKENS, decoder.max_sequence_tokens - len(prompt))
        stream = decoder.stream(prompt, max_new_tokens, seed=1000 * seed + number)
        steps: list[list[int]] = []
        while sum(map(len, steps)) < positions:
            start_s = time.perf_counter()
            committed = next(stream, None)
            if committed is None:
                break
            seconds.append(time.perf_counter() - start_s)
            steps.append(committed)
        sequences.append(steps)
    return Decoded(sequences, float(np.median(seconds)))


def format_with_error(counts: np.ndarray) -> str:
    """Return tokens per step with its standard error, clustered by sequence."""
    tokens, steps = counts.T
    value = tokens.sum() / steps.sum()
    return f"{value:.3f} +- {math.sqrt(((tokens - value * steps) ** 2).sum()) / steps.sum():.3f}"


def per_step(counts: np.ndarray) -> float:
    return float(counts[:, 0].sum() / counts[:, 1].sum())


def replay_tree(replay: Replay, tree: DynamicTree) -> np.ndarray:
    counts = replay.count_steps(tree.top_k, tree.depth, np.array([tree.nodes]))
    return np.stack([counts.tokens[:, 0], counts.steps[:, 0]], axis=1)


def compare_own_sequences(
    recording: Recording, prompts: list[list[int]], run: Decoded, tree: DynamicTree
) -> float | None:
    """Return replayed over decoded tokens per step along the decoded sequences; None if none is longer than the tree is deep."""
    records, counts = [], []
    for prompt, steps in zip(prompts, run.steps[: len(prompts)], strict=True):
        sequence = [token for committed in steps for token in committed]
        roots = len(sequence) - tree.depth  # later steps may go beyond the sequence
        if roots < 1:
            continue
        starts = accumulate(map(len, steps), initial=0)
        step_tokens = [len(committed) for start, committed in zip(starts, steps, strict=False) if start < roots]
        records.append(recording.record_sequence(prompt, sequence, roots))
        counts.append((sum(step_tokens), len(step_tokens)))
    if not records:
        return None
    return per_step(replay_tree(Replay(join_records(records)), tree)) / per_step(np.array(counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, help="profile of this machine, for predicted step times")
    parser.add_argument("--temperatures", default="0,0.6", help="comma-separated (default: %(default)s)")
    parser.add_argument("--positions", type=int, default=1024, help="recorded positions (default: %(default)s)")
    parser.add_argument("--target", type=Path, help="model folder; by default the bundled pair")
    parser.add_argument("--draft", type=Path, help="folder of its draft model")
    args = parser.parse_args()
    print(describe_environment())
    pair = load_pair(args.target, args.draft)
    prompts = profile_prompts(default_prompts(pair))
    profile = Profile.load(args.profile) if args.profile else None
    for temperature in map(float, args.temperatures.split(",")):
        settings = Settings(samplings=(Sampling(temperature),), positions=args.positions, record=RecordSize())
        recording = Recording(pair.target, pair.draft_model, prompts, settings, files=RecordFiles(None))
        start_s = time.perf_counter()
        record = recording.record()
        record_s = time.perf_counter() - start_s
        print(
            f"\ntemperature {temperature:g}: {record.roots} positions of {record.sequences} sequences, {record_s:.0f} s"
        )
        replay, trees, model = Replay(record), list(TREES), None
        if profile is not None and profile.acceptances_of(rule=None, temperature=temperature):
            model = step_model(profile, temperature=temperature)
            start_s = time.perf_counter()
            trees.append(fastest_dynamic_tree(replay, model, max_nodes=model.costs.max_nodes)[0])
            print(f"the fastest setting, found in {time.perf_counter() - start_s:.1f} s: {trees[-1]}")
        titles = ["top-k", "depth", "nodes", "replayed", "decoded", "ratio", "own", "step, ms", "predicted"]
        print("".join(f"{title:>{width}}" for title, width in zip(titles, WIDTHS, strict=True)))
        for tree in progress(trees, "trees"):
            replayed = replay_tree(replay, tree)
            drafter = ExpandingDrafter(pair.draft_model, tree, capacity=pair.draft_model.config.max_positions)
            decoder = Decoder(pair.target, drafter, temperature=temperature)
            run = decode(decoder, prompts, np.diff(record.sequence_starts).tolist(), seed=1)
            own = compare_own_sequences(recording, prompts[:OWN_SEQUENCES], run, tree)
            cells = [
                *map(str, (tree.top_k, tree.depth, tree.nodes)),
                format_with_error(replayed),
                format_with_error(run.counts()),
                f"{per_step(replayed) / per_step(run.counts()):.4f}",
                "-" if own is None else f"{own:.4f}",  # more --positions make sequences longer
                f"{1000 * run.step_s:.2f}",
                "" if model is None else f"{1000 * predict_dynamic(replay, model, tree).step_s.value:.2f}",
            ]
            tqdm.write("".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))


WIDTHS = (5, 6, 6, 17, 17, 8, 11, 10, 11)

if __name__ == "__main__":
    main()
