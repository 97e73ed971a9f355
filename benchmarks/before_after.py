"""Compare the step times of two checkouts of treeopt: `python benchmarks/before_after.py OTHER`.

Each checkout decodes in its own process on the same processor. They alternate for every method and round, so drift of the
machine affects both. Without OTHER this checkout is compared with itself, which shows the noise.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import default_prompts, describe_environment, progress
from tqdm import tqdm

HERE = Path(__file__).resolve().parents[1]
TEMPERATURES = (0.0, 0.6)
ROUNDS = 5
PROMPTS, NEW_TOKENS = 3, 48


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", nargs="?", type=Path, default=HERE, help="the other checkout; by default this one")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measured rounds of each checkout")
    parser.add_argument("--target", type=Path, help="model folder; by default the bundled pair")
    parser.add_argument("--draft", type=Path, help="folder of its draft model")
    parser.add_argument("--eagle", type=Path, help="folder of its EAGLE head")
    parser.add_argument("--decode", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    models = [folder and folder.resolve() for folder in (args.target, args.draft, args.eagle)]
    if any(models) and not all(models):
        parser.error("--target, --draft, --eagle: expected all three, or none for the bundled pair.")
    if args.decode:
        decode(*models)
        return
    print(f"{describe_environment()}\n\nbefore: {args.other}, after: {HERE}, one thread each, alternating\n")
    checkouts = [Checkout(args.other.resolve(), models), Checkout(HERE, models)]
    names = checkouts[0].methods
    tqdm.write(f"{'method':<20}{'temperature':>12}{'before, ms':>12}{'after, ms':>11}{'after/before':>14}  rounds")
    for name, temperature in progress(
        [(name, temperature) for temperature in TEMPERATURES for name in names], "methods"
    ):
        steps_s: dict[Checkout, list[float]] = {checkout: [] for checkout in checkouts}
        for number in range(1 + args.rounds):  # the order alternates; round 0 is the warm-up
            for checkout in checkouts if number % 2 else reversed(checkouts):
                steps_s[checkout].append(checkout.step_s(name, temperature))
        ratios = sorted(after / before for before, after in list(zip(*steps_s.values(), strict=True))[1:])
        before, after = (1000 * statistics.median(rounds[1:]) for rounds in steps_s.values())
        tqdm.write(
            f"{name:<20}{temperature:>12g}{before:>12.3f}{after:>11.3f}{statistics.median(ratios):>14.3f}  "
            f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        )


class Checkout:
    """A process that decodes with a checkout of treeopt."""

    def __init__(self, root: Path, models: list[Path | None]) -> None:
        options = zip(("--target", "--draft", "--eagle"), models, strict=True)
        model_options = [f"{option}={folder}" for option, folder in options if folder is not None]
        command = [sys.executable, str(Path(__file__).resolve()), "--decode", *model_options]
        environment = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.methods: Any = self._read()

    def step_s(self, name: str, temperature: float) -> float:
        """Return the seconds of a step, on average over the prompts."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, temperature]) + "\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def decode(target: Path | None, draft: Path | None, eagle: Path | None) -> None:
    """Print the names of the methods, then the seconds of a step for every method and temperature on standard input."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    builders, prompts = decoder_builders(target, draft, eagle)
    decoders: dict[tuple[str, float], Any] = {}
    print(json.dumps(list(builders)), flush=True)
    for line in sys.stdin:
        name, temperature = json.loads(line)
        decoder = decoders.setdefault((name, temperature), builders[name](temperature))
        start_s, steps = time.perf_counter(), 0
        for prompt in prompts:
            steps += sum(1 for _ in decoder.stream(prompt, NEW_TOKENS))
        print(json.dumps((time.perf_counter() - start_s) / steps), flush=True)


def decoder_builders(
    target_folder: Path | None, draft_folder: Path | None, eagle_folder: Path | None
) -> tuple[dict[str, Callable[[float], Any]], list[list[int]]]:
    """Return functions that build each method's decoder, and prompts; both checkouts need the names imported here."""
    from treeopt import bundled
    from treeopt.runtime import Decoder, ExpandingDrafter, Transformer
    from treeopt.runtime.drafters.eagle import EagleDrafter, load_eagle
    from treeopt.runtime.drafters.lookahead import LookaheadDrafter
    from treeopt.runtime.drafters.medusa import MedusaDrafter, load_medusa
    from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
    from treeopt.runtime.models.pair import load_pair
    from treeopt.texts.prompts import bench_prompts
    from treeopt.trees import chain, level_widths
    from treeopt.trees.drafter_parameters import DynamicTree

    pair = load_pair(target_folder, draft_folder, threads=1)
    target, draft = pair.target, pair.draft_model
    assert isinstance(target, Transformer)
    eagle = load_eagle(eagle_folder or bundled.EAGLE, target)
    tree, capacity = level_widths([2, 2, 2, 1]), target.config.max_positions

    def with_drafter(build: Callable[[], Any]) -> Callable[[float], Any]:
        return lambda temperature: Decoder(target, build(), temperature=temperature)

    def static(tree: Any, rule: str = "sequoia") -> Callable[[float], Any]:
        return lambda temperature: Decoder(target, draft, tree, rule=rule, temperature=temperature)

    builders = {
        "plain": lambda temperature: Decoder(target, None, chain(0), temperature=temperature),
        "chain of 6": static(chain(6)),
        **{f"tree, {rule}": static(tree, rule) for rule in ("sequoia", "specinfer", "target", "traversal")},
        "eagle": with_drafter(lambda: EagleDrafter(eagle, tree, capacity=capacity)),
        "eagle2": with_drafter(
            lambda: ExpandingDrafter(draft, DynamicTree(top_k=2, depth=5, nodes=9), capacity=capacity)
        ),
        "prompt lookup": with_drafter(lambda: PromptLookupDrafter(4, 8)),
        "lookahead": with_drafter(lambda: LookaheadDrafter(4, 4, 4)),
    }
    if pair.bundled:
        medusa = load_medusa(bundled.MEDUSA, target)
        builders["medusa"] = with_drafter(lambda: MedusaDrafter(medusa, tree))
    return builders, bench_prompts(default_prompts(pair))[:PROMPTS]


if __name__ == "__main__":
    main()
