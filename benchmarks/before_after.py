"""Two states of treeopt side by side: `python benchmarks/before_after.py OTHER`, where OTHER is a checkout of another.

Each state decodes in a process of its own, on one and the same processor, and both take turns, method by method and
round by round, in alternating order: so drift of the machine hits both.  Without OTHER this state is compared with
itself, which shows what differences mean nothing.
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

from conditions import bar, conditions, default_prompts, say

HERE = Path(__file__).resolve().parents[1]
TEMPERATURES = (0.0, 0.6)
ROUNDS = 5
PROMPTS, NEW_TOKENS = 3, 48


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "other", nargs="?", type=Path, default=HERE, help="checkout of another state; by default this one"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="times that each state decodes in turn")
    parser.add_argument("--target", type=Path, help="model folder; by default the bundled pair")
    parser.add_argument("--draft", type=Path, help="folder of its draft model")
    parser.add_argument("--eagle", type=Path, help="folder of its EAGLE head")
    parser.add_argument("--decode", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    models = [each and each.resolve() for each in (asked.target, asked.draft, asked.eagle)]
    if any(models) and not all(models):
        parser.error("--target, --draft, --eagle: expected all three, or none for the bundled pair.")
    if asked.decode:
        decode(*models)
        return
    print(f"{conditions()}\n\nbefore: {asked.other}, after: {HERE}, one thread each, in turn\n")
    states = [State(asked.other.resolve(), models), State(HERE, models)]
    names = states[0].answer
    say(f"{'method':<20}{'temperature':>12}{'before, ms':>12}{'after, ms':>11}{'after/before':>14}  rounds")
    for name, temperature in bar([(name, each) for each in TEMPERATURES for name in names], "methods"):
        steps_s: dict[State, list[float]] = {state: [] for state in states}
        for number in range(1 + asked.rounds):  # each is first in every other round, and the first round warms up
            for state in states if number % 2 else reversed(states):
                steps_s[state].append(state.step_s(name, temperature))
        ratios = sorted(after / before for before, after in list(zip(*steps_s.values(), strict=True))[1:])
        before, after = (1000 * statistics.median(each[1:]) for each in steps_s.values())
        say(
            f"{name:<20}{temperature:>12g}{before:>12.3f}{after:>11.3f}{statistics.median(ratios):>14.3f}  "
            f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        )


class State:
    """A checkout of treeopt in a process of its own."""

    def __init__(self, root: Path, models: list[Path | None]) -> None:
        options = zip(("--target", "--draft", "--eagle"), models, strict=True)
        named = [f"{option}={folder}" for option, folder in options if folder is not None]
        command = [sys.executable, str(Path(__file__).resolve()), "--decode", *named]
        quiet = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, cwd=root, env={**os.environ, **quiet}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answer: Any = self._read()

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
    """Name the methods on standard output, and then, for each that is asked for, the seconds of a step."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    makers, prompts = methods(target, draft, eagle)
    made: dict[tuple[str, float], Any] = {}
    print(json.dumps(list(makers)), flush=True)
    for line in sys.stdin:
        name, temperature = json.loads(line)
        decoder = made.setdefault((name, temperature), makers[name](temperature))
        start_s, steps = time.perf_counter(), 0
        for prompt in prompts:
            steps += sum(1 for _ in decoder.steps(prompt, NEW_TOKENS))
        print(json.dumps((time.perf_counter() - start_s) / steps), flush=True)


def methods(
    target_folder: Path | None, draft_folder: Path | None, eagle_folder: Path | None
) -> tuple[dict[str, Callable[[float], Any]], list[list[int]]]:
    """Return how each decoder is made, and prompts; both states have to have the names that this function uses."""
    from treeopt import bundled
    from treeopt.runtime import Decoder, ExpandingDrafter, Transformer
    from treeopt.runtime.drafters.eagle import EagleDrafter, load_eagle
    from treeopt.runtime.drafters.lookahead import LookaheadDrafter
    from treeopt.runtime.drafters.medusa import MedusaDrafter, load_medusa
    from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
    from treeopt.runtime.models.pair import load_pair
    from treeopt.texts.prompts import bench_prompts
    from treeopt.trees import chain, level_widths
    from treeopt.trees.dynamic_tree import DynamicTree

    pair = load_pair(target_folder, draft_folder, threads=1)
    target, draft = pair.target, pair.draft_model
    assert isinstance(target, Transformer)
    eagle = load_eagle(eagle_folder or bundled.EAGLE, target)
    tree, capacity = level_widths([2, 2, 2, 1]), target.config.max_positions

    def own(make: Callable[[], Any]) -> Callable[[float], Any]:
        return lambda temperature: Decoder(target, make(), temperature=temperature)

    def static(tree: Any, rule: str = "sequoia") -> Callable[[float], Any]:
        return lambda temperature: Decoder(target, draft, tree, rule=rule, temperature=temperature)

    found = {
        "plain": lambda temperature: Decoder(target, None, chain(0), temperature=temperature),
        "chain of 6": static(chain(6)),
        **{f"tree, {rule}": static(tree, rule) for rule in ("sequoia", "specinfer", "target", "traversal")},
        "eagle": own(lambda: EagleDrafter(eagle, tree, capacity=capacity)),
        "eagle2": own(lambda: ExpandingDrafter(draft, DynamicTree(top_k=2, depth=5, nodes=9), capacity=capacity)),
        "prompt lookup": own(lambda: PromptLookupDrafter(4, 8)),
        "lookahead": own(lambda: LookaheadDrafter(4, 4, 4)),
    }
    if pair.bundled:
        medusa = load_medusa(bundled.MEDUSA, target)
        found["medusa"] = own(lambda: MedusaDrafter(medusa, tree))
    return found, bench_prompts(default_prompts(pair))[:PROMPTS]


if __name__ == "__main__":
    main()
