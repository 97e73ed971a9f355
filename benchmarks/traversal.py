"""Compare the verification rules, each with its own best tree, and measure the gain of traversal verification.

    python benchmarks/rules.py

At each temperature, a profile of all lossless rules is measured, and each rule's fastest tree decodes held-out prompts; the
first table compares the result with the prediction. The second table compares trees of a given size with the most tokens per
step, whatever they cost: `sequoia` on its tree, `traversal` on that tree, and `traversal` on its own best tree, found by
solving and measuring alternately. Its tokens per step are expectations given drafts at the same positions of the same sequences,
which has little variance.
"""

from collections.abc import Sequence

import click
import numpy as np
import torch
from common import default_prompts, describe_environment, measure_profile, progress
from tqdm import tqdm

from treeopt.arrays import Float64
from treeopt.cli.options.pair import PairOptions, pair_options
from treeopt.cli.options.values import TEMPERATURES
from treeopt.planner import plan, step_model
from treeopt.planner.smoothing import smooth
from treeopt.profiler import Decoding, Settings, Workload, bench_trees
from treeopt.profiler.acceptance.traversal import ReachSums, count_reach, iterate_gain
from treeopt.records.acceptance import SequenceSums
from treeopt.records.acceptance_counts import scale_acceptance
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, Verifier
from treeopt.runtime.models.pair import ModelPair
from treeopt.runtime.rules import get_rule
from treeopt.runtime.rules.distributions import distribution
from treeopt.solver import solve
from treeopt.texts.prompts import bench_prompts, profile_prompts
from treeopt.trees import TokenTree, chain

Prompts = list[list[int]]

RULES = ("sequoia", "specinfer", "target", "traversal")
SIZES = ((16, 8), (64, 12))
"""Nodes and depth of the trees of the second table."""
ROOT_STRIDE = 8
"""Tokens between the roots at which trees are compared."""


def print_rules(pair: ModelPair, profile: Profile, prompts: Prompts, tokens: int, repeats: int) -> None:
    print(f"{'rule':<12}{'nodes':>6}{'depth':>6}{'tokens/step':>22}{'step, ms':>22}{'speedup':>22}")
    print(f"{'':<24}" + f"{'predicted  measured':>22}" * 3)
    for rule in progress(RULES, "rules"):
        tree = plan(profile, profile.latency().verify.max_tokens, rule=rule).tree.tree
        predicted = step_model(profile, rule=rule).predict(tree)
        temperature = profile.acceptance(rule=rule).temperature
        workload = Workload(prompts=prompts, max_new_tokens=tokens, repeats=repeats)
        decoding = Decoding(rule=rule, sampling=Sampling(temperature))
        (measured,) = bench_trees(pair.target, pair.draft_model, [tree], workload, decoding)
        pairs = (
            (predicted.tokens_per_step.value, measured.tokens_per_step),
            (1e3 * predicted.step_s.value, 1e3 * measured.step_s),
            (predicted.speedup.value, measured.speedup.value),
        )
        cells = "".join(f"{expected:>13.2f}{actual:>9.2f}" for expected, actual in pairs)
        tqdm.write(f"{rule:<12}{tree.nodes:>6}{tree.max_depth:>6}{cells}")


def measure_reach(pair: ModelPair, tree: TokenTree, prompts: Prompts, tokens: int, sampling: Sampling) -> Float64:
    """Return float64 (prompts, 2, n): reach under traversal and sequoia, summed over the steps of each prompt."""
    return np.array(
        [
            count_reach(pair.target, pair.draft_model, tree, prompt, tokens, Decoding(sampling=sampling), seed=seed)
            for seed, prompt in enumerate(prompts)
        ]
    )


def plain_prefixes(pair: ModelPair, prompts: Prompts, tokens: int, temperature: float) -> list[list[list[int]]]:
    """Return, for each prompt, the prefixes at every `ROOT_STRIDE`-th token of the target's continuation."""
    decoder = Decoder(pair.target, None, chain(0), temperature=temperature)
    numbered = progress(list(enumerate(prompts)), "sequences")
    sequences = [[*prompt, *decoder.generate(prompt, tokens, seed=seed)] for seed, prompt in numbered]
    return [
        [sequence[:end] for end in range(len(prompt), len(sequence) + 1, ROOT_STRIDE)]
        for prompt, sequence in zip(prompts, sequences, strict=True)
    ]


@torch.inference_mode()
def measure_reach_at(pair: ModelPair, tree: TokenTree, prefixes: list[list[list[int]]], sampling: Sampling) -> Float64:
    """Return float64 (prompts, 2, n): reach under traversal and sequoia of a tree, summed over the prefixes of each prompt."""
    decoder = Decoder(pair.target, pair.draft_model, tree, rule="traversal", temperature=sampling.temperature)
    verifiers = [
        Verifier(get_rule(rule), pair.target.config.vocabulary, pair.target.device) for rule in ("traversal", "sequoia")
    ]
    reach = np.zeros((len(prefixes), 2, tree.nodes))
    for sums, prompt_prefixes in zip(reach, progress(prefixes, "reach"), strict=True):
        for prefix in prompt_prefixes:
            decoder.start(prefix)
            proposal = decoder.draft()
            target_probs = distribution(decoder.verify(proposal).logits, sampling)
            for row, verifier in zip(sums, verifiers, strict=True):
                verifier.test([tree], proposal.tokens, proposal.probs, target_probs)
                row += verifier.reach()
    return reach


