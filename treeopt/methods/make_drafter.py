"""The drafter, the decoder and the benchmark of a tree file."""

from treeopt.adaptation.strategy import lookup_of
from treeopt.errors import InvalidValueError
from treeopt.profiler.bench.compare import Workload, bench_trees, compare_decoders
from treeopt.profiler.bench.reference_passes import ReferencePasses
from treeopt.profiler.decoding import Decoding
from treeopt.records.results import Measured
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import Observer, Steering
from treeopt.runtime.drafters.loaded import LoadedDrafter, load_drafter
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.models.pair import ModelPair
from treeopt.trees import TreeFile
from treeopt.trees.drafter_setting import DrafterSetting


def load_planned(setting: DrafterSetting, models: ModelPair, *, capacity: int | None = None) -> LoadedDrafter:
    """Return a drafter, its heads loaded, that can be made with any of its settings.

    Args:
        setting: of any drafter but the draft model; name, source and layers count.
        models: the pair that decodes.
        capacity: longest sequence; by default as long as the target takes.

    Raises InfeasibleError for heads of another target, TreeoptError for a folder that contains none.
    """
    return load_drafter(
        setting.name,
        setting.source,
        models.target,
        models.draft,
        layers=setting.layers,
        target_digest=models.described.target_digest,
        capacity=models.target.config.max_positions if capacity is None else capacity,
    )


def planned_decoder(
    models: ModelPair,
    planned: TreeFile,
    decoding: Decoding,
    *,
    loaded: LoadedDrafter | None = None,
    seed: int = 0,
    text_tokens: int | None = None,
    on_step: Observer | None = None,
) -> Decoder:
    """Return the decoder of a tree file: its drafter's, or that of the draft model which fills its tree.

    Args:
        models: the pair that decodes.
        planned: tree and drafter.
        decoding: the rule, and how target and draft sample.
        loaded: the drafter, if it is loaded already.
        seed: of all randomness.
        text_tokens: longest sequence, prompt included; by default as long as the target takes.
        on_step: called after every step; a controller brings prompt lookup itself.

    Raises InvalidValueError for a draft sampled by a distribution of its own if the drafter's tokens are not sampled, and
    as `load_planned`, the drafter and `Decoder` do.
    """
    setting = planned.drafter
    if setting is None:
        draft = models.draft_model if planned.tree.nodes > 1 else None
        return decoding.decoder(models.target, draft, planned.tree, text_tokens, seed=seed, on_step=on_step)
    if isinstance(on_step, Steering) and lookup_of(setting) is not None:  # it begins so, and may change to trees
        return decoding.decoder(models.target, models.draft, ROOT_ALONE, text_tokens, seed=seed, on_step=on_step)
    loaded = loaded or load_planned(setting, models, capacity=text_tokens)
    drafter = loaded.set_to(setting) if setting.own_trees else loaded.filling(planned.tree)
    if decoding.draft_sampling is not None and not drafter.sampled:
        raise InvalidValueError(
            f"draft_sampling: expected none, because {setting.name} does not sample what it drafts. "
            "Got one: leave it out.",
            field="draft_sampling",
        )
    return decoding.decoder(models.target, drafter, None, loaded.capacity, seed=seed, on_step=on_step)


def bench_planned(
    models: ModelPair,
    planned: TreeFile,
    workload: Workload,
    decoding: Decoding,
    *,
    loaded: LoadedDrafter | None = None,
    references: ReferencePasses | None = None,
    show_progress: bool = True,
) -> Measured:
    """Compare decoding with a tree file with plain decoding; see `bench_trees`, and `planned_decoder` for other arguments."""
    if planned.drafter is None:
        (measured,) = bench_trees(
            models.target,
            models.draft_model,
            [planned.tree],
            workload,
            decoding,
            references=references,
            show_progress=show_progress,
        )
        return measured
    drafting = planned_decoder(models, planned, decoding, loaded=loaded)
    plain = Decoder(models.target, None, sampling=decoding.sampling, max_text_tokens=drafting.max_text_tokens)
    (measured,) = compare_decoders(
        [(plain, None), (drafting, None)], workload, references=references, show_progress=show_progress
    )
    return measured
