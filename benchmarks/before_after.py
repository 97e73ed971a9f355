"""Two states of treeopt side by side: `python benchmarks/before_after.py OTHER`, where OTHER is a checkout of another.

Each state decodes in a process of its own, on one and the same processor, and both take turns, method by method and
round by round: so drift of the machine hits both.  Without OTHER this state is compared with itself, which shows what
differences mean nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from conditions import bar, conditions, say

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
    parser.add_argument("--decode", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.decode:
        decode()
        return
    print(f"{conditions()}\n\nbefore: {asked.other}, after: {HERE}, one thread each, in turn\n")
    states = [State(asked.other.resolve()), State(HERE)]
    names = states[0].answer
    say(f"{'method':<20}{'temperature':>12}{'before, ms':>12}{'after, ms':>11}{'after/before':>14}  rounds")
    for name, temperature in bar([(name, each) for each in TEMPERATURES for name in names], "methods"):
        steps_s = [[state.step_s(name, temperature) for state in states] for _ in range(1 + asked.rounds)][1:]
        ratios = sorted(after / before for before, after in steps_s)
        before, after = (1000 * statistics.median(column) for column in zip(*steps_s, strict=True))
        say(
            f"{name:<20}{temperature:>12g}{before:>12.3f}{after:>11.3f}{statistics.median(ratios):>14.3f}  "
            f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        )


class State:
    """A checkout of treeopt in a process of its own."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--decode"]
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


def decode() -> None:
    """Name the methods on standard output, and then, for each that is asked for, the seconds of a step."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    makers, prompts = methods()
    made: dict[tuple[str, float], Any] = {}
    print(json.dumps(list(makers)), flush=True)
    for line in sys.stdin:
        name, temperature = json.loads(line)
        decoder = made.setdefault((name, temperature), makers[name](temperature))
        start_s, steps = time.perf_counter(), 0
        for prompt in prompts:
            steps += sum(1 for _ in decoder.steps(prompt, NEW_TOKENS))
        print(json.dumps((time.perf_counter() - start_s) / steps), flush=True)


def part(name: str) -> Any:
    """Return a module of treeopt's, by a name that it has or had."""
    return import_module(f"treeopt.{name}")


def methods() -> tuple[dict[str, Callable[[float], Any]], list[list[int]]]:
    """Return how each decoder is made, by names that states of long ago have as well, and prompts."""
    runtime, trees = part("runtime"), part("trees")
    dynamic = part("trees.dynamic_tree").DynamicTree(top_k=2, depth=5, nodes=9)
    texts = part("runtime.prompts")
    pair = part("runtime.pair").load_pair(threads=1)
    target, draft = pair.target, pair.draft

    def own(module: str, *arguments: Any) -> Callable[[float], Any]:
        name, _, kind = module.partition(":")
        drafter = getattr(part(f"runtime.drafters.{name}"), kind)
        return lambda temperature: runtime.DraftingDecoder(target, drafter(*arguments), temperature=temperature)

    def static(tree: Any, rule: str = "sequoia") -> Callable[[float], Any]:
        return lambda temperature: runtime.Decoder(target, draft, tree, rule=rule, temperature=temperature)

    tree = trees.level_widths([2, 2, 2, 1])
    found = {
        "plain": lambda temperature: runtime.Decoder(target, None, trees.chain(0), temperature=temperature),
        "chain of 6": static(trees.chain(6)),
        **{f"tree, {rule}": static(tree, rule) for rule in ("sequoia", "specinfer", "target", "traversal")},
        "eagle2": lambda temperature: runtime.DynamicDecoder(target, draft, dynamic, temperature=temperature),
        "prompt lookup": own("prompt_lookup:PromptLookupDrafter", 4, 8),
        "lookahead": own("lookahead:LookaheadDrafter", 4, 4, 4),
    }
    return found, [pair.tokenizer.encode(text) for text in texts.bench_prompts(texts.load_prompts())][:PROMPTS]


if __name__ == "__main__":
    main()
