"""Acceptance of heads over prompts, counted as `treeopt profile --drafter` counts it."""

import numpy as np

from treeopt.profiler import MonotonicClock, Settings
from treeopt.profiler.acceptance.contexts import DecodingPoint, WholePrompts
from treeopt.profiler.acceptance.heads import LAST, build_head_sequence, count_children, eagle_children, medusa_children
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.drafters.acceptance import measure_trees
from treeopt.profiler.drafters.plain_sequences import generate_sequences
from treeopt.profiler.latency.rounds import Recorder
from treeopt.records.sampling import GREEDY
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.dflash import DFlashHead
from treeopt.runtime.drafters.eagle import EagleHead, PEagleHead
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.trees.drafter_setting import BLOCK_DRAFTERS, DrafterSetting


def loaded(target, heads, name=None):
    kinds = {EagleHead: "eagle", PEagleHead: "p-eagle", DFlashHead: "dflash"}
    name = name or kinds.get(type(heads), "medusa")
    block = heads.levels if name in BLOCK_DRAFTERS else None
    return LoadedDrafter(
        setting=DrafterSetting(name=name, block_draft_tokens=block),
        target=target,
        draft=target,
        heads=heads,
        capacity=target.config.max_positions,
    )


def plain_sequences(target, prompts, positions, sampling=GREEDY):
    """Return what the target generates after each prompt."""
    point = DecodingPoint(sampling, WholePrompts(prompts))
    prompt_set = point.prompt_set(positions)
    return generate_sequences(target, point, prompt_set, Checkpoint(None, ""))


def head_acceptance(target, heads, prompts, *, sampling, positions, branching=16, depth=8):
    """Return the `MeasuredAcceptance` over `positions` generated tokens, shared out among the prompts."""
    sequences = plain_sequences(target, prompts, -(-positions // len(prompts)), sampling)
    settings = Settings(branching=branching, depth=depth)
    recorder = Recorder(MonotonicClock(), Checkpoint(None, ""))
    return measure_trees(loaded(target, heads), sequences, settings, recorder).acceptance


def decoded_rate(target, drafter, prompts, positions):
    """Return greedy tokens per step over `positions` tokens after each prompt, and the standard error."""
    decoder = Decoder(target, drafter, temperature=0.0)
    steps = [list(decoder.stream(prompt, positions)) for prompt in prompts]
    tokens = np.array([sum(map(len, text)) for text in steps])
    counts = np.array([len(text) for text in steps])
    rate = tokens.sum() / counts.sum()
    return rate, np.sqrt(((tokens - rate * counts) ** 2).sum()) / counts.sum()


def head_counts(heads, text, branching):
    return count_children(medusa_children(heads, text, branching), text)


def eagle_counts(head, text, branching, depths):
    return count_children(eagle_children(head, text, branching, depths), text)


def generated(target, prompt, positions, sampling, seed=0, requested_states=LAST):
    """Return the head's sequence for a prompt and up to `positions` generated tokens."""
    decoder = Decoder(target, None, sampling=sampling, max_sequence_tokens=len(prompt) + positions)
    return build_head_sequence(
        target, prompt, list(decoder.generate(prompt, positions, seed=seed)), sampling, requested_states
    )
