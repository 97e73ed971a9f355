"""Draft lengths of an engine beside one another, in that engine, on prompts that no profile has seen."""

from collections.abc import Callable, Sequence

import numpy as np

from treeopt.engines.probes.client import EngineClient, Launch
from treeopt.errors import InfeasibleError
from treeopt.planner import StepModel
from treeopt.profiler.bench.compared_texts import compare_texts
from treeopt.profiler.bench.text_divergence import near_tie_nats
from treeopt.profiler.engine import Probe, ProbeSettings, Sample
from treeopt.profiler.journal import Journal
from treeopt.records.results import EngineBench, EngineRow, Losslessness
from treeopt.trees import chain


def race(
    client: EngineClient,
    launch: Launch,
    settings: ProbeSettings,
    model: StepModel,
    chosen: int,
    tick: Callable[[], object] = lambda: None,
    *,
    tolerance_nats: float | None = None,
) -> EngineBench:
    """Decode the prompts with every length in turn, and return a row for each beside its prediction.

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
    parted, unchecked = compare_texts(probe, client, settings, tolerance) if greedy else ({}, None)
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
