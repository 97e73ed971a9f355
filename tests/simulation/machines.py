"""Machines with known step times, and requests served by them."""

from dataclasses import replace

from tests.support.invented_machines import acceptance, latency, profile, seconds
from treeopt.records.engine import ChainCounts, ChainLatency, EngineRun, TimedChain
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.profile import Profile
from treeopt.simulation.arrivals import Load, Request
from treeopt.simulation.outcome import Outcome
from treeopt.simulation.serving import ServedSequence
from treeopt.simulation.settings import ServedSetting
from treeopt.simulation.simulate import Deployment
from treeopt.simulation.step_times import StepTimes
from treeopt.trees import TokenTree, chain

P = [[0.7, 0.15], [0.6, 0.2], [0.6, 0.2], [0.5, 0.2]]
ALWAYS = [[1.0]] * 4
STEP_S, TOKEN_S = 1.0, 0.01
"""Of a pass over one token, and of each additional token."""
PLAIN = chain(0)


def machine(*, batches: tuple[int, ...] = (1,), table: object = P, dearer: float = 0.0) -> Profile:
    """Return a machine on which a pass over n tokens of B sequences takes 1 + (n - 1) (0.01 + dearer (B - 1)) + 0.1 (B - 1)."""
    latencies = [
        latency(
            seconds(
                lambda n, b=batch: STEP_S + (n - 1) * (TOKEN_S + dearer * (b - 1)) + 0.1 * (b - 1),
                lambda _: 0.001,
                nodes=32,
            ),
            batch_size=batch,
        )
        for batch in batches
    ]
    return profile(latencies, [acceptance(table)])


def times_of(profile: Profile, prompt_s: float | None = None) -> StepTimes:
    return StepTimes(profile, profile.acceptances[0], prompt_s)


def served_by(
    times: StepTimes, requests: list[Request], tree: TokenTree, batch_size: int, replicas: int = 1
) -> list[ServedSequence]:
    """Return requests served with one tree, by the time at which they end."""
    deployment = Deployment(times=times, replicas=replicas, batch_size=batch_size)
    served = deployment.serve(ServedSetting.fixed("fixed", tree, batch_size), requests)
    return sorted(served, key=lambda sequence: sequence.finished_s)


def outcome_of(times: StepTimes, load: Load, *, batch_size: int = 1, tree: TokenTree = PLAIN) -> Outcome:
    """Return the outcome of a load with one tree."""
    deployment = Deployment(times=times, batch_size=batch_size)
    return deployment.simulate(ServedSetting.fixed("fixed", tree, batch_size), load)


def engine(prefill: dict[int, LatencyTable] | None = None) -> Profile:
    """Return an engine whose steps take 1 s plain and 1.5 s with a chain of 1, which is always accepted."""
    chains = tuple(
        TimedChain(length=drafted, steps=Timing([step_s]), prefill=(prefill or {}).get(drafted))
        for drafted, step_s in ((0, 1.0), (1, 1.5))
    )
    return replace(
        machine(),
        engine=EngineRun(name="engine", version="1"),
        latencies=(),
        chain_latencies=tuple(ChainLatency(context_tokens=64, batch_size=size, chains=chains) for size in (1, 2)),
        acceptances=(acceptance([[1.0]], chains=(ChainCounts(length=1, steps=(9, 9), tokens=(18, 18)),)),),
    )
