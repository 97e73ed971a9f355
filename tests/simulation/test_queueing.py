"""With batches of 1 and equal requests a server is an M/D/1 queue, which has closed forms."""

import math
from dataclasses import replace

import pytest

from tests.simulation.machines import engine, machine, outcome_of, served_by, times_of
from treeopt.errors import InvalidValueError
from treeopt.simulation import arrivals as arrivals_module
from treeopt.simulation.arrivals import Load, Request, arrivals
from treeopt.simulation.outcome import Outcome, outcome
from treeopt.simulation.serving import ServedSequence
from treeopt.simulation.settings import ServedSetting
from treeopt.simulation.simulate import Deployment, Limits
from treeopt.trees import chain

PROMPT_S, STEP_S = 0.5, 1.0
SERVICE_S = PROMPT_S + 2 * STEP_S
"""Of a request for two tokens."""
TIMES = times_of(machine(), prompt_s=PROMPT_S)
PLAIN = ServedSetting.fixed("plain", chain(0), 1)


def load_of(utilization: float, requests: float, seed: int = 0) -> Load:
    """Return a load of two tokens per request, at a fraction of the capacity of one server."""
    rate = utilization / SERVICE_S
    return Load(rate_per_s=rate, prompt_tokens=(8, 8), new_tokens=(2, 2), duration_s=requests / rate, seed=seed)


def waiting_probability(waited_s: float, rho: float) -> float:
    """Return P(W <= t) of the M/D/1 queue (Erlang, 1909)."""
    rate = rho / SERVICE_S
    past = [rate * (k * SERVICE_S - waited_s) for k in range(int(waited_s / SERVICE_S) + 1)]
    return (1 - rho) * math.fsum(x**k / math.factorial(k) * math.exp(-x) for k, x in enumerate(past))


def waiting_quantile(quantile: float, rho: float) -> float:
    """Return a quantile of the waiting time, by bisection."""
    low, high = 0.0, 20 * SERVICE_S
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if waiting_probability(middle, rho) < quantile else (low, middle)
    return high


class TestWaiting:
    @pytest.mark.parametrize("rho", [0.6, 0.8])
    def test_percentiles_are_those_of_erlang(self, rho: float) -> None:
        first = outcome_of(TIMES, load_of(rho, 20_000, seed=1)).time_to_first_token
        for quantile, value_s in ((0.5, first.median_s), (0.99, first.p99_s)):
            assert value_s - PROMPT_S - STEP_S == pytest.approx(waiting_quantile(quantile, rho), rel=0.1)


class TestWarmUp:
    """A request a second for 100 s: those of the first 10 s take 1 s, the others 5 s."""

    def outcome(self) -> Outcome:
        load = Load(rate_per_s=1.0, prompt_tokens=(8, 8), new_tokens=(3, 3), duration_s=100)
        served = [
            ServedSequence(Request(at_s, 8, 3), at_s + seconds / 2, at_s + seconds, 3, 3)
            for at_s, seconds in ((float(second), 1.0 if second < 10 else 5.0) for second in range(100))
        ]
        return outcome("", load, served, 2.0)

    def percentiles(self) -> list[tuple[float, float, int]]:
        result = self.outcome()
        assert result.time_per_token is not None
        return [
            (percentiles.median_s, percentiles.p99_s, percentiles.sequences)
            for percentiles in (result.time_to_first_token, result.time_per_token, result.latency)
        ]

    def test_percentiles_exclude_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.percentiles() == [(2.5, 2.5, 90), (1.25, 1.25, 90), (5.0, 5.0, 90)]
        assert (self.outcome().requests, self.outcome().warm_up_s) == (100, 10.0)
        monkeypatch.setattr("treeopt.simulation.outcome.WARM_UP", 0.6)
        assert [number for _, _, number in self.percentiles()] == [40] * 3

    def test_a_run_of_one_request_counts_it(self) -> None:
        result = outcome_of(TIMES, load_of(0.5, 0.001))
        assert (result.requests, result.latency.sequences) == (1, 1)
        assert result.latency.median_s == pytest.approx(SERVICE_S)


