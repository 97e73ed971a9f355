"""Settings under a load, all with the same requests; and the largest rate at which a setting keeps latency limits."""

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

CLOSE = 1.02
"""Ratio of two rates, one that keeps the limits and one that does not, at which the search ends."""
BACKLOG, FULL_BATCHES = 400, 20
"""Requests at least, and full batches at least, that wait where capacity is measured."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Limits(ShortRepr):
    """Latencies that 99 of 100 sequences are to keep; None is no limit."""

    first_token_s: float | None = None
    token_s: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return (self.first_token_s, self.token_s) != (None, None)

    def kept(self, found: Outcome) -> bool:
        """Return whether a setting keeps up and keeps the limits."""
        pairs = [(self.first_token_s, found.time_to_first_token), (self.token_s, found.time_per_token)]
        return found.keeps_up and all(
            limit is None or seconds is None or seconds.p99_s <= limit for limit, seconds in pairs
        )


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Servers alike that share the requests.

    Raises InvalidValueError without servers and sequences, InfeasibleError for larger batches than were measured.
    """

    times: StepTimes
    replicas: int = 1
    batch_size: int
    """Most sequences that a server decodes together."""
    _capacities: dict[tuple[object, ...], float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("replicas", "batch_size"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name}: expected at least 1. Got {getattr(self, name)}.", field=name)
        if self.batch_size > self.times.max_batch_size:
            raise InfeasibleError(
                f"batch size: {self.times.max_batch_size} were measured. Got {self.batch_size}: profile or probe with "
                "larger --batch-sizes."
            )

    def simulate(self, setting: ServedSetting, load: Load) -> Outcome:
        """Return what a setting yields under a load; every setting gets the same requests."""
        served = self.serve(setting, arrivals(load), load.seed)
        return outcome(setting.name, load, served, self.capacity_per_s(setting, load))

    def serve(self, setting: ServedSetting, waiting: Sequence[Request], seed: int = 0) -> list[ServedSequence]:
        """Return the requests served."""
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
        return serve(waiting, servers)

    def capacity_per_s(self, setting: ServedSetting, load: Load) -> float:
        """Return the requests per second, as long as the load's, that are completed while there is always a backlog.

        At a lower rate of arrivals the backlog stays bounded, at a higher one it grows without end, whatever the
        intervals between arrivals are (the saturation rule: Baccelli and Foss, 1995).

        Raises InvalidValueError if requests take no time.
        """
        key = setting, load.prompt_tokens, load.new_tokens, load.seed
        if key not in self._capacities:
            batches = max(FULL_BATCHES, -(-BACKLOG // self.batch_size))
            waiting = islice(requests(load), batches * self.batch_size)
            backlog = [request._replace(arrival_s=0.0) for request in waiting]
            served = replace(self, replicas=1).serve(setting, backlog, load.seed)
            ends_s = sorted(each.finished_s for each in served)
            full_s = (
                ends_s[-self.batch_size - 1] - ends_s[self.batch_size - 1]
            )  # of all batches but the first and the last
            if full_s <= 0:
                raise InvalidValueError(
                    "new_tokens: expected more than 1, because the profile has no prefill times. Got 1: name a time with "
                    "--prompt-time.",
                    field="new_tokens",
                )
            self._capacities[key] = self.replicas * (batches - 2) * self.batch_size / full_s
        return self._capacities[key]

    def largest_rate(self, setting: ServedSetting, load: Load, limits: Limits) -> float | None:
        """Return the largest rate per second, to 2 %, at which a setting keeps the limits; None if it never does."""

        def kept(rate: float) -> bool:
            return limits.kept(self.simulate(setting, replace(load, rate_per_s=rate)))

        most = self.capacity_per_s(setting, load)
        least = min(1 / load.duration_s, most / 2)  # one request, more or less
        if not kept(least):
            return None
        while most > CLOSE * least:
            middle = (least * most) ** 0.5
            least, most = (middle, most) if kept(middle) else (least, middle)
        return least
