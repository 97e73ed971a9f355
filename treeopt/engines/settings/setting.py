"""Profile, record and tree to an engine's setting: what to ask it for, and what that, its default and plain come to."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from treeopt.engines.engine import BatchLength, Engine, SettingRequest
from treeopt.engines.settings.common import check_method, emit, refusal
from treeopt.engines.settings.drafted import drafter_setting, fastest_drafter_setting
from treeopt.engines.settings.made import UNNAMED_DRAFT, Setting, plain_setting, speculation_off_warning
from treeopt.engines.settings.prediction import Predicted, predicted, predicted_static, shape
from treeopt.engines.settings.source import Source, verify_times
from treeopt.errors import InfeasibleError, Warning, reason
from treeopt.planner import StepModel, requested_model, requested_plan
from treeopt.planner.chains import chain_schedule, fastest_length
from treeopt.planner.dynamic import fastest_dynamic_tree
from treeopt.planner.replay import Replay
from treeopt.planner.tokens import warn_outside_contexts
from treeopt.records.profile import Profile
from treeopt.records.rules import LOSSY_RULES
from treeopt.trees import TokenTree, chain
from treeopt.trees.dynamic_tree import DynamicTree


def setting(engine: Engine, source: Source) -> Setting:
    """Return the fastest setting of an engine that the profile allows, or the chain that a tree is.

    Dynamic trees are chosen where the engine takes them and a record of the same temperature is there; else chains.
    Of a tree file that names a drafter, the same drafter of the engine is set; without a draft model, the fastest of
    the profile's drafters that the engine has.  Where plain decoding is the fastest, speculation is off.

    Raises InvalidValueError for an unknown method, InfeasibleError if the engine cannot be set to what was asked for.
    """
    check_method(engine, source.method)
    if source.drafter is not None:
        return drafter_setting(engine, source, source.drafter)
    source = source.for_engine(engine)
    if source.profile is None:
        return _without_profile(engine, source)
    if not source.profile.has_draft_model:
        return fastest_drafter_setting(engine, source, source.profile)
    model = requested_model(source.profile, source.request)
    return _Chooser(engine, source, source.profile, model).setting()


class _Chooser:
    """One engine under one condition of a profile."""

    def __init__(self, engine: Engine, source: Source, profile: Profile, model: StepModel) -> None:
        self._engine, self._source, self._profile, self._model = engine, source, profile, model
        self._replay = None if source.record is None else Replay(source.record)
        self._best_draft: DynamicTree | None = None
        self._remarks: list[str] = []
        caution = warn_outside_contexts(profile, model.acceptance, [model.point.context_tokens])
        self._warnings: list[Warning] = [] if caution is None else [caution]

    def setting(self) -> Setting:
        """Return the setting."""
        replay = self._trees()
        asked = self._chain() if replay is None else self._dynamic(replay)
        if asked is not None:
            self._check_draft_model()
        emitted = self._engine.off if asked is None else emit(self._engine, asked)
        return Setting(
            asked=asked,
            emitted=emitted,
            target_model=self._profile.pair.target_source,
            predictions=tuple(self._predictions(asked)),
            remarks=tuple(self._remarks),
            warnings=(*self._warnings, *emitted.warnings),
        )

    def _check_draft_model(self) -> None:
        """Warn of a draft model of which only a name is known, which no engine can load."""
        pair = self._profile.pair
        if "draft_model" not in self._engine.takes:
            return
        if self._source.draft_model is None and pair.draft_source is None and self._source.method is None:
            self._warnings.append(
                Warning(
                    f"the draft model is known by the name {pair.draft!r} only, which {self._engine.title} cannot load.",
                    "Name a model with --draft-model.",
                )
            )

    def _trees(self) -> Replay | None:
        """Return the record that dynamic trees are chosen by, or None where chains are to be taken."""
        if not self._engine.dynamic or self._source.chain_length is not None:
            return None
        if self._replay is None:
            self._warnings.append(
                Warning(
                    f"{self._engine.title} takes dynamic trees, but without a draft record only chains can be planned.",
                    "Run treeopt profile --record, and name the file with --record.",
                )
            )
        return self._replay

    def _dynamic(self, replay: Replay) -> SettingRequest | None:
        """Return the fastest dynamic tree; None where plain decoding is faster."""
        most, deepest = self._source.request.max_nodes or self._model.costs.max_nodes, self._source.request.max_depth
        if most < 2:
            raise InfeasibleError(
                f"max_nodes: expected at least 2, the root and a draft token. Got {most}: allow more.",
                field="max_nodes",
            )
        if deepest == 0:
            raise InfeasibleError(
                "max_depth: expected at least 1, a draft token. Got 0: allow more.", field="max_depth"
            )
        request = self._asked(DynamicTree.chain(1))
        tree, best = fastest_dynamic_tree(
            replay,
            self._model,
            max_nodes=most,
            max_depth=deepest,
            limits=lambda tree: refusal(self._engine, replace(request, tree=tree)),
        )
        if best.speedup.value <= 1:
            self._off(tree)
            return None
        self._note_tree("the fastest dynamic tree of the record")
        return self._asked(tree)

    def _chain(self) -> SettingRequest | None:
        """Return the chain that was given, or else the longest that is the fastest at a batch size, with its schedule.

        None where that is plain decoding.
        """
        given, schedule = self._source.chain_length, self._schedule()
        here = fastest_length(self._model, max_length=self._source.max_length)
        length = max([here, *(part.length for part in schedule)]) if given is None else given
        if length == 0:
            self._off(self._fastest_chain())
            return None
        if given is None:
            self._note_tree("the fastest chain")
        return self._asked(DynamicTree.chain(length), schedule)

    def _off(self, best: DynamicTree | None) -> None:
        """Say that speculation is off, and what the best draft would come to, where any was measured."""
        self._best_draft = best
        if best is None:
            self._warnings.append(speculation_off_warning(self._engine.title))
        else:
            speedup = predicted(shape(best), best, self._model, self._replay).prediction.speedup.value
            self._warnings.append(speculation_off_warning(self._engine.title, shape(best), speedup))

    def _fastest_chain(self) -> DynamicTree | None:
        """Return the fastest chain that drafts at all, however slow; None where none was measured."""
        depth, most = self._model.acceptance.table.max_depth, self._model.costs.max_nodes - 1
        lengths = range(1, 1 + (most if depth is None else min(most, depth)))
        if not lengths:
            return None
        speedups = self._model.speedups([chain(length) for length in lengths])
        return DynamicTree.chain(lengths[int(speedups.argmax())])

    def _schedule(self) -> tuple[BatchLength, ...]:
        """Return the fastest length of every batch size from 1 on; empty where one was measured or is asked for."""
        request = self._source.request
        if request.batch_size is not None or len({each.batch_size for each in self._profile.step_latencies}) == 1:
            return ()
        acceptance = self._model.acceptance
        request = replace(
            request, rule=acceptance.rule, temperature=acceptance.temperature, max_depth=self._source.max_length
        )
        segments = chain_schedule(self._profile, request)
        measured = segments[0].batch_sizes[0]
        if measured > 1:
            self._warnings.append(
                Warning(
                    f"batch sizes below {measured} were not measured; the schedule treats them like {measured}.",
                    "Profile them.",
                )
            )
        firsts = [1, *(segment.batch_sizes[0] for segment in segments[1:])]
        return tuple(
            BatchLength(first_batch=first, last_batch=segment.batch_sizes[1], length=segment.option.tree.max_depth)
            for first, segment in zip(firsts, segments, strict=True)
        )

    def _asked(self, tree: DynamicTree, schedule: tuple[BatchLength, ...] = ()) -> SettingRequest:
        table = self._model.acceptance.table
        known = tree.is_chain and (table.max_depth is None or tree.depth <= table.max_depth)
        return SettingRequest(
            tree=tree,
            static_tree=self._static_tree if self._engine.static else None,
            rule=self._model.acceptance.rule,
            schedule=schedule,
            survival=tuple(table.reach(chain(tree.depth))[1:].tolist()) if known else (),
            verify_times=verify_times(self._profile),
            draft_model=self._source.draft_model
            or self._profile.pair.draft_source
            or self._profile.pair.draft
            or UNNAMED_DRAFT,
            method=self._source.method,
            engine_version=self._source.engine_version,
        )

    @cached_property
    def _static_tree(self) -> TokenTree:
        """The tree that is handed along with treeopt's own decoder: the user's, or else the fastest."""
        if self._source.tree is not None:
            return self._source.tree
        acceptance, point = self._model.acceptance, self._model.point
        request = replace(
            self._source.request,
            rule=acceptance.rule,
            temperature=acceptance.temperature,
            context_tokens=point.context_tokens,
            batch_size=point.batch_size,
            max_nodes=self._source.request.max_nodes or self._model.costs.max_nodes,
            lossy=acceptance.rule in LOSSY_RULES,
        )
        return requested_plan(self._profile, request).choice.tree

    def _predictions(self, asked: SettingRequest | None) -> Iterator[Predicted]:
        plain = predicted_static("plain decoding", chain(0), self._model)
        if asked is None:
            yield plain
        first = self._best_draft if asked is None else asked.tree
        for label, tree in self._drafts(first):
            try:
                yield predicted(label, tree, self._model, self._replay)
            except InfeasibleError as error:
                self._remarks.append(f"{label}: not predicted, because {reason(error)}")
        if asked is None:
            return
        if asked.static_tree is not None:
            label = f"tree of {asked.static_tree.nodes} nodes, treeopt's decoder"
            yield predicted_static(label, asked.static_tree, self._model)
        yield plain

    def _drafts(self, first: DynamicTree | None) -> Iterator[tuple[str, DynamicTree]]:
        """Yield a draft and the engine's default, each with what it is called."""
        default, title = self._engine.default, self._engine.title
        if first is not None:
            yield shape(first), first
        if default is not None and default != first:
            yield f"{title}'{'s' * (title[-1] != 's')} default, {shape(default)}", default

    def _note_tree(self, instead: str) -> None:
        """Say so where the user's tree has branches that the engine cannot be given."""
        tree = self._source.tree
        if tree is None or self._engine.static:
            return
        try:
            here = f", {self._model.speedup(tree):.2f}x plain decoding in treeopt's decoder,"
        except InfeasibleError:
            here = ""
        self._remarks.append(
            f"{self._engine.title} loads no static tree: in place of the one of {tree.nodes} nodes{here} it gets {instead}."
        )


def _without_profile(engine: Engine, source: Source) -> Setting:
    """Return the chain as deep as the tree, with nothing predicted."""
    if source.tree is None:
        raise InfeasibleError("setting: expected a profile or a tree. Got neither.")
    if source.tree.nodes == 1:
        return plain_setting(engine)
    asked = SettingRequest(
        tree=DynamicTree.chain(source.tree.max_depth),
        static_tree=source.tree if engine.static else None,
        rule=source.request.rule or "sequoia",
        draft_model=source.draft_model or UNNAMED_DRAFT,
        method=source.method,
        engine_version=source.engine_version,
    )
    emitted, found = emit(engine, asked), "without a profile nothing is predicted."
    if source.chain_length is None:
        found = (
            "without a profile nothing is predicted, and the length is the depth of the tree, whose branches "
            f"{engine.title} cannot be given."
        )
    return Setting(
        asked=asked,
        emitted=emitted,
        predictions=(),
        remarks=(),
        warnings=(
            Warning(found, "Run treeopt profile, or name one with --profile."),
            *emitted.warnings,
        ),
    )
