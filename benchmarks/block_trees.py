"""Compare trees from a DFlash block by replay: chain, static trees, DDTree with fixed budgets, and budgets chosen in every step.

The bundled head predicts along sequences that the bundled target generates. Every quarter of the prompts is replayed with settings
and calibrations that were chosen on the other three. Seconds of a step are the block's, `--block-ms`, and those of verification by
a profile's curve; building trees counts as free. Intervals resample the sequences; speeds are also relative to DDTree with the
budget that a replay chooses.

Rules for the budget of a step, from the sum F(n) of predicted reach over the best n nodes:
  first fall   the last n before F(n) / seconds(n) falls (CaDDTree, arXiv 2606.01813)
  all sizes    the n with the most s F(n) - seconds(n), where s is the seconds per token of this rule (Dinkelbach, 1967)
The calibrated chain is cut in every step by the second rule, as a head that predicts its own acceptance could cut it.
Static trees: solved for rows by depth alone, and by depth and the parent's rank as in plans.
Static trees by entropy: roots are divided into equally large classes by the entropy of the first slot, and each class has a
tree of its own.
Reach is the product of the slots' probabilities, or that product calibrated by isotonic regression, apart for the spine (all
ranks 0) and other paths.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import default_prompts, describe_environment, floats, progress, script_parser
from scipy.optimize import isotonic_regression

from treeopt import Profile, bundled, solve
from treeopt.arrays import Float64, Int64
from treeopt.planner import step_model
from treeopt.planner.dependence import condition_on_parent
from treeopt.planner.resampling import SEED, draw_sequence_weights, estimate
from treeopt.profiler import Checkpoint
from treeopt.profiler.acceptance.contexts import DecodingPoint, WholePrompts
from treeopt.profiler.acceptance.heads import BlockMarginals, block_marginals, build_head_sequence
from treeopt.profiler.drafters.plain_sequences import generate_sequences
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.accepted_ranks import RootRanks
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.dflash import load_dflash
from treeopt.runtime.drafters.dflash.best_first import NEVER
from treeopt.runtime.models.pair import load_pair
from treeopt.runtime.models.transformer import Transformer
from treeopt.trees import TokenTree, chain

PROFILE = Path(__file__).parent.parent / "docs" / "profiles" / "bundled-2-cores.yaml"
BUDGETS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MAX_TOKENS = max(BUDGETS)
GRID, LEAST_LOG_PROB = 0.01, -40.0
"""Step and end of the calibrations' grid of log-probabilities."""
FOLDS = 4
ROUNDS = 6
"""Replays that the seconds per token of a rule are found with."""
ENTROPY_CLASSES = (2, 3)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Reach of a path by its log-probability under the slots' product, on a grid from 0 down."""

    spine: Float64
    others: Float64

    @classmethod
    def none(cls) -> "Calibration":
        grid = np.exp(-GRID * np.arange(round(-LEAST_LOG_PROB / GRID) + 1))
        return cls(grid, grid)

    @classmethod
    def fit(cls, sequences: Sequence[BlockMarginals]) -> "Calibration":
        """Return the isotonic regressions over all nodes of the largest trees below all roots."""
        log_probs: dict[bool, list[float]] = {True: [], False: []}
        hits: dict[bool, list[bool]] = {True: [], False: []}
        for sequence in sequences:
            for root_log_probs, ranks in zip(sequence.log_probs, sequence.ranks, strict=True):
                for node in grow(root_log_probs, ranks.tolist(), cls.none())[1:]:
                    log_probs[node.spine].append(node.log_prob)
                    hits[node.spine].append(node.on_path)
        return cls(*(_fit_grid(np.array(log_probs[spine]), np.array(hits[spine])) for spine in (True, False)))

    def reach(self, log_prob: float, *, spine: bool) -> float:
        grid, place = (self.spine if spine else self.others), -log_prob / GRID
        below = min(int(place), len(grid) - 2)
        return float(grid[below] + (grid[below + 1] - grid[below]) * min(place - below, 1.0))


