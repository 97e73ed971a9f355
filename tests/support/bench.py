"""A benchmark of one tree in one call."""

from collections.abc import Sequence

from treeopt.profiler import Clock, Decoding, Workload, bench_trees
from treeopt.records.results import TreeMeasurement
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree


def bench(
    target: LanguageModel,
    draft: LanguageModel,
    tree: TokenTree,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    repeats: int = 3,
    rule: str = "sequoia",
    temperature: float = 0.0,
    top_p: float = 1.0,
    clock: Clock | None = None,
) -> TreeMeasurement:
    (measured,) = bench_trees(
        target,
        draft,
        [tree],
        Workload(prompts=prompts, max_new_tokens=max_new_tokens, repeats=repeats),
        Decoding(rule=rule, sampling=Sampling(temperature, top_p)),
        clock=clock,
    )
    return measured
