"""Does the parent's rank matter?  Tokens per step predicted from two acceptance tables, beside real decoding.

    python benchmarks/rank_conditioned.py

The plain table has one row per depth, the other one row per depth and rank of the parent.  Both are made from the same
positions: once of the profile prompts, once of the held-out prompts that are decoded, so that a difference of prompts
cannot pass for a difference of tables.  At temperature 0 the held-out texts are the very texts decoded, above it they
are other samples.  Errors of decoded tokens per step are standard errors over prompts; those of differences come from
leaving one held-out prompt out at a time.
"""

import argparse
from collections.abc import Mapping, Sequence

import numpy as np
from conditions import bar, conditions

import treeopt
from treeopt.arrays import Float64
from treeopt.profiler.acceptance.positions import AcceptanceText, TextPositions
from treeopt.profiler.decoding import Decoding
from treeopt.records.acceptance import AcceptanceTable, TextSums
from treeopt.records.acceptance_counts import (
    LEAST_COUNT,
    AcceptanceCounts,
    conditional_counts,
    rank_conditioned_counts,
    text_sums,
)
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.texts.prompts import bench_prompts, load_prompts, profile_prompts
from treeopt.trees import TokenTree, chain, k_ary, level_widths

Prompts = Sequence[Sequence[int]]
Tables = tuple[AcceptanceTable, AcceptanceTable]

RULE = "sequoia"
TEMPERATURES = (0.0, 0.6)
PROFILE_TOKENS = 171
"""Tokens generated after each profile prompt."""
BRANCHING, DEPTH, PARENT_RANKS = 16, 16, 4
SOLVED_NODES = (8, 16, 64)


def measure(pair: ModelPair, prompts: Prompts, temperature: float, tokens: int, seed: int) -> list[TextPositions]:
    return [
        AcceptanceText(
            pair.target,
            pair.draft,
            Decoding(rule=RULE, sampling=Sampling(temperature)),
            branching=BRANCHING,
            depth=DEPTH,
            seed=seed + number,
        ).positions(prompt, tokens)
        for number, prompt in enumerate(bar(prompts, "measuring"))
    ]


def tables(texts: Sequence[TextPositions]) -> Tables:
    """Return the plain table and the one by rank, of the same positions."""
    plain = [conditional_counts(text.expected, text.accepted_rank, DEPTH) for text in texts]
    by_rank = [rank_conditioned_counts(text.expected, text.accepted_rank, DEPTH, PARENT_RANKS) for text in texts]
    return text_sums(plain).table(), rank_conditioned_table(by_rank)


def rank_conditioned_table(texts: Sequence[AcceptanceCounts]) -> AcceptanceTable:
    """Return the table in which acceptance also depends on the parent's rank, with standard errors over texts.

    A rank of the parent that fewer than `LEAST_COUNT` positions reached at a depth takes the plain row of that depth,
    which holds for parents of any rank; `counts` still says how few there were.

    Args:
        texts: counts of shapes (D, R) and (D, R, B).

    Raises TreeoptError when too little text was measured.
    """
    plain = text_sums([AcceptanceCounts(text.reached.sum(axis=1), text.accepted.sum(axis=1)) for text in texts]).table()
    reached = np.array([text.reached[: len(plain.p)] for text in texts])
    accepted = np.array([text.accepted[: len(plain.p)] for text in texts])
    total = reached.sum(axis=0)
    enough = total >= LEAST_COUNT
    measured = TextSums(reached[:, enough], accepted[:, enough]).table()  # one row per pair of depth and rank
    assert plain.standard_error is not None
    assert measured.standard_error is not None
    p, error = (np.repeat(array[:, None], total.shape[1], axis=1) for array in (plain.p, plain.standard_error))
    p[enough], error[enough] = measured.p, measured.standard_error
    return AcceptanceTable(p, counts=total, standard_error=error)


def trees(table: AcceptanceTable) -> dict[str, TokenTree]:
    shapes = {f"chain {depth}": chain(depth) for depth in (2, 4, 8)}
    shapes |= {"2-ary, 3 deep": k_ary(2, 3), "4-ary, 2 deep": k_ary(4, 2), "widths 8 8 8": level_widths([8, 8, 8])}
    solution = treeopt.solve(table, max(SOLVED_NODES))
    return shapes | {f"best of {nodes}": solution.tree(nodes, solution.max_depth) for nodes in SOLVED_NODES}


def decode(pair: ModelPair, tree: TokenTree, prompts: Prompts, temperature: float, tokens: int) -> Float64:
    """Return (prompts, 3): tokens, steps, and steps that accepted a child of the root."""
    decoder = Decoder(pair.target, pair.draft, tree, rule=RULE, temperature=temperature)
    sums = np.zeros((len(prompts), 3))
    for prompt, row in zip(prompts, sums, strict=True):
        decoder.start(prompt)
        while row[0] < tokens:  # the last step counts whole: cut short it would lower the mean
            committed = len(decoder.step().tokens)
            row += committed, 1, committed > 1
    return sums


def tokens_per_step(decoded: Float64) -> float:
    return float(decoded[:, 0].sum() / decoded[:, 1].sum())


