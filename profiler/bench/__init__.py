"""Ways of decoding beside one another: speed, and whether the text is the same."""

from treeopt.profiler.bench.compare import (
    BOOTSTRAP_DRAWS,
    DEFAULT_NEW_TOKENS,
    SEED,
    Measured,
    Run,
    bench,
    bench_as_measured,
    bench_trees,
    text_tokens,
)

__all__ = [
    "BOOTSTRAP_DRAWS",
    "DEFAULT_NEW_TOKENS",
    "SEED",
    "Measured",
    "Run",
    "bench",
    "bench_as_measured",
    "bench_trees",
    "text_tokens",
]
