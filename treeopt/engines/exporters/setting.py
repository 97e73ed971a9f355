"""The inputs of an export, and the setting that it chooses for an engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from treeopt.engines.exporters.engine import Engine, SettingFiles, SettingRequest
from treeopt.errors import InfeasibleError, Warning
from treeopt.planner import DrafterChoice, PlanRequest, Prediction
from treeopt.records.draft_record import DraftRecord
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree, TreeFile, chain, describe_tree, kind_of
from treeopt.trees.drafter_parameters import DynamicTree

UNNAMED_DRAFT = "DRAFT"
"""Placeholder for a draft model without a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a setting is chosen from; at least a profile or a tree."""

    profile: Profile | None = None
    record: DraftRecord | None = None
    """For engines that draft dynamic trees; others ignore it."""
    tree_file: TreeFile | None = None
    """The user's tree: a chain is exported as it is, a tree with branches is replaced by what the engine drafts."""
    request: PlanRequest = field(default_factory=PlanRequest)
    """Rule, temperature, context and batch size; most nodes, root included, and levels."""
    draft_model: str | None = None
    """Draft model as the engine loads it; by default as profiled."""
    method: str | None = None
    engine_version: str | None = None

    @property
    def tree(self) -> TokenTree | None:
        return None if self.tree_file is None else self.tree_file.tree

    @property
    def chain_length(self) -> int | None:
        """Draft tokens of the tree if it is a chain, 0 for the root alone; None for anything else."""
        return None if self.tree is None or kind_of(self.tree) == "tree" else self.tree.max_depth

    @property
    def max_length(self) -> int | None:
        """Most draft tokens of a chain, from the tree and the limits; None is no limit."""
        limits = [self.chain_length, self.request.max_length]
        return min((limit for limit in limits if limit is not None), default=None)

    def for_engine(self, engine: Engine) -> "Source":
        """Return the inputs that an engine uses: without the record, or at the record's temperature.

        Raises InfeasibleError for a record of another pair or temperature than the profile's.
        """
        record, profile = self.record, self.profile
        if record is None or profile is None or not engine.dynamic:
            return replace(self, record=None)
        pair = profile.pair.label
        if record.pair != pair:
            raise InfeasibleError(
                f"record: expected one of the profile's pair, {pair}. Got {record.pair}: record that pair, or leave the "
                "record out with --no-record."
            )
        rule, temperature = self.request.rule, self.request.temperature
        if temperature is None and profile.acceptances_of(rule=rule, temperature=record.temperature):
            return replace(self, request=replace(self.request, temperature=record.temperature))
        if temperature != record.temperature:
            expected = "the profile's" if temperature is None else f"{temperature:g}"
            raise InfeasibleError(
                f"record: expected one at temperature {expected}. Got {record.temperature:g}: record at that temperature, "
                "or leave the record out with --no-record."
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An engine's setting."""

    request: SettingRequest | None
    """None if speculation is off, because plain decoding is fastest or was asked for."""
    output: SettingFiles
    target_model: str | None = None
    """What the target was loaded from; None if unknown, and for the bundled target."""
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    """By label: the setting, the engine's default if it can be predicted, and plain decoding; empty without a profile.
    If speculation is off, plain decoding comes first."""
    notes: tuple[str, ...] = ()
    """What was chosen, and why."""
    warnings: tuple[Warning, ...]


def turn_off(engine: Engine, slower: Sequence[DrafterChoice] = ()) -> Setting:
    """Return the setting of plain decoding; `slower` are the measured drafters that lose."""
    best = max(slower, key=lambda choice: choice.option.speedup.value, default=None)
    warning = (
        warn_speculation_off(engine.title)
        if best is None
        else warn_speculation_off(engine.title, best.option.drafter.description, best.option.speedup.value)
    )
    return Setting(request=None, output=engine.off, warnings=(warning,))


def warn_speculation_off(title: str, draft: str | None = None, speedup: float | None = None) -> Warning:
    """Return the warning of an engine that decodes plainly.

    Args:
        title: the engine's.
        draft: the fastest draft in words; None if none was measured.
        speedup: of that draft over plain decoding.
    """
    if draft is None or speedup is None:
        problem = f"{title} is set to decode plainly, because no draft was measured."
    elif speedup > 1:
        problem = f"{title} is set to decode plainly, as asked, although a {draft} is {speedup:.2f} times as fast."
    else:
        problem = (
            f"speculation loses: the fastest draft, a {draft}, is {speedup:.2f} times as fast as plain decoding, so {title} is "
            "set to decode plainly."
        )
    return Warning(problem, "Export a tree file with a chain to speculate.")


def describe_dynamic_tree(tree: DynamicTree) -> str:
    """Return a dynamic tree in words.

    >>> describe_dynamic_tree(DynamicTree.chain(3))
    'chain of 3 draft tokens'
    >>> describe_dynamic_tree(DynamicTree(top_k=4, depth=3, nodes=9))
    'dynamic tree of 9 nodes, root included, top-k 4, depth 3'
    """
    if tree.is_chain:
        return describe_tree(chain(tree.depth))
    return f"dynamic tree of {tree.nodes} nodes, root included, top-k {tree.top_k}, depth {tree.depth}"
