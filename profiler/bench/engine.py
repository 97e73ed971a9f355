"""An engine with several draft lengths in interleaved runs, on prompts that no profile has seen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import NamedTuple

import numpy as np

from treeopt.engines.clients.client import EngineClient, EngineConfig
from treeopt.errors import EngineError, InfeasibleError
from treeopt.planner import StepModel
from treeopt.planner.benchmarks import tree_prediction
from treeopt.profiler.bench.output_divergence import (
    NextLogprobs,
    Output,
    common_length,
    near_tie_nats,
    output_divergence,
)
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.engine import EngineSample, Probe, ProbeSettings
from treeopt.records.results import (
    NO_PREDICTION,
    EngineBench,
    EngineRow,
    Losslessness,
    OutputDivergence,
    TreePrediction,
)
from treeopt.trees import chain


def bench_engine(
    client: EngineClient,
    config: EngineConfig,
    settings: ProbeSettings,
    model: StepModel,
    chosen: int,
    tick: Callable[[], object] = lambda: None,
    *,
    tolerance_nats: float | None = None,
) -> EngineBench:
    """Return the measured speed of every draft length, in interleaved runs, next to its prediction.

    Args:
        client: the engine.
        config: how it is started, whatever the length.
        settings: lengths, 0 among them, and held-out prompts; batch size 1.
        model: predicts.
        chosen: the plan's length, one of the settings'.
        tick: called after every completion.
        tolerance_nats: largest gap of a near-tie; None follows from the config's dtype.

    Raises EngineError if the engine fails.
    """
    probe = Probe(client, config, settings, Checkpoint(None, ""))
    probe.measure(tick)
    samples_by_length = {length: probe.samples(length, settings.batch_sizes[0]) for length in settings.lengths}
    rates = {length: _tokens_per_s(samples) for length, samples in samples_by_length.items()}
    greedy = settings.temperature == 0
    tolerance = near_tie_nats(config.dtype) if tolerance_nats is None else tolerance_nats
    divergences, unchecked = _compare_outputs(probe, client, settings, tolerance) if greedy else ({}, None)
    rows = tuple(
        EngineRow(
            length=length,
            chosen=length == chosen,
            predicted=_predict(model, length),
            tokens_per_step=sum(sample.tokens for sample in samples) / sum(sample.steps for sample in samples),
            tokens_per_s=rates[length],
            speedup=rates[length] / rates[0],
            spread=_spread(samples, len(settings.prompts)),
            identical=not divergences[length] if greedy else None,
            divergences=divergences.get(length, ()),
        )
        for length, samples in samples_by_length.items()
    )
    return EngineBench(
        engine=client.name,
        version=client.version,
        rows=rows,
        losslessness=Losslessness(prompts=len(settings.prompts), near_tie_nats=tolerance, unchecked=unchecked)
        if greedy
        else None,
    )


def _tokens_per_s(samples: Sequence[EngineSample]) -> float:
    """Return tokens per second over all prompts, with the median seconds of the repeats of each."""
    by_prompt: dict[int, list[EngineSample]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt, []).append(sample)
    seconds = sum(float(np.median([sample.decode_s for sample in repeats])) for repeats in by_prompt.values())
    tokens = sum(float(np.mean([sample.tokens for sample in repeats])) for repeats in by_prompt.values())
    return tokens / seconds


def _spread(samples: Sequence[EngineSample], prompts: int) -> float:
    """Return how far the slowest round's rate is below the fastest one's, relative."""
    rounds = [samples[first : first + prompts] for first in range(0, len(samples), prompts)]
    rates = [
        sum(sample.tokens for sample in round_samples) / sum(sample.decode_s for sample in round_samples)
        for round_samples in rounds
    ]
    return 1 - min(rates) / max(rates)


def _predict(model: StepModel, length: int) -> TreePrediction:
    try:
        return tree_prediction(model.predict(chain(length)))
    except InfeasibleError:
        return NO_PREDICTION


class _Pair(NamedTuple):
    """An output that differs from plain decoding, and the most similar output of plain decoding."""

    prompt: int
    plain: Output
    other: Output


def _compare_outputs(
    probe: Probe, client: EngineClient, settings: ProbeSettings, tolerance_nats: float
) -> tuple[dict[int, tuple[OutputDivergence, ...]], str | None]:
    """Return where outputs diverge from plain decoding, by draft length, and the reason if that could not be checked.

    If outputs differ, the engine is started again with plain decoding, for its log-probabilities.

    Args:
        probe: has decoded all prompts with all lengths, greedily.
        client: the engine.
        settings: lengths and prompts.
        tolerance_nats: largest gap of a near-tie.
    """
    pairs = {length: list(_different_outputs(probe, length, len(settings.prompts))) for length in settings.lengths}
    if not any(pairs.values()):
        return dict.fromkeys(pairs, ()), None
    try:
        with closing(client.start(probe.config(0))) as engine:
            return _divergences(pairs, settings, cache(engine.next_logprobs), tolerance_nats), None
    except EngineError as error:
        return _divergences(pairs, settings, None, tolerance_nats), str(error)


def _divergences(
    pairs: Mapping[int, list[_Pair]],
    settings: ProbeSettings,
    next_logprobs: NextLogprobs | None,
    tolerance_nats: float,
) -> dict[int, tuple[OutputDivergence, ...]]:
    return {
        length: tuple(
            output_divergence(
                pair.prompt, settings.prompts[pair.prompt], pair.plain, pair.other, next_logprobs, tolerance_nats
            )
            for pair in length_pairs
        )
        for length, length_pairs in pairs.items()
    }


def _different_outputs(probe: Probe, length: int, prompts: int) -> Iterator[_Pair]:
    """Yield the outputs of a length that plain decoding lacks; for length 0, those that repeats change."""
    for prompt in range(prompts):
        plain = [Output(*item) for item in probe.outputs(0, prompt).items()]
        expected = plain if length else plain[:1]
        for text, tokens in probe.outputs(length, prompt).items():
            if all(text != output.text for output in expected):
                nearest = max(expected, key=lambda output: common_length(output.text, text))
                yield _Pair(prompt, nearest, Output(text, tokens))
