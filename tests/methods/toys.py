"""A pair of toy models that is nobody's bundled pair."""

from types import SimpleNamespace

from treeopt.methods.running import Effort
from treeopt.records.machine import Pair
from treeopt.runtime.models.pair import ModelPair

LITTLE = Effort(
    max_tokens=24, rounds=1, positions=120, setting_prompts=2, setting_positions=8, bench_tokens=10, repeats=1
)


def pair_of(target, draft) -> ModelPair:
    """Return two models as a loaded pair; it has no tokenizer, since prompts are token ids already."""
    described = Pair(target=target.name, draft=draft.name, dtype="float32", vocabulary=target.config.vocabulary)
    return ModelPair(target=target, draft=draft, tokenizer=SimpleNamespace(), described=described)
