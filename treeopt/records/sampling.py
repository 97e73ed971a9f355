"""How tokens are sampled from a model's logits: temperature, top-p and top-k."""

from dataclasses import dataclass, field

from treeopt.arguments import number, whole
from treeopt.errors import InvalidValueError
from treeopt.files.record_form import in_file

LEAST_TEMPERATURE = 1e-6
"""Below it logits divided by the temperature leave the range of float32."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a distribution is made from logits.

    Raises InvalidValueError for values that no distribution can be made with.
    """

    temperature: float = 0.0
    """0 takes the likeliest token."""
    top_p: float = field(default=1.0, metadata=in_file(most=1.0))
    """Share of the distribution that is kept, above 0 and at most 1."""
    top_k: int = field(default=0, metadata=in_file(least=0))
    """Tokens that are kept, the likeliest; 0 keeps all."""

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            number(name, getattr(self, name))
        if self.temperature != 0 and not LEAST_TEMPERATURE <= self.temperature < float("inf"):
            raise InvalidValueError(
                f"temperature: expected 0, which is greedy, or a finite number of at least {LEAST_TEMPERATURE:g}. "
                f"Got {self.temperature}.",
                field="temperature",
            )
        if not 0 < self.top_p <= 1:
            raise InvalidValueError(f"top_p: expected a number above 0 and at most 1. Got {self.top_p}.", field="top_p")
        if whole("top_k", self.top_k) < 0:
            raise InvalidValueError(
                f"top_k: expected 0, which keeps all tokens, or more. Got {self.top_k}.", field="top_k"
            )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0


GREEDY = Sampling()


def draft_sampling_of(sampling: Sampling, own: Sampling | None) -> Sampling:
    """Return how a draft's children are sampled: its own way, or by default the target's temperature and all tokens.

    Raises InvalidValueError where one of both is greedy and the other is not.
    """
    if own is None:
        return Sampling(sampling.temperature)
    if own.greedy != sampling.greedy:
        raise InvalidValueError(
            f"draft_sampling: expected a temperature {'of 0, as the target has' if sampling.greedy else 'above 0'}. "
            f"Got {own.temperature}.",
            field="draft_sampling",
        )
    return own
