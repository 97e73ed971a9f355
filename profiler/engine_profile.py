"""The profile of an engine, made of what it was measured to do."""

import platform
from collections.abc import Mapping, Sequence

import numpy as np

from treeopt.engines.probes.client import EngineClient, Launch
from treeopt.errors import InfeasibleError
from treeopt.profiler.engine import Probe, ProbeSettings, Sample
from treeopt.profiler.machine import now, processor
from treeopt.records.acceptance import TextSums
from treeopt.records.bench_heading import BenchHeading
from treeopt.records.categories import text_categories
from treeopt.records.engine import ChainCounts, ChainLatency, EngineRun, EngineSetting, TimedChain
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.machine import Machine, Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import UNKNOWN, Profile
from treeopt.records.rules import GIVEN_TOKENS
from treeopt.runtime.models.digest import path_digest
from treeopt.version import TOOL

SERVED = "served"
"""Stands for a model of an engine that runs already, which does not say where it has it from."""
METHOD = "method"
NGRAM_TOKENS = "ngram-tokens"
"""Of an engine's settings, how it drafts otherwise than with a draft model, and how many tokens have to match there."""
CHAT_TEMPLATE = "chat-template"
"""The model folder whose chat template the prompts are in, among the engine's settings too."""


def engine_profile(client: EngineClient, launch: Launch, settings: ProbeSettings, probe: Probe) -> Profile:
    """Return the profile of what a probe has measured; raises InfeasibleError where acceptance was not told."""
    return Profile(
        created=now(),
        tool=TOOL,
        machine=machine_of(client, launch),
        pair=pair_of(launch),
        engine=EngineRun(name=client.name, version=client.version, settings=settings_of(client, launch, settings)),
        chain_latencies=tuple(_latency(settings, probe, batch) for batch in settings.batch_sizes),
        acceptances=(_acceptance(settings, probe),),
    )


def settings_of(client: EngineClient, launch: Launch, settings: ProbeSettings) -> tuple[EngineSetting, ...]:
    """Return what an engine runs under, and what it was asked: prompts of another kind are accepted otherwise."""
    told = ((METHOD, launch.method), (NGRAM_TOKENS, launch.ngram_tokens), (CHAT_TEMPLATE, settings.chat_template))
    drafting = (EngineSetting(name=name, value=str(value)) for name, value in told if value is not None)
    return (*client.settings, *drafting, EngineSetting(name="prompts", value=settings.prompts_from))


def machine_of(client: EngineClient, launch: Launch) -> Machine:
    """Return what an engine runs on, unknown unless it is this machine, with the threads that it was given."""
    device = launch.device or client.device
    unknown = device == UNKNOWN
    return Machine(
        device=device,
        processor=UNKNOWN if unknown else _processor(device),
        threads=launch.threads,
        system=UNKNOWN if unknown else f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=UNKNOWN,
    )


def pair_of(launch: Launch) -> Pair:
    """Return the models that an engine was given, by the names that it was given."""
    target, draft = launch.target, launch.draft
    return Pair(
        target=SERVED if target is None else _name(target),
        draft=(launch.method or SERVED) if draft is None else _name(draft),
        dtype=launch.dtype or UNKNOWN,
        target_source=target,
        draft_source=draft,
        target_digest=path_digest(target),
        draft_digest=path_digest(draft),
    )


def heading_of(client: EngineClient, launch: Launch) -> BenchHeading:
    """Return what a race in an engine that has just ended is of."""
    return BenchHeading(created=now(), machine=machine_of(client, launch), pair=pair_of(launch))


def _processor(device: str) -> str:
    """Return the model name of a processor or an accelerator."""
    if not device.startswith("cuda"):
        return processor()
    import torch

    return torch.cuda.get_device_name(device)


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path


def _latency(settings: ProbeSettings, probe: Probe, batch: int) -> ChainLatency:
    chains = tuple(_timed(probe, length, batch) for length in settings.lengths)
    plain = probe.samples(0, settings.batch_sizes[0])  # the same texts at every batch size
    context = round(sum(each.prompt_tokens + each.tokens / 2 for each in plain) / len(plain))
    return ChainLatency(context_tokens=context, batch_size=batch, chains=chains)


