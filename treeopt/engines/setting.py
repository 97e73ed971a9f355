"""Profile, record and tree to an engine's setting: what to ask it for, and what that, its default and plain come to."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from treeopt.draft_record import DraftRecord
from treeopt.engines.engine import Asked, BatchLength, Emitted, Engine, VerifyTime
from treeopt.errors import InfeasibleError
from treeopt.latency import Estimate
from treeopt.planner import Candidate, StepModel, plan, step_model
from treeopt.planner.chains import ChainSegment, chain_schedule, fastest_chain
from treeopt.planner.dynamic import DynamicCandidate, fastest_dynamic_tree, predict_dynamic
from treeopt.planner.replay import Replay
from treeopt.profile import Profile
from treeopt.rules import LOSSY_RULES
from treeopt.trees import TokenTree, chain
from treeopt.trees.dynamic_tree import DynamicTree

UNNAMED_DRAFT = "DRAFT"
"""Stands for the draft model where nobody named one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a setting is made from; at least a profile or a tree."""

    profile: Profile | None = None
    record: DraftRecord | None = None
    tree: TokenTree | None = None
    """What the user means to run: a chain is kept as it is; of a tree with branches the rule and the size are free."""
    rule: str | None = None
    temperature: float | None = None
    context_tokens: int | None = None
    batch_size: int | None = None
    max_nodes: int | None = None
    """Most nodes of a setting, root included; by default all that was measured."""
    max_depth: int | None = None
    """Most levels of a setting."""
    draft_model: str | None = None
    """As the engine is to be told; by default as profiled."""
    method: str | None = None
    engine_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One way to decode, and what it comes to."""

    label: str
    tokens_per_step: Estimate
    step_s: Estimate
    speedup: Estimate
    """Tokens per second over those of plain decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An engine's files, and what they promise."""

    asked: Asked
    emitted: Emitted
    predictions: tuple[Predicted, ...]
    """The setting, the engine's default where it can be predicted, and plain decoding; empty without a profile."""
    remarks: tuple[str, ...]
    """What was chosen for which reason, in words."""
    warnings: tuple[str, ...]
    """Each ends in an action."""


def setting(engine: Engine, source: Source) -> Setting:
    """Return the fastest setting of an engine that the profile allows, or the chain that a tree is.

    Dynamic trees are chosen where the engine takes them and a record of the same temperature is there; else chains.
    Raises InfeasibleError where plain decoding is fastest, or the engine cannot be set to what was asked for.
    """
    if source.profile is None:
        return _without_profile(engine, source)
    _check_record(source.record, source.profile)
    model = step_model(
        source.profile,
        rule=source.rule,
        temperature=_temperature(source),
        context_tokens=source.context_tokens,
        batch_size=source.batch_size,
    )
    return _Chooser(engine, source, source.profile, model).setting()


