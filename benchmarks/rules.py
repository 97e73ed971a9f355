"""Which rule is fastest, and what testing from the leaves up wins: every rule through its own best tree.

    python benchmarks/rules.py

At each temperature a profile of all lossless rules is measured, each rule's fastest tree is decoded on held-out prompts
beside plain decoding, and the result stands beside the prediction.  Then trees of a given size that have the most
tokens are compared, whatever they cost: `sequoia` on its own tree, `traversal` on that tree, and on the tree that is
best for `traversal`, found by solving and measuring in turn.  Those tokens per step are expectations given drafts behind
the same places of the same texts, so that differences have little noise.
"""

from collections.abc import Sequence

import click
import numpy as np
import torch
from conditions import bar, conditions, default_prompts, say

from treeopt.arrays import Float64
from treeopt.cli.options.pair import PairOptions, pair_options
from treeopt.cli.options.values import TEMPERATURES
from treeopt.planner import fastest_drafted_tree, plan, step_model
from treeopt.planner.smoothing import smooth
from treeopt.profiler import Decoding, Journal, Measurement, Settings, Workload, bench_trees, clock_for
from treeopt.profiler.acceptance.traversal import ReachSums, count_reach, until_no_gain
from treeopt.records.acceptance import TextSums
from treeopt.records.acceptance_counts import gained
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, Verifier
from treeopt.runtime.models.pair import ModelPair
from treeopt.runtime.rules import rule_named
from treeopt.runtime.rules.distributions import distribution
from treeopt.solver import solve
from treeopt.texts.prompts import bench_prompts, profile_prompts
from treeopt.trees import TokenTree, chain

Prompts = list[list[int]]

RULES = ("sequoia", "specinfer", "target", "traversal")
SIZES = ((16, 8), (64, 12))
"""Nodes and depth of the trees of most tokens."""
EVERY = 8
"""Tokens between the places of a text at which trees are compared."""


def main_table(pair: ModelPair, profile: Profile, prompts: Prompts, tokens: int, repeats: int) -> None:
    print(f"{'rule':<12}{'nodes':>6}{'depth':>6}{'tokens/step':>22}{'step, ms':>22}{'speedup':>22}")
    print(f"{'':<24}" + f"{'predicted  measured':>22}" * 3)
    for rule in bar(RULES, "rules"):
        tree = plan(profile, profile.latency().verify.max_tokens, rule=rule).tree.tree
        predicted = step_model(profile, rule=rule).predict(tree)
        temperature = profile.acceptance(rule=rule).temperature
        workload = Workload(prompts=prompts, max_new_tokens=tokens, repeats=repeats)
        decoding = Decoding(rule=rule, sampling=Sampling(temperature))
        (found,) = bench_trees(pair.target, pair.draft_model, [tree], workload, decoding)
        pairs = (
            (predicted.tokens_per_step.value, found.tokens_per_step),
            (1e3 * predicted.step_s.value, 1e3 * found.step_s),
            (predicted.speedup.value, found.speedup.value),
        )
        cells = "".join(f"{ours:>13.2f}{theirs:>9.2f}" for ours, theirs in pairs)
        say(f"{rule:<12}{tree.nodes:>6}{tree.max_depth:>6}{cells}")


def reach(pair: ModelPair, tree: TokenTree, prompts: Prompts, tokens: int, sampling: Sampling) -> Float64:
    """Return float64 (prompts, 2, n): reach under traversal and sequoia, summed over each text's steps."""
    return np.array(
        [
            count_reach(pair.target, pair.draft_model, tree, prompt, tokens, Decoding(sampling=sampling), seed=seed)
            for seed, prompt in enumerate(prompts)
        ]
    )


def plain_texts(pair: ModelPair, prompts: Prompts, tokens: int, temperature: float) -> list[list[list[int]]]:
    """Return, for each prompt, the texts so far at every `EVERY`-th token of a continuation by the target alone."""
    decoder = Decoder(pair.target, None, chain(0), temperature=temperature)
    numbered = bar(list(enumerate(prompts)), "texts")
    texts = [[*prompt, *decoder.generate(prompt, tokens, seed=seed)] for seed, prompt in numbered]
    return [
        [text[:end] for end in range(len(prompt), len(text) + 1, EVERY)]
        for prompt, text in zip(prompts, texts, strict=True)
    ]


@torch.inference_mode()
def reach_at(pair: ModelPair, tree: TokenTree, texts: list[list[list[int]]], sampling: Sampling) -> Float64:
    """Return float64 (texts, 2, n): reach under traversal and sequoia of a tree drafted behind each text so far, summed."""
    decoder = Decoder(pair.target, pair.draft_model, tree, rule="traversal", temperature=sampling.temperature)
    verifiers = [
        Verifier(rule_named(rule), pair.target.config.vocabulary, pair.target.device)
        for rule in ("traversal", "sequoia")
    ]
    reach = np.zeros((len(texts), 2, tree.nodes))
    for sums, starts in zip(reach, bar(texts, "reach"), strict=True):
        for text in starts:
            decoder.start(text)
            proposal = decoder.draft()
            target_probs = distribution(decoder.verify(proposal).logits, sampling)
            for row, verifier in zip(sums, verifiers, strict=True):
                verifier.test([tree], proposal.tokens, proposal.probs, target_probs)
                row += verifier.reach()
    return reach


