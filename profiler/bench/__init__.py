"""Ways of decoding beside one another: speed, and whether the text is the same."""

from treeopt.profiler.bench.compare import (
    BOOTSTRAP_DRAWS,
    DEFAULT_NEW_TOKENS,
    SEED,
    Run,
    Workload,
    bench,
    bench_as_measured,
    bench_trees,
    text_tokens,
    workload_as_measured,
)
from treeopt.records.results import Measured

__all__ = [
    "BOOTSTRAP_DRAWS",
    "DEFAULT_NEW_TOKENS",
    "SEED",
    "Measured",
    "Run",
    "Workload",
    "bench",
    "bench_as_measured",
    "bench_trees",
    "text_tokens",
    "workload_as_measured",
]