class _Chooser:
    """One engine under one condition of a profile."""

    def __init__(self, engine: Engine, source: Source, profile: Profile, model: StepModel) -> None:
        self._engine, self._source, self._profile, self._model = engine, source, profile, model
        self._replay = None if source.record is None else Replay(source.record)
        self._remarks: list[str] = []
        self._warnings: list[str] = []

    def setting(self) -> Setting:
        """Return the setting."""
        asked = self._dynamic() or self._chain()
        emitted = self._engine.emit(asked)
        return Setting(
            asked=asked,
            emitted=emitted,
            predictions=tuple(self._predictions(asked)),
            remarks=tuple(self._remarks),
            warnings=(*self._warnings, *emitted.warnings),
        )

    def _dynamic(self) -> Asked | None:
        """Return the fastest dynamic tree, or None where chains are to be taken."""
        tree = self._source.tree
        if not self._engine.dynamic or (tree is not None and _is_chain(tree)):
            return None
        if self._replay is None:
            self._warnings.append(
                f"{self._engine.title} takes dynamic trees, but without a draft record only chains can be planned. "
                "Run treeopt profile --record, and name it with --record."
            )
            return None
        most = self._source.max_nodes or self._model.costs.max_nodes
        best = fastest_dynamic_tree(self._replay, self._model, max_nodes=most, allowed=self._allowed)
        if best.speedup.value <= 1:
            raise _plain_wins(self._engine)
        self._note_tree("the fastest dynamic tree of the record")
        return self._asked(best.tree)

    def _chain(self) -> Asked:
        source = self._source
        given = source.tree.max_depth if source.tree is not None and _is_chain(source.tree) else None
        most = min(_lengths(source), default=None) if given is None else given
        segments = self._segments(most)
        longest = max((segment.length for segment in segments), default=0)
        here = fastest_chain(self._model, max_length=most).tree.max_depth
        length = max(here, longest) if given is None else given
        if length == 0:
            raise _plain_wins(self._engine)
        if given is None:
            self._note_tree("the fastest chain")
        schedule = tuple(
            BatchLength(first_batch=segment.batch_sizes[0], last_batch=segment.batch_sizes[1], length=segment.length)
            for segment in segments
        )
        return self._asked(DynamicTree.chain(length), schedule)

    def _segments(self, max_length: int | None) -> tuple[ChainSegment, ...]:
        """Return the schedule over batch sizes; empty where one was measured."""
        if len({latency.batch_size for latency in self._profile.latencies}) == 1:
            return ()
        acceptance = self._model.acceptance
        segments = chain_schedule(
            self._profile,
            rule=acceptance.rule,
            temperature=acceptance.temperature,
            context_tokens=self._source.context_tokens,
            max_length=max_length,
        )
        first = segments[0].batch_sizes[0]
        if first > 1:
            self._warnings.append(
                f"batch sizes below {first} were not measured; the schedule treats them like {first}. Profile them."
            )
        return (ChainSegment(batch_sizes=(1, segments[0].batch_sizes[1]), choice=segments[0].choice), *segments[1:])

    def _asked(self, tree: DynamicTree, schedule: tuple[BatchLength, ...] = ()) -> Asked:
        table, verify = self._model.acceptance.table, self._profile.latency().verify
        known = tree.is_chain and (table.max_depth is None or tree.depth <= table.max_depth)
        return Asked(
            tree=tree,
            static_tree=self._static_tree if self._engine.static else None,
            rule=self._model.acceptance.rule,
            schedule=schedule,
            survival=tuple(table.reach(chain(tree.depth))[1:].tolist()) if known else (),
            verify_times=tuple(
                VerifyTime(tokens=int(tokens), seconds=float(seconds))
                for tokens, seconds in zip(verify.tokens, verify.medians_s, strict=True)
            ),
            draft_model=self._source.draft_model or self._profile.pair.draft,
            method=self._source.method,
            engine_version=self._source.engine_version,
        )

    @cached_property
    def _static_tree(self) -> TokenTree:
        """The tree that is handed along with treeopt's own decoder: the user's, or else the fastest."""
        if self._source.tree is not None:
            return self._source.tree
        acceptance, where = self._model.acceptance, self._model.condition
        return plan(
            self._profile,
            self._model.costs.max_nodes,
            rule=acceptance.rule,
            temperature=acceptance.temperature,
            context_tokens=where.context_tokens,
            batch_size=where.batch_size,
            lossy=acceptance.rule in LOSSY_RULES,
        ).choice.tree

    def _allowed(self, tree: DynamicTree) -> bool:
        if self._source.max_depth is not None and tree.depth > self._source.max_depth:
            return False
        try:
            self._engine.emit(self._asked(tree))
        except InfeasibleError:
            return False
        return True

    def _predictions(self, asked: Asked) -> Iterator[Predicted]:
        default, title = self._engine.default, self._engine.title
        labelled = [(shape(asked.tree), asked.tree)]
        if default is not None and default != asked.tree:
            labelled.append((f"{title}'{'s' * (title[-1] != 's')} default, {shape(default)}", default))
        for label, tree in labelled:
            try:
                yield self._predicted(label, tree)
            except InfeasibleError as error:
                self._remarks.append(f"{label}: not predicted, because {error}")
        if asked.static_tree is not None:
            yield _of(f"tree of {asked.static_tree.nodes} nodes, treeopt's decoder", self._static(asked.static_tree))
        yield _of("plain decoding", self._static(chain(0)))

    def _predicted(self, label: str, tree: DynamicTree) -> Predicted:
        if tree.is_chain:
            return _of(label, self._static(chain(tree.depth)))
        if self._replay is None:
            raise InfeasibleError("dynamic trees need a draft record: run treeopt profile --record.")
        return _of(label, predict_dynamic(self._replay, self._model, tree))

    def _static(self, tree: TokenTree) -> Candidate:
        return self._model.predict("tree", tree)

    def _note_tree(self, instead: str) -> None:
        """Say so where the user's tree has branches that the engine cannot be given."""
        tree = self._source.tree
        if tree is None or self._engine.static:
            return
        try:
            here = f", {self._model.speedup(tree):.2f} times plain decoding in treeopt's decoder,"
        except InfeasibleError:
            here = ""
        self._remarks.append(
            f"{self._engine.title} loads no static tree: in place of the one of {tree.nodes} nodes{here} it gets {instead}."
        )