def _fit_grid(log_probs: Float64, hits: Int64) -> Float64:
    order = np.argsort(log_probs, kind="stable")
    fitted = isotonic_regression(hits[order].astype(np.float64)).x
    grid = -GRID * np.arange(round(-LEAST_LOG_PROB / GRID) + 1)
    return np.asarray(np.interp(grid, log_probs[order], fitted))


class Node(NamedTuple):
    """A node of a tree below one root."""

    depth: int
    log_prob: float
    """Of its path."""
    reach: float
    """Predicted, at most the parent's."""
    spine: bool
    on_path: bool
    """Whether the sequence took the path."""


def grow(log_probs: Float64, path: Sequence[int], calibration: Calibration) -> list[Node]:
    """Return the root and the paths with the largest reach, in falling order.

    Args:
        log_probs: (levels, k), of the top tokens of each slot.
        path: (levels,), ranks of the sequence's tokens.
        calibration: of the reach.
    """
    rows = log_probs.tolist()
    nodes, candidates, created = [Node(0, 0.0, 1.0, True, True)], list[tuple[float, int, int, int]](), 0

    def push(parent: int, rank: int) -> None:
        nonlocal created
        depth, log_prob, reach, spine, _ = nodes[parent]
        if depth < len(rows) and rank < len(rows[0]):
            child = calibration.reach(log_prob + rows[depth][rank], spine=spine and rank == 0)
            created += 1
            heappush(candidates, (-min(reach, child), created, parent, rank))

    push(0, 0)
    while len(nodes) < MAX_TOKENS and candidates:
        negative_reach, _, parent, rank = heappop(candidates)
        depth, log_prob, _, spine, on_path = nodes[parent]
        nodes.append(
            Node(
                depth + 1,
                log_prob + rows[depth][rank],
                -negative_reach,
                spine and rank == 0,
                on_path and path[depth] == rank,
            )
        )
        push(parent, rank + 1)
        push(len(nodes) - 1, 0)
    return nodes


class GrownTrees(NamedTuple):
    """The largest trees below all roots of one sequence; smaller ones are their prefixes."""

    expected: Float64
    """float64 (roots, MAX_TOKENS): sums of predicted reach over the first nodes, root included."""
    needed: Int64
    """int64 (roots, levels): tokens of the smallest tree that contains the sequence's token at each depth."""

    @classmethod
    def grow(cls, sequence: BlockMarginals, calibration: Calibration) -> "GrownTrees":
        reach, needed = np.zeros((len(sequence.ranks), MAX_TOKENS)), np.full(sequence.ranks.shape, NEVER, np.int64)
        for root, (log_probs, ranks) in enumerate(zip(sequence.log_probs, sequence.ranks, strict=True)):
            nodes = grow(log_probs, ranks.tolist(), calibration)
            reach[root, : len(nodes)] = [node.reach for node in nodes]
            for index, node in enumerate(nodes):
                if node.on_path and node.depth:
                    needed[root, node.depth - 1] = index + 1
        return cls(np.cumsum(reach, axis=1), needed)


ChooseSizes = Callable[[Float64], Int64]
"""From `GrownTrees.expected` to the tokens of the tree below each root."""


class Replayed(NamedTuple):
    """The steps of one strategy along J sequences, each (J,)."""

    tokens: Float64
    """Committed."""
    steps: Float64
    verified: Float64
    """Tokens of all passes."""
    seconds: Float64

    @classmethod
    def join(cls, parts: Sequence["Replayed"]) -> "Replayed":
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def tokens_per_s(self) -> float:
        return float(self.tokens.sum() / self.seconds.sum())

    def format(self, name: str, baseline: "Replayed") -> str:
        """Return a line: tokens verified and committed per step, tokens per second, and these relative to a baseline."""
        weights = draw_sequence_weights(len(self.tokens), np.random.default_rng(SEED))
        drawn_per_s = (weights @ self.tokens) / (weights @ self.seconds)
        drawn_ratios = drawn_per_s / ((weights @ baseline.tokens) / (weights @ baseline.seconds))
        per_step = estimate(self.tokens.sum() / self.steps.sum(), (weights @ self.tokens) / (weights @ self.steps))
        per_s = estimate(self.tokens_per_s, drawn_per_s)
        ratio = estimate(self.tokens_per_s / baseline.tokens_per_s, drawn_ratios)
        return (
            f"{name:<36}{self.verified.sum() / self.steps.sum():8.1f}"
            f"{per_step.value:8.2f} ({per_step.low:.2f}-{per_step.high:.2f})"
            f"{per_s.value:7.0f} ({per_s.low:.0f}-{per_s.high:.0f}){ratio.value:8.3f} ({ratio.low:.3f}-{ratio.high:.3f})"
        )


