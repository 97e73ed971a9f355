"""Simulate settings with the same requests, and find the largest rate at which a setting meets latency limits."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.simulation.arrivals import Load, Request, arrivals, requests
from treeopt.simulation.outcome import Outcome, outcome
from treeopt.simulation.serving import ServedSequence, Server, serve
from treeopt.simulation.settings import ServedSetting
from treeopt.simulation.step_times import StepTimes
from treeopt.simulation.step_tokens import step_tokens

MAX_REPLICAS = 1000
RATE_PRECISION = 1.02
"""The search ends at this ratio of a rate that violates the limits and one that meets them."""
MIN_BACKLOG, MIN_BATCHES = 400, 20
"""Minimum requests and minimum full batches in the backlog when capacity is measured."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Limits(ShortRepr):
    """Limits on the 99th percentile of latencies; None for no limit."""

    first_token_s: float | None = None
    token_s: float | None = None

    @property
    def any(self) -> bool:
        return (self.first_token_s, self.token_s) != (None, None)

    def are_met(self, outcome: Outcome) -> bool:
        """Whether the setting keeps up and meets the limits."""
        pairs = [(self.first_token_s, outcome.time_to_first_token), (self.token_s, outcome.time_per_token)]
        return outcome.keeps_up and all(
            limit is None or percentiles is None or percentiles.p99_s <= limit for limit, percentiles in pairs
        )


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Identical servers that share the requests.

    Raises InvalidValueError for fewer than 1 server or sequence and for more than 1000 servers, InfeasibleError for larger
    batches than measured.
    """

    times: StepTimes
    replicas: int = 1
    batch_size: int
    """Largest number of sequences that a server decodes together."""
    _capacities: dict[tuple[object, ...], float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("replicas", "batch_size"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name}: expected at least 1. Got {getattr(self, name)}.", field=name)
        if self.replicas > MAX_REPLICAS:
            raise InvalidValueError(
                f"replicas: expected at most {MAX_REPLICAS}. Got {self.replicas}: simulate fewer at a lower rate.",
                field="replicas",
            )
        if self.batch_size > self.times.max_batch_size:
            raise InfeasibleError(
                f"batch size: expected at most {self.times.max_batch_size}, the largest measured. Got {self.batch_size}: profile or "
                "probe with larger --batch-sizes."
            )

    def simulate(self, setting: ServedSetting, load: Load) -> Outcome:
        """Return the outcome of a setting; every setting gets the same requests."""
        served = self.serve(setting, arrivals(load), load.seed)
        return outcome(setting.name, load, served, self.capacity_per_s(setting, load))

    def serve(self, setting: ServedSetting, incoming: Sequence[Request], seed: int = 0) -> list[ServedSequence]:
        """Serve requests, by arrival."""
        tokens = step_tokens(self.times.models, setting.trees)
        servers = [
            Server(
                setting=setting,
                times=self.times,
                tokens=tokens,
                generator=np.random.default_rng([seed, 2, number]),
                batch_size=self.batch_size,
            )
            for number in range(self.replicas)
        ]
        return serve(incoming, servers)

    def capacity_per_s(self, setting: ServedSetting, load: Load) -> float:
        """Return the requests per second that are completed while there is always a backlog.

        At a lower arrival rate the backlog stays bounded, at a higher one it grows without limit, whatever the distribution of
        arrivals is (the saturation rule: Baccelli and Foss, 1995).

        Raises InvalidValueError if requests take no time.
        """
        key = setting, load.prompt_tokens, load.new_tokens, load.seed
        if key not in self._capacities:
            batches = max(MIN_BATCHES, -(-MIN_BACKLOG // self.batch_size))
            waiting = islice(requests(load), batches * self.batch_size)
            backlog = [request._replace(arrival_s=0.0) for request in waiting]
            served = replace(self, replicas=1).serve(setting, backlog, load.seed)
            ends_s = sorted(sequence.finished_s for sequence in served)
            full_s = ends_s[-self.batch_size - 1] - ends_s[self.batch_size - 1]  # without the first and last batch
            if full_s <= 0:
                raise InvalidValueError(
                    "new_tokens: expected more than 1, because the profile has no prefill times. Got 1: give one with "
                    "--prompt-time.",
                    field="new_tokens",
                )
            self._capacities[key] = self.replicas * (batches - 2) * self.batch_size / full_s
        return self._capacities[key]

    def largest_rate(self, setting: ServedSetting, load: Load, limits: Limits) -> float | None:
        """Return the largest rate per second, to 2 %, at which a setting meets the limits; None if it never does.

        At most as many requests arrive as can be simulated.
        """

        def meets_limits(rate: float) -> bool:
            return limits.are_met(self.simulate(setting, replace(load, rate_per_s=rate)))

        high = min(self.capacity_per_s(setting, load), load.max_rate_per_s)
        low = min(1 / load.duration_s, high / 2)  # about one request
        if not meets_limits(low):
            return None
        while high > RATE_PRECISION * low:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if meets_limits(middle) else (low, middle)
        return low
