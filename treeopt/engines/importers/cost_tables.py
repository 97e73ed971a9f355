"""Cost tables that SGLang and TensorRT-LLM measure of themselves for DSpark: a model of a step's seconds.

    step_s(batch, tokens) = fixed + overhead(batch) + pass(tokens)

Tokens are those of the whole batch: a batch of b sequences of n nodes each has b n tokens. The tables mean what they mean
to `speculative/dspark_components/dspark_sps.py` of SGLang 0.5.23 and `_torch/speculative/dspark_planner.py` of
TensorRT-LLM. Other keys are ignored.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.importer import TIMES, ImportedLatency, Importer, build_latency
from treeopt.files.fields import Fields

SGLANG_KIND = "SGLang cost table"
MAX_TIMES = 100_000
"""Token counts times batch sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probes:
    """Measured values at rising counts, two fields of a table."""

    field: str
    """Name of the counts."""
    counts: list[int]
    values: list[float]

    @classmethod
    def read(cls, fields: Fields, counts_field: str, values_field: str, *, unit: float = 1.0) -> "_Probes":
        counts, values = fields.integers(counts_field), fields.numbers(values_field)
        if not counts or counts[0] < 1 or any(after <= before for before, after in pairwise(counts)):
            raise fields.error(counts_field, f"expected rising counts of at least 1. Got {counts!s:.60}.")
        if len(values) != len(counts):
            raise fields.error(values_field, f"expected {len(counts)}, one per count. Got {len(values)}.")
        return cls(field=counts_field, counts=counts, values=[value * unit for value in values])


def read_sampled_costs(file: ForeignFile) -> tuple[ImportedLatency, ...]:
    """Return the curve of `sample_steps_per_sec`, taken as that of batch size 1."""
    fields = file.objects[0]
    probes = _Probes.read(fields, "sample_batch_tokens", "sample_steps_per_sec")
    if min(probes.values) <= 0:
        raise fields.error("sample_steps_per_sec", f"expected numbers above 0. Got {min(probes.values):g}.")
    with np.errstate(over="ignore"):  # infinite seconds are refused
        step_s = 1 / np.array(probes.values)
    samples_s = {count: [seconds] for count, seconds in zip(probes.counts, step_s.tolist(), strict=True)}
    return (build_latency(file, probes.field, SGLANG_KIND, samples_s),)


def read_additive_costs(file: ForeignFile) -> tuple[ImportedLatency, ...]:
    """Return a curve for every batch size of `bs_probes`."""
    fields = file.objects[0]
    return _build_additive_latencies(
        file,
        SGLANG_KIND,
        fixed_s=fields.number("bias_seconds", least=-math.inf),
        batches=_Probes.read(fields, "bs_probes", "alpha_seconds"),
        passes=_Probes.read(fields, "m_probes", "theta_seconds"),
    )


def read_tensorrt_costs(file: ForeignFile) -> tuple[ImportedLatency, ...]:
    """Return a curve for every batch size of `batch_sizes`."""
    fields = file.objects[0]
    return _build_additive_latencies(
        file,
        "TensorRT-LLM cost table",
        fixed_s=fields.number("fixed_overhead_ms", least=-math.inf) * 1e-3,
        batches=_Probes.read(fields, "batch_sizes", "batch_overhead_ms", unit=1e-3),
        passes=_Probes.read(fields, "token_counts", "step_time_ms", unit=1e-3),
    )


def _build_additive_latencies(
    file: ForeignFile, kind: str, *, fixed_s: float, batches: _Probes, passes: _Probes
) -> tuple[ImportedLatency, ...]:
    """Return a curve for every probed batch size, at whole nodes per sequence at and next to the probed tokens.

    Raises FormatError for a batch size whose plain decoding was not probed.
    """
    if len(batches.counts) * len(passes.counts) > MAX_TIMES:
        raise file.error(passes.field, f"expected at most {MAX_TIMES} times over all batch sizes. Got more.")
    latencies = []
    for batch_size, overhead_s in zip(batches.counts, batches.values, strict=True):
        nodes = _nodes_per_sequence(batch_size, passes.counts)
        if not nodes or nodes[0] > 1:
            raise file.error(
                passes.field,
                f"expected {batch_size} tokens in their range, plain decoding's for the batch of {batch_size}. Got "
                f"{passes.counts[0]} to {passes.counts[-1]}: probe them too, or take that batch size out.",
            )
        with np.errstate(over="ignore", invalid="ignore"):  # such seconds are refused
            pass_s = np.interp(batch_size * np.array(nodes), passes.counts, passes.values)
            step_s = fixed_s + overhead_s + pass_s
        samples_s = {count: [seconds] for count, seconds in zip(nodes, step_s.tolist(), strict=True)}
        latencies.append(build_latency(file, passes.field, kind, samples_s, batch_size=batch_size))
    return tuple(latencies)


def _nodes_per_sequence(batch_size: int, tokens: Sequence[int]) -> list[int]:
    """Return nodes per sequence at the probed tokens of a batch, or on both sides of them, within their range.

    >>> _nodes_per_sequence(4, [1, 4, 10, 16])
    [1, 2, 3, 4]
    """
    candidates = {count // batch_size for count in tokens} | {-(-count // batch_size) for count in tokens}
    return sorted(nodes for nodes in candidates if nodes > 0 and tokens[0] <= batch_size * nodes <= tokens[-1])


SGLANG_SAMPLED = Importer(
    name="sglang-samples",
    title="SGLang's cost table of steps per second",
    contains=(TIMES,),
    needs="sample_batch_tokens and sample_steps_per_sec",
    matches=lambda file: file.has_key("sample_batch_tokens"),
    read=read_sampled_costs,
)
SGLANG_ADDITIVE = Importer(
    name="sglang-additive",
    title="SGLang's additive cost table",
    contains=(TIMES,),
    needs="bias_seconds, bs_probes, alpha_seconds, m_probes and theta_seconds",
    matches=lambda file: file.has_key("bias_seconds"),
    read=read_additive_costs,
)
TENSORRT_LLM = Importer(
    name="tensorrt-llm",
    title="TensorRT-LLM's cost table",
    contains=(TIMES,),
    needs="token_counts, step_time_ms, fixed_overhead_ms, batch_sizes and batch_overhead_ms",
    matches=lambda file: file.has_key("token_counts"),
    read=read_tensorrt_costs,
)
