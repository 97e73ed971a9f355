"""Compare tokens per step of dynamic trees, replayed from a draft record and decoded, on the bundled pair.

At temperature 0 both have the same sequences. Above it, decoded sequences are sampled again. Numbers after +- are standard
errors, clustered by sequence.
"""

import math
import time

import numpy as np
from common import default_prompts, describe_environment, floats, progress, script_parser
from tqdm import tqdm

from treeopt.planner.replay import Replay
from treeopt.profiler import RecordFiles, Recording, RecordSize, Settings
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
SEED = 1000


def count_decoded(decoder: Decoder, prompts: list[list[int]], lengths: list[int]) -> np.ndarray:
    """Return (sequences, 2): tokens and steps of each sequence, decoded to at least its recorded length."""
    counts = []
    for number, (prompt, positions) in enumerate(progress(list(zip(prompts, lengths, strict=True)), "decoding")):
        max_new_tokens = min(positions + MARGIN_TOKENS, decoder.max_sequence_tokens - len(prompt))
        tokens = steps = 0
        for committed in decoder.stream(prompt, max_new_tokens, seed=SEED + number):
            tokens, steps = tokens + len(committed), steps + 1
            if tokens >= positions:
                break
        counts.append((tokens, steps))
    return np.array(counts)


def count_replayed(replay: Replay, tree: DynamicTree) -> np.ndarray:
    """Return (sequences, 2): tokens and steps of each sequence."""
    counts = replay.count_steps(tree.top_k, tree.depth, np.array([tree.nodes]))
    return np.stack([counts.tokens[:, 0], counts.steps[:, 0]], axis=1)


def tokens_per_step(counts: np.ndarray) -> float:
    return float(counts[:, 0].sum() / counts[:, 1].sum())


def format_with_error(counts: np.ndarray) -> str:
    """Return tokens per step with its standard error."""
    (tokens, steps), value = counts.T, tokens_per_step(counts)
    return f"{value:.3f} +- {math.sqrt(((tokens - value * steps) ** 2).sum()) / steps.sum():.3f}"


def main() -> None:
    parser = script_parser(__doc__, pair=True)
    parser.add_argument("--temperatures", type=floats, default="0,0.6", help="comma-separated (default: %(default)s)")
    parser.add_argument("--positions", type=int, default=1024, help="recorded positions (default: %(default)s)")
    args = parser.parse_args()
    print(describe_environment())
    pair = load_pair(args.target, args.draft)
    prompts = profile_prompts(default_prompts(pair))
    for temperature in args.temperatures:
        settings = Settings(samplings=(Sampling(temperature),), positions=args.positions, record=RecordSize())
        start_s = time.perf_counter()
        record = Recording(pair.target, pair.draft_model, prompts, settings, files=RecordFiles(None)).record()
        record_s = time.perf_counter() - start_s
        print(
            f"\ntemperature {temperature:g}: {record.roots} positions of {record.sequences} sequences, {record_s:.0f} s"
        )
        replay, lengths = Replay(record), np.diff(record.sequence_starts).tolist()
        print(f"{'top-k':>5}{'depth':>6}{'nodes':>6}{'replayed':>17}{'decoded':>17}{'ratio':>8}")
        for tree in progress(TREES, "trees"):
            drafter = ExpandingDrafter(pair.draft_model, tree, capacity=pair.draft_model.config.max_positions)
            decoder = Decoder(pair.target, drafter, temperature=temperature)
            replayed, decoded = count_replayed(replay, tree), count_decoded(decoder, prompts, lengths)
            tqdm.write(
                f"{tree.top_k:>5}{tree.depth:>6}{tree.nodes:>6}{format_with_error(replayed):>17}"
                f"{format_with_error(decoded):>17}{tokens_per_step(replayed) / tokens_per_step(decoded):>8.4f}"
            )


if __name__ == "__main__":
    main()
