"""Settings under a load, all with the same texts; and the largest rate under which a setting keeps a latency."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.simulation.arrivals import Load, arrivals
from treeopt.simulation.outcome import Outcome, outcome
from treeopt.simulation.serving import Server, serve
from treeopt.simulation.settings import ServedSetting
from treeopt.simulation.step_seconds import StepSeconds
from treeopt.simulation.step_tokens import tokens_by_context

CLOSE = 1.02
"""Ratio of two rates, one that holds and one that does not, at which the search ends."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Limits(ShortRepr):
    """Latencies that 99 of 100 texts are to keep; None asks for nothing."""

    first_token_s: float | None = None
    token_s: float | None = None

    @property
    def any(self) -> bool:
        """Whether something is asked for."""
        return (self.first_token_s, self.token_s) != (None, None)

    def kept(self, found: Outcome) -> bool:
        """Return whether a setting keeps them, and keeps up with its texts."""
        asked = [(self.first_token_s, found.time_to_first_token), (self.token_s, found.time_per_token)]
        return found.keeps_up and all(
            limit is None or seconds is None or seconds.p99_s <= limit for limit, seconds in asked
        )


def simulate(
    settings: Sequence[ServedSetting],
    seconds: StepSeconds,
    load: Load,
    *,
    replicas: int = 1,
    most_texts: int | None = None,
    tick: Callable[[], object] = lambda: None,
) -> tuple[Outcome, ...]:
    """Return what each setting comes to under a load.

    Args:
        settings: what servers may be set to.
        seconds: of their steps.
        load: the texts; every setting gets the same.
        replicas: servers that share them.
        most_texts: that a server decodes at a time; by default as many as were measured.
        tick: called after every setting.

    Raises InvalidValueError for no server and no text at a time, InfeasibleError for more than were measured.
    """
    texts = arrivals(load)
    at_a_time = seconds.most_texts if most_texts is None else most_texts
    for name, count in (("replicas", replicas), ("most_texts", at_a_time)):
        if count < 1:
            raise InvalidValueError(f"{name}: expected at least 1. Got {count}.", field=name)
    seconds.step_s(settings[0].trees[0], at_a_time, seconds.contexts[0])
    found = []
    for setting in settings:
        tokens = tokens_by_context(seconds.models, setting.trees)
        servers = [
            Server(
                setting=setting,
                seconds=seconds,
                tokens=tokens,
                noise=np.random.default_rng([load.seed, 2, number]),
                most_texts=at_a_time,
            )
            for number in range(replicas)
        ]
        found.append(outcome(setting.name, load.rate_per_s, serve(texts, servers)))
        tick()
    return tuple(found)


def largest_rate(
    setting: ServedSetting,
    seconds: StepSeconds,
    load: Load,
    limits: Limits,
    *,
    replicas: int = 1,
    most_texts: int | None = None,
) -> float | None:
    """Return the largest rate per second, to 2 %, at which a setting keeps the limits; None where it never does.

    The rate of the load is where the search begins.  Raises as `simulate` does.
    """

    def kept(rate: float) -> bool:
        (found,) = simulate(
            [setting], seconds, replace(load, rate_per_s=rate), replicas=replicas, most_texts=most_texts
        )
        return limits.kept(found)

    least, most = load.rate_per_s, load.rate_per_s
    alone = 1 / load.duration_s  # one text, more or less
    if kept(least):
        while kept(most := 2 * most):
            least = most
    else:
        while least > alone and not kept(least := least / 2):
            most = least
        if least <= alone:
            return None
    while most > CLOSE * least:
        middle = (least * most) ** 0.5
        least, most = (middle, most) if kept(middle) else (least, middle)
    return least
