"""A pair of toy models."""

from types import SimpleNamespace

from treeopt.methods.running import Effort, run_methods
from treeopt.planner.options import Option, Prediction
from treeopt.profiler.bench.compare import Workload
from treeopt.records.latency import Estimate
from treeopt.records.machine import Pair
from treeopt.records.results import MethodRow, NotRun
from treeopt.runtime.models.pair import ModelPair
from treeopt.trees import TokenTree

LITTLE = Effort(max_tokens=24, rounds=1, positions=48)


def little_rows(target, draft, prompts, **options) -> tuple[MethodRow | NotRun, ...]:
    """Return the rows of two toy models, planned with the first 4 prompts and benchmarked on the others."""
    workload = Workload(prompts=prompts[4:], max_new_tokens=10, repeats=1)
    return run_methods(pair_of(target, draft), prompts[:4], workload, **{"effort": LITTLE} | options)


def pair_of(target, draft) -> ModelPair:
    """Return two models as a loaded pair; it has no tokenizer, since prompts are token ids already."""
    described = Pair(target=target.name, draft=draft.name, dtype="float32", vocabulary=target.config.vocabulary)
    return ModelPair(target=target, draft=draft, tokenizer=SimpleNamespace(), described=described)


def option_of(tree: TokenTree, rule: str = "none", speedup: float = 1.0) -> Option:
    """Return a tree with a predicted speedup."""
    value = Estimate(speedup, speedup, speedup)
    prediction = Prediction(tokens_per_step=value, step_s=value, speedup=value)
    return Option(tree=tree, rule=rule, verify_tokens=tree.nodes, prediction=prediction)