def _of(label: str, candidate: Candidate | DynamicCandidate) -> Predicted:
    return Predicted(
        label=label,
        tokens_per_step=candidate.tokens_per_step,
        step_s=candidate.step_s,
        speedup=candidate.speedup,
    )


def shape(tree: DynamicTree) -> str:
    """Return a dynamic tree in words.

    >>> shape(DynamicTree.chain(3)), shape(DynamicTree(top_k=4, depth=3, nodes=9))
    ('chain of 3 draft tokens', 'dynamic tree of 9 nodes, root included, top-k 4, depth 3')
    """
    if tree.is_chain:
        return f"chain of {tree.depth} draft token{'s' * (tree.depth > 1)}"
    return f"dynamic tree of {tree.nodes} nodes, root included, top-k {tree.top_k}, depth {tree.depth}"


def _without_profile(engine: Engine, source: Source) -> Setting:
    """Return the chain as deep as the tree, with nothing predicted."""
    if source.tree is None:
        raise InfeasibleError("setting: expected a profile or a tree. Got neither.")
    if source.tree.nodes == 1:
        raise _plain_wins(engine)
    asked = Asked(
        tree=DynamicTree.chain(source.tree.max_depth),
        static_tree=source.tree if engine.static else None,
        rule=source.rule or "sequoia",
        draft_model=source.draft_model or UNNAMED_DRAFT,
        method=source.method,
        engine_version=source.engine_version,
    )
    emitted = engine.emit(asked)
    without = "without a profile nothing is predicted"
    if not _is_chain(source.tree):
        without += f", and the length is the depth of the tree, whose branches {engine.title} cannot be given"
    return Setting(
        asked=asked,
        emitted=emitted,
        predictions=(),
        remarks=(),
        warnings=(f"{without}. Run treeopt profile, or name one with --profile.", *emitted.warnings),
    )


def _lengths(source: Source) -> list[int]:
    """Return the limits that are set on the length of a chain."""
    limits = [source.max_depth, None if source.max_nodes is None else source.max_nodes - 1]
    return [limit for limit in limits if limit is not None]


def _check_record(record: DraftRecord | None, profile: Profile) -> None:
    pair = f"{profile.pair.target} + {profile.pair.draft}"
    if record is not None and record.pair != pair:
        raise InfeasibleError(
            f"record: expected one of the profile's pair, {pair}. Got {record.pair}: record that pair, or leave the "
            "record out with --no-record."
        )


def _temperature(source: Source) -> float | None:
    """Return the temperature planned for: as asked, or else that of the record where the profile has it."""
    record, profile = source.record, source.profile
    if record is None or profile is None:
        return source.temperature
    if source.temperature is None and profile.acceptances_of(rule=source.rule, temperature=record.temperature):
        return record.temperature
    if source.temperature != record.temperature:
        asked = "the profile's" if source.temperature is None else f"{source.temperature:g}"
        raise InfeasibleError(
            f"record: expected one at temperature {asked}. Got {record.temperature:g}: record at that temperature, or "
            "leave the record out with --no-record."
        )
    return source.temperature


def _is_chain(tree: TokenTree) -> bool:
    return tree.nodes == tree.max_depth + 1


def _plain_wins(engine: Engine) -> InfeasibleError:
    return InfeasibleError(
        f"plain decoding is the fastest here: run {engine.title} without speculation, or give a chain to be set anyway."
    )
