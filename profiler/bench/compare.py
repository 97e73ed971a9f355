"""Decoding with trees or drafters, compared with plain decoding on the same prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

import numpy as np

from treeopt.errors import InvalidValueError
from treeopt.profiler.bench.divergence import divergence
from treeopt.profiler.bench.interleave import (
    Configuration,
    Round,
    Run,
    decode_run,
    interleave,
    repeated,
    whole_rounds,
)
from treeopt.profiler.bench.reference_passes import ReferencePasses
from treeopt.profiler.clock import Clock, clock_for
from treeopt.profiler.decoding import Decoding
from treeopt.records.latency import Estimate
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.results import Divergence, Measured
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree, chain

BOOTSTRAP_DRAWS = 2000
SEED = 0
DEFAULT_NEW_TOKENS = 256
"""Where a profile does not say how long its texts were."""

R = TypeVar("R")
Decode = Callable[[Sequence[int], int, int], R]
"""Decodes: from a prompt, the number of new tokens and a seed to a timed run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every configuration decodes."""

    prompts: Sequence[Sequence[int]]
    """Token ids."""
    max_new_tokens: int
    """Of each prompt."""
    repeats: int = 3
    """Times each prompt is decoded."""

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


def bench_trees(
    target: LanguageModel,
    draft: LanguageModel,
    trees: Sequence[TokenTree],
    workload: Workload,
    decoding: Decoding,
    *,
    references: ReferencePasses | None = None,
    clock: Clock | None = None,
    show_progress: bool = True,
) -> tuple[Measured, ...]:
    """Decode every prompt plainly and with each of some trees, in interleaved runs, and compare.

    A sequence ends with the step that brings its `max_new_tokens`-th token, and all of that step counts.  Of repeats
    with the same tokens the median time counts.  Prefill is not timed.
    Ctrl-C ends it early: the rounds decoded so far are the result, unless there is none.

    Args:
        target: the model whose output is wanted.
        draft: fills the trees.
        trees: what is compared with plain decoding.
        workload: prompts, how far each is continued, and how often.
        decoding: rule and sampling.
        references: passes that are timed between the runs.
        clock: by default that of the target's device.
        show_progress: whether a bar goes to standard error.

    Raises InvalidValueError without trees or prompts, or where the decoder refuses a prompt.
    """
    if not trees:
        raise InvalidValueError("trees: expected at least one. Got none: name one.")
    prompts, most = workload.prompts, target.config.max_positions
    max_depth = max(tree.max_depth for tree in trees)
    longest = min(most, max(map(len, prompts)) + workload.max_new_tokens + max_depth)
    plain, drafting = (
        decoding.decoder(target, draft, max(shapes, key=lambda tree: tree.nodes), longest)
        for shapes in ([chain(0)], trees)
    )
    decoders = [(plain, None), *((drafting, tree) for tree in trees)]
    return compare_decoders(decoders, workload, references=references, clock=clock, show_progress=show_progress)


def compare_decoders(
    decoders: Sequence[tuple[Decoder, TokenTree | None]],
    workload: Workload,
    *,
    references: ReferencePasses | None = None,
    clock: Clock | None = None,
    show_progress: bool = True,
) -> tuple[Measured, ...]:
    """Compare decoders, each with the tree that it changes to if any, with the first of them, which decodes plainly."""
    plain = decoders[0][0]
    target, prompts, clock = plain.target, workload.prompts, clock or clock_for(plain.target.device)
    for prompt in prompts:
        plain.check_request(prompt, workload.max_new_tokens)

    def configuration(decoder: Decoder, tree: TokenTree | None) -> Decode[Run]:
        def decode(prompt: Sequence[int], new_tokens: int, seed: int) -> Run:
            if tree is not None:
                decoder.change_tree(tree)
            return decode_run(decoder, prompt, new_tokens, seed, clock)

        return decode

    found = decode_workload(
        [configuration(*each) for each in decoders], workload, references=references, show_progress=show_progress
    )
    pace = references.pace if references else None
    return tuple(
        replace(compared, pace=pace)
        for place in range(1, len(decoders))
        for runs in [_pairs(found, place)]
        for compared in [
            compare_runs(
                list(runs.values()),
                _divergences(target, prompts, runs, workload.max_new_tokens) if plain.sampling.greedy else None,
            )
        ]
    )


def decode_workload(
    configurations: Sequence[Decode[R]],
    workload: Workload,
    *,
    references: ReferencePasses | None = None,
    show_progress: bool = True,
    name: str = "bench",
) -> list[Round[R]]:
    """Decode a workload with all configurations in interleaved runs; Ctrl-C ends it after the last whole round."""
    prompts = workload.prompts

    def numbered(decode: Decode[R]) -> Configuration[R]:
        return lambda prompt, repeat, new_tokens: decode(prompts[prompt], new_tokens, repeat * len(prompts) + prompt)

    rounds = interleave(
        [numbered(decode) for decode in configurations],
        workload.max_new_tokens,
        repeated(len(prompts), workload.repeats),
        between=references.time if references else lambda: None,
    )
    return whole_rounds(rounds, workload.rounds, show_progress=show_progress, name=name)


def _pairs(rounds: Sequence[Round[Run]], place: int) -> dict[int, list[tuple[Run, Run]]]:
    """Return by prompt the runs of the first configuration and of another, of every repeat."""
    by_prompt = groupby(sorted(rounds, key=lambda each: each.prompt), key=lambda each: each.prompt)
    return {prompt: [(each.runs[0], each.runs[place]) for each in repeats] for prompt, repeats in by_prompt}


def text_tokens(acceptance: MeasuredAcceptance) -> int:
    """Return how many tokens a prompt is continued by: as many as the profile measured, since later text is easier."""
    if acceptance.positions is None or acceptance.prompts is None:
        return DEFAULT_NEW_TOKENS
    return max(1, acceptance.positions // acceptance.prompts)


def workload_as_measured(
    prompts: Sequence[Sequence[int]],
    acceptance: MeasuredAcceptance,
    *,
    max_new_tokens: int | None = None,
    repeats: int = 3,
) -> Workload:
    """Return a workload of some prompts, each by default continued by `text_tokens` of the acceptance."""
    return Workload(prompts=prompts, max_new_tokens=max_new_tokens or text_tokens(acceptance), repeats=repeats)


def _divergences(
    target: LanguageModel,
    prompts: Sequence[Sequence[int]],
    runs: dict[int, list[tuple[Run, Run]]],
    most: int,
) -> tuple[Divergence, ...]:
    """Return of each prompt where the first repeat whose outputs differ does so."""
    found: list[Divergence] = []
    for number, repeats in runs.items():
        differing = (
            divergence(target, number, prompts[number], plain.tokens[:most], other.tokens[:most])
            for plain, other in repeats
        )
        found += [each for each in differing if each is not None][:1]
    return tuple(found)


def compare_runs(runs: Sequence[Sequence[tuple[Run, Run]]], divergences: tuple[Divergence, ...] | None) -> Measured:
    """Return the comparison of all runs, (plain, other) by prompt and repeat, with a bootstrap over prompts."""
    plain_s, plain_tokens, other_s, other_tokens, other_steps = np.array(
        [
            [
                _typical_s([plain for plain, _ in repeats]),
                np.mean([len(plain.tokens) for plain, _ in repeats]),
                _typical_s([other for _, other in repeats]),
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
    return Measured(
        speedup=Estimate(float(speedup(np.arange(len(runs)))), float(low), float(high)),
        tokens_per_step=float(other_tokens.sum() / other_steps.sum()),
        step_s=float(other_s.sum() / other_steps.sum()),
        plain_step_s=float(plain_s.sum() / plain_tokens.sum()),
        divergences=divergences,
        tokens=int(other_tokens.sum()),
        prompts=len(runs),
        rounds=sum(map(len, runs)),
    )


def _typical_s(repeats: Sequence[Run]) -> float:
    """Return the median of repeats with the same tokens, else the mean, which fits the mean of their tokens."""
    same = all(each.tokens == repeats[0].tokens for each in repeats)
    return float((np.median if same else np.mean)([each.seconds for each in repeats]))
