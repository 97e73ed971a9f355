"""Choose an engine's setting from a profile, a draft record or a tree, and predict it, the default and plain decoding."""

from dataclasses import replace
from functools import cached_property

from treeopt.engines.exporters.common import check_method, find_refusal, loads_draft_model, render_setting
from treeopt.engines.exporters.drafters import set_drafter, set_fastest_drafter
from treeopt.engines.exporters.engine import BatchLength, Engine, SettingRequest
from treeopt.engines.exporters.setting import (
    UNNAMED_DRAFT,
    Setting,
    Source,
    describe_dynamic_tree,
    turn_off,
    warn_speculation_off,
)
from treeopt.errors import InfeasibleError, Warning, reason
from treeopt.planner import Prediction, requested_plan, step_model
from treeopt.planner.dynamic import fastest_dynamic_tree, predict_dynamic
from treeopt.planner.replay import Replay
from treeopt.planner.segments import chain_schedule, fastest_length
from treeopt.planner.unmeasured import unmeasured_warnings, warn_outside_contexts
from treeopt.records.profile import Profile, collect_imported
from treeopt.records.rules import LOSSY_RULES
from treeopt.trees import TokenTree, chain
from treeopt.trees.drafter_parameters import DynamicTree


def choose_setting(engine: Engine, source: Source) -> Setting:
    """Return the fastest setting of an engine that the profile allows, or the user's chain.

    Dynamic trees are chosen for an engine that takes them if there is a record at the same temperature, else chains.  A
    tree file's drafter is exported as the engine's drafter of the same kind.  Without a draft model, the fastest of the
    profile's drafters that the engine has is chosen.  If plain decoding is fastest, speculation is off.

    Raises InvalidValueError for an unknown method, InfeasibleError if the engine does not accept the setting.
    """
    check_method(engine, source.method)
    if source.tree_file is not None and source.tree_file.drafter is not None:
        return set_drafter(engine, source, source.tree_file)
    source = source.for_engine(engine)
    if source.profile is None:
        return _set_tree_depth(engine, source)
    if not source.profile.has_draft_model:
        return set_fastest_drafter(engine, source, source.profile)
    return _SettingChoice(engine, source, source.profile).setting()


