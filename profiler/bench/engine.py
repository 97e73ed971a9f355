"""An engine with several draft lengths in interleaved runs, on prompts that no profile has seen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np

from treeopt.engines.probes.client import EngineClient, Launch, TellsLogprobs
from treeopt.errors import EngineError, InfeasibleError
from treeopt.planner import StepModel
from treeopt.profiler.bench.text_divergence import Ask, Decoded, common_length, near_tie_nats, text_divergence
from treeopt.profiler.engine import Probe, ProbeSettings, Sample
from treeopt.profiler.journal import Journal
from treeopt.records.results import EngineBench, EngineRow, Losslessness, TextDivergence
from treeopt.trees import chain


def bench_engine(
    client: EngineClient,
    launch: Launch,
    settings: ProbeSettings,
    model: StepModel,
    chosen: int,
    tick: Callable[[], object] = lambda: None,
    *,
    tolerance_nats: float | None = None,
) -> EngineBench:
    """Decode the prompts with every length, in interleaved runs, and return a row for each next to its prediction.

    Args:
        client: the engine.
        launch: how it is started, whatever the length.
        settings: lengths, plain decoding among them, and held-out prompts; one text at a time.
        model: what is predicted.
        chosen: the plan's length, one of the settings'.
        tick: called after every answer.
        tolerance_nats: largest gap of a near-tie; None follows from the launch's dtype.

    Raises EngineError where the engine fails.
    """
    probe = Probe(client, launch, settings, Journal(None, ""))
    probe.measure(tick)
    found = {length: probe.samples(length, settings.batch_sizes[0]) for length in settings.lengths}
    rates = {length: _rate(samples) for length, samples in found.items()}
    greedy = settings.temperature == 0
    tolerance = near_tie_nats(launch.dtype) if tolerance_nats is None else tolerance_nats
    parted, unchecked = _compare_texts(probe, client, settings, tolerance) if greedy else ({}, None)
    rows = tuple(
        EngineRow(
            length=length,
            chosen=length == chosen,
            tokens_per_step=sum(each.tokens for each in samples) / sum(each.steps for each in samples),
            predicted_tokens_per_step=_predicted(model, length, model.tokens_per_step),
            tokens_per_s=rates[length],
            predicted_tokens_per_s=_predicted(
                model, length, lambda tree: model.tokens_per_step(tree) / model.step_s(tree)
            ),
            speedup=rates[length] / rates[0],
            predicted_speedup=_predicted(model, length, model.speedup),
            spread=_spread(samples, len(settings.prompts)),
            identical=not parted[length] if greedy else None,
            divergences=parted.get(length, ()),
        )
        for length, samples in found.items()
    )
    return EngineBench(
        engine=client.name,
        version=client.version,
        rows=rows,
        regret=max(rates.values()) / rates[chosen] - 1,
        losslessness=Losslessness(prompts=len(settings.prompts), near_tie_nats=tolerance, unchecked=unchecked)
        if greedy
        else None,
    )


def _rate(samples: Sequence[Sample]) -> float:
    """Return tokens per second over all prompts, of each the median of its repeats."""
    by_prompt: dict[int, list[Sample]] = {}
    for each in samples:
        by_prompt.setdefault(each.prompt, []).append(each)
    seconds = sum(float(np.median([each.decode_s for each in texts])) for texts in by_prompt.values())
    tokens = sum(float(np.mean([each.tokens for each in texts])) for texts in by_prompt.values())
    return tokens / seconds


def _spread(samples: Sequence[Sample], prompts: int) -> float:
    """Return how far repeats of all prompts lie apart: the slowest round's rate below the fastest's, relative."""
    rounds = [samples[first : first + prompts] for first in range(0, len(samples), prompts)]
    rates = [sum(each.tokens for each in texts) / sum(each.decode_s for each in texts) for texts in rounds]
    return 1 - min(rates) / max(rates)


def _predicted(model: StepModel, length: int, ask: "Callable[..., float]") -> float | None:
    try:
        model.step_s(chain(length))
        return ask(chain(length))
    except InfeasibleError:
        return None


class _Pair(NamedTuple):
    """A text that is not plain decoding's, and that of plain decoding which is most like it."""

    prompt: int
    plain: Decoded
    other: Decoded


def _compare_texts(
    probe: Probe, client: EngineClient, settings: ProbeSettings, tolerance_nats: float
) -> tuple[dict[int, tuple[TextDivergence, ...]], str | None]:
    """Return where texts part from plain decoding's, by draft length, and why that could not be checked, if so.

    The engine is started again as plain decoding where texts differ, and asked for log-probabilities.

    Args:
        probe: what has decoded all prompts with all lengths, greedily.
        client: the engine.
        settings: lengths and prompts.
        tolerance_nats: largest gap of a near-tie.
    """
    pairs = {length: list(_different(probe, length, len(settings.prompts))) for length in settings.lengths}
    if not any(pairs.values()):
        return dict.fromkeys(pairs, ()), None
    try:
        with _asked(probe, client) as ask:
            return _found(pairs, settings, ask, tolerance_nats), None
    except EngineError as error:
        return _found(pairs, settings, None, tolerance_nats), str(error)


def _found(
    pairs: Mapping[int, list[_Pair]], settings: ProbeSettings, ask: Ask | None, tolerance_nats: float
) -> dict[int, tuple[TextDivergence, ...]]:
    return {
        length: tuple(
            text_divergence(each.prompt, settings.prompts[each.prompt], each.plain, each.other, ask, tolerance_nats)
            for each in found
        )
        for length, found in pairs.items()
    }


def _different(probe: Probe, length: int, prompts: int) -> Iterator[_Pair]:
    """Yield the texts of a length that plain decoding has not written, and those of its own that repeats change."""
    for prompt in range(prompts):
        plain = [Decoded(*each) for each in probe.texts(0, prompt).items()]
        known = plain if length else plain[:1]
        for text, tokens in probe.texts(length, prompt).items():
            if all(text != each.text for each in known):
                nearest = max(known, key=lambda each: common_length(each.text, text))
                yield _Pair(prompt, nearest, Decoded(text, tokens))


@contextmanager
def _asked(probe: Probe, client: EngineClient) -> Iterator[Ask]:
    """Start plain decoding, and offer its log-probabilities; raises EngineError where it tells none."""
    running = client.start(probe.launch(0))
    try:
        if not isinstance(running, TellsLogprobs):
            raise EngineError(
                f"{client.name}: expected log-probabilities. It does not tell them here: check the texts by hand."
            )
        yield cache(running.next_logprobs)
    finally:
        running.close()
