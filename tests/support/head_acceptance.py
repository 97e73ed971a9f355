"""Acceptance of heads over prompts, counted as `treeopt profile --drafter` counts it."""

import numpy as np

from treeopt.profiler.acceptance.contexts import PromptSet
from treeopt.profiler.acceptance.heads import LAST, build_head_sequence, count_children, eagle_children, medusa_children
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.drafters.acceptance import measure_head_acceptance, root_counter
from treeopt.profiler.drafters.plain_sequences import generate_sequences
from treeopt.records.sampling import GREEDY
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.dflash import DFlashHead
from treeopt.runtime.drafters.eagle import EagleHead, PEagleHead
from treeopt.runtime.drafters.registry import LoadedDrafter


def loaded(target, heads, name=None):
    kinds = {EagleHead: "eagle", PEagleHead: "p-eagle", DFlashHead: "dflash"}
    name = name or kinds.get(type(heads), "medusa")
    return LoadedDrafter(
        name=name,
        source=None,
        digest=None,
        target=target,
        draft=target,
        heads=heads,
        capacity=target.config.max_positions,
    )


def plain_texts(target, prompt_set, sampling=GREEDY):
    """Return what the target generates in a prompt_set, by prompt."""
    texts = generate_sequences(target, prompt_set, sampling, "", Checkpoint(None, ""))
    return {number: tokens[: prompt_set.positions] for number, tokens in texts.items()}


def head_acceptance(target, heads, prompts, *, sampling, positions, branching=16, depth=8):
    """Return the `MeasuredAcceptance` over `positions` generated tokens, shared out among the prompts."""
    each = -(-positions // len(prompts))
    prompt_set = PromptSet(dict(enumerate(prompts)), each)
    count = root_counter(
        loaded(target, heads),
        prompt_set.prompts,
        plain_texts(target, prompt_set, sampling),
        sampling=sampling,
        branching=branching,
        depth=depth,
    )
    return measure_head_acceptance(
        count, range(len(prompts)), sampling, 0, "kind", Checkpoint(None, ""), lambda: None
    ).acceptance


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
    """Generate so many tokens after a prompt, fewer where the text ends, and return the text of it."""
    decoder = Decoder(target, None, sampling=sampling, max_sequence_tokens=len(prompt) + positions)
    return build_head_sequence(
        target, prompt, list(decoder.generate(prompt, positions, seed=seed)), sampling, requested_states
    )