def tokens_per_step(sums: Float64) -> Float64:
    """Return float64 (2,): expected tokens per step under both rules over all texts."""
    total = sums.sum(axis=0)
    return np.asarray(total.sum(axis=-1) / total[:, 0])


def gain(ours: Float64, theirs: Float64, rule: int) -> tuple[float, float]:
    """Return the gain in percent of the first, under a rule, over the second under sequoia, with its standard error."""

    def percent(rows: Sequence[int]) -> float:
        return float(100 * (tokens_per_step(ours[rows])[rule] / tokens_per_step(theirs[rows])[1] - 1))

    texts = list(range(len(ours)))
    without = np.array([percent([each for each in texts if each != left]) for left in texts])
    error = np.sqrt((len(texts) - 1) / len(texts) * ((without - without.mean()) ** 2).sum())
    return percent(texts), float(error)


def tree_for_traversal(
    pair: ModelPair, sums: TextSums, prompts: Prompts, tokens: int, sampling: Sampling, nodes: int, depth: int
) -> TokenTree:
    """Return the tree of most tokens under traversal, among those measured while solving and measuring took turns."""
    _, depths, ranks = sums.accepted.shape

    def best(known: Float64) -> TokenTree:
        return solve(gained(sums, known).table(), nodes, depth).tree(nodes, depth)

    def measure(_: int, tree: TokenTree) -> ReachSums:
        return ReachSums(tree, *reach(pair, tree, prompts, tokens, sampling).sum(axis=0))

    return best(until_no_gain(best, measure, depths, ranks))


def size_table(pair: ModelPair, profile: Profile, tuning: Prompts, texts: list[list[list[int]]], tokens: int) -> None:
    print(f"{'nodes':>6}{'depth':>6}{'sequoia':>10}{'traversal':>11}{'gain, %':>16}{'own tree':>10}{'gain, %':>16}")
    smoothed = smooth(profile.acceptance(rule="sequoia")).acceptance
    sums, sampling = smoothed.texts, Sampling(smoothed.temperature)
    assert sums is not None
    for nodes, depth in bar(SIZES, "sizes"):
        tree = solve(sums.table(), nodes, depth).tree(nodes, depth)
        own = tree_for_traversal(pair, sums, tuning, tokens, sampling, nodes, depth)
        on_theirs, on_own = (reach_at(pair, each, texts, sampling) for each in (tree, own))
        theirs, ours = tokens_per_step(on_theirs), tokens_per_step(on_own)
        gains = [
            f"{value:+.1f} +- {error:.1f}"
            for value, error in (gain(on_theirs, on_theirs, 0), gain(on_own, on_theirs, 0))
        ]
        say(f"{nodes:>6}{depth:>6}{theirs[1]:>10.3f}{theirs[0]:>11.3f}{gains[0]:>16}{ours[0]:>10.3f}{gains[1]:>16}")


@click.command()
@click.option("--temperatures", type=TEMPERATURES, default="0.6", show_default=True, help="With commas between.")
@click.option("--positions", default=768, show_default=True, help="Positions counted per rule.")
@click.option("--max-new-tokens", default=64, show_default=True)
@click.option("--repeats", default=1, show_default=True)
@click.option("--texts", default=8, show_default=True, help="Texts for the trees of most tokens.")
@pair_options
def main(
    temperatures: tuple[float, ...],
    positions: int,
    max_new_tokens: int,
    repeats: int,
    texts: int,
    pair: PairOptions,
) -> None:
    """Compare rules on a pair, by default the bundled one."""
    print(conditions())
    models = pair.load()
    both = default_prompts(models)
    tuning, prompts = profile_prompts(both), bench_prompts(both)
    for temperature in temperatures:
        settings = Settings(rules=RULES, samplings=(Sampling(temperature),), positions=positions)
        measurement = Measurement(
            models.target,
            models.draft_model,
            tuning,
            settings,
            clock=clock_for(models.target.device),
            journal=Journal(None, "benchmark"),
            fastest_tree=fastest_drafted_tree,
        )
        profile = measurement.profile()
        print(f"\ntemperature {temperature:g}, {len(prompts)} held-out prompts x {max_new_tokens} tokens")
        main_table(models, profile, prompts, max_new_tokens, repeats)
        many = plain_texts(models, (prompts * -(-texts // len(prompts)))[:texts], max_new_tokens, temperature)
        print(f"\ntrees of most tokens; tokens per step, behind {sum(map(len, many))} places of {len(many)} texts")
        size_table(models, profile, tuning, many, max_new_tokens)


if __name__ == "__main__":
    main()
