"""A drafter other than a draft model, exported as the engine's own drafter of the same kind."""

from dataclasses import replace

from treeopt.engines.exporters.common import BENCH_FIRST, render_setting
from treeopt.engines.exporters.engine import Engine, SettingRequest
from treeopt.engines.exporters.setting import UNNAMED_DRAFT, Setting, Source, turn_off
from treeopt.errors import InfeasibleError, InvalidValueError, Warning
from treeopt.planner import best_drafter, drafter_choices, requested_plan, tree_file
from treeopt.records.profile import Profile
from treeopt.trees import Provenance, TokenTree, TreeFile, kind_of
from treeopt.trees.drafter_parameters import DynamicTree
from treeopt.trees.drafter_setting import DrafterSetting


def set_drafter(engine: Engine, source: Source, file: TreeFile) -> Setting:
    """Return an engine's setting of a tree file's drafter.

    The only prediction is that of the tree file, which holds for treeopt's decoder.
    Raises InfeasibleError if the engine has no such drafter or does not accept the setting, InvalidValueError for the
    method of another kind of drafter.
    """
    drafter, provenance = file.drafter, file.provenance or Provenance()
    assert drafter is not None  # other tree files are of a draft model
    kind = _drafter_kind(drafter)
    if kind not in engine.methods:
        same_head = drafter.name == "ddtree" and "dflash" in engine.methods
        instead = "plan its head's chain with treeopt solve --drafter dflash" if same_head else "choose another engine"
        raise InfeasibleError(
            f"{engine.title}: expected one of its drafters, {_describe_drafters(engine)}. Got {drafter.name}: run it with "
            f"treeopt run, or {instead}."
        )
    if not drafter.builds_own_trees and file.tree.nodes == 1:
        return turn_off(engine)
    tree, warnings = _fit_tree(engine, drafter, file.tree)
    request = SettingRequest(
        tree=tree,
        rule="target",
        draft_model=source.draft_model or drafter.source or UNNAMED_DRAFT,
        method=_choose_method(engine, kind, source.method),
        parallel_drafting=kind == "p-eagle",
        ngram=drafter.value("ngram") if kind == "prompt-lookup" else None,
        engine_version=source.engine_version,
    )
    output = render_setting(engine, request)
    notes: tuple[str, ...] = ()
    if provenance.speedup is not None:
        notes = (f"Predicted in treeopt's decoder: {provenance.speedup:.2f}x plain decoding.",)
    return Setting(
        request=request,
        output=output,
        target_model=provenance.target,
        notes=notes,
        warnings=(*warnings, *_warn_layers(engine, drafter), *_warn_block(engine, drafter, tree), *output.warnings),
    )


def set_fastest_drafter(engine: Engine, source: Source, profile: Profile) -> Setting:
    """Return an engine's setting of the fastest drafter that it has, from a profile without a draft model.

    If plain decoding is fastest, speculation is off.  Raises InfeasibleError if the engine has none of the drafters.
    """
    plan = requested_plan(profile, source.request)
    plain, *choices = drafter_choices(profile, source.request, plan=plan)
    possible = [choice for choice in choices if _drafter_kind(choice.option.drafter) in engine.methods]
    if choices and not possible:
        measured = ", ".join(choice.option.drafter.name for choice in choices)
        raise InfeasibleError(
            f"{engine.title}: expected one of its drafters, {_describe_drafters(engine)}. Measured were {measured}: profile "
            "with --drafter or --draft, or choose another engine."
        )
    best = best_drafter([plain, *possible], source.request.objective)
    if best is plain:
        setting = turn_off(engine, possible)
        return replace(setting, warnings=(*plan.warnings, *setting.warnings))
    setting = set_drafter(engine, source, tree_file(plan, profile, source="profile", choice=best))
    return replace(setting, warnings=(*plan.warnings, *setting.warnings))


def _drafter_kind(drafter: DrafterSetting) -> str:
    """Return the drafter's key in `Engine.methods`: `eagle` for an EAGLE head with any trees."""
    return "eagle" if drafter.name == "eagle2" and drafter.eagle_head else drafter.name


def _describe_drafters(engine: Engine) -> str:
    """Return the drafters of an engine in words; an engine whose default is another drafter takes no draft model."""
    words = {
        "eagle": "EAGLE heads",
        "p-eagle": "P-EAGLE heads",
        "dflash": "DFlash heads",
        "dspark": "DSpark heads",
        "eagle2": "dynamic trees of it",
    }
    model = [] if None in engine.methods.values() else ["the draft model"]
    return ", ".join([*model, *(words.get(name, name) for name in engine.methods)])


def _choose_method(engine: Engine, kind: str, method: str | None) -> str | None:
    """Return the engine's name of the method; the user may name another one for a head, such as EAGLE-1's."""
    default, lookup = engine.methods[kind], engine.methods.get("prompt-lookup")
    if method is not None and method != default and lookup in (method, default):
        raise InvalidValueError(
            f"method: expected {default} for {kind}. Got {method!r:.60}: leave it out.", field="method"
        )
    return method or default


def _fit_tree(engine: Engine, drafter: DrafterSetting, tree: TokenTree) -> tuple[DynamicTree, tuple[Warning, ...]]:
    """Return the tree that the engine drafts, and the warning that it is not the planned one."""
    if drafter.name == "prompt-lookup":
        return DynamicTree.chain(drafter.value("length")), ()
    if drafter.name == "eagle2":
        planned = drafter.parameters
        assert isinstance(planned, DynamicTree)  # of eagle2
        if engine.dynamic or planned.is_chain:
            return planned, ()
        problem = f"{engine.title} drafts chains only: it gets the depth of the dynamic tree of {planned.nodes} nodes."
        return DynamicTree.chain(planned.depth), (Warning(problem, BENCH_FIRST),)
    chain = DynamicTree.chain(tree.max_depth)
    if kind_of(tree) != "tree":
        return chain, ()
    problem = f"{engine.title} loads no static tree: it gets a chain as long as the tree of {tree.nodes} nodes is deep."
    return chain, (Warning(problem, BENCH_FIRST),)


def _warn_layers(engine: Engine, drafter: DrafterSetting) -> tuple[Warning, ...]:
    """Warn if the plan's head reads other hidden states than its configuration names, which the engine would read."""
    if not drafter.layers:
        return ()
    planned = ",".join(map(str, drafter.layers))
    problem = (
        f"{engine.title} reads the hidden states that the head's config.json names, but the plan is for hidden-state layers "
        f"{planned}."
    )
    return (Warning(problem, "Name them in that file before you serve."),)


def _warn_block(engine: Engine, drafter: DrafterSetting, tree: DynamicTree) -> tuple[Warning, ...]:
    """Warn if the engine drafts smaller blocks than were measured, whose draft tokens are others."""
    measured = drafter.block_draft_tokens
    if not engine.length_sets_block or measured in (None, tree.depth):
        return ()
    problem = (
        f"{engine.title} drafts blocks of as many tokens as it is set to, {tree.depth}, but acceptance was measured with "
        f"blocks of {measured}."
    )
    action = f"Profile again with --block-draft-tokens {tree.depth},{measured}, then solve and export."
    return (Warning(problem, action),)
