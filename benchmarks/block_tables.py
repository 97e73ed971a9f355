"""Compare acceptance tables of a block head with what is counted: rows by depth alone, and by depth and the parent's rank.

A block's slots predict what follows their likeliest tokens, so a node is accepted less often below a later child. The
bundled DFlash head predicts along sequences that the bundled target generates; a table of published rates follows, which
measures nothing.
"""

from collections.abc import Sequence

import numpy as np
from block_trees import BUDGETS, MAX_TOKENS, Calibration, GrownTrees, add_sampling, sample, solved_trees
from common import describe_environment, script_parser

from treeopt.arrays import Float64
from treeopt.planner.dependence import condition_on_parent
from treeopt.profiler.acceptance.heads import BlockMarginals
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.accepted_ranks import RootRanks
from treeopt.trees import TokenTree, chain, k_ary
from treeopt.trees.layout import rank_paths

COUNTED = BUDGETS[-3]
"""Tokens of the trees in which top tokens are counted."""
SOLVED = (8, 12, 16, 32, 64)
PUBLISHED = AcceptanceTable([[[0.75, 0.0925, 0.03, 0.0225], [0.22, 0.10, 0.05, 0.03]]] * 7)
"""From a report on DDTree in vLLM (rmagur1203/vllm-ddtree, 2026): the top token is right in 65 to 84 % on the spine and in
22 % below a sibling; of the others, rank 1 is right in 37 % and ranks 1 to 3 in 58 %. Their rates below siblings are not
reported."""


def spine_and_siblings(sequences: Sequence[BlockMarginals], budget: int) -> list[str]:
    """Return how often a slot's top token is right, by depth, after the spine and after an accepted sibling."""
    levels = sequences[0].ranks.shape[1]
    counts = np.zeros((3, levels, 2), np.int64)
    for sequence in sequences:
        needed = GrownTrees.grow(sequence, Calibration.none()).needed
        for depth in range(1, levels):
            reached = needed[: len(needed) - depth, depth - 1] <= budget  # the sequence goes on for another token
            ranks = sequence.ranks[: len(needed) - depth][reached]
            spine, sibling = (ranks[:, :depth] == 0).all(axis=1), ranks[:, depth - 1] > 0
            for kind, rows in enumerate((spine, sibling, ~spine & ~sibling)):
                counts[kind, depth] += ((ranks[rows, depth] == 0).sum(), rows.sum())
    names = ("on the spine", "after an accepted sibling", "further below a sibling")
    return [
        f"{name:<28}"
        + "".join(f"{hits / total:7.3f}{f'/{total}':<6}" if total else " " * 13 for hits, total in row[1:])
        for name, row in zip(names, counts, strict=True)
    ]


def measured_reach(tree: TokenTree, sequences: Sequence[BlockMarginals]) -> Float64:
    """Return (n,): how often the sequence takes the path of each node below a root, over all roots before a block's end."""
    hits, roots = np.zeros(tree.nodes), 0
    for sequence in sequences:
        ranks = sequence.ranks[: len(sequence.ranks) - tree.max_depth]
        roots += len(ranks)
        node, active = np.zeros(len(ranks), np.int64), np.arange(len(ranks))
        for depth in range(tree.max_depth + 1):
            np.add.at(hits, node[active], 1)
            if depth < tree.max_depth:
                rank = ranks[active, depth]
                active = active[(rank >= 0) & (rank < tree.child_counts[node[active]])]
                node[active] = tree.first_child[node[active]] + ranks[active, depth]
    return hits / roots


def table_errors(sequences: Sequence[BlockMarginals]) -> list[str]:
    """Return draft tokens on the spine and elsewhere, by both tables and counted, and tokens per step by replay."""
    ranks = RootRanks([sequence.ranks for sequence in sequences])
    levels = sequences[0].ranks.shape[1]
    table = ranks.table(levels, MAX_TOKENS - 1)
    tables = {"by depth": table, "by parent": condition_on_parent(table, ranks)}
    trees = {f"chain of {levels}": chain(levels), "3 children each, 3 levels": k_ary(3, 3)}
    for name, rows in tables.items():
        solved = solved_trees(rows, levels)
        trees |= {f"{name}, {nodes} nodes": solved[nodes - 2] for nodes in SOLVED}
    lines = []
    for name, tree in trees.items():
        replayed, on_spine = ranks.replay(tree), np.array([not any(path) for path in rank_paths(tree)])
        cells = []
        for reach in (*(rows.reach(tree) for rows in tables.values()), measured_reach(tree, sequences)):
            cells += [reach[on_spine].sum() - 1, reach[~on_spine].sum(), reach.sum()]
        rate = replayed.tokens.sum() / replayed.steps.sum()
        lines.append(f"{name:<28}" + "".join(f"{cell:8.3f}" for cell in [*cells, rate]))
    return lines


def average_over_parents(law: AcceptanceTable) -> AcceptanceTable:
    """Return the table with rows by depth alone that is counted where a table by the parent's rank holds."""
    rows, share = [], np.array([1.0, 0.0])
    for by_parent in law.p:
        reached = share[:, None] * by_parent
        rows.append(reached.sum(axis=0) / share.sum())
        share = np.array([reached[:, 0].sum(), reached[:, 1:].sum()])
    return AcceptanceTable(rows)


def published_rates() -> list[str]:
    """Return tokens per step where the published rates hold, of the trees that are solved for each table."""
    by_depth, levels = average_over_parents(PUBLISHED), len(PUBLISHED.p)
    trees, best = solved_trees(by_depth, levels), solved_trees(PUBLISHED, levels)
    lines = []
    for nodes in SOLVED:
        tree = trees[nodes - 2]
        tokens, most = (PUBLISHED.expected_tokens(each) for each in (tree, best[nodes - 2]))
        gain = 100 * (most / tokens - 1)
        lines.append(f"{nodes:5}{by_depth.expected_tokens(tree):22.3f}{tokens:10.3f}{most:18.3f}{gain:8.1f} %")
    return lines


def main() -> None:
    parser = script_parser(__doc__)
    add_sampling(parser)
    args = parser.parse_args()
    print(describe_environment())
    for temperature, sequences in sample(args.temperatures, args.positions):
        print(f"\ntemperature {temperature:g}, {len(sequences)} sequences")
        print(f"slot's top token right by depth, paths in trees of {COUNTED} tokens, all roots: share/paths")
        print("\n".join(spine_and_siblings(sequences, COUNTED)))
        print(f"\n{'':<28}{'rows by depth':>24}{'rows by parent':>24}{'counted':>24}{'replay':>8}")
        print(f"{'solved for rows':<28}" + 3 * f"{'spine':>8}{'others':>8}{'tokens':>8}" + f"{'tokens':>8}")
        print("\n".join(table_errors(sequences)))
    print("\npublished rates, tokens per step of the trees that are solved for each table")
    print("nodes  by depth: predicted  reached  by parent: reached    gain")
    print("\n".join(published_rates()))


if __name__ == "__main__":
    main()
