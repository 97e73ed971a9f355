"""Heads on the bundled target: their acceptance, and the solver's trees, for Medusa beside its own of the same size.

No time is measured.  Acceptance is counted on the prompts of profiles, decoding is done on those kept for benchmarks.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from conditions import bar, conditions, say

from treeopt import bundled as bundle
from treeopt import solve
from treeopt.profiler.acceptance.heads import eagle_acceptance, medusa_acceptance
from treeopt.records.profile import MeasuredAcceptance
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, Transformer
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.eagle import EagleDrafter, load_eagle
from treeopt.runtime.drafters.medusa import MedusaDrafter, load_medusa
from treeopt.runtime.models.pair import load_pair
from treeopt.texts.prompts import bench_prompts, load_prompts, profile_prompts
from treeopt.trees import TokenTree
from treeopt.trees.formats import read_tree

RANKS_SHOWN = 6
ROW = "{:<32}{:>7}{:>8}{:>10}{:>20}"


class Heads(NamedTuple):
    """Heads of one kind."""

    drafter: Callable[[TokenTree], Drafter]
    acceptance: Callable[..., MeasuredAcceptance]
    """From prompts, sampling and positions."""


def loaded(kind: str, target: Transformer) -> Heads:
    """Return the bundled heads."""
    if kind == "medusa":
        heads = load_medusa(bundle.MEDUSA, target)
        return Heads(partial(MedusaDrafter, heads), partial(medusa_acceptance, target, heads))
    head = load_eagle(bundle.EAGLE, target)
    drafter = partial(EagleDrafter, head, capacity=target.config.max_positions)
    return Heads(drafter, partial(eagle_acceptance, target, head))


def decoded(target: Transformer, drafter: Drafter, temperature: float, prompts: list[list[int]], tokens: int) -> str:
    """Return tokens per step with its standard error, texts as clusters."""
    decoder = Decoder(target, drafter, temperature=temperature)
    texts = [
        [len(step) for step in decoder.steps(prompt, tokens, seed=seed)]
        for seed, prompt in enumerate(bar(prompts, "decoding"))
    ]
    total, steps = (np.array(counts) for counts in zip(*((sum(text), len(text)) for text in texts), strict=True))
    value = total.sum() / steps.sum()
    return f"{value:.3f} +- {math.sqrt(((total - value * steps) ** 2).sum()) / steps.sum():.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", choices=("medusa", "eagle"), default="medusa")
    parser.add_argument("--choices", type=Path, help="Medusa's own tree: a file of choices that holds mc_sim_7b_63")
    parser.add_argument("--temperatures", default="0,0.6")
    parser.add_argument("--positions", type=int, default=3072, help="counted, over all prompts")
    parser.add_argument("--tokens", type=int, default=128, help="decoded after every prompt")
    asked = parser.parse_args()
    print(conditions())
    pair, texts = load_pair(), load_prompts()
    assert isinstance(pair.target, Transformer)  # the bundled one is
    heads = loaded(asked.heads, pair.target)
    measured, held_out = (
        [pair.tokenizer.encode(text) for text in part(texts)] for part in (profile_prompts, bench_prompts)
    )
    own = {} if asked.choices is None else {"mc_sim_7b_63": read_tree(asked.choices, "mc_sim_7b_63").tree}
    for temperature in map(float, asked.temperatures.split(",")):
        table = heads.acceptance(measured, sampling=Sampling(temperature), positions=asked.positions).table
        print(f"\ntemperature {temperature:g}: acceptance by depth and rank, given that those before had it among 16")
        for depth, row in enumerate(table.p, start=1):
            shown = "".join(f"{p:7.3f}" for p in row[:RANKS_SHOWN])
            print(f"depth {depth}{shown}   first 16 together {row.sum():.3f}")
        solution = solve(table, max_nodes=64, max_depth=len(table.p))
        trees = {f"solver, {n} nodes": solution.tree(nodes=n, depth=len(table.p)) for n in (4, 16, 64)}
        if own:
            trees["solver, 64 nodes, 4 levels"] = solution.tree(nodes=64, depth=4)
        print(ROW.format("tree", "nodes", "levels", "expected", "decoded"))
        for name, tree in bar((trees | own).items(), "trees"):
            tokens = decoded(pair.target, heads.drafter(tree), temperature, held_out, asked.tokens)
            say(ROW.format(name, tree.nodes, tree.max_depth, f"{table.expected_tokens(tree):.3f}", tokens))


if __name__ == "__main__":
    main()
