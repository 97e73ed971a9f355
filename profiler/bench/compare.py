"""Decoding with trees or drafters, compared with plain decoding on the same prompts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from treeopt.errors import InvalidValueError
from treeopt.profiler.bench.divergence import find_divergences
from treeopt.profiler.bench.interleave import (
    Configuration,
    Run,
    collect_rounds,
    decode_run,
)
from treeopt.profiler.bench.reference_passes import ReferencePasses
from treeopt.profiler.clock import Clock, clock_for
from treeopt.profiler.decoding import Decoding
from treeopt.records.latency import Estimate
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.results import Divergence, TreeMeasurement
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree, chain

BOOTSTRAP_DRAWS = 2000
SEED = 0
DEFAULT_NEW_TOKENS = 256
"""If a profile lacks the lengths of its sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every configuration decodes."""

    prompts: Sequence[Sequence[int]]
    """Token ids."""
    max_new_tokens: int
    """Of each prompt."""
    repeats: int = 3
    """How often each prompt is decoded."""

    def __post_init__(self) -> None:
        if not self.prompts or self.max_new_tokens < 1 or self.repeats < 1:
            raise InvalidValueError(
                "prompts, max_new_tokens, repeats: expected at least one of each. "
                f"Got {len(self.prompts)}, {self.max_new_tokens}, {self.repeats}.",
                field="prompts, max_new_tokens, repeats",
            )

    @property
    def rounds(self) -> int:
        """Prompts to decode, repeats included."""
        return len(self.prompts) * self.repeats

    def prompt(self, number: int) -> Sequence[int]:
        """Return the prompt of a round; the rounds of a repeat follow each other."""
        return self.prompts[number % len(self.prompts)]


def bench_trees(
    target: LanguageModel,
    draft: LanguageModel,
    trees: Sequence[TokenTree],
    workload: Workload,
    decoding: Decoding,
    *,
    references: ReferencePasses | None = None,
    clock: Clock | None = None,
) -> tuple[TreeMeasurement, ...]:
    """Decode every prompt plainly and with each of some trees, in interleaved runs, and compare.

    A sequence ends with the step that yields its `max_new_tokens`-th token, and all tokens of that step count.  Of
    repeats with the same tokens the median time counts.  Prefill is not timed.  Ctrl-C ends the comparison after the last
    whole round.

    Args:
        target: the model whose output is wanted.
        draft: fills the trees.
        trees: what is compared with plain decoding.
        workload: prompts, how far each is continued, and how often.
        decoding: rule and sampling.
        references: passes that are timed between the runs.
        clock: by default that of the target's device.

    Raises InvalidValueError without trees or prompts, or if the decoder refuses a prompt.
    """
    if not trees:
        raise InvalidValueError("trees: expected at least one. Got none: name one.")
    max_depth = max(tree.max_depth for tree in trees)
    needed = max(map(len, workload.prompts)) + workload.max_new_tokens + max_depth
    max_tokens = min(target.config.max_positions, needed)
    plain = decoding.decoder(target, draft, chain(0), max_tokens)
    drafting = decoding.decoder(target, draft, max(trees, key=lambda tree: tree.nodes), max_tokens)
    decoders = [(plain, None), *((drafting, tree) for tree in trees)]
    return compare_decoders(decoders, workload, references=references, clock=clock)


def compare_decoders(
    decoders: Sequence[tuple[Decoder, TokenTree | None]],
    workload: Workload,
    *,
    references: ReferencePasses | None,
    clock: Clock | None = None,
) -> tuple[TreeMeasurement, ...]:
    """Compare decoders with the first of them, plain decoding; a decoder with a tree switches to it before each run."""
    plain = decoders[0][0]
    target, prompts, clock = plain.target, workload.prompts, clock or clock_for(plain.target.device)
    for prompt in prompts:
        plain.check_request(prompt, workload.max_new_tokens)

    def configuration(decoder: Decoder, tree: TokenTree | None) -> Configuration[Run]:
        def decode(number: int, new_tokens: int) -> Run:
            if tree is not None:
                decoder.change_tree(tree)
            return decode_run(decoder, workload.prompt(number), new_tokens, number, clock)

        return decode

    rounds = collect_rounds(
        [configuration(*pair) for pair in decoders],
        workload.max_new_tokens,
        workload.rounds,
        between=references.time if references else lambda: None,
    )
    pace = references.pace if references else None
    results = []
    for index in range(1, len(decoders)):
        pairs = [
            [(runs[0], runs[index]) for runs in rounds[prompt :: len(prompts)]]
            for prompt in range(min(len(prompts), len(rounds)))
        ]
        divergences = None
        if plain.sampling.greedy:
            most = workload.max_new_tokens
            outputs = {
                number: [(one.tokens[:most], other.tokens[:most]) for one, other in repeats]
                for number, repeats in enumerate(pairs)
            }
            divergences = find_divergences(target, prompts, outputs)
        results.append(replace(compare_runs(pairs, divergences), pace=pace))
    return tuple(results)


def text_tokens(acceptance: MeasuredAcceptance) -> int:
    """Return the new tokens per prompt: as many as the profile measured, because later tokens are easier to draft."""
    if acceptance.positions is None or acceptance.prompts is None:
        return DEFAULT_NEW_TOKENS
    return max(1, acceptance.positions // acceptance.prompts)


def compare_runs(
    runs: Sequence[Sequence[tuple[Run, Run]]], divergences: tuple[Divergence, ...] | None
) -> TreeMeasurement:
    """Return the comparison of runs, (plain, other) by prompt and repeat, with a bootstrap over prompts."""
    plain_s, plain_tokens, other_s, other_tokens, other_steps = np.array(
        [
            [
                _average_s([plain for plain, _ in repeats]),
                np.mean([len(plain.tokens) for plain, _ in repeats]),
                _average_s([other for _, other in repeats]),
                np.mean([len(other.tokens) for _, other in repeats]),
                np.mean([other.steps for _, other in repeats]),
            ]
            for repeats in runs
        ]
    ).T
    picks = np.random.default_rng(SEED).integers(len(runs), size=(BOOTSTRAP_DRAWS, len(runs)))

    def speedup(
        rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        plain_rate = plain_tokens[rows].sum(-1) / plain_s[rows].sum(-1)
        return np.asarray(other_tokens[rows].sum(-1) / other_s[rows].sum(-1) / plain_rate)

    low, high = np.quantile(speedup(picks), [0.025, 0.975])
    return TreeMeasurement(
        speedup=Estimate(float(speedup(np.arange(len(runs)))), float(low), float(high)),
        tokens_per_step=float(other_tokens.sum() / other_steps.sum()),
        step_s=float(other_s.sum() / other_steps.sum()),
        plain_step_s=float(plain_s.sum() / plain_tokens.sum()),
        divergences=divergences,
        tokens=int(other_tokens.sum()),
        prompts=len(runs),
        rounds=sum(map(len, runs)),
    )


def _average_s(repeats: Sequence[Run]) -> float:
    """Return the median seconds of repeats with the same tokens, else the mean, to match the mean of their tokens."""
    same = all(run.tokens == repeats[0].tokens for run in repeats)
    return float((np.median if same else np.mean)([run.seconds for run in repeats]))
