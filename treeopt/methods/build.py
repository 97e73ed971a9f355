"""The decoder and the benchmark of a tree file."""

from treeopt.adaptation.strategy import prompt_lookup_setting
from treeopt.errors import InvalidValueError
from treeopt.profiler.bench.compare import Workload, bench_trees, compare_decoders
from treeopt.profiler.bench.reference_passes import ReferencePasses
from treeopt.profiler.decoding import Decoding
from treeopt.records.results import TreeMeasurement
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import Controller, Observer
from treeopt.runtime.drafters.drafter import ROOT_ONLY
from treeopt.runtime.drafters.registry import LoadedDrafter, load_drafter
from treeopt.runtime.models.pair import ModelPair
from treeopt.trees import TreeFile


def build_decoder(
    models: ModelPair,
    planned: TreeFile,
    decoding: Decoding,
    *,
    loaded: LoadedDrafter | None = None,
    seed: int = 0,
    sequence_tokens: int | None = None,
    on_step: Observer | None = None,
) -> Decoder:
    """Return the decoder of a tree file, which drafts with the file's drafter, else with the draft model.

    Args:
        models: the pair that decodes.
        planned: tree and drafter.
        decoding: the rule, and how target and draft sample.
        loaded: the drafter, if it is loaded already.
        seed: of all randomness.
        sequence_tokens: tokens of the longest sequence, prompt included; by default the target's maximum.
        on_step: called after every step; a controller has its own prompt lookup.

    Raises InvalidValueError for a draft distribution if the drafter does not sample, and as `load_drafter`, the drafter
    and `Decoder` do.
    """
    setting = planned.drafter
    if setting is None:
        draft = models.draft_model if planned.tree.nodes > 1 else None
        return decoding.decoder(models.target, draft, planned.tree, sequence_tokens, seed=seed, on_step=on_step)
    # the controller starts with prompt lookup and may switch to trees
    if isinstance(on_step, Controller) and prompt_lookup_setting(setting) is not None:
        return decoding.decoder(models.target, models.draft, ROOT_ONLY, sequence_tokens, seed=seed, on_step=on_step)
    loaded = loaded or load_drafter(setting, models, capacity=sequence_tokens)
    drafter = loaded.make_with_setting(setting) if setting.builds_own_trees else loaded.make_with_tree(planned.tree)
    if decoding.draft_sampling is not None and not drafter.sampled:
        raise InvalidValueError(
            f"draft_sampling: expected none, because {setting.name} does not sample what it drafts. "
            "Got one: leave it out.",
            field="draft_sampling",
        )
    return decoding.decoder(models.target, drafter, None, loaded.capacity, seed=seed, on_step=on_step)


def bench_tree_file(
    models: ModelPair,
    planned: TreeFile,
    workload: Workload,
    decoding: Decoding,
    *,
    loaded: LoadedDrafter | None = None,
    references: ReferencePasses | None = None,
) -> TreeMeasurement:
    """Compare decoding with a tree file to plain decoding; arguments are those of `bench_trees` and `build_decoder`."""
    if planned.drafter is None:
        (measurement,) = bench_trees(
            models.target,
            models.draft_model,
            [planned.tree],
            workload,
            decoding,
            references=references,
        )
        return measurement
    drafting = build_decoder(models, planned, decoding, loaded=loaded)
    plain = Decoder(models.target, None, sampling=decoding.sampling, max_sequence_tokens=drafting.max_sequence_tokens)
    (measurement,) = compare_decoders([(plain, None), (drafting, None)], workload, references=references)
    return measurement