def standard_error(decoded: Float64) -> float:
    """Return that of a ratio of sums over prompts."""
    residual = decoded[:, 0] - tokens_per_step(decoded) * decoded[:, 1]
    return float(np.sqrt((residual**2).sum() * len(decoded) / (len(decoded) - 1)) / decoded[:, 1].sum())


def errors(shapes: Mapping[str, TokenTree], decoded: Mapping[str, Float64], columns: Tables) -> Float64:
    """Return (trees, tables): how far each prediction lies above what was decoded, in percent."""
    return np.array(
        [
            [100 * (table.expected_tokens(tree) / tokens_per_step(decoded[name]) - 1) for table in columns]
            for name, tree in shapes.items()
        ]
    )


def mean_absolute(error: Float64) -> Float64:
    """Return (3,): the mean over trees for the plain table, for the one by rank, and the second less the first."""
    plain, by_rank = np.abs(error).mean(axis=0)
    return np.array([plain, by_rank, by_rank - plain])


def compare(pair: ModelPair, profile: Prompts, bench: Prompts, temperature: float, tokens: int) -> None:
    profile_tables = tables(measure(pair, profile, temperature, PROFILE_TOKENS, seed=0))
    bench_texts = measure(pair, bench, temperature, tokens, seed=len(profile))
    bench_tables = tables(bench_texts)
    shapes = trees(profile_tables[0])
    decoded = {name: decode(pair, tree, bench, temperature, tokens) for name, tree in bar(shapes.items(), "decoding")}

    def mean_of(kept: list[int], columns: Tables) -> Float64:
        return mean_absolute(errors(shapes, {name: sums[kept] for name, sums in decoded.items()}, columns))

    everything = list(range(len(bench)))
    rests = [everything[:number] + everything[number + 1 :] for number in everything]
    show_rows(shapes, decoded, profile_tables, bench_tables)
    for name, columns, columns_of_rests in (
        ("profile", profile_tables, [profile_tables] * len(rests)),
        ("held-out", bench_tables, [tables([bench_texts[number] for number in rest]) for rest in rests]),
    ):
        without_one = [mean_of(rest, rest_columns) for rest, rest_columns in zip(rests, columns_of_rests, strict=True)]
        show_mean(name, mean_of(everything, columns), np.std(without_one, axis=0) * np.sqrt(len(bench) - 1))
    show_parents(profile_tables[1])


def show_rows(shapes: Mapping[str, TokenTree], decoded: Mapping[str, Float64], profile: Tables, bench: Tables) -> None:
    print(
        f"{'':25}{'tokens per step':<20}{'predicted, profile prompts':<32}{'predicted, held-out':<32}accepted at depth 1"
    )
    print(
        f"{'tree':<15}{'nodes':>5}{'':5}{'decoded':<10}{'error':<10}"
        + f"{'plain':<16}{'by rank':<16}" * 2
        + "decoded  anywhere"
    )
    percents = zip(errors(shapes, decoded, profile), errors(shapes, decoded, bench), strict=True)
    for (name, tree), columns in zip(shapes.items(), percents, strict=True):
        sums = decoded[name]
        measured = tokens_per_step(sums)
        error = f"{100 * standard_error(sums) / measured:.1f} %"
        predicted = "".join(
            f"{f'{measured * (1 + percent / 100):.3f} {percent:+.1f} %':<16}" for percent in np.concatenate(columns)
        )
        first = f"{100 * sums[:, 2].sum() / sums[:, 1].sum():.1f} %"
        anywhere = f"{100 * bench[0].reach(tree)[tree.levels[1]].sum():.1f} %"
        print(f"{name:<15}{tree.nodes:>5}{'':5}{measured:<10.3f}{error:<10}{predicted}{first:<9}{anywhere}")


def show_mean(prompts: str, mean: Float64, spread: Float64) -> None:
    print(
        f"mean absolute error, {prompts} prompts: plain {mean[0]:.1f} %, by rank {mean[1]:.1f} %; "
        f"by rank less plain {mean[2]:+.1f} +- {spread[2]:.1f}"
    )


def show_parents(table: AcceptanceTable) -> None:
    assert table.counts is not None
    assert table.standard_error is not None
    print("first child at depth 2, profile prompts:")
    for rank in range(2):
        print(
            f"  {table.p[1, rank, 0]:.3f} +- {table.standard_error[1, rank, 0]:.3f} below a parent of rank {rank}, "
            f"{table.counts[1, rank]:.0f} positions"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128, help="decoded after each held-out prompt")
    tokens = parser.parse_args().tokens
    pair = load_pair()
    profile, bench = (
        [pair.tokenizer.encode(text) for text in choose(load_prompts())] for choose in (profile_prompts, bench_prompts)
    )
    print(conditions())
    print(
        f"rule {RULE}, {len(profile)} profile prompts x {PROFILE_TOKENS} positions, {len(bench)} held-out prompts x "
        f"{tokens}, {PARENT_RANKS} ranks of the parent"
    )
    for temperature in TEMPERATURES:
        print(f"\ntemperature {temperature:g}")
        compare(pair, profile, bench, temperature, tokens)


if __name__ == "__main__":
    main()
