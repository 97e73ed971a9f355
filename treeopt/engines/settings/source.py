"""What a setting is made from, and whether it belongs together."""

from dataclasses import dataclass, field, replace

from treeopt.engines.engine import Engine, VerifyTime
from treeopt.errors import InfeasibleError
from treeopt.planner import PlanRequest
from treeopt.records.draft_record import DraftRecord
from treeopt.records.profile import Profile
from treeopt.trees import Provenance, TokenTree, kind_of
from treeopt.trees.drafter_setting import DrafterSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a setting is made from; at least a profile or a tree."""

    profile: Profile | None = None
    record: DraftRecord | None = None
    """For engines that draft dynamic trees; others do not look at it."""
    tree: TokenTree | None = None
    """What the user means to run: a chain is kept as it is; of a tree with branches the rule and the size are free."""
    drafter: DrafterSetting | None = None
    """What drafts the tree, as its file says; None for a draft model."""
    promised: Provenance | None = None
    """What its file promises."""
    request: PlanRequest = field(default_factory=PlanRequest)
    """For which rule, temperature and condition, and the most nodes, root included, and levels of a setting."""
    draft_model: str | None = None
    """As the engine is to be told; by default as profiled."""
    method: str | None = None
    engine_version: str | None = None

    @property
    def chain_length(self) -> int | None:
        """Draft tokens of the tree where it is a chain; 0 for the root alone, None for anything else."""
        return None if self.tree is None or kind_of(self.tree) == "tree" else self.tree.max_depth

    @property
    def max_length(self) -> int | None:
        """Most draft tokens of a chain: the tree's own, or what the limits leave; None is no limit."""
        most = self.request.max_nodes
        limits = [self.chain_length, self.request.max_depth, None if most is None else most - 1]
        return min((limit for limit in limits if limit is not None), default=None)

    def for_engine(self, engine: Engine) -> "Source":
        """Return what counts for an engine, its record and profile checked to belong together.

        Raises InfeasibleError for a record of another pair or temperature.
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
            asked = "the profile's" if temperature is None else f"{temperature:g}"
            raise InfeasibleError(
                f"record: expected one at temperature {asked}. Got {record.temperature:g}: record at that temperature, "
                "or leave the record out with --no-record."
            )
        return self


def verify_times(profile: Profile) -> tuple[VerifyTime, ...]:
    """Return the passes that were measured with the smallest batch, their tokens counted over all its sequences."""
    if not profile.latencies:
        return ()  # an engine's passes were not seen
    latency = min(profile.latencies, key=lambda each: each.batch_size)
    tokens = latency.verify.tokens * latency.batch_size
    return tuple(
        VerifyTime(tokens=int(count), seconds=float(seconds))
        for count, seconds in zip(tokens, latency.verify.medians_s, strict=True)
    )
