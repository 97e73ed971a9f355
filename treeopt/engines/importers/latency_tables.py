"""Cost tables that engines measure of themselves: SGLang's and TensorRT-LLM's for DSpark.

Read as `speculative/dspark_components/dspark_sps.py` of SGLang 0.5.23 and `_torch/speculative/dspark_planner.py` of
TensorRT-LLM read them, tokens counted over the whole batch:

    step_s(batch, tokens) = fixed + overhead(batch) + pass(tokens)

A batch of b sequences of n nodes each has b n tokens; keys that are not named here are let be, as the engines do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from treeopt.engines.importers.content import source_text
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_latency import ImportedLatency, curve
from treeopt.engines.importers.importer import Measurements
from treeopt.files.fields import Fields

MAX_TIMES = 100_000
"""Token counts times batch sizes."""
SGLANG, TENSORRT_LLM = "SGLang cost table", "TensorRT-LLM cost table"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probes:
    """Numbers against rising counts, as two fields of a table hold them."""

    counts: list[int]
    values: list[float]

    @classmethod
    def read(cls, fields: Fields, counts_field: str, values_field: str, *, unit: float = 1.0) -> "_Probes":
        counts, values = fields.integers(counts_field), fields.numbers(values_field)
        if not counts or counts[0] < 1 or any(after <= before for before, after in pairwise(counts)):
            raise fields.error(counts_field, f"expected rising counts of at least 1. Got {counts!s:.60}.")
        if len(values) != len(counts):
            raise fields.error(values_field, f"expected {len(counts)}, one per count. Got {len(values)}.")
        return cls(counts=counts, values=[value * unit for value in values])


def is_sglang_samples(file: ForeignFile) -> bool:
    """Return whether a file is SGLang's table of steps per second."""
    return isinstance(file.json, dict) and "sample_batch_tokens" in file.json


def is_sglang_additive(file: ForeignFile) -> bool:
    """Return whether a file is SGLang's additive table."""
    return isinstance(file.json, dict) and "bias_seconds" in file.json


def is_tensorrt_llm(file: ForeignFile) -> bool:
    """Return whether a file is TensorRT-LLM's table."""
    return isinstance(file.json, dict) and "token_counts" in file.json


def read_sglang_samples(file: ForeignFile) -> Measurements:
    """Return the one curve of `sample_steps_per_sec`, taken as that of a batch of 1."""
    path = file.path
    fields = Fields(path, file.json)
    probes = _Probes.read(fields, "sample_batch_tokens", "sample_steps_per_sec")
    if min(probes.values) <= 0:
        raise fields.error("sample_steps_per_sec", f"expected numbers above 0. Got {min(probes.values):g}.")
    with np.errstate(over="ignore"):  # infinite seconds are refused
        seconds = 1 / np.array(probes.values)
    latency = _latency(fields, path, 1, probes.counts, seconds.tolist(), SGLANG, "sample_batch_tokens")
    return Measurements(latencies=(latency,))


def read_sglang_additive(file: ForeignFile) -> Measurements:
    """Return a curve for every batch size of `bs_probes`."""
    path = file.path
    fields = Fields(path, file.json)
    return _additive(
        fields,
        path,
        SGLANG,
        fixed_s=_number(fields, "bias_seconds"),
        batches=_Probes.read(fields, "bs_probes", "alpha_seconds"),
        passes=_Probes.read(fields, "m_probes", "theta_seconds"),
        counts_field="m_probes",
    )


def read_tensorrt_llm(file: ForeignFile) -> Measurements:
    """Return a curve for every one of `batch_sizes`; milliseconds."""
    path = file.path
    fields = Fields(path, file.json)
    return _additive(
        fields,
        path,
        TENSORRT_LLM,
        fixed_s=_number(fields, "fixed_overhead_ms") * 1e-3,
        batches=_Probes.read(fields, "batch_sizes", "batch_overhead_ms", unit=1e-3),
        passes=_Probes.read(fields, "token_counts", "step_time_ms", unit=1e-3),
        counts_field="token_counts",
    )


def _number(fields: Fields, field: str) -> float:
    return fields.number(field, least=-np.inf)


def _additive(
    fields: Fields,
    path: Path | str,
    kind: str,
    *,
    fixed_s: float,
    batches: _Probes,
    passes: _Probes,
    counts_field: str,
) -> Measurements:
    """Return a curve for every probed batch size, at whole nodes per sequence on and next to the probed tokens."""
    if len(batches.counts) * len(passes.counts) > MAX_TIMES:
        raise fields.error(counts_field, f"expected at most {MAX_TIMES} times over all batch sizes. Got more.")
    found = []
    for batch, overhead in zip(batches.counts, batches.values, strict=True):
        nodes = _nodes(batch, passes.counts)
        if not nodes or nodes[0] > 1:
            raise fields.error(
                counts_field,
                f"expected {batch} tokens in their range, plain decoding's for the batch of {batch}. Got "
                f"{passes.counts[0]} to {passes.counts[-1]}: probe them too, or take that batch size out.",
            )
        with np.errstate(over="ignore", invalid="ignore"):  # such seconds are refused
            passed = np.interp(batch * np.array(nodes), passes.counts, passes.values)
            seconds = fixed_s + overhead + passed
        found.append(_latency(fields, path, batch, nodes, seconds.tolist(), kind, counts_field))
    return Measurements(latencies=tuple(found))


def _nodes(batch: int, tokens: Sequence[int]) -> list[int]:
    """Return nodes per sequence at the probed tokens of a batch, or on both sides of them, within their range.

    >>> _nodes(4, [1, 4, 10, 16])
    [1, 2, 3, 4]
    """
    around = {count // batch for count in tokens} | {-(-count // batch) for count in tokens}
    return sorted(nodes for nodes in around if nodes > 0 and tokens[0] <= batch * nodes <= tokens[-1])


def _latency(
    fields: Fields, path: Path | str, batch: int, tokens: Sequence[int], seconds: Sequence[float], kind: str, field: str
) -> ImportedLatency:
    table = fields.build(field, curve, {count: [time] for count, time in zip(tokens, seconds, strict=True)})
    return fields.build(
        field,
        ImportedLatency,
        context_tokens=None,
        batch_size=batch,
        verify=table,
        source=source_text(path, kind),
    )
