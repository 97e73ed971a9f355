"""Batches of 1 with equal requests are an M/D/1 queue: compared with its closed forms."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.simulation.machines import engine, machine, outcome_of, served_by, times_of
from treeopt.errors import InvalidValueError
from treeopt.simulation.arrivals import Load, Request, arrivals
from treeopt.simulation.outcome import WARM_UP, Outcome, outcome
from treeopt.simulation.serving import ServedSequence
from treeopt.simulation.settings import ServedSetting
from treeopt.simulation.simulate import Deployment, Limits
from treeopt.trees import chain

PROMPT_S, STEP_S = 0.5, 1.0
SERVICE_S = PROMPT_S + 2 * STEP_S
"""Of a request for two tokens."""
TIMES = times_of(machine(), prompt_s=PROMPT_S)
PLAIN = ServedSetting.fixed("plain", chain(0), 1)


def load_of(share: float, requests: float, seed: int = 0) -> Load:
    """Return a load of two tokens each, at a share of what one server can do."""
    rate = share / SERVICE_S
    return Load(rate_per_s=rate, prompt_tokens=(8, 8), new_tokens=(2, 2), duration_s=requests / rate, seed=seed)


def waiting_probability(waited_s: float, rho: float) -> float:
    """Return P(W <= t) of the M/D/1 queue (Erlang, 1909)."""
    rate = rho / SERVICE_S
    past = [rate * (k * SERVICE_S - waited_s) for k in range(int(waited_s / SERVICE_S) + 1)]
    return (1 - rho) * math.fsum(x**k / math.factorial(k) * math.exp(-x) for k, x in enumerate(past))


def waiting_quantile(share: float, rho: float) -> float:
    """Return the waiting time that a share of all requests does not exceed, by bisection."""
    low, high = 0.0, 20 * SERVICE_S
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if waiting_probability(middle, rho) < share else (low, middle)
    return high


def waited(found: Outcome) -> tuple[float, float]:
    """Return the median and the 99th percentile of the time before prefill."""
    first = found.time_to_first_token
    return first.median_s - PROMPT_S - STEP_S, first.p99_s - PROMPT_S - STEP_S


class TestWaiting:
    @pytest.mark.parametrize("rho", [0.3, 0.8])
    def test_mean_is_that_of_pollaczek_and_khinchine(self, rho: float) -> None:
        done = served_by(TIMES, list(arrivals(load_of(rho, 5000, seed=3))), chain(0), 1)
        mean_s = np.mean([each.latency_s for each in done]) - SERVICE_S
        assert mean_s == pytest.approx(rho * SERVICE_S / (2 * (1 - rho)), rel=0.12)

    @pytest.mark.parametrize("rho", [0.6, 0.8])
    def test_percentiles_are_those_of_erlang(self, rho: float) -> None:
        found = outcome_of(TIMES, load_of(rho, 20_000, seed=1))
        median_s, p99_s = waited(found)
        assert median_s == pytest.approx(waiting_quantile(0.5, rho), rel=0.1)
        assert p99_s == pytest.approx(waiting_quantile(0.99, rho), rel=0.1)

    def test_percentiles_contain_their_count(self) -> None:
        load = load_of(0.5, 100)
        requests = arrivals(load)
        found = outcome_of(TIMES, load)
        late = [each for each in requests if each.arrival_s >= 0.1 * load.duration_s]
        assert (found.requests, found.warm_up_s) == (len(requests), 0.1 * load.duration_s)
        assert len(requests) > len(late)
        counts = [found.time_to_first_token, found.time_per_token, found.latency]
        assert [each.sequences for each in counts] == [len(late)] * 3


class TestWarmUp:
    """A request a second for 100 s: those of the first 10 s meet an empty server and take 1 s, the others take 5 s."""

    def outcome(self) -> Outcome:
        load = Load(rate_per_s=1.0, prompt_tokens=(8, 8), new_tokens=(3, 3), duration_s=100)
        arrivals_s = [float(second) for second in range(100)]
        served = [
            ServedSequence(Request(at_s, 8, 3), at_s + taken_s / 2, at_s + taken_s, 3, 3)
            for at_s in arrivals_s
            for taken_s in [1.0 if at_s < 10 else 5.0]
        ]
        return outcome("", load, served, 2.0)

    def percentiles(self) -> list[tuple[float, float, int]]:
        found = self.outcome()
        assert found.time_per_token is not None
        return [
            (each.median_s, each.p99_s, each.sequences)
            for each in (found.time_to_first_token, found.time_per_token, found.latency)
        ]

    def test_percentiles_leave_it_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.percentiles() == [(2.5, 2.5, 90), (1.25, 1.25, 90), (5.0, 5.0, 90)]
        assert (self.outcome().requests, self.outcome().warm_up_s) == (100, 10.0)

        monkeypatch.setattr("treeopt.simulation.outcome.WARM_UP", 0.6)
        assert [number for _, _, number in self.percentiles()] == [40] * 3

    def test_a_run_of_one_request_counts_it(self) -> None:
        found = outcome_of(TIMES, load_of(0.5, 0.001))
        assert (found.requests, found.latency.sequences) == (1, 1)
        assert found.latency.median_s == pytest.approx(SERVICE_S)

    def test_the_mean_wait_of_short_runs_is_less_biased_without_it(self) -> None:
        """At 80 % load, 100 requests each: waits of all are 13 % too short on average, those counted 8 %."""
        expected_s = 0.8 * SERVICE_S / (2 * 0.2)
        waits_s: dict[bool, list[float]] = {False: [], True: []}
        for seed in range(150):
            load = load_of(0.8, 100, seed)
            for each in served_by(TIMES, list(arrivals(load)), chain(0), 1):
                wait_s = each.latency_s - SERVICE_S
                waits_s[False].append(wait_s)
                if each.request.arrival_s >= WARM_UP * load.duration_s:
                    waits_s[True].append(wait_s)
        of_all, counted = (np.mean(waits_s[late]) / expected_s - 1 for late in (False, True))
        assert -0.3 < of_all < counted - 0.03 < 0.1


class TestCapacity:
    @pytest.mark.parametrize("replicas", [1, 3])
    def test_capacity_is_the_throughput_under_a_backlog(self, replicas: int) -> None:
        deployment = Deployment(times=TIMES, replicas=replicas, batch_size=1)
        assert deployment.capacity_per_s(PLAIN, load_of(0.5, 10)) == pytest.approx(replicas / SERVICE_S)

    def test_capacity_of_a_batch_is_that_of_full_batches(self) -> None:
        """Steps of eight take 1.7 s, and each sequence has 8 of them."""
        deployment = Deployment(times=times_of(machine(batches=(1, 8)), prompt_s=0.0), batch_size=8)
        load = Load(rate_per_s=1.0, prompt_tokens=(8, 8), new_tokens=(8, 8))
        capacity = deployment.capacity_per_s(ServedSetting.fixed("plain", chain(0), 8), load)
        assert capacity == pytest.approx(1 / 1.7)

    @pytest.mark.parametrize("share", [1.001, 1.05, 1.2, 1.5, 3.0, 20.0])
    @pytest.mark.parametrize("requests", [20, 2000])
    def test_an_overloaded_server_does_not_keep_up_however_short_the_run(self, share: float, requests: int) -> None:
        assert not outcome_of(TIMES, load_of(share, requests)).keeps_up

    @pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.999])
    @pytest.mark.parametrize("seed", range(3))
    def test_a_stable_server_keeps_up(self, share: float, seed: int) -> None:
        assert outcome_of(TIMES, load_of(share, 60, seed)).keeps_up

    def test_backlog_grows_only_above_capacity(self) -> None:
        """The judgement is of the capacity: the requests themselves wait as it says."""
        for share, grows in ((0.8, False), (1.2, True)):
            load = load_of(share, 3000)
            done = served_by(TIMES, list(arrivals(load)), chain(0), 1)
            late = [each.time_to_first_token_s for each in done if each.request.arrival_s > 0.9 * load.duration_s]
            assert outcome_of(TIMES, load).keeps_up is not grows
            assert (min(late) > 100 * SERVICE_S) is grows

    def test_tokens_of_an_overloaded_server_are_those_of_its_capacity(self) -> None:
        found = outcome_of(TIMES, load_of(3.0, 2000))
        assert found.tokens_per_s == pytest.approx(2 / SERVICE_S, rel=0.01)
        assert found.capacity_per_s == pytest.approx(1 / SERVICE_S)

    def test_requests_that_take_no_time_are_refused(self) -> None:
        load = Load(rate_per_s=1.0, prompt_tokens=(8, 8), new_tokens=(1, 1))
        with pytest.raises(InvalidValueError, match=r"new_tokens: .*--prompt-time"):
            outcome_of(times_of(engine()), load)


class TestLargestRate:
    def rate(self, load: Load, limits: Limits) -> float | None:
        return Deployment(times=TIMES, batch_size=1).largest_rate(PLAIN, load, limits)

    @pytest.mark.parametrize("start", [0.02, 1.3, 20.0])
    def test_largest_rate_without_a_binding_limit_is_the_capacity(self, start: float) -> None:
        rate = self.rate(replace(load_of(start, 1), duration_s=5000), Limits(token_s=2.0))
        assert rate is not None
        assert 0.98 <= rate * SERVICE_S < 1.0

    def test_largest_rate_meets_the_limits(self) -> None:
        load = replace(load_of(0.1, 1), duration_s=2500)
        limits = Limits(first_token_s=10.0)
        rate = self.rate(load, limits)
        assert rate is not None
        assert rate < 1 / SERVICE_S
        assert limits.are_met(outcome_of(TIMES, replace(load, rate_per_s=rate)))
        assert not limits.are_met(outcome_of(TIMES, replace(load, rate_per_s=1.2 * rate)))

    def test_a_limit_below_one_step_is_never_met(self) -> None:
        assert self.rate(replace(load_of(0.1, 1), duration_s=400), Limits(token_s=0.5)) is None


class TestTimePerToken:
    """Steps take 1 s: every sequence has a token a second after the first, those of one token have none."""

    def outcome(self, lengths: list[int]) -> Outcome:
        load = Load(rate_per_s=0.05, prompt_tokens=(8, 8), new_tokens=(1, 9), duration_s=20.0 * len(lengths))
        requests = [
            each._replace(arrival_s=20.0 * number, new_tokens=length)
            for number, (each, length) in enumerate(zip([*arrivals(load)] * 9, lengths, strict=False))
        ]
        return outcome("", load, served_by(TIMES, requests, chain(0), 1), 1.0)

    def test_sequences_of_one_token_are_left_out(self) -> None:
        token = self.outcome([5, 1, 1, 1, 5]).time_per_token
        assert token is not None
        assert (token.median_s, token.p99_s) == pytest.approx((1.0, 1.0))
        assert token.sequences == 1  # the first arrives in the warm-up

    def test_time_per_token_is_unknown_for_one_token(self) -> None:
        found = self.outcome([1, 1, 1])
        assert found.time_per_token is None
        assert Limits(token_s=1e-9).are_met(found)
        assert found.token_s == pytest.approx(PROMPT_S + STEP_S)
