"""Invented machines, tables and the profiles that would be measured of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tests.solver.oracles import Table
from treeopt.records.acceptance import AcceptanceTable, SequenceSums
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.machine import Machine, Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import RuleOverhead, StepLatency

NODES, DEPTH = 9, 5


class Seconds(NamedTuple):
    """What an invented machine takes."""

    verify: Sequence[float]
    """For 1, 2, … tokens."""
    draft: Sequence[float]
    overhead: float = 0.0


def seconds(
    verify: Callable[[int], float], draft: Callable[[int], float], overhead: float = 0.0, nodes: int = NODES
) -> Seconds:
    counts = range(1, nodes + 1)
    return Seconds([verify(n) for n in counts], [draft(w) for w in counts], overhead)


MACHINES = {
    "nodes almost free": seconds(lambda n: 1.0 + 1e-4 * n, lambda _: 0.01),
    "nodes cost": seconds(lambda n: 0.9 + 0.06 * n, lambda w: 0.15 + 0.004 * w, 0.05),
    "nodes dear": seconds(lambda n: 0.1 + 0.9 * n, lambda _: 0.001),
    "drafts dear": seconds(lambda n: 1.0 + 0.01 * n, lambda _: 5.0),
    "wide drafts dear": seconds(lambda n: 1.0 + 0.01 * n, lambda w: 0.01 + 0.12 * (w - 1)),
    "wide drafts cheap": seconds(lambda n: 1.0 + 0.02 * n, lambda w: 0.3 / w),
    "tiles of 4": seconds(lambda n: 1.0 + 0.3 * ((n - 1) // 4), lambda w: 0.05 * (1 + 2 * ((w - 1) // 2))),
    "verify not monotone": seconds(lambda n: 1.0 + 0.5 * (n % 4 == 3) + 0.02 * n - 0.3 * (n == 8), lambda _: 0.02),
    "overhead dear": seconds(lambda _: 1.0, lambda _: 0.0001, 2.0),
    "negative overhead": seconds(lambda n: 1.0 + 0.02 * n, lambda _: 0.1, -0.5),
}
TABLES: dict[str, Table] = {
    "falling": [
        [0.7, 0.15, 0.05, 0.02],
        [0.6, 0.2, 0.05, 0.02],
        [0.5, 0.2, 0.1, 0.1],
        [0.5, 0.5, 0, 0],
        [0.9, 0.1, 0, 0],
    ],
    "not monotone": [[0.2, 0.0, 0.7], [0.1, 0.6, 0.1], [0.0, 0.0, 0.9], [0.8, 0.1, 0.1], [0.3, 0.3, 0.4]],
    "one row for every depth": [0.65, 0.2, 0.1],
    "never": [[0.0, 0.0]] * DEPTH,
    "always": [[1.0]] * DEPTH,
    "weak": [[0.2, 0.1]] * DEPTH,
    "worse below a later child": [[[0.6, 0.25, 0.1], [0.4, 0.2, 0.1], [0.3, 0.1, 0.1]]] * DEPTH,
    "better below a later child": [[[0.3, 0.3, 0.2], [0.2, 0.7, 0.0]]] * DEPTH,
}
FALLING = ("falling", "one row for every depth", "never", "always", "weak")
"""Tables whose rows never rise and that do not look at the parent's rank."""


