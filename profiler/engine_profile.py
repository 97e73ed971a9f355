"""The profile of an engine, made from its probe."""

import platform
from collections.abc import Mapping, Sequence

import numpy as np

from treeopt.engines.clients.client import EngineClient, EngineConfig
from treeopt.errors import InfeasibleError
from treeopt.profiler.engine import EngineSample, Probe, ProbeSettings
from treeopt.profiler.machine import describe_processor
from treeopt.records.acceptance import SequenceSums
from treeopt.records.bench_file import BenchHeading
from treeopt.records.engine import ChainCounts, ChainLatency, EngineRun, EngineSetting, TimedChain
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.machine import Machine, Pair, now
from treeopt.records.measured_acceptance import MeasuredAcceptance, select_categories
from treeopt.records.profile import UNKNOWN, Profile
from treeopt.records.rules import TARGET_RULE
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.folder import hash_path
from treeopt.version import TOOL

SERVED = "served"
"""The name of a model of an engine that runs already, which does not report its models."""
METHOD, NGRAM_TOKENS = "method", "ngram-tokens"
"""Settings of an engine without a draft model: how it drafts, and how many tokens have to match."""
CHAT_TEMPLATE = "chat-template"
"""Setting of an engine: the model folder whose chat template the prompts are in."""


def engine_profile(client: EngineClient, config: EngineConfig, settings: ProbeSettings, probe: Probe) -> Profile:
    """Return the profile of a probe; raises InfeasibleError if the engine did not report acceptance."""
    return Profile(
        created=now(),
        tool=TOOL,
        machine=machine_of(client, config),
        pair=pair_of(config),
        engine=EngineRun(name=client.name, version=client.version, settings=settings_of(client, config, settings)),
        chain_latencies=tuple(_latency(settings, probe, batch) for batch in settings.batch_sizes),
        acceptances=(_acceptance(settings, probe),),
    )


def settings_of(client: EngineClient, config: EngineConfig, settings: ProbeSettings) -> tuple[EngineSetting, ...]:
    """Return the settings that measurements depend on, those of the prompts included."""
    optional = ((METHOD, config.method), (NGRAM_TOKENS, config.ngram_tokens), (CHAT_TEMPLATE, settings.chat_template))
    drafting = (EngineSetting(name=name, value=str(value)) for name, value in optional if value is not None)
    return (*client.settings, *drafting, EngineSetting(name="prompts", value=settings.prompts_from))


def machine_of(client: EngineClient, config: EngineConfig) -> Machine:
    """Return the machine of an engine; unknown unless it is this one."""
    device = config.device or client.device
    unknown = device == UNKNOWN
    return Machine(
        device=device,
        processor=UNKNOWN if unknown else describe_processor(device),
        threads=config.threads,
        system=UNKNOWN if unknown else f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=UNKNOWN,
    )


def pair_of(config: EngineConfig) -> Pair:
    target, draft = config.target, config.draft
    return Pair(
        target=SERVED if target is None else _name(target),
        draft=(config.method or SERVED) if draft is None else _name(draft),
        dtype=config.dtype or UNKNOWN,
        target_source=target,
        draft_source=draft,
        target_digest=hash_path(target),
        draft_digest=hash_path(draft),
    )


def heading_of(client: EngineClient, config: EngineConfig) -> BenchHeading:
    return BenchHeading(created=now(), machine=machine_of(client, config), pair=pair_of(config))


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path


def _latency(settings: ProbeSettings, probe: Probe, batch_size: int) -> ChainLatency:
    chains = tuple(_timed_chain(probe, length, batch_size) for length in settings.lengths)
    plain = probe.samples(0, settings.batch_sizes[0])  # the same sequences at every batch size
    context = round(sum(sample.prompt_tokens + sample.tokens / 2 for sample in plain) / len(plain))
    return ChainLatency(context_tokens=context, batch_size=batch_size, chains=chains)