def replay(trees: Sequence[GrownTrees], choose: ChooseSizes, seconds: Float64) -> Replayed:
    """Replay trees whose sizes are chosen at every root; `seconds` is (MAX_TOKENS + 1,) by tokens of the pass."""
    totals = []
    for expected, needed in trees:
        sizes = choose(expected)
        committed = 1 + (needed <= sizes[:, None]).sum(axis=1)
        totals.append(replay_sequence(committed, sizes, seconds, levels=needed.shape[1]))
    return Replayed(*np.array(totals, np.float64).T)


def replay_sequence(committed: Int64, sizes: Int64, seconds: Float64, levels: int) -> tuple[float, ...]:
    """Return tokens, steps, verified tokens and seconds of a sequence, up to the last step that its end cannot truncate.

    Args:
        committed: (roots,), tokens that a step from each root commits.
        sizes: (roots,), tokens of the tree below each root.
        seconds: of a step, by tokens of its pass.
        levels: of a block.
    """
    roots, position = [], 0
    while position < len(committed) - levels:
        roots.append(position)
        position += int(committed[position])
    return position, len(roots), sizes[roots].sum(), seconds[sizes[roots]].sum()


def replay_static(ranks: RootRanks, tree: TokenTree, seconds: Float64) -> Replayed:
    tokens, steps = (counts.astype(np.float64) for counts in ranks.replay(tree))
    return Replayed(tokens, steps, steps * tree.nodes, steps * seconds[tree.nodes])


@dataclass(frozen=True, slots=True)
class TreesByEntropy:
    """A static tree for each class of roots."""

    limits: Float64
    """Entropies between the classes, increasing."""
    trees: Sequence[TokenTree]

    @classmethod
    def fit(cls, sequences: Sequence[BlockMarginals], classes: int, seconds: Float64) -> "TreesByEntropy":
        """Return the trees with the most s E[tokens] - seconds(n) in each class, where s is the seconds per token."""
        levels = sequences[0].ranks.shape[1]
        entropies = [first_slot_entropy(sequence)[:-levels] for sequence in sequences]
        limits = np.quantile(np.concatenate(entropies), np.arange(1, classes) / classes)
        ranks = np.concatenate([sequence.ranks[:-levels] for sequence in sequences])
        labels = np.searchsorted(limits, np.concatenate(entropies))
        candidates, tokens = [], []
        for label in range(classes):
            roots = RootRanks([ranks[labels == label]])
            solution = solve(roots.table(levels, MAX_TOKENS - 1), MAX_TOKENS, levels)
            trees = [chain(1)] + [solution.tree(nodes, levels) for nodes in range(2, MAX_TOKENS + 1)]
            candidates.append(trees)
            tokens.append(np.array([roots.step_tokens(tree)[0].mean() for tree in trees]))
        fitted = cls(limits, [trees[0] for trees in candidates])
        for _ in range(ROUNDS):
            second_per_token = 1 / fitted.replay(sequences, seconds).tokens_per_s
            fitted = cls(
                limits,
                [
                    trees[(second_per_token * expected - seconds[[tree.nodes for tree in trees]]).argmax()]
                    for trees, expected in zip(candidates, tokens, strict=True)
                ],
            )
        return fitted

    def replay(self, sequences: Sequence[BlockMarginals], seconds: Float64) -> Replayed:
        """Replay each root's tree."""
        nodes, totals = np.array([tree.nodes for tree in self.trees]), []
        ranks = RootRanks([sequence.ranks for sequence in sequences])
        by_tree = [ranks.step_tokens(tree) for tree in self.trees]
        for sequence, *committed in zip(sequences, *by_tree, strict=True):
            labels = np.searchsorted(self.limits, first_slot_entropy(sequence))
            chosen = np.stack(committed)[labels, np.arange(len(labels))]
            totals.append(replay_sequence(chosen, nodes[labels], seconds, levels=sequence.ranks.shape[1]))
        return Replayed(*np.array(totals, np.float64).T)