class _SettingChoice:
    """The choice of an engine's setting at one operating point of a profile."""

    def __init__(self, engine: Engine, source: Source, profile: Profile) -> None:
        self._engine, self._source, self._profile = engine, source, profile
        self._model = step_model(profile, source.request)
        self._replay = None if source.record is None else Replay(source.record)
        self._fastest_draft: DynamicTree | None = None
        """The draft that loses to plain decoding."""
        self._notes: list[str] = []
        acceptance, point = self._model.acceptance, self._model.point
        self._warnings = [*unmeasured_warnings(source.request, point, acceptance.table)]
        outside = warn_outside_contexts(profile, acceptance, [point.context_tokens])
        if outside is not None:
            self._warnings.append(outside)

    def setting(self) -> Setting:
        request = self._choose_request()
        if request is not None and loads_draft_model(self._engine, request):
            self._warn_unnamed_draft_model()
        output = self._engine.off if request is None else render_setting(self._engine, request)
        return Setting(
            request=request,
            output=output,
            target_model=self._profile.pair.target_source,
            predictions=self._predict_all(request),
            notes=tuple(self._notes),
            warnings=(*self._warnings, *output.warnings),
        )

    def _choose_request(self) -> SettingRequest | None:
        """Return the fastest dynamic tree or chain; None if plain decoding is faster."""
        if not self._engine.drafts_trees(self._source.method) or self._source.chain_length is not None:
            return self._choose_chain()
        if self._replay is None:
            self._notes.append(self._describe_missing_record())
            return self._choose_chain()
        return self._choose_tree(self._replay)

    def _choose_tree(self, replay: Replay) -> SettingRequest | None:
        max_nodes = self._source.request.max_nodes or self._model.costs.max_nodes
        max_depth = self._source.request.max_depth
        if max_nodes < 2:
            raise InfeasibleError(
                f"max_nodes: expected at least 2, the root and a draft token. Got {max_nodes}: allow more.",
                field="max_nodes",
            )
        if max_depth == 0:
            raise InfeasibleError(
                "max_depth: expected at least 1, a draft token. Got 0: allow more.", field="max_depth"
            )
        request = self._make_request(DynamicTree.chain(1))
        tree, prediction = fastest_dynamic_tree(
            replay,
            self._model,
            max_nodes=max_nodes,
            max_depth=max_depth,
            limits=lambda tree: find_refusal(self._engine, replace(request, tree=tree)),
        )
        if prediction.speedup.value <= 1:
            self._turn_off(tree)
            return None
        self._note_replaced_tree("the fastest dynamic tree of the record")
        return self._make_request(tree)

    def _choose_chain(self) -> SettingRequest | None:
        """Return the user's chain, or else the longest one that is fastest at some batch size, with the schedule."""
        length, schedule = self._source.chain_length, self._choose_schedule()
        if length is None:
            fastest = fastest_length(self._model, max_length=self._source.max_length)
            length = max([fastest, *(part.length for part in schedule)])
            if length > 0:
                self._note_replaced_tree("the fastest chain")
        if length == 0:
            self._turn_off(self._fastest_chain())
            return None
        return self._make_request(DynamicTree.chain(length), schedule)

    def _choose_schedule(self) -> tuple[BatchLength, ...]:
        """Return the fastest length of every batch size from 1 on; empty if a single one was measured or is requested."""
        request = self._source.request
        if request.batch_size is not None:
            return ()
        acceptance = self._model.acceptance
        request = replace(
            request, rule=acceptance.rule, temperature=acceptance.temperature, max_depth=self._source.max_length
        )
        segments = chain_schedule(self._profile, request)
        smallest, largest = segments[0].batch_sizes[0], segments[-1].batch_sizes[1]
        if smallest == largest:
            return ()
        if smallest > 1:
            self._warnings.append(
                Warning(
                    f"batch sizes below {smallest} were not measured; the schedule treats them like {smallest}.",
                    "Measure them.",
                )
            )
        firsts = [1, *(segment.batch_sizes[0] for segment in segments[1:])]
        return tuple(
            BatchLength(first_batch=first, last_batch=segment.batch_sizes[1], length=segment.option.tree.max_depth)
            for first, segment in zip(firsts, segments, strict=True)
        )

    def _fastest_chain(self) -> DynamicTree | None:
        """Return the fastest chain with a draft token, even if plain decoding is faster; None if none was measured."""
        lengths = range(1, 1 + self._model.longest_chain)
        if not lengths:
            return None
        speedups = self._model.speedups([chain(length) for length in lengths])
        return DynamicTree.chain(lengths[int(speedups.argmax())])

    def _turn_off(self, draft: DynamicTree | None) -> None:
        """Warn that speculation is off, with the speedup of the fastest draft if one was measured."""
        self._fastest_draft = draft
        if draft is None:
            self._warnings.append(warn_speculation_off(self._engine.title))
        else:
            speedup = self._predict(draft).speedup.value
            self._warnings.append(warn_speculation_off(self._engine.title, describe_dynamic_tree(draft), speedup))

    def _make_request(self, tree: DynamicTree, schedule: tuple[BatchLength, ...] = ()) -> SettingRequest:
        acceptance, pair = self._model.acceptance, self._profile.pair
        table = acceptance.table
        measured = tree.is_chain and (table.max_depth is None or tree.depth <= table.max_depth)
        return SettingRequest(
            tree=tree,
            static_tree=self._static_tree if self._engine.static else None,
            rule=acceptance.rule,
            schedule=schedule,
            survival=tuple(table.reach(chain(tree.depth))[1:].tolist()) if measured else (),
            verify_s=_measured_verify_s(self._profile),
            draft_model=self._source.draft_model or pair.draft_source or pair.draft or UNNAMED_DRAFT,
            method=self._source.method,
            engine_version=self._source.engine_version,
        )

    @cached_property
    def _static_tree(self) -> TokenTree:
        """The tree for treeopt's own decoder: the user's, or else the fastest."""
        if self._source.tree is not None:
            return self._source.tree
        acceptance, point = self._model.acceptance, self._model.point
        request = replace(
            self._source.request,
            rule=acceptance.rule,
            temperature=acceptance.temperature,
            context_tokens=point.context_tokens,
            batch_size=point.batch_size,
            lossy=acceptance.rule in LOSSY_RULES,
        )
        return requested_plan(self._profile, request).choice.tree

    def _predict(self, tree: DynamicTree) -> Prediction:
        """Predict a chain from the profile's acceptance, a dynamic tree from the record.

        Raises InfeasibleError if that was not measured or recorded.
        """
        if tree.is_chain:
            return self._model.predict(chain(tree.depth)).prediction
        if self._replay is None:
            action = ": run treeopt profile --record" if self._names_models else ""
            raise InfeasibleError(f"dynamic trees need a draft record{action}.")
        return predict_dynamic(self._replay, self._model, tree)

    def _predict_all(self, request: SettingRequest | None) -> dict[str, Prediction]:
        plain = {"plain decoding": self._model.predict(chain(0)).prediction}
        draft, default, title = self._fastest_draft, self._engine.default, self._engine.title
        if request is not None:
            draft = request.tree
        drafts = {} if draft is None else {describe_dynamic_tree(draft): draft}
        if default is not None and default != draft:
            drafts[f"{title}'{'s' * (title[-1] != 's')} default, {describe_dynamic_tree(default)}"] = default
        predictions: dict[str, Prediction] = {}
        for label, tree in drafts.items():
            try:
                predictions[label] = self._predict(tree)
            except InfeasibleError as error:
                self._notes.append(f"{label}: not predicted, because {reason(error)}")
        if request is None:
            return plain | predictions
        if request.static_tree is not None:
            label = f"tree of {request.static_tree.nodes} nodes, treeopt's decoder"
            predictions[label] = self._model.predict(request.static_tree).prediction
        return predictions | plain

    def _note_replaced_tree(self, replacement: str) -> None:
        """Note that the engine does not load the user's tree with branches."""
        tree = self._source.tree
        if tree is None or self._engine.static:
            return
        try:
            speedup = f", {self._model.speedup(tree):.2f}x plain decoding in treeopt's decoder,"
        except InfeasibleError:
            speedup = ""
        self._notes.append(
            f"{self._engine.title} loads no static tree: in place of the one of {tree.nodes} nodes{speedup} it gets "
            f"{replacement}."
        )

    @property
    def _names_models(self) -> bool:
        """Whether the profile names models to record; one of treeopt's decoder without a source is of the bundled pair."""
        imported = self._profile.engine is not None or collect_imported(self._profile.latencies, None)
        return self._profile.pair.target_source is not None or not imported

    def _describe_missing_record(self) -> str:
        title = self._engine.title
        if self._names_models:
            return (
                f"{title} takes dynamic trees, but without a draft record only chains can be planned. "
                "Run treeopt profile --record, and name the file with --record."
            )
        return (
            f"{title} takes dynamic trees, but they need a draft record, and this profile names no models to record. "
            "Profile the models themselves with treeopt profile --record."
        )

    def _warn_unnamed_draft_model(self) -> None:
        """Warn of a draft model that is known only by name, which no engine can load."""
        pair = self._profile.pair
        if self._source.draft_model is None and pair.draft_source is None and self._source.method is None:
            self._warnings.append(
                Warning(
                    f"the draft model is known by the name {pair.draft!r} only, which {self._engine.title} cannot load.",
                    "Name a model with --draft-model.",
                )
            )


