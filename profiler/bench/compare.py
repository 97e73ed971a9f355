"""Tree decoding beside plain decoding, timed in turn on the same prompts."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from tqdm import tqdm

from treeopt.errors import InvalidValueError
from treeopt.profiler.bench.divergence import divergence
from treeopt.profiler.decoding import Decoding
from treeopt.records.latency import Estimate
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.results import Divergence, Measured
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.pair import ModelPair
from treeopt.trees import TokenTree, chain

BOOTSTRAP_DRAWS = 2000
SEED = 0
DEFAULT_NEW_TOKENS = 256
"""Where a profile does not say how long its texts were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is decoded, alike by all that are compared."""

    prompts: Sequence[Sequence[int]]
    """Token ids."""
    max_new_tokens: int
    """Of each prompt."""
    repeats: int = 3
    """Times each prompt is decoded."""


@dataclass(frozen=True, slots=True)
class Run:
    """One text decoded."""

    tokens: list[int]
    steps: int
    seconds: float


def bench(
    target: LanguageModel,
    draft: LanguageModel,
    tree: TokenTree,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    repeats: int = 3,
    rule: str = "sequoia",
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    draft_sampling: Sampling | None = None,
    lossy: bool = False,
    now_s: Callable[[], float] = time.perf_counter,
    show_progress: bool = True,
) -> Measured:
    """Decode every prompt with the tree and plainly, in turn, `repeats` times, and compare; see `bench_trees`."""
    (measured,) = bench_trees(
        target,
        draft,
        [tree],
        Workload(prompts=prompts, max_new_tokens=max_new_tokens, repeats=repeats),
        Decoding(rule=rule, sampling=Sampling(temperature, top_p, top_k), draft_sampling=draft_sampling, lossy=lossy),
        now_s=now_s,
        show_progress=show_progress,
    )
    return measured


def bench_trees(
    target: LanguageModel,
    draft: LanguageModel,
    trees: Sequence[TokenTree],
    workload: Workload,
    decoding: Decoding,
    *,
    now_s: Callable[[], float] = time.perf_counter,
    show_progress: bool = True,
) -> tuple[Measured, ...]:
    """Decode every prompt of the workload plainly and with each of some trees, in turn, and compare.

    A text ends with the step that brings its `max_new_tokens`-th token, and all of that step counts.  Of the repeats of
    one prompt the median time counts.  Filling the cache with the prompt is not timed.
    Ctrl-C ends it early: the prompts begun so far are the result, unless there is none.

    Raises InvalidValueError without trees or prompts, or where the decoder refuses a prompt.
    """
    if not trees:
        raise InvalidValueError("trees: expected at least one. Got none: name one.")
    _check(workload)
    prompts, most = workload.prompts, target.config.max_positions
    max_depth = max(tree.max_depth for tree in trees)
    longest = min(most, max(map(len, prompts)) + workload.max_new_tokens + max_depth)
    plain, drafting = (
        decoding.decoder(target, draft, max(shapes, key=lambda tree: tree.nodes), longest)
        for shapes in ([chain(0)], trees)
    )

    def with_tree(tree: TokenTree, prompt: Sequence[int], tokens: int) -> Run:
        drafting.change_tree(tree)
        return decode_whole_steps(drafting, prompt, tokens, tree.max_depth, now_s)

    ways = [partial(decode_whole_steps, plain, deepest=0, now_s=now_s), *(partial(with_tree, tree) for tree in trees)]
    return _in_turn(target, ways, workload, greedy=decoding.sampling.greedy, show_progress=show_progress)


def bench_decoder(
    plain: Decoder,
    drafting: Decoder,
    workload: Workload,
    *,
    greedy: bool,
    now_s: Callable[[], float] = time.perf_counter,
    show_progress: bool = True,
) -> Measured:
    """Decode every prompt of the workload plainly and with any decoder, in turn, and compare; see `bench_trees`.

    Args:
        plain: plain decoding.
        drafting: of the same target, with a drafter of any kind.
        workload: prompts, how far each is continued, and how often.
        greedy: whether both decode at temperature 0, so that their texts have to be the same.
        now_s: the clock.
        show_progress: whether a bar goes to standard error.
    """
    _check(workload)
    deepest = drafting.max_nodes - 1
    ways = [
        partial(decode_whole_steps, plain, deepest=0, now_s=now_s),
        partial(decode_whole_steps, drafting, deepest=deepest, now_s=now_s),
    ]
    (measured,) = _in_turn(plain.target, ways, workload, greedy=greedy, show_progress=show_progress)
    return measured


def _check(workload: Workload) -> None:
    prompts, max_new_tokens, repeats = workload.prompts, workload.max_new_tokens, workload.repeats
    if not prompts or max_new_tokens < 1 or repeats < 1:
        raise InvalidValueError(
            "prompts, max_new_tokens, repeats: expected at least one of each. "
            f"Got {len(prompts)}, {max_new_tokens}, {repeats}.",
            field="prompts, max_new_tokens, repeats",
        )


def _in_turn(
    target: LanguageModel,
    ways: Sequence[Callable[[Sequence[int], int], Run]],
    workload: Workload,
    *,
    greedy: bool,
    show_progress: bool,
) -> tuple[Measured, ...]:
    """Decode every prompt in each of some ways in turn, the first of them plainly, and compare the others with it."""
    prompts, max_new_tokens, repeats = workload.prompts, workload.max_new_tokens, workload.repeats
    for way in ways:  # the first calls of every size are slower
        way(prompts[0], min(32, max_new_tokens))
    rows: list[list[list[Run]]] = []
    hidden = None if show_progress else True
    with tqdm(total=len(prompts) * repeats, desc="bench     ", unit="text", disable=hidden) as bar:
        try:
            for prompt in prompts:
                rows.append([])
                for _ in range(repeats):
                    rows[-1].append([way(prompt, max_new_tokens) for way in ways])
                    bar.update()
        except KeyboardInterrupt:
            if not any(rows):
                raise
    rows = [row for row in rows if row]
    compared = [[[(each[0], each[place]) for each in row] for row in rows] for place in range(1, len(ways))]
    return tuple(
        compare_runs(runs, _divergences(target, prompts, runs, max_new_tokens) if greedy else None) for runs in compared
    )


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


def bench_as_measured(
    pair: ModelPair,
    trees: Sequence[TokenTree],
    workload: Workload,
    acceptance: MeasuredAcceptance,
    *,
    lossy: bool = False,
    show_progress: bool = True,
) -> tuple[Measured, ...]:
    """Decode with trees as an acceptance was measured, so that what it promises can be put beside it; see `bench_trees`.

    Args:
        pair: the models.
        trees: each decoded with, in turn.
        workload: prompts, how far each is continued, and how often.
        acceptance: its rule and its sampling are decoded by.
        lossy: allow rules that change the text's distribution.
        show_progress: whether a bar goes to standard error.
    """
    decoding = Decoding(
        rule=acceptance.rule,
        sampling=acceptance.sampling,
        draft_sampling=acceptance.draft_sampling,
        lossy=lossy,
    )
    return bench_trees(pair.target, pair.draft_model, trees, workload, decoding, show_progress=show_progress)


def decode_whole_steps(
    decoder: Decoder, prompt: Sequence[int], max_new_tokens: int, deepest: int, now_s: Callable[[], float]
) -> Run:
    """Decode whole steps, of at most `deepest` draft tokens, until there are so many tokens.

    A step cut short would count as one of few.
    """
    room = decoder.max_text_tokens - len(prompt)
    most = max(max_new_tokens, min(max_new_tokens + deepest, room))
    steps = decoder.steps(prompt, most)  # fills the caches
    tokens: list[int] = []
    count = 0
    if decoder.target.device.type == "cuda":
        torch.cuda.synchronize(decoder.target.device)
    start_s = now_s()
    for committed in steps:
        tokens.extend(committed)
        count += 1
        if len(tokens) >= max_new_tokens:
            break
    return Run(tokens, count, now_s() - start_s)


def _divergences(
    target: LanguageModel,
    prompts: Sequence[Sequence[int]],
    runs: Sequence[Sequence[tuple[Run, Run]]],
    max_new_tokens: int,
) -> tuple[Divergence, ...]:
    """Return, prompt by prompt, where the first repeat whose texts differ does so."""
    found: list[Divergence] = []
    for number, (prompt, row) in enumerate(zip(prompts, runs, strict=False)):
        differing = (
            divergence(target, number, prompt, plain.tokens[:max_new_tokens], tree.tokens[:max_new_tokens])
            for plain, tree in row
        )
        found += [each for each in differing if each is not None][:1]
    return tuple(found)


def compare_runs(runs: Sequence[Sequence[tuple[Run, Run]]], divergences: tuple[Divergence, ...] | None) -> Measured:
    """Return the comparison of all runs, (plain, other) by prompt and repeat, with a bootstrap over prompts."""
    plain_s, plain_tokens, tree_s, tree_tokens, tree_steps = np.array(
        [
            [
                np.median([plain.seconds for plain, _ in row]),
                np.mean([len(plain.tokens) for plain, _ in row]),
                np.median([tree.seconds for _, tree in row]),
                np.mean([len(tree.tokens) for _, tree in row]),
                np.mean([tree.steps for _, tree in row]),
            ]
            for row in runs
        ]
    ).T
    picks = np.random.default_rng(SEED).integers(len(runs), size=(BOOTSTRAP_DRAWS, len(runs)))

    def speedup(
        rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        plain_rate = plain_tokens[rows].sum(-1) / plain_s[rows].sum(-1)
        return np.asarray(tree_tokens[rows].sum(-1) / tree_s[rows].sum(-1) / plain_rate)

    low, high = np.quantile(speedup(picks), [0.025, 0.975])
    return Measured(
        speedup=Estimate(float(speedup(np.arange(len(runs)))), float(low), float(high)),
        tokens_per_step=float(tree_tokens.sum() / tree_steps.sum()),
        step_s=float(tree_s.sum() / tree_steps.sum()),
        plain_step_s=float(plain_s.sum() / plain_tokens.sum()),
        divergences=divergences,
        tokens=int(tree_tokens.sum()),
        prompts=len(runs),
    )