def first_slot_entropy(sequence: BlockMarginals) -> Float64:
    """Return (roots,): the entropy in nats of the first slot, all tokens outside the top ones taken as one."""
    probs = np.exp(sequence.log_probs[:, 0])
    others = np.maximum(1 - probs.sum(axis=1), 1e-12)
    return np.asarray(-(probs * sequence.log_probs[:, 0]).sum(axis=1) - others * np.log(others))


def fixed(budget: int) -> ChooseSizes:
    return lambda expected: np.full(len(expected), budget)


def first_fall(seconds: Float64) -> ChooseSizes:
    def choose(expected: Float64) -> Int64:
        rates = expected / seconds[1:]
        falls = np.diff(rates, axis=1) <= 0
        return np.where(falls.any(axis=1), falls.argmax(axis=1) + 1, MAX_TOKENS)

    return choose


def all_sizes(trees: Sequence[GrownTrees], seconds: Float64) -> ChooseSizes:
    """Return the rule with its seconds per token, found on `trees`."""

    def choose_at(second_per_token: float) -> ChooseSizes:
        return lambda expected: (second_per_token * expected - seconds[1:]).argmax(axis=1) + 1

    choose = fixed(BUDGETS[0])
    for _ in range(ROUNDS):
        choose = choose_at(1 / replay(trees, choose, seconds).tokens_per_s)
    return choose


def sample(temperatures: Sequence[float], positions: int) -> Iterator[tuple[float, list[BlockMarginals]]]:
    """Yield what the bundled head predicts along what the bundled target generates after each prompt, by temperature.

    `positions` are the new tokens of each sequence.
    """
    pair = load_pair()
    assert isinstance(pair.target, Transformer)  # the bundled one
    head, prompts = load_dflash(bundled.DFLASH, pair.target), default_prompts(pair)
    for temperature in temperatures:
        point = DecodingPoint(Sampling(temperature), WholePrompts(prompts))
        generated = generate_sequences(pair.target, point, point.prompt_set(positions), Checkpoint(None, "")).tokens
        sequences = []
        for number in progress(list(generated), "predicting"):
            states = build_head_sequence(
                pair.target, prompts[number], generated[number], point.sampling, head.requested_states
            )
            sequences.append(block_marginals(head, states, MAX_TOKENS - 1))
        yield temperature, [sequence for sequence in sequences if len(sequence.ranks) > head.levels]


def solved_trees(table: AcceptanceTable, levels: int) -> list[TokenTree]:
    """Return the trees of 2 to `MAX_TOKENS` nodes with the most tokens."""
    solution = solve(table, MAX_TOKENS, levels)
    return [solution.tree(nodes, levels) for nodes in range(2, MAX_TOKENS + 1)]


BASELINE = "DDTree, budget by replay"


