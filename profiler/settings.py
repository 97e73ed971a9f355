"""What a profile is to measure, and how much of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from zlib import crc32

from treeopt.errors import InvalidValueError
from treeopt.profiler.machine import describe_machine, describe_pair
from treeopt.rules import check_rule
from treeopt.runtime import Transformer
from treeopt.sampling import GREEDY, Sampling, draft_law


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSize:
    """Which dynamic trees a draft record is to answer for.

    Raises InvalidValueError for a number below 1.
    """

    top_k: int = 10
    """The largest top-k; at most the vocabulary is recorded."""
    depth: int = 10
    """The greatest depth."""

    def __post_init__(self) -> None:
        for name in ("top_k", "depth"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"record {name}: expected at least 1. Got {getattr(self, name)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure, and how much of it.

    Raises InvalidValueError for a value out of range.
    """

    rules: tuple[str, ...] = ("sequoia",)
    """Verification rules, each with an acceptance and an overhead of its own; at temperature 0 all are one."""
    lossy: bool = False
    """Allow rules that change the text's law."""
    sampling: Sampling = GREEDY
    """How the target's tokens are sampled."""
    draft_sampling: Sampling | None = None
    """The law that children are drawn from; by default the target's temperature and all tokens."""
    context_tokens: int = 256
    """Tokens in the cache while times are taken."""
    max_tokens: int = 512
    """Largest pass that is timed: no budget beyond it can be planned."""
    rounds: int = 25
    """Samples of every time."""
    positions: int = 4096
    """Generated positions whose acceptance is counted, for each rule, and that are recorded, over all prompts."""
    branching: int = 16
    """Children per position."""
    depth: int = 16
    """Depths of the acceptance table."""
    record: RecordSize | None = None
    """What to record for dynamic trees, if anything."""

    def __post_init__(self) -> None:
        for rule in self.rules:
            check_rule(rule, lossy=self.lossy)
        if not self.rules or len(set(self.rules)) < len(self.rules):
            raise InvalidValueError(f"rules: expected one or more, each once. Got {', '.join(self.rules) or 'none'}.")
        if self.sampling.greedy and len(self.rules) > 1:
            raise InvalidValueError(
                f"rules: expected one at temperature 0, where all accept the same. Got {', '.join(self.rules)}: "
                "measure them at a temperature above 0."
            )
        draft_law(self.sampling, self.draft_sampling)  # refuse now what cannot be drawn
        least = {"context_tokens": 1, "max_tokens": 2, "rounds": 1, "positions": 1, "branching": 1, "depth": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise InvalidValueError(f"{name}: expected at least {value}. Got {getattr(self, name)}.")

    @property
    def draft_law(self) -> Sampling:
        """How the draft's children are drawn."""
        return draft_law(self.sampling, self.draft_sampling)

    def text_positions(self, texts: int) -> int:
        """Return the positions of each of so many texts."""
        return -(-self.positions // texts)

    def conditions(self, target: Transformer, draft: Transformer, prompts: Sequence[Sequence[int]]) -> str:
        """Return all that makes two profiles comparable, as one line."""
        checksum = crc32(repr([list(prompt) for prompt in prompts]).encode())
        parts = {**asdict(describe_machine(target.device)), **asdict(describe_pair(target, draft)), **asdict(self)}
        if self.record is None:
            del parts["record"]
        parts["prompts"] = f"{len(prompts)} of checksum {checksum:08x}"
        return ", ".join(f"{name} {value}" for name, value in parts.items())