def _measured_verify_s(profile: Profile) -> dict[int, float]:
    """Return the seconds of verification passes at the smallest batch size, by tokens of the whole batch."""
    if not profile.latencies:
        return {}  # an engine's passes are not seen
    latency = min(profile.latencies, key=lambda latency: latency.batch_size)
    tokens = latency.verify.tokens * latency.batch_size
    return dict(zip(tokens.tolist(), latency.verify.medians_s.tolist(), strict=True))


def _set_tree_depth(engine: Engine, source: Source) -> Setting:
    """Return the chain as long as the tree is deep, without a prediction."""
    tree = source.tree
    if tree is None:
        raise InfeasibleError("setting: expected a profile or a tree. Got neither.")
    if tree.nodes == 1:
        return turn_off(engine)
    request = SettingRequest(
        tree=DynamicTree.chain(tree.max_depth),
        static_tree=tree if engine.static else None,
        rule=source.request.rule or "sequoia",
        draft_model=source.draft_model or UNNAMED_DRAFT,
        method=source.method,
        engine_version=source.engine_version,
    )
    output = render_setting(engine, request)
    problem = "without a profile nothing is predicted."
    if source.chain_length is None:
        problem = (
            "without a profile nothing is predicted, and the length is the depth of the tree, whose branches "
            f"{engine.title} cannot be given."
        )
    warning = Warning(problem, "Run treeopt profile, or name one with --profile.")
    return Setting(request=request, output=output, warnings=(warning, *output.warnings))
