"""Tokens per step between the context lengths that acceptance was measured at: predicted, and decoded there.

    python benchmarks/contexts.py

No time is measured.  The bundled prompts are shorter than its contexts, so texts are pieces of 1,024 bytes of source
files of Python's standard library that the bundled pair was not trained on, its tests among them: their beginnings serve
as prompts of every length, and nothing is decoded on.  Acceptance is counted around the measured contexts and steps are decoded around those
between, on the same texts, so that a difference of texts cannot pass for one of contexts.  `one table` predicts from the
measured context in the middle alone, whatever the context: what a profile of one context does.  Errors are standard
errors over texts.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from sysconfig import get_paths
from typing import NamedTuple

import numpy as np
from conditions import bar, conditions, say

from treeopt.planner.contexts import ContextModels
from treeopt.planner.model import token_model
from treeopt.profiler import Journal, Settings
from treeopt.profiler.acceptance.contexts import LongTexts, TextsAtContext, Window
from treeopt.profiler.acceptance.per_prompt import Counting
from treeopt.profiler.processes.processes import OneProcess
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.limits import trained_tokens
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.solver import solve
from treeopt.trees import TokenTree, chain

PIECE = 1024
NODES = 16


class Steps(NamedTuple):
    """What decoding some texts came to."""

    tokens_per_step: float
    error: float


def pieces() -> list[list[int]]:
    """Return pieces that the pair was not trained on as token ids, of held-out files first, then of tests: a token is a byte."""
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
    from corpus import is_held_out, source_files

    held_out = [text for path, text in source_files() if is_held_out(path)]
    tests = [
        path.read_text("utf-8", errors="ignore") for path in sorted(Path(get_paths()["stdlib"], "test").glob("*.py"))
    ]
    generator = np.random.default_rng(0)
    found = []
    for files in (held_out, tests):
        texts = [text.encode() for text in files]
        each = [list(text[at : at + PIECE]) for text in texts for at in range(0, len(text) - PIECE, PIECE)]
        found += [each[place] for place in generator.permutation(len(each))]
    return found


def counted(
    pair: ModelPair, texts: Sequence[Sequence[int]], context: int, sampling: Sampling, positions: int
) -> MeasuredAcceptance:
    """Return the acceptance around one context."""
    settings = Settings(samplings=(sampling,), positions=positions * len(texts))
    window = Window.around(context, positions, trained_tokens(pair.target, pair.draft))
    journal = Journal(None, "")
    counting = Counting(
        pair.target,
        pair.draft,
        texts,
        settings,
        journal=journal,
        processes=OneProcess(),
        texts=TextsAtContext(LongTexts(pair.target, texts, window.prompt_tokens, journal), window),
    )
    (found,) = counting.measure(window.positions, lambda: None)
    return found


def decoded(
    pair: ModelPair,
    texts: Sequence[Sequence[int]],
    tree: TokenTree,
    context: int,
    sampling: Sampling,
    positions: int,
) -> Steps:
    """Return tokens per step around one context, of the steps that begin before one may be cut off, however long it is."""
    window = Window.around(context, positions, trained_tokens(pair.target, pair.draft))
    decoder = Decoder(pair.target, pair.draft, tree, sampling=sampling)
    rows = []
    for seed, text in enumerate(texts):
        place = steps = 0
        for step in decoder.steps(text[: window.prompt_tokens], window.positions, seed=10_000 + seed):
            if place >= window.positions - tree.max_depth:
                break
            place, steps = place + len(step), steps + 1
        rows.append((place, steps))
    tokens, steps_of = np.array(rows).T
    ratio = tokens.sum() / steps_of.sum()
    residual = (tokens - ratio * steps_of) / steps_of.sum()
    return Steps(float(ratio), float(np.sqrt((residual**2).sum() * len(rows) / (len(rows) - 1))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--positions", type=int, default=64, help="of every text around every context")
    parser.add_argument("--temperatures", default="0,0.8")
    parser.add_argument("--measured", default="64,256,896", help="contexts that acceptance is measured around")
    parser.add_argument("--between", default="128,384,640", help="contexts that steps are decoded around")
    asked = parser.parse_args()
    measured, between = ([int(each) for each in given.split(",")] for given in (asked.measured, asked.between))
    print(conditions())
    pair, texts = load_pair(), pieces()[: asked.texts]
    print(f"{len(texts)} pieces; measured at {asked.measured}, {asked.positions} positions of each; rule sequoia")
    errors: dict[str, list[float]] = {"between": [], "one table": []}
    for temperature in map(float, asked.temperatures.split(",")):
        sampling = Sampling(temperature)
        models = ContextModels(
            tuple(
                token_model(counted(pair, texts, each, sampling, asked.positions)) for each in bar(measured, "counted")
            )
        )
        accepted = ", ".join(
            f"{each.acceptance.table.p[0, 0]:.3f} at {at}" for at, each in zip(measured, models.measured, strict=True)
        )
        print(f"\ntemperature {temperature:g}; first child accepted at depth 1: {accepted}")
        print("context   tree                        decoded   error   predicted        one table")
        one = models.measured[len(measured) // 2]
        for context in bar(between, "decoded"):
            here = models.at(context)
            solution = solve(here.acceptance.table, NODES)
            best = solution.tree(NODES, solution.max_depth)
            for name, tree in (("chain 4", chain(4)), ("chain 8", chain(8)), (f"best of {NODES}", best)):
                found = decoded(pair, texts, tree, context, sampling, asked.positions)
                off = {
                    "between": here.tokens_per_step(tree) / found.tokens_per_step - 1,
                    "one table": one.tokens_per_step(tree) / found.tokens_per_step - 1,
                }
                for each, value in off.items():
                    errors[each].append(abs(value))
                say(
                    f"{context:>7}   {name:<25}{found.tokens_per_step:>10.3f}{found.error / found.tokens_per_step:>8.1%}"
                    f"{here.tokens_per_step(tree):>9.3f} {off['between']:>+7.1%}"
                    f"{one.tokens_per_step(tree):>9.3f} {off['one table']:>+7.1%}"
                )
    for each, values in errors.items():
        print(f"\n{each}: mean absolute error {np.mean(values):.1%}, largest {max(values):.1%}", end="")
    print()


if __name__ == "__main__":
    main()
