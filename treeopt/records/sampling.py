"""How tokens are sampled from a model's logits: temperature, top-p and top-k."""

from dataclasses import dataclass, field

from treeopt.arguments import check_integer, check_number
from treeopt.errors import InvalidValueError
from treeopt.files.serialization import in_file

MIN_TEMPERATURE = 1e-6
"""Below this, logits divided by the temperature leave the range of float32."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters; raises InvalidValueError for values out of range."""

    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = field(default=1.0, metadata=in_file(most=1.0))
    """Above 0, at most 1."""
    top_k: int = field(default=0, metadata=in_file(least=0, optional=True))
    """0 keeps all tokens."""

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            check_number(name, getattr(self, name))
        if self.temperature != 0 and not MIN_TEMPERATURE <= self.temperature < float("inf"):
            raise InvalidValueError(
                f"temperature: expected 0, which is greedy, or a finite number of at least {MIN_TEMPERATURE:g}. "
                f"Got {self.temperature}.",
                field="temperature",
            )
        if not 0 < self.top_p <= 1:
            raise InvalidValueError(f"top_p: expected a number above 0 and at most 1. Got {self.top_p}.", field="top_p")
        if check_integer("top_k", self.top_k) < 0:
            raise InvalidValueError(
                f"top_k: expected 0, which keeps all tokens, or more. Got {self.top_k}.", field="top_k"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


GREEDY = Sampling()


def resolve_draft_sampling(sampling: Sampling, draft_sampling: Sampling | None) -> Sampling:
    """Return `draft_sampling`, by default the target's temperature without top-p and top-k.

    Raises InvalidValueError if one of the two is greedy and the other is not.
    """
    if draft_sampling is None:
        return Sampling(sampling.temperature)
    if draft_sampling.greedy != sampling.greedy:
        raise InvalidValueError(
            f"draft_sampling: expected a temperature {'of 0, as the target has' if sampling.greedy else 'above 0'}. "
            f"Got {draft_sampling.temperature}.",
            field="draft_sampling",
        )
    return draft_sampling
