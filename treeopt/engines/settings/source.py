"""What a setting is made from, and whether it belongs together."""

from dataclasses import dataclass, replace

from treeopt.engines.engine import Engine, VerifyTime
from treeopt.errors import InfeasibleError
from treeopt.planner import kind_of
from treeopt.records.draft_record import DraftRecord
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a setting is made from; at least a profile or a tree."""

    profile: Profile | None = None
    record: DraftRecord | None = None
    """For engines that draft dynamic trees; others do not look at it."""
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

    @property
    def chain_length(self) -> int | None:
        """Draft tokens of the tree where it is a chain; 0 for the root alone, None for anything else."""
        return None if self.tree is None or kind_of(self.tree) == "tree" else self.tree.max_depth

    @property
    def max_length(self) -> int | None:
        """Most draft tokens of a chain: the tree's own, or what the limits leave; None is no limit."""
        limits = [self.chain_length, self.max_depth, None if self.max_nodes is None else self.max_nodes - 1]
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
        if self.temperature is None and profile.acceptances_of(rule=self.rule, temperature=record.temperature):
            return replace(self, temperature=record.temperature)
        if self.temperature != record.temperature:
            asked = "the profile's" if self.temperature is None else f"{self.temperature:g}"
            raise InfeasibleError(
                f"record: expected one at temperature {asked}. Got {record.temperature:g}: record at that temperature, "
                "or leave the record out with --no-record."
            )
        return self


def verify_times(profile: Profile) -> tuple[VerifyTime, ...]:
    """Return the passes that were measured with the smallest batch, their tokens counted over all its sequences."""
    latency = min(profile.latencies, key=lambda each: each.batch_size)
    tokens = latency.verify.tokens * latency.batch_size
    return tuple(
        VerifyTime(tokens=int(count), seconds=float(seconds))
        for count, seconds in zip(tokens, latency.verify.medians_s, strict=True)
    )
