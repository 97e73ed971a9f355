"""What a profile is to measure, and how much of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from zlib import crc32

from treeopt.errors import InvalidValueError
from treeopt.profiler.heading import edition
from treeopt.profiler.machine import describe_machine, describe_pair
from treeopt.records.machine import Pair
from treeopt.records.rules import check_rule
from treeopt.records.sampling import GREEDY, Sampling, draft_sampling_of
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees.drafter_setting import DrafterSetting


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
    """Allow rules that change the text's distribution."""
    samplings: tuple[Sampling, ...] = (GREEDY,)
    """How the target's tokens are sampled: one or more distributions, all measured in one pass over the prompts."""
    draft_sampling: Sampling | None = None
    """The distribution that children are sampled from; by default the target's temperature and all tokens."""
    context_tokens: tuple[int, ...] = (256,)
    """Tokens in the cache while times are taken, one length or more; where there are several, acceptance is counted at each."""
    batch_sizes: tuple[int, ...] = (1,)
    """Texts verified together while times are taken; 1 is among them, because steps are timed on single texts."""
    max_tokens: int = 512
    """Largest pass that is timed: no budget beyond it can be planned."""
    rounds: int = 25
    """Samples of every time."""
    time_budget_s: float | None = None
    """Seconds after which measuring ends, unless the plan is certain before; None measures `rounds` and `positions`."""
    positions: int = 4096
    """Generated positions whose acceptance is counted, for each rule and context, and that are recorded, over all prompts."""
    branching: int = 16
    """Children per position."""
    depth: int = 16
    """Depths of the acceptance table."""
    record: RecordSize | None = None
    """What to record for dynamic trees, if anything."""
    drafters: tuple[DrafterSetting, ...] = ()
    """What is measured beside the draft model, with its heads' digests."""
    cuda_graphs: bool | None = None
    """Whether timed passes are captured as CUDA graphs; by default on a CUDA device."""

    def __post_init__(self) -> None:
        for rule in self.rules:
            check_rule(rule, lossy=self.lossy)
        if not self.rules or len(set(self.rules)) < len(self.rules):
            raise InvalidValueError(
                f"rules: expected one or more, each once. Got {', '.join(self.rules) or 'none'}.", field="rules"
            )
        if not self.samplings or len({each.temperature for each in self.samplings}) < len(self.samplings):
            raise InvalidValueError("temperature: expected one or more, each once.", field="temperature")
        if all(each.greedy for each in self.samplings) and len(self.rules) > 1:
            raise InvalidValueError(
                f"rules: expected one at temperature 0, where all accept the same. Got {', '.join(self.rules)}: "
                "measure them at a temperature above 0.",
                field="rules",
            )
        for sampling in [each for each in self.samplings if not each.greedy] or self.samplings:
            draft_sampling_of(sampling, self.draft_sampling)  # refuse now what cannot be sampled
        for name, value in {"max_tokens": 2, "rounds": 1, "positions": 1, "branching": 1, "depth": 1}.items():
            if getattr(self, name) < value:
                raise InvalidValueError(f"{name}: expected at least {value}. Got {getattr(self, name)}.", field=name)
        for name in ("context_tokens", "batch_sizes"):
            values = getattr(self, name)
            if not values or min(values) < 1 or len(set(values)) < len(values):
                raise InvalidValueError(
                    f"{name}: expected one or more, each once and at least 1. Got {values}.", field=name
                )
        if 1 not in self.batch_sizes:
            raise InvalidValueError(
                f"batch_sizes: expected 1 among them, what plans are for by default. Got {self.batch_sizes}.",
                field="batch_sizes",
            )
        if self.time_budget_s is not None and self.time_budget_s <= 0:
            raise InvalidValueError(f"time_budget: expected more than 0 seconds. Got {self.time_budget_s:g}.")

    @property
    def sampling(self) -> Sampling:
        """The first of the samplings, along whose texts a draft record is made."""
        return self.samplings[0]

    @property
    def acceptance_contexts(self) -> tuple[int, ...]:
        """Context lengths that acceptance is counted at; none where one is asked for: then positions follow the prompts."""
        return self.context_tokens if len(self.context_tokens) > 1 else ()

    def own_draft_sampling(self, sampling: Sampling) -> Sampling | None:
        """Return how the draft samples beside one of the samplings, if otherwise: None where that is greedy."""
        return None if sampling.greedy else self.draft_sampling

    @property
    def asked(self) -> tuple[tuple[str, Sampling], ...]:
        """Rules and samplings whose acceptance is wanted; at temperature 0 all rules are one."""
        return tuple(
            (rule, sampling)
            for sampling in self.samplings
            for rule in (self.rules[:1] if sampling.greedy else self.rules)
        )

    def text_positions(self, texts: int) -> int:
        """Return the positions of each of so many texts."""
        return -(-self.positions // texts)

    def conditions(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        prompts: Sequence[Sequence[int]],
        pair: Pair | None = None,
    ) -> str:
        """Return all that makes two profiles comparable, and what their journals' numbers mean, as one line.

        Args:
            target: the target model.
            draft: the draft model, if there is one.
            prompts: token ids.
            pair: what the models are and were loaded from; by default what they tell of themselves.
        """
        checksum = crc32(repr([list(prompt) for prompt in prompts]).encode())
        parts = {
            **asdict(describe_machine(target.device)),
            **asdict(pair or describe_pair(target, draft)),
            **asdict(self),
        }
        for name in ("target_source", "draft_source"):
            del parts[name]  # the same models may have been moved
        if self.time_budget_s is not None:  # what was measured serves any other budget
            parts["time_budget_s"] = "any"
            del parts["rounds"], parts["positions"]
        for name in ("record", "cuda_graphs", "draft", "draft_parameters", "target_digest", "draft_digest"):
            if parts[name] is None:
                del parts[name]
        parts["drafters"] = ", ".join(map(_heads, self.drafters))
        if not self.drafters:
            del parts["drafters"]
        parts["prompts"] = f"{len(prompts)} of checksum {checksum:08x}"
        return ", ".join([edition(), *(f"{name} {value}" for name, value in parts.items())])


def _heads(drafter: DrafterSetting) -> str:
    """Return a drafter with all that its measurements hang on."""
    at = f" at {drafter.layers}" if drafter.layers else ""
    return f"{drafter.name} {drafter.digest or 'without heads'}{at}"