def tokens_per_step(sums: Float64) -> Float64:
    """Return float64 (2,): expected tokens per step under both rules over all prompts."""
    total = sums.sum(axis=0)
    return np.asarray(total.sum(axis=-1) / total[:, 0])


def gain(sums: Float64, baseline: Float64, rule: int) -> tuple[float, float]:
    """Return the gain in percent of a tree under a rule over a baseline under sequoia, and its jackknife standard error."""

    def percent(rows: Sequence[int]) -> float:
        return float(100 * (tokens_per_step(sums[rows])[rule] / tokens_per_step(baseline[rows])[1] - 1))

    prompts = list(range(len(sums)))
    without = np.array([percent([prompt for prompt in prompts if prompt != left_out]) for left_out in prompts])
    error = np.sqrt((len(prompts) - 1) / len(prompts) * ((without - without.mean()) ** 2).sum())
    return percent(prompts), float(error)


def tree_for_traversal(
    pair: ModelPair, sums: SequenceSums, prompts: Prompts, tokens: int, sampling: Sampling, nodes: int, depth: int
) -> TokenTree:
    """Return the tree with the most tokens under traversal, found by solving and measuring alternately."""
    _, depths, ranks = sums.accepted.shape

    def best(scale: Float64) -> TokenTree:
        return solve(scale_acceptance(sums, scale).table(), nodes, depth).tree(nodes, depth)

    def measure(_: int, tree: TokenTree) -> ReachSums:
        return ReachSums(tree, *measure_reach(pair, tree, prompts, tokens, sampling).sum(axis=0))

    return best(iterate_gain(best, measure, depths, ranks))


def print_sizes(
    pair: ModelPair, profile: Profile, profiled: Prompts, prefixes: list[list[list[int]]], tokens: int
) -> None:
    print(f"{'nodes':>6}{'depth':>6}{'sequoia':>10}{'traversal':>11}{'gain, %':>16}{'own tree':>10}{'gain, %':>16}")
    smoothed = smooth(profile.acceptance(rule="sequoia")).acceptance
    sums, sampling = smoothed.sequences, Sampling(smoothed.temperature)
    assert sums is not None
    for nodes, depth in progress(SIZES, "sizes"):
        tree = solve(sums.table(), nodes, depth).tree(nodes, depth)
        own_tree = tree_for_traversal(pair, sums, profiled, tokens, sampling, nodes, depth)
        on_tree, on_own_tree = (measure_reach_at(pair, t, prefixes, sampling) for t in (tree, own_tree))
        rates, own_rates = tokens_per_step(on_tree), tokens_per_step(on_own_tree)
        gains = [
            f"{value:+.1f} +- {error:.1f}"
            for value, error in (gain(on_tree, on_tree, 0), gain(on_own_tree, on_tree, 0))
        ]
        tqdm.write(
            f"{nodes:>6}{depth:>6}{rates[1]:>10.3f}{rates[0]:>11.3f}{gains[0]:>16}{own_rates[0]:>10.3f}{gains[1]:>16}"
        )


@click.command()
@click.option("--temperatures", type=TEMPERATURES, default="0.6", show_default=True, help="Comma-separated.")
@click.option("--positions", default=768, show_default=True, help="Positions counted per rule.")
@click.option("--max-new-tokens", default=64, show_default=True)
@click.option("--repeats", default=1, show_default=True)
@click.option("--sequences", default=8, show_default=True, help="Sequences for the second table.")
@pair_options
def main(
    temperatures: tuple[float, ...],
    positions: int,
    max_new_tokens: int,
    repeats: int,
    sequences: int,
    pair: PairOptions,
) -> None:
    """Compare rules on a pair, by default the bundled one."""
    print(describe_environment())
    models = pair.load()
    all_prompts = default_prompts(models)
    profiled, prompts = profile_prompts(all_prompts), bench_prompts(all_prompts)
    for temperature in temperatures:
        settings = Settings(rules=RULES, samplings=(Sampling(temperature),), positions=positions)
        profile = measure_profile(models, settings)
        print(f"\ntemperature {temperature:g}, {len(prompts)} held-out prompts x {max_new_tokens} tokens")
        print_rules(models, profile, prompts, max_new_tokens, repeats)
        prefixes = plain_prefixes(
            models, (prompts * -(-sequences // len(prompts)))[:sequences], max_new_tokens, temperature
        )
        print(
            f"\ntrees with the most tokens: tokens per step at {sum(map(len, prefixes))} roots in {len(prefixes)} sequences"
        )
        print_sizes(models, profile, profiled, prefixes, max_new_tokens)


if __name__ == "__main__":
    main()
