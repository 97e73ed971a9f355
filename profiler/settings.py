"""What a profile is to measure, and how much of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from zlib import crc32

from treeopt.errors import InvalidValueError
from treeopt.profiler.checkpoint import describe_origin
from treeopt.profiler.machine import describe_machine
from treeopt.records.machine import Pair
from treeopt.records.rules import check_rule
from treeopt.records.sampling import GREEDY, Sampling, resolve_draft_sampling
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.pair import describe_pair
from treeopt.trees.drafter_setting import DrafterSetting

MAX_SAMPLES = 200
"""Samples of a size under a time budget, after which more of them add nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSize:
    """The largest dynamic trees that a draft record can replay.

    Raises InvalidValueError for a number below 1.
    """

    top_k: int = 10
    """At most the vocabulary is recorded."""
    depth: int = 10

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
    """Verification rules, each with its own acceptance and overhead; at temperature 0 all are the same."""
    lossy: bool = False
    """Allow rules that change the output distribution."""
    samplings: tuple[Sampling, ...] = (GREEDY,)
    """How the target samples: one or more temperatures, all measured in one pass over the prompts."""
    draft_sampling: Sampling | None = None
    """How the draft model samples; by default with the target's temperature and all tokens."""
    context_tokens: tuple[int, ...] = (256,)
    """Context lengths of timed calls; acceptance is counted at each if there are several."""
    batch_sizes: tuple[int, ...] = (1,)
    """Batch sizes of timed calls; 1 is required."""
    max_tokens: int = 512
    """Largest timed pass; larger trees cannot be planned."""
    rounds: int = 25
    """Samples of every size."""
    time_budget_s: float | None = None
    """Seconds after which measuring ends, if the plan is not certain before; None measures `rounds` and `positions`."""
    positions: int = 4096
    """Generated positions over all prompts that are counted, for each rule and context, and recorded."""
    branching: int = 16
    """Children per position."""
    depth: int = 16
    """Depths of the acceptance table."""
    record: RecordSize | None = None
    """Recording for dynamic trees, if any."""
    drafters: tuple[DrafterSetting, ...] = ()
    """Other drafters to measure, with the digests of their heads."""
    cuda_graphs: bool | None = None
    """Whether timed passes are captured as CUDA graphs; by default on a CUDA device."""

    def __post_init__(self) -> None:
        for rule in self.rules:
            check_rule(rule, lossy=self.lossy)
        if not self.rules or len(set(self.rules)) < len(self.rules):
            raise InvalidValueError(
                f"rules: expected one or more, each once. Got {', '.join(self.rules) or 'none'}.", field="rules"
            )
        if not self.samplings or len({sampling.temperature for sampling in self.samplings}) < len(self.samplings):
            raise InvalidValueError("temperature: expected one or more, each once.", field="temperature")
        if all(sampling.greedy for sampling in self.samplings) and len(self.rules) > 1:
            raise InvalidValueError(
                f"rules: expected one at temperature 0, where all accept the same. Got {', '.join(self.rules)}: "
                "measure them at a temperature above 0.",
                field="rules",
            )
        for sampling in [sampling for sampling in self.samplings if not sampling.greedy] or self.samplings:
            resolve_draft_sampling(sampling, self.draft_sampling)  # raises InvalidValueError
        for name, minimum in {"max_tokens": 2, "rounds": 1, "positions": 1, "branching": 1, "depth": 1}.items():
            if getattr(self, name) < minimum:
                raise InvalidValueError(f"{name}: expected at least {minimum}. Got {getattr(self, name)}.", field=name)
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
    def most_samples(self) -> int:
        """Samples of every size, if there is time."""
        return self.rounds if self.time_budget_s is None else MAX_SAMPLES

    @property
    def sampling(self) -> Sampling:
        """The first sampling, that of draft records."""
        return self.samplings[0]

    @property
    def timed_samplings(self) -> tuple[Sampling, ...]:
        """The samplings of timed calls: the first greedy one and the first other one, in the order of `samplings`."""
        first = {sampling.greedy: sampling for sampling in reversed(self.samplings)}
        return tuple(dict.fromkeys(first[sampling.greedy] for sampling in self.samplings))

    @property
    def acceptance_contexts(self) -> tuple[int, ...]:
        """The context lengths if there are several; a single one means that positions follow the prompts."""
        return self.context_tokens if len(self.context_tokens) > 1 else ()

    def own_draft_sampling(self, sampling: Sampling) -> Sampling | None:
        """Return the draft sampling for a target sampling; None if that is greedy, or for the default."""
        return None if sampling.greedy else self.draft_sampling

    @property
    def rule_samplings(self) -> tuple[tuple[str, Sampling], ...]:
        """Pairs of rule and sampling to measure; at temperature 0 only the first rule, because all are the same."""
        return tuple(
            (rule, sampling)
            for sampling in self.samplings
            for rule in (self.rules[:1] if sampling.greedy else self.rules)
        )

    def positions_per_prompt(self, prompts: int) -> int:
        """Return the positions after each of `prompts` prompts."""
        return -(-self.positions // prompts)

    def conditions(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        prompts: Sequence[Sequence[int]],
        pair: Pair | None = None,
    ) -> str:
        """Return one line that identifies comparable measurements: machine, models, prompts and settings.

        Args:
            target: the target model.
            draft: the draft model, if any.
            prompts: token ids.
            pair: describes the models; by default what they report about themselves.
        """
        checksum = crc32(repr([list(prompt) for prompt in prompts]).encode())
        items = {
            **asdict(describe_machine(target.device)),
            **asdict(pair or describe_pair(target, draft)),
            **asdict(self),
        }
        for name in ("target_source", "draft_source"):
            del items[name]  # the same models may have been moved
        if self.time_budget_s is not None:  # measurements can be resumed with another budget
            items["time_budget_s"] = "any"
            del items["rounds"], items["positions"]
        for name in ("record", "cuda_graphs", "draft", "draft_parameters", "target_digest", "draft_digest"):
            if items[name] is None:
                del items[name]
        items["drafters"] = ", ".join(map(_describe_drafter, self.drafters))
        if not self.drafters:
            del items["drafters"]
        items["prompts"] = f"{len(prompts)} of checksum {checksum:08x}"
        return ", ".join([describe_origin(), *(f"{name} {value}" for name, value in items.items())])


def _describe_drafter(drafter: DrafterSetting) -> str:
    at = f" at {drafter.layers}" if drafter.layers else ""
    return f"{drafter.label} {drafter.digest or 'without heads'}{at}"