def drawn_seconds(rng: np.random.Generator, nodes: int) -> Seconds:
    """Return a machine of a kind drawn at random: straight, bent either way, in tiles, or without any order."""
    n = np.arange(1, nodes + 1)
    straight = 1 + rng.uniform(0, 0.05) * n
    verify, draft = (
        (straight, 0.01 + rng.uniform(0, 0.3) * (n - 1)),
        (straight, 0.3 / n),
        (1 + 0.3 * ((n - 1) // rng.integers(2, 5)), 0.05 * (1 + rng.uniform(0, 4) * ((n - 1) // rng.integers(1, 4)))),
        (rng.uniform(0.5, 1.5, nodes), rng.uniform(0.02, 0.4, nodes)),
        (np.sort(rng.uniform(0.5, 1.5, nodes)), np.sort(rng.uniform(0.01, 0.4, nodes))),
        (straight, rng.uniform(0.02, 0.3) * np.sqrt(n)),
        (straight, 0.02 + rng.uniform(0, 0.05) * (n - 1) ** 2),
    )[rng.integers(7)]
    return Seconds(verify.tolist(), draft.tolist(), rng.choice([0.0, 0.05, -0.1]))


def drawn_table(rng: np.random.Generator, depth: int, kind: str) -> Table:
    """Return a table, `falling`, `rising` (in any order) or `ranked` (any order, by the rank of the parent)."""
    branching = int(rng.integers(1, 5))
    shape = (depth, int(rng.integers(1, branching + 1))) if kind == "ranked" else (depth,)
    p = rng.dirichlet(rng.choice([0.2, 1.0, 3.0]) * np.ones(branching + 1), shape)[..., :branching]
    return (np.sort(p, axis=-1)[..., ::-1] if kind == "falling" else p).tolist()


def timing(value_s: float, noise: float, rng: np.random.Generator, samples: int = 25) -> Timing:
    """Return samples whose median is a time, spread evenly up to a share of it; without noise all are the time."""
    return Timing(value_s + noise * abs(value_s) * rng.permutation(np.linspace(-1, 1, samples)), allow_negative=True)


def latency(
    machine: Seconds,
    *,
    context_tokens: int = 256,
    batch_size: int = 1,
    counts: Sequence[int] | None = None,
    draft_counts: Sequence[int] | None = None,
    noise: float | dict[str, float] = 0.0,
    overheads: Mapping[str, float] | None = None,
) -> StepLatency:
    """Return what is measured of a machine, by default at every count; `noise` may differ by what is timed.

    `overheads` are those of single rules.
    """
    rng = np.random.default_rng(1)
    noises = noise if isinstance(noise, dict) else dict.fromkeys(("verify", "draft", "overhead"), noise)

    def curve(name: str, of: Sequence[float], counts: Sequence[int]) -> LatencyTable:
        return LatencyTable(counts, [timing(of[n - 1], noises.get(name, 0.0), rng) for n in counts])

    return StepLatency(
        context_tokens=context_tokens,
        batch_size=batch_size,
        verify=curve("verify", machine.verify, counts or range(1, len(machine.verify) + 1)),
        draft=curve("draft", machine.draft, draft_counts or counts or range(1, len(machine.draft) + 1)),
        overhead=timing(machine.overhead, noises.get("overhead", 0.0), rng),
        rule_overheads=tuple(
            RuleOverhead(rule=rule, overhead=timing(value_s, noises.get("overhead", 0.0), rng))
            for rule, value_s in (overheads or {}).items()
        ),
    )


def acceptance(p: object, **given: object) -> MeasuredAcceptance:
    """Return a measured acceptance; `counts`, `standard_error` go to its table, the rest replaces its fields."""
    table = AcceptanceTable(p, counts=given.pop("counts", None), standard_error=given.pop("standard_error", None))
    measured = MeasuredAcceptance(rule="sequoia", sampling=Sampling(0.6), prompts=9, positions=999, table=table)
    return dataclasses.replace(measured, **given)


def acceptance_of(sequences: SequenceSums, **given: object) -> MeasuredAcceptance:
    """Return the acceptance that some sequences come to."""
    return dataclasses.replace(acceptance([0.5]), table=sequences.table(), sequences=sequences, **given)


def profile(latencies: Sequence[StepLatency], acceptances: Sequence[MeasuredAcceptance]) -> Profile:
    return Profile(
        created="2026-11-20T11:12:00Z",
        tool="test",
        machine=Machine(device="cpu", processor="invented", threads=1, system="none", python="3.12", torch="2.8"),
        pair=Pair(
            target="big", draft="small", dtype="float32", vocabulary=256, target_parameters=9, draft_parameters=1
        ),
        latencies=tuple(latencies),
        acceptances=tuple(acceptances),
    )


def profile_of(machine: Seconds, p: object, **of_latency: object) -> Profile:
    """Return the profile of one machine and one exact table."""
    return profile([latency(machine, **of_latency)], [acceptance(p)])


def at_temperature(profile: Profile, temperature: float) -> Profile:
    """Return a profile whose acceptances were measured at a temperature."""
    acceptances = tuple(dataclasses.replace(each, sampling=Sampling(temperature)) for each in profile.acceptances)
    return dataclasses.replace(profile, acceptances=acceptances)