def _timed_chain(probe: Probe, length: int, batch_size: int) -> TimedChain:
    passes = probe.passes(length, batch_size)
    prefill = probe.prefill(length) if batch_size == 1 else {}
    samples = _first_to_end(probe.samples(length, batch_size), batch_size)
    if not samples:
        raise InfeasibleError(
            f"prompts: expected {batch_size} completions of several tokens in a batch. In each batch with {length} draft "
            "tokens one ended at once: give other prompts.",
            field="prompts",
        )
    return TimedChain(
        length=length,
        steps=Timing([sample.decode_s / sample.steps for sample in samples]),
        verify=Timing([times.verify_s for times in passes]) if passes else None,
        draft=Timing([times.draft_s for times in passes]) if passes and length else None,
        prefill=LatencyTable(list(prefill), [Timing(seconds) for seconds in prefill.values()]) if prefill else None,
    )


def _first_to_end(samples: Sequence[EngineSample], batch_size: int) -> list[EngineSample]:
    """Return the sequence of each batch that ended first: only its steps all had the full batch.

    Batches in which a sequence ended at once are left out.
    """
    batches = [samples[first : first + batch_size] for first in range(0, len(samples), batch_size)]
    full = [batch for batch in batches if all(sample.steps for sample in batch)]
    return [min(batch, key=lambda sample: sample.decode_s) for batch in full]


def _acceptance(settings: ProbeSettings, probe: Probe) -> MeasuredAcceptance:
    batch_size = settings.batch_sizes[0]
    samples = {length: probe.samples(length, batch_size) for length in settings.lengths if length}
    stepped = _prompts_with_steps(samples)
    samples = _renumber(samples, stepped)
    all_samples = [sample for length_samples in samples.values() for sample in length_samples]
    prompts = 1 + max((sample.prompt for sample in all_samples), default=-1)
    sums = _sum_depths(all_samples, prompts)
    return MeasuredAcceptance(
        rule=TARGET_RULE,
        sampling=Sampling(settings.temperature),
        prompts=prompts,
        positions=sum(sample.steps for sample in all_samples),
        table=sums.table(),
        sequences=sums,
        categories=select_categories(settings.categories, stepped),
        chains=tuple(_count_chain(length, length_samples, prompts) for length, length_samples in samples.items()),
    )


def _prompts_with_steps(samples: Mapping[int, Sequence[EngineSample]]) -> list[int]:
    by_length = ({sample.prompt for sample in length_samples if sample.steps} for length_samples in samples.values())
    return sorted(set.intersection(*by_length))


def _renumber(samples: Mapping[int, Sequence[EngineSample]], prompts: Sequence[int]) -> dict[int, list[EngineSample]]:
    numbers = {prompt: number for number, prompt in enumerate(prompts)}
    return {
        length: [
            sample._replace(prompt=numbers[sample.prompt]) for sample in length_samples if sample.prompt in numbers
        ]
        for length, length_samples in samples.items()
    }


def _count_chain(length: int, samples: Sequence[EngineSample], prompts: int) -> ChainCounts:
    steps, tokens = np.zeros(prompts, int), np.zeros(prompts, int)
    for sample in samples:
        steps[sample.prompt] += sample.steps
        tokens[sample.prompt] += sample.tokens
    return ChainCounts(length=length, steps=tuple(steps.tolist()), tokens=tuple(tokens.tolist()))


def _sum_depths(samples: Sequence[EngineSample], prompts: int) -> SequenceSums:
    """Return how often each depth was reached and accepted, by prompt: a depth is reached if the one above is accepted.

    Steps at the end of a sequence that draft less than others are counted as if they had drafted all.
    """
    depth = max((len(sample.accepted) for sample in samples), default=0)
    reached, accepted = np.zeros((prompts, depth)), np.zeros((prompts, depth, 1))
    for sample in samples:
        if sample.accepted:
            depths = len(sample.accepted)
            reached[sample.prompt, :depths] += [sample.steps, *sample.accepted[:-1]]
            accepted[sample.prompt, :depths, 0] += sample.accepted
    reached_depths = int((reached.sum(axis=0) > 0).cumprod().sum())
    if reached_depths == 0:
        raise InfeasibleError(
            "acceptance: expected accepted draft tokens by position. The engine reported too few: decode more with --rounds, or "
            "with --method ngram draft after shorter matches, --ngram-tokens 3.",
            field="acceptance",
        )
    return SequenceSums(reached[:, :reached_depths], accepted[:, :reached_depths])
