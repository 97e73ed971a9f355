"""Timing prefill: a whole prompt in one pass of each model, after decoding steps of another sequence.

A server prefills between decoding steps, which determine the contents of the processor's caches.  Timing the same prompt
repeatedly took up to 7 % less.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.clock import Work
from treeopt.profiler.latency.memory import release_memory
from treeopt.profiler.latency.rounds import Recorder, time_rounds
from treeopt.records.latency import LatencyTable, PrefillLatency, Timing
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel, max_sequence_tokens

SHORTEST_TOKENS = 16
MAX_ROUNDS = 5


def prompt_lengths(longest: int) -> list[int]:
    """Return the timed prompt lengths: powers of two, and the longest.

    >>> prompt_lengths(100), prompt_lengths(9)
    ([16, 32, 64, 100], [9])
    """
    doubled = [SHORTEST_TOKENS << exponent for exponent in range(longest.bit_length())]
    return [length for length in doubled if length < longest] + [longest]


def measure_prefill(
    target: LanguageModel,
    draft: LanguageModel | None,
    tokens: Sequence[int],
    longest: int,
    recorder: Recorder,
    deadline: Deadline = NO_DEADLINE,
) -> PrefillLatency:
    """Time the prefill of prompts of several lengths up to `MAX_ROUNDS` times, those in the checkpoint included.

    Args:
        target: the model that verifies.
        draft: the draft model; None for a target alone.
        tokens: token ids that prompts are made of.
        longest: tokens of the longest prompt, at most what the models support.
        recorder: times the calls.
        deadline: after which no longer prompt and no further round is started.
    """
    models: dict[str, LanguageModel] = {"target": target} | ({} if draft is None else {"draft": draft})
    prompt = np.resize(np.asarray(tokens), min(longest, max_sequence_tokens(target, draft))).tolist()
    for rounds in range(1, min(recorder.most_samples, MAX_ROUNDS) + 1):
        for name, model in models.items():
            _time_model(name, model, target, prompt, rounds, recorder, deadline)
        if deadline.over():
            break
    samples = {name: recorder.checkpoint.samples(_kind(name)) for name in models}
    return PrefillLatency(
        **{name: LatencyTable(list(times), list(map(Timing, times.values()))) for name, times in samples.items()}
    )


def _time_model(
    name: str,
    model: LanguageModel,
    target: LanguageModel,
    prompt: Sequence[int],
    rounds: int,
    recorder: Recorder,
    deadline: Deadline,
) -> None:
    """Time beginnings of a prompt; the target's own prompts share a cache with the steps before them."""
    release_memory()
    room = max(2, len(prompt))  # for a step
    other = Decoder(target, None, max_sequence_tokens=room)
    decoder = other if name == "target" else Decoder(model, None, max_sequence_tokens=room)

    def decode_other_sequence(_: int) -> None:
        other.start(prompt[:1])
        other.step()

    works: dict[int, Work] = {}
    for length in prompt_lengths(len(prompt)):
        if works and deadline.over():
            break
        works[length] = partial(decoder.start, prompt[:length])
        time_rounds(_kind(name), works, 1, recorder, lead=decode_other_sequence)
    time_rounds(_kind(name), works, rounds, recorder, lead=decode_other_sequence)


def _kind(name: str) -> str:
    return f"prefill {name}"
