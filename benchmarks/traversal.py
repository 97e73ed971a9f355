"""Measure the gain of traversal verification in tokens per step.

    python benchmarks/traversal.py

At each temperature, the rules `sequoia` and `traversal` are compared on the trees with the most tokens per step under
`sequoia`. Tokens per step are expectations given drafts at the same positions of the same held-out sequences, which has
little variance.
"""

from collections.abc import Sequence

import numpy as np
import torch
from common import default_prompts, describe_environment, floats, progress, script_parser
from tqdm import tqdm

from treeopt.arrays import Float64
from treeopt.errors import TreeoptError
from treeopt.planner.smoothing import smooth
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.acceptance.contexts import WholePrompts
from treeopt.profiler.acceptance.per_prompt import AcceptanceCounter
from treeopt.profiler.processes.processes import Processes
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, Verifier
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.runtime.rules import get_rule
from treeopt.runtime.rules.distributions import distribution
from treeopt.solver import solve
from treeopt.texts.prompts import bench_prompts, profile_prompts
from treeopt.trees import TokenTree, chain

SIZES = ((16, 8), (64, 12))
"""Nodes and depth of the trees."""
ROOT_STRIDE = 8
"""Tokens between the roots at which trees are compared."""


def measure_acceptance(pair: ModelPair, prompts: list[list[int]], settings: Settings) -> MeasuredAcceptance:
    counter = AcceptanceCounter(
        pair.target,
        pair.draft_model,
        WholePrompts(prompts),
        settings,
        checkpoint=Checkpoint(None, ""),
        processes=Processes(),
    )
    positions = settings.positions_per_prompt(len(prompts))
    for number in progress(list(range(len(prompts))), "acceptance"):
        counter.count([number], positions)
    (acceptance,) = counter.acceptances([positions])
    return smooth(acceptance).acceptance


def plain_prefixes(pair: ModelPair, prompts: list[list[int]], tokens: int, temperature: float) -> list[list[list[int]]]:
    """Return, for each prompt, the prefixes at every `ROOT_STRIDE`-th token of the target's continuation."""
    decoder = Decoder(pair.target, None, chain(0), temperature=temperature)
    numbered = progress(list(enumerate(prompts)), "sequences")
    sequences = [[*prompt, *decoder.generate(prompt, tokens, seed=seed)] for seed, prompt in numbered]
    return [
        [sequence[:end] for end in range(len(prompt), len(sequence) + 1, ROOT_STRIDE)]
        for prompt, sequence in zip(prompts, sequences, strict=True)
    ]


@torch.inference_mode()
def measure_reach(pair: ModelPair, tree: TokenTree, prefixes: list[list[list[int]]], sampling: Sampling) -> Float64:
    """Return float64 (prompts, 2, n): reach under sequoia and traversal, summed over the prefixes of each prompt."""
    decoder = Decoder(pair.target, pair.draft_model, tree, rule="traversal", temperature=sampling.temperature)
    verifiers = [
        Verifier(get_rule(rule), pair.target.config.vocabulary, pair.target.device) for rule in ("sequoia", "traversal")
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


def tokens_per_step(reach: Float64) -> Float64:
    """Return float64 (2,): expected tokens per step under both rules over all prompts."""
    total = reach.sum(axis=0)
    return np.asarray(total.sum(axis=-1) / total[:, 0])


def gain(reach: Float64) -> tuple[float, float]:
    """Return the gain of traversal in percent, and its jackknife standard error over prompts."""

    def percent(rows: Sequence[int]) -> float:
        sequoia, traversal = tokens_per_step(reach[rows])
        return float(100 * (traversal / sequoia - 1))

    prompts = list(range(len(reach)))
    without = np.array([percent([prompt for prompt in prompts if prompt != left_out]) for left_out in prompts])
    error = np.sqrt((len(prompts) - 1) / len(prompts) * ((without - without.mean()) ** 2).sum())
    return percent(prompts), float(error)


def compare_rules(
    pair: ModelPair, trees: Sequence[TokenTree], prefixes: list[list[list[int]]], sampling: Sampling
) -> None:
    """Print a line for each tree of `SIZES`."""
    print(f"{'nodes':>6}{'depth':>6}{'sequoia':>10}{'traversal':>11}{'gain, %':>16}")
    for (nodes, depth), tree in progress(list(zip(SIZES, trees, strict=True)), "sizes"):
        reach = measure_reach(pair, tree, prefixes, sampling)
        sequoia, traversal = tokens_per_step(reach)
        value, error = gain(reach)
        tqdm.write(f"{nodes:>6}{depth:>6}{sequoia:>10.3f}{traversal:>11.3f}{f'{value:+.1f} +- {error:.1f}':>16}")


def main() -> None:
    parser = script_parser(__doc__, pair=True)
    parser.add_argument("--temperatures", type=floats, default="0.6", help="comma-separated (default: %(default)s)")
    parser.add_argument("--positions", type=int, default=768, help="of the acceptance (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="of each sequence (default: %(default)s)")
    parser.add_argument("--sequences", type=int, default=8, help="on which trees are compared (default: %(default)s)")
    args = parser.parse_args()
    print(describe_environment())
    models = load_pair(args.target, args.draft)
    all_prompts = default_prompts(models)
    profiled, held_out = profile_prompts(all_prompts), bench_prompts(all_prompts)
    prompts = (held_out * -(-args.sequences // len(held_out)))[: args.sequences]
    for temperature in args.temperatures:
        settings = Settings(samplings=(Sampling(temperature),), positions=args.positions)
        try:
            table = measure_acceptance(models, profiled, settings).table
            trees = [solve(table, nodes, depth).tree(nodes, depth) for nodes, depth in SIZES]
        except TreeoptError as error:
            raise SystemExit(
                f"--positions: expected more than {args.positions}, too few for the trees ({error})"
            ) from None
        prefixes = plain_prefixes(models, prompts, args.max_new_tokens, temperature)
        print(
            f"\ntemperature {temperature:g}: tokens per step at {sum(map(len, prefixes))} roots in {len(prefixes)} sequences"
        )
        compare_rules(models, trees, prefixes, Sampling(temperature))


if __name__ == "__main__":
    main()
