"""A tree file that names a drafter, as an engine's setting: the engine's own drafter of the same kind, where it has one."""

from dataclasses import replace

from treeopt.engines.engine import Engine, SettingRequest
from treeopt.engines.settings.common import BENCH_FIRST, emit
from treeopt.engines.settings.made import UNNAMED_DRAFT, Setting, plain_setting
from treeopt.engines.settings.source import Source
from treeopt.errors import InfeasibleError, InvalidValueError, Warning
from treeopt.planner import best_drafter, drafter_choices, requested_plan, tree_file
from treeopt.records.profile import Profile
from treeopt.trees import Provenance, TokenTree, kind_of
from treeopt.trees.drafter_setting import DrafterSetting
from treeopt.trees.dynamic_tree import DynamicTree


def drafter_setting(engine: Engine, source: Source, drafter: DrafterSetting) -> Setting:
    """Return an engine's setting for a drafter; nothing is predicted but what the file promised of treeopt's decoder.

    Raises InfeasibleError where the engine has no such drafter, or cannot be set to its numbers, InvalidValueError for a
    method that drafts otherwise.
    """
    kind = _kind(drafter)
    if kind not in engine.methods:
        raise InfeasibleError(
            f"{engine.title}: expected one of its drafters, {_drafters(engine)}. Got {drafter.name}: run it with treeopt "
            "run, or choose another engine."
        )
    if not drafter.own_trees and (source.tree is None or source.tree.nodes == 1):
        return plain_setting(engine)
    tree, warnings = _tree(engine, drafter, source.tree)
    asked = SettingRequest(
        tree=tree,
        rule="target",
        draft_model=source.draft_model or drafter.source or UNNAMED_DRAFT,
        method=_method(engine, kind, source.method),
        ngram=drafter.value("ngram") if kind == "prompt-lookup" else None,
        engine_version=source.engine_version,
    )
    emitted, promised = emit(engine, asked), source.promised or Provenance()
    warnings = (*warnings, *_layers(engine, drafter), *emitted.warnings)
    return Setting(
        asked=asked,
        emitted=emitted,
        target_model=promised.target,
        predictions=(),
        remarks=_prediction(promised),
        warnings=warnings,
    )


def fastest_drafter_setting(engine: Engine, source: Source, profile: Profile) -> Setting:
    """Return an engine's setting for the fastest drafter that was measured without a draft model and that it has.

    Speculation is off where plain decoding is the fastest.  Raises InfeasibleError where the engine has none of them.
    """
    plan = requested_plan(profile, source.request)
    plain, *choices = drafter_choices(profile, source.request, plan=plan)
    possible = [each for each in choices if _kind(each.option.drafter) in engine.methods]
    if choices and not possible:
        measured = ", ".join(each.option.drafter.name for each in choices)
        raise InfeasibleError(
            f"{engine.title}: expected one of its drafters, {_drafters(engine)}. Measured were {measured}: profile with "
            "--drafter or --draft, or choose another engine."
        )
    best = best_drafter([plain, *possible], source.request.objective)
    if best is plain:
        return plain_setting(engine, possible)
    promised = tree_file(plan, profile, source="profile", choice=best).provenance
    drafter = best.option.drafter
    chosen = replace(source, drafter=drafter, tree=best.option.tree, promised=promised)
    return drafter_setting(engine, chosen, drafter)


def _kind(drafter: DrafterSetting) -> str:
    """Return what an engine calls a drafter of this kind: EAGLE heads are one, with any trees."""
    return "eagle" if drafter.eagle_head else drafter.name


def _drafters(engine: Engine) -> str:
    """Return the drafters of an engine in words; of one whose default is another, it has no draft model."""
    words = {"eagle": "EAGLE heads", "dflash": "DFlash heads", "eagle2": "dynamic trees of it"}
    model = [] if None in engine.methods.values() else ["the draft model"]
    return ", ".join([*model, *(words.get(name, name) for name in engine.methods)])


def _method(engine: Engine, kind: str, asked: str | None) -> str | None:
    """Return the engine's own name of the method; that of a head may be another one, such as EAGLE-1's."""
    planned, lookup = engine.methods[kind], engine.methods.get("prompt-lookup")
    if asked is not None and asked != planned and lookup in (asked, planned):
        raise InvalidValueError(
            f"method: expected {planned} for {kind}. Got {asked!r:.60}: leave it out.", field="method"
        )
    return asked or planned


def _tree(engine: Engine, drafter: DrafterSetting, tree: TokenTree | None) -> tuple[DynamicTree, tuple[Warning, ...]]:
    """Return what the engine drafts, and what the user must know where that is not what was planned."""
    if drafter.name == "prompt-lookup":
        return DynamicTree.chain(drafter.value("length")), ()
    if drafter.name == "eagle2":
        planned = DynamicTree(**{each.name: each.value for each in drafter.values})
        if engine.dynamic or planned.is_chain:
            return planned, ()
        found = f"{engine.title} drafts chains only: it gets the depth of the dynamic tree of {planned.nodes} nodes."
        return DynamicTree.chain(planned.depth), (Warning(found, BENCH_FIRST),)
    assert tree is not None  # an engine is set off without one
    chain = DynamicTree.chain(tree.max_depth)
    if kind_of(tree) != "tree":
        return chain, ()
    found = f"{engine.title} loads no static tree: it gets a chain as long as the tree of {tree.nodes} nodes is deep."
    return chain, (Warning(found, BENCH_FIRST),)


def _layers(engine: Engine, drafter: DrafterSetting) -> tuple[Warning, ...]:
    """Return what the user must know where the head was told to read other states than its configuration names."""
    if not drafter.layers:
        return ()
    planned = ",".join(map(str, drafter.layers))
    found = f"{engine.title} reads the states that the head's config.json names, but it was planned with boundaries {planned}."
    return (Warning(found, "Name them in that file before you serve."),)


def _prediction(known: Provenance) -> tuple[str, ...]:
    """Return the speedup that the file predicts, which holds for treeopt's decoder."""
    if known.speedup is None:
        return ()
    return (f"Predicted in treeopt's decoder: {known.speedup:.2f}x plain decoding.",)