def _timed(probe: Probe, length: int, batch: int) -> TimedChain:
    told, prefill = probe.passes(length, batch), probe.prefill(length) if batch == 1 else {}
    timed = _first_to_end(probe.samples(length, batch), batch)
    if not timed:
        raise InfeasibleError(
            f"prompts: expected {batch} texts at a time that all have several tokens. In each batch with {length} draft tokens "
            "one ended at once: give other prompts.",
            field="prompts",
        )
    return TimedChain(
        length=length,
        steps=Timing([each.decode_s / each.steps for each in timed]),
        verify=Timing([each.verify_s for each in told]) if told else None,
        draft=Timing([each.draft_s for each in told]) if told and length else None,
        prefill=LatencyTable(list(prefill), [Timing(each) for each in prefill.values()]) if prefill else None,
    )


def _first_to_end(samples: Sequence[Sample], batch: int) -> list[Sample]:
    """Return the sequence of each batch that ended first: only its steps all had the full batch.

    Batches in which a sequence ended at once are left out.
    """
    batches = [samples[first : first + batch] for first in range(0, len(samples), batch)]
    whole = [each for each in batches if all(sample.steps for sample in each)]
    return [min(each, key=lambda sample: sample.decode_s) for each in whole]


def _acceptance(settings: ProbeSettings, probe: Probe) -> MeasuredAcceptance:
    batch = settings.batch_sizes[0]
    drafted = {length: probe.samples(length, batch) for length in settings.lengths if length}
    stepped = _stepped(drafted)
    drafted = _renumbered(drafted, stepped)
    every = [each for samples in drafted.values() for each in samples]
    texts = 1 + max((each.prompt for each in every), default=-1)
    sums = _sums(every, texts)
    return MeasuredAcceptance(
        rule=GIVEN_TOKENS,
        temperature=settings.temperature,
        top_p=1.0,
        prompts=texts,
        positions=sum(each.steps for each in every),
        table=sums.table(),
        texts=sums,
        categories=text_categories(settings.categories, stepped),
        chains=tuple(_counts(length, samples, texts) for length, samples in drafted.items()),
    )


def _stepped(drafted: Mapping[int, Sequence[Sample]]) -> list[int]:
    """Return the numbers of the prompts that took a step with every length."""
    return sorted(set.intersection(*({each.prompt for each in samples if each.steps} for samples in drafted.values())))


def _renumbered(drafted: Mapping[int, Sequence[Sample]], stepped: Sequence[int]) -> dict[int, list[Sample]]:
    """Return the samples of some prompts, numbered from 0."""
    numbers = {prompt: number for number, prompt in enumerate(stepped)}
    return {
        length: [each._replace(prompt=numbers[each.prompt]) for each in samples if each.prompt in numbers]
        for length, samples in drafted.items()
    }


def _counts(length: int, samples: Sequence[Sample], texts: int) -> ChainCounts:
    steps, tokens = np.zeros(texts, int), np.zeros(texts, int)
    for each in samples:
        steps[each.prompt] += each.steps
        tokens[each.prompt] += each.tokens
    return ChainCounts(length=length, steps=tuple(steps.tolist()), tokens=tuple(tokens.tolist()))


def _sums(samples: Sequence[Sample], texts: int) -> TextSums:
    """Return how often each depth was reached and accepted, text by text: a depth is reached where the one above was.

    Steps at the end of a text that draft less than others are counted as if they had drafted all.
    """
    depth = max((len(each.accepted) for each in samples), default=0)
    reached, accepted = np.zeros((texts, depth)), np.zeros((texts, depth, 1))
    for each in samples:
        if each.accepted:
            known = len(each.accepted)
            reached[each.prompt, :known] += [each.steps, *each.accepted[:-1]]
            accepted[each.prompt, :known, 0] += each.accepted
    kept = int((reached.sum(axis=0) > 0).cumprod().sum())
    if kept == 0:
        raise InfeasibleError(
            "acceptance: expected accepted draft tokens by position. The engine told too few: decode more with --rounds, or "
            "with --method ngram draft after shorter matches, --ngram-tokens 3.",
            field="acceptance",
        )
    return TextSums(reached[:, :kept], accepted[:, :kept])
