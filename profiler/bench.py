"""Tree decoding beside plain decoding, timed in turn on the same prompts."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from treeopt.errors import InvalidValueError
from treeopt.latency import Estimate
from treeopt.profiler.divergence import Divergence, divergence
from treeopt.runtime import Decoder, Transformer
from treeopt.sampling import Sampling
from treeopt.trees import TokenTree, chain

BOOTSTRAP_DRAWS = 2000
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What decoding with a tree really did, beside plain decoding by the same runtime."""

    speedup: Estimate
    """Tokens per second over those of plain decoding; the interval is a bootstrap over prompts."""
    tokens_per_step: float
    step_s: float
    plain_step_s: float
    """Seconds of a plain step, one token."""
    divergences: tuple[Divergence, ...] | None
    """Where texts differ from plain decoding's; None above temperature 0, where they differ by chance."""
    tokens: int
    """Tokens decoded with the tree in one pass over the prompts."""
    prompts: int
    """Prompts decoded; fewer than asked for after an interruption."""

    @property
    def identical(self) -> bool | None:
        """Whether every token equals plain decoding's; None above temperature 0."""
        return None if self.divergences is None else not self.divergences


@dataclass(frozen=True, slots=True)
class _Run:
    tokens: list[int]
    steps: int
    seconds: float


def bench(
    target: Transformer,
    draft: Transformer,
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
    """Decode every prompt with the tree and plainly, in turn, `repeats` times, and compare.

    Of the repeats of one prompt the median time counts.  Filling the cache with the prompt is not timed.
    Ctrl-C ends it early: the prompts begun so far are the result, unless there is none.
    Raises InvalidValueError without prompts, or where the decoder refuses a prompt.
    """
    if not prompts or max_new_tokens < 1 or repeats < 1:
        raise InvalidValueError(
            "prompts, max_new_tokens, repeats: expected at least one of each. "
            f"Got {len(prompts)}, {max_new_tokens}, {repeats}."
        )
    decoders = [
        Decoder(
            target,
            draft,
            shape,
            rule=rule,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            draft_sampling=draft_sampling,
            lossy=lossy,
        )
        for shape in (chain(0), tree)
    ]
    for decoder in decoders:  # the first calls of every size are slower
        _decode(decoder, prompts[0], min(32, max_new_tokens), now_s)
    runs: list[list[tuple[_Run, _Run]]] = []
    hidden = None if show_progress else True
    with tqdm(total=len(prompts) * repeats, desc="bench     ", unit="text", disable=hidden) as bar:
        try:
            for prompt in prompts:
                runs.append([])
                for _ in range(repeats):
                    plain, with_tree = (_decode(decoder, prompt, max_new_tokens, now_s) for decoder in decoders)
                    runs[-1].append((plain, with_tree))
                    bar.update()
        except KeyboardInterrupt:
            if not any(runs):
                raise
    runs = [row for row in runs if row]
    return _measured(runs, _divergences(target, prompts, runs) if temperature == 0 else None)


def _decode(decoder: Decoder, prompt: Sequence[int], max_new_tokens: int, now_s: Callable[[], float]) -> _Run:
    steps = decoder.steps(prompt, max_new_tokens)  # fills the caches
    tokens: list[int] = []
    count = 0
    if decoder.target.device.type == "cuda":
        torch.cuda.synchronize()
    start_s = now_s()
    for committed in steps:
        tokens.extend(committed)
        count += 1
    return _Run(tokens, count, now_s() - start_s)


def _divergences(
    target: Transformer, prompts: Sequence[Sequence[int]], runs: Sequence[Sequence[tuple[_Run, _Run]]]
) -> tuple[Divergence, ...]:
    """Return, prompt by prompt, where the first repeat whose texts differ does so."""
    found: list[Divergence] = []
    for number, (prompt, row) in enumerate(zip(prompts, runs, strict=False)):
        differing = (divergence(target, number, prompt, plain.tokens, tree.tokens) for plain, tree in row)
        found += [each for each in differing if each is not None][:1]
    return tuple(found)


def _measured(runs: Sequence[Sequence[tuple[_Run, _Run]]], divergences: tuple[Divergence, ...] | None) -> Measured:
    """Return the comparison of all runs, one row per prompt."""
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