class TestCapacity:
    @pytest.mark.parametrize("replicas", [1, 3])
    def test_capacity_is_the_throughput_under_a_backlog(self, replicas: int) -> None:
        deployment = Deployment(times=TIMES, replicas=replicas, batch_size=1)
        assert deployment.capacity_per_s(PLAIN, load_of(0.5, 10)) == pytest.approx(replicas / SERVICE_S)

    def test_capacity_of_a_batch_is_that_of_full_batches(self) -> None:
        """A step of eight sequences takes 1.7 s; each sequence takes 8 steps."""
        deployment = Deployment(times=times_of(machine(batches=(1, 8)), prompt_s=0.0), batch_size=8)
        load = Load(rate_per_s=1.0, prompt_tokens=(8, 8), new_tokens=(8, 8))
        capacity = deployment.capacity_per_s(ServedSetting.fixed("plain", chain(0), 8), load)
        assert capacity == pytest.approx(1 / 1.7)

    @pytest.mark.parametrize("utilization", [0.02, 0.9, 0.999, 1.001, 1.2, 20.0])
    @pytest.mark.parametrize("requests", [20, 1000])
    def test_a_server_keeps_up_below_its_capacity_however_short_the_run(
        self, utilization: float, requests: int
    ) -> None:
        assert outcome_of(TIMES, load_of(utilization, requests)).keeps_up is (utilization < 1)

    def test_backlog_grows_only_above_capacity(self) -> None:
        for utilization, grows in ((0.8, False), (1.2, True)):
            load = load_of(utilization, 3000)
            served = served_by(TIMES, list(arrivals(load)), chain(0), 1)
            late_s = [
                sequence.time_to_first_token_s
                for sequence in served
                if sequence.request.arrival_s > 0.9 * load.duration_s
            ]
            assert (min(late_s) > 100 * SERVICE_S) is grows

    def test_tokens_of_an_overloaded_server_are_those_of_its_capacity(self) -> None:
        result = outcome_of(TIMES, load_of(3.0, 2000))
        assert result.tokens_per_s == pytest.approx(2 / SERVICE_S, rel=0.01)
        assert result.capacity_per_s == pytest.approx(1 / SERVICE_S)

    def test_requests_that_take_no_time_are_refused(self) -> None:
        load = Load(rate_per_s=1.0, prompt_tokens=(8, 8), new_tokens=(1, 1))
        with pytest.raises(InvalidValueError, match=r"new_tokens: .*--prompt-time"):
            outcome_of(times_of(engine()), load)


class TestLargestRate:
    def rate(self, load: Load, limits: Limits) -> float | None:
        return Deployment(times=TIMES, batch_size=1).largest_rate(PLAIN, load, limits)

    @pytest.mark.parametrize("start", [0.02, 20.0])
    def test_largest_rate_without_a_binding_limit_is_the_capacity(self, start: float) -> None:
        rate = self.rate(replace(load_of(start, 1), duration_s=5000), Limits(token_s=2.0))
        assert rate is not None
        assert 0.98 <= rate * SERVICE_S < 1.0

    def test_no_more_requests_arrive_than_can_be_simulated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(arrivals_module, "MAX_REQUESTS", 100)
        load = replace(load_of(0.02, 1), duration_s=1000 * SERVICE_S)  # a tenth of the capacity
        rate = self.rate(load, Limits(token_s=2.0))
        assert rate is not None
        assert 0.098 <= rate * SERVICE_S <= 0.1

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
    """With steps of 1 s, every token after the first takes a second."""

    def outcome(self, lengths: list[int]) -> Outcome:
        load = Load(rate_per_s=0.05, prompt_tokens=(8, 8), new_tokens=(1, 9), duration_s=20.0 * len(lengths))
        requests = [Request(20.0 * number, 8, length) for number, length in enumerate(lengths)]
        return outcome("", load, served_by(TIMES, requests, chain(0), 1), 1.0)

    def test_sequences_of_one_token_are_excluded(self) -> None:
        token = self.outcome([5, 1, 1, 1, 5]).time_per_token
        assert token is not None
        assert (token.median_s, token.p99_s) == pytest.approx((1.0, 1.0))
        assert token.sequences == 1  # the first arrives in the warm-up

    def test_without_later_tokens_it_is_none_and_has_no_limit(self) -> None:
        result = self.outcome([1, 1, 1])
        assert result.time_per_token is None
        assert Limits(token_s=1e-9).are_met(result)
        assert result.token_s == pytest.approx(PROMPT_S + STEP_S)
