"""Calls what is compiled on first use, once, so that test processes side by side find it in the cache.

Run as `python -m tests.support.warm`, with NUMBA_CACHE_DIR as for the tests.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from treeopt import Profile, plan
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.rules import LOSSY_RULES
from treeopt.records.sampling import Sampling
from treeopt.runtime import draw, verify
from treeopt.runtime.drafters.dflash.best_first import count_tokens_to_reach, grow_trees
from treeopt.runtime.drafters.draft_levels import LevelSampler
from treeopt.runtime.drafters.expanding_drafter import TreeExpansion
from treeopt.runtime.rules import RULES
from treeopt.solver import solve
from treeopt.trees import TokenTree
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting

PROFILE = Path(__file__).parents[2] / "docs/profiles/bundled-2-cores-rules.yaml"
FALLING = (
    [0.6, 0.2],
    [[0.6, 0.2], [0.5, 0.3]],
    [[[0.6, 0.2], [0.5, 0.3]], [[0.6, 0.2], [0.5, 0.3]]],
)
"""Tables whose rows fall with the rank: one row for all depths, one per depth, one per depth and rank of the parent."""
RISING = tuple(np.array(table)[..., ::-1].copy() for table in FALLING)
TREE = TokenTree([-1, 0, 0, 1])


def solver() -> None:
    """Solve tables of every form, with and without limits, and plan."""
    for table in (*FALLING, *RISING):
        solution = solve(AcceptanceTable(np.array(table)), max_nodes=6, max_depth=2)
        solution.tree(nodes=6, depth=2)
        solution.draft_widths(2)
    for table in FALLING[:2]:  # only for these there is an exact method with limits
        solve(AcceptanceTable(np.array(table)), max_nodes=6, max_depth=2, level_widths=1)
    plan(Profile.load(PROFILE), max_nodes=32)


def rules() -> None:
    """Draw and verify under every rule, in both precisions."""
    generator = torch.Generator().manual_seed(0)
    tokens, counts = torch.tensor([0, 1, 2, 3]), torch.tensor([2, 1])
    for rule in RULES:
        for dtype in (torch.float32, torch.float64):
            probs = torch.full((TREE.nodes, 5), 0.2, dtype=dtype)
            draw(rule, probs[:2], counts, generator)
            verify(rule, TREE, tokens, probs, probs, generator, lossy=rule in LOSSY_RULES)
    sampling = Sampling(temperature=1.0)
    model = SimpleNamespace(name="draft", device=probs.device, config=SimpleNamespace(vocabulary=5))
    LevelSampler(model, rule=RULES["sequoia"], sampling=sampling, max_nodes=4)


def grown_trees() -> None:
    """Grow no trees, in all ways."""
    TreeExpansion(DynamicTree(top_k=2, depth=2, nodes=3), 0).compile()
    TreeExpansion(SpecExecSetting(budget=3, branching=2, batch=1, max_passes=2), 0).compile()
    grow_trees(np.zeros((1, 1, 1)), np.ones(1, np.int64))
    count_tokens_to_reach(np.zeros((1, 1, 1)), np.zeros((1, 1), np.int64), 1)


if __name__ == "__main__":
    solver()
    rules()
    grown_trees()