def compare_trees(
    fit: list[BlockMarginals], held_out: list[BlockMarginals], seconds: Float64
) -> Iterator[tuple[str, Replayed]]:
    """Yield the steps of each strategy on held-out sequences, with settings that are the fastest on others."""
    fit_ranks, ranks = (RootRanks([sequence.ranks for sequence in part]) for part in (fit, held_out))
    levels = fit[0].ranks.shape[1]
    table = fit_ranks.table(levels, MAX_TOKENS - 1)
    chains = [chain(length) for length in range(1, levels + 1)]
    by_depth, by_parent = (solved_trees(rows, levels) for rows in (table, condition_on_parent(table, fit_ranks)))
    for name, trees in (
        ("best chain", chains),
        ("best static tree, rows by depth", by_depth),
        ("best static tree, rows by parent", by_parent),
    ):
        best = max(trees, key=lambda tree: replay_static(fit_ranks, tree, seconds).tokens_per_s)
        yield name, replay_static(ranks, best, seconds)
    for classes in ENTROPY_CLASSES:
        by_entropy = TreesByEntropy.fit(fit, classes, seconds)
        yield f"{classes} static trees by entropy", by_entropy.replay(held_out, seconds)
    raw_fit, raw = ([GrownTrees.grow(sequence, Calibration.none()) for sequence in part] for part in (fit, held_out))
    for budget in BUDGETS:
        yield f"DDTree, budget {budget}", replay(raw, fixed(budget), seconds)
    calibration = Calibration.fit(fit)
    grown_fit, grown = ([GrownTrees.grow(sequence, calibration) for sequence in part] for part in (fit, held_out))
    budgets = range(2, MAX_TOKENS + 1)
    for name, chosen_on, trees_below in ((BASELINE, raw_fit, raw), ("calibrated, budget by replay", grown_fit, grown)):
        rates = {budget: replay(chosen_on, fixed(budget), seconds).tokens_per_s for budget in budgets}
        yield name, replay(trees_below, fixed(max(budgets, key=lambda budget: rates[budget])), seconds)
    yield "uncalibrated, first fall (CaDDTree)", replay(raw, first_fall(seconds), seconds)
    yield "uncalibrated, all sizes", replay(raw, all_sizes(raw_fit, seconds), seconds)
    yield "calibrated, first fall", replay(grown, first_fall(seconds), seconds)
    yield "calibrated, all sizes", replay(grown, all_sizes(grown_fit, seconds), seconds)
    chains_fit, grown_chains = (
        [GrownTrees.grow(first_ranks(sequence), calibration) for sequence in part] for part in (fit, held_out)
    )
    yield "calibrated chain, all lengths", replay(grown_chains, all_sizes(chains_fit, seconds), seconds)


def first_ranks(sequence: BlockMarginals) -> BlockMarginals:
    """Return the top token of each slot alone, so that the trees are chains."""
    return sequence._replace(log_probs=sequence.log_probs[..., :1])


def cross_validate(sequences: list[BlockMarginals], seconds: Float64) -> list[str]:
    """Return a line for each strategy, over all sequences."""
    parts: dict[str, list[Replayed]] = {}
    for fold in progress(range(FOLDS), "replaying"):
        fit = [sequence for number, sequence in enumerate(sequences) if number % FOLDS != fold]
        for name, replayed in compare_trees(fit, sequences[fold::FOLDS], seconds):
            parts.setdefault(name, []).append(replayed)
    joined = {name: Replayed.join(folds) for name, folds in parts.items()}
    return [replayed.format(name, joined[BASELINE]) for name, replayed in joined.items()]


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `sample`."""
    parser.add_argument("--temperatures", type=floats, default="0,0.7", help="comma-separated (default: %(default)s)")
    parser.add_argument("--positions", type=int, default=48, help="new tokens of each sequence (default: %(default)s)")


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--profile", type=Path, default=PROFILE, help="profile with the curve of verification")
    parser.add_argument("--block-ms", type=float, default=1.4, help="milliseconds of a block (default: %(default)s)")
    add_sampling(parser)
    args = parser.parse_args()
    print(describe_environment())
    costs = step_model(Profile.load(args.profile)).costs
    seconds = np.append(0.0, costs.verify.at(np.arange(1, MAX_TOKENS + 1)) + args.block_ms / 1000)
    seconds[1] = costs.plain_s[0] + args.block_ms / 1000
    print(f"{args.profile.name}: plain decoding {1 / float(costs.plain_s[0]):.0f} tokens/s; block {args.block_ms} ms")
    for temperature, sequences in sample(args.temperatures, args.positions):
        print(f"\ntemperature {temperature:g}, {len(sequences)} sequences")
        print(f"{'':<36}{'verified':>8}{'tokens/step':>15}{'tokens/s':>17}{'relative':>16}")
        print("\n".join(cross_validate(sequences, seconds)))


if __name__ == "__main__":
    main()
