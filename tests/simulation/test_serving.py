"""Servers compared with rounds by hand."""

from dataclasses import replace

import pytest

from tests.simulation.machines import ALWAYS, engine, machine, served_by, times_of
from tests.support.invented_machines import acceptance, latency, profile, seconds
from treeopt.errors import InvalidValueError
from treeopt.records.engine import ChainLatency, TimedChain
from treeopt.records.latency import Timing
from treeopt.simulation.arrivals import Load, Request
from treeopt.simulation.outcome import outcome
from treeopt.simulation.serving import ServedSequence
from treeopt.simulation.simulate import Deployment
from treeopt.trees import chain

LOAD = Load(rate_per_s=1.0, prompt_tokens=(8, 8), new_tokens=(8, 8))


def finish_times(served: list[ServedSequence]) -> list[float]:
    return [sequence.finished_s for sequence in served]


class TestRounds:
    """Prefill takes 0.5 s, a step of one sequence 1 s, of two 1.1 s."""

    def serve(self, batch_size: int, replicas: int = 1) -> list[tuple[float, float, float]]:
        times = times_of(machine(batches=(1, 2)), prompt_s=0.5)
        requests = [Request(0.0, 8, 2), Request(0.6, 8, 2)]
        served = served_by(times, requests, chain(0), batch_size, replicas)
        return sorted((sequence.request.arrival_s, sequence.first_token_s, sequence.finished_s) for sequence in served)

    def test_a_second_sequence_joins_between_two_steps(self) -> None:
        # 0.5 prefill, 1.5 first token; 2.0 second prefill, 3.1 a step of both ends the first; 4.1 the second's last
        assert self.serve(2) == [pytest.approx((0.0, 1.5, 3.1)), pytest.approx((0.6, 3.1, 4.1))]

    def test_arrival_during_prefill_joins_before_the_next_step(self) -> None:
        times = times_of(machine(batches=(1, 2)), prompt_s=0.5)
        served = served_by(times, [Request(0.0, 8, 1), Request(0.3, 8, 1)], chain(0), 2)
        # 0.5 first prefill, 1.0 second prefill, 2.1 a step of both
        assert finish_times(served) == pytest.approx([2.1, 2.1])

    def test_batch_size_1_lets_requests_wait(self) -> None:
        assert self.serve(1) == [pytest.approx((0.0, 1.5, 2.5)), pytest.approx((0.6, 4.0, 5.0))]

    def test_request_goes_to_the_idle_server(self) -> None:
        assert self.serve(1, replicas=2) == [pytest.approx((0.0, 1.5, 2.5)), pytest.approx((0.6, 2.1, 3.1))]

    def test_waiting_requests_count_as_backlog(self) -> None:
        times = times_of(machine(), prompt_s=0.5)
        requests = [Request(at_s, 8, 1) for at_s in (0.0, 0.1, 0.2, 0.3)]
        served = served_by(times, requests, chain(0), 1, replicas=2)
        assert finish_times(served) == pytest.approx([1.5, 1.6, 3.0, 3.1])

    def test_a_step_yields_no_more_tokens_than_were_requested(self) -> None:
        times = times_of(machine(table=ALWAYS), prompt_s=0.5)
        (done,) = served_by(times, [Request(0.0, 8, 7)], chain(4), 1)
        assert (done.steps, done.step_tokens) == (2, 7)  # 5 tokens, and 2 of 5
        assert outcome("", LOAD, [done], 1.0).tokens_per_s == pytest.approx(7 / done.finished_s)

    @pytest.mark.parametrize("wrong", [{"replicas": 0}, {"batch_size": 0}])
    def test_no_server_and_no_sequence_are_refused(self, wrong: dict[str, int]) -> None:
        with pytest.raises(InvalidValueError, match=r"expected at least 1\. Got 0"):
            Deployment(**{"times": times_of(machine()), "batch_size": 1} | wrong)


class TestEngines:
    """Steps take 1 s plain and 1.5 s with a chain of 1 that is always accepted; prefill yields a token."""

    def test_prefill_and_the_step_of_others_end_together(self) -> None:
        """0.25 first prefill; 1.25 its second token; 2.5 its third, and the second prefill with it."""
        times = times_of(engine(), prompt_s=0.25)
        served = served_by(times, [Request(0.0, 8, 4), Request(0.5, 8, 3)], chain(0), 2)

        times_and_steps = [(sequence.first_token_s, sequence.finished_s, sequence.steps) for sequence in served]
        assert times_and_steps == [pytest.approx((0.25, 3.5, 3)), pytest.approx((2.5, 4.5, 2))]

    def test_waiting_prompts_are_prefilled_together(self) -> None:
        times = times_of(engine(), prompt_s=0.25)
        served = served_by(times, [Request(0.0, 8, 1), Request(0.1, 8, 1), Request(0.2, 8, 1)], chain(0), 2)
        assert finish_times(served) == pytest.approx([0.25, 0.75, 0.75])

    def serve(self, length: int, new_tokens: int) -> ServedSequence:
        (done,) = served_by(times_of(engine(), prompt_s=0.25), [Request(0.0, 8, new_tokens)], chain(length), 1)
        return done

    def test_the_first_token_comes_with_prefill(self) -> None:
        plain, drafted = self.serve(0, 5), self.serve(1, 5)
        assert (plain.first_token_s, plain.finished_s, plain.steps) == (0.25, pytest.approx(4.25), 4)
        assert (drafted.first_token_s, drafted.finished_s, drafted.steps) == (0.25, pytest.approx(3.25), 2)
        assert outcome("", LOAD, [plain], 1.0).tokens_per_step == 1.0
        assert outcome("", LOAD, [drafted], 1.0).tokens_per_step == 2.0

    def test_a_sequence_of_one_token_takes_no_step(self) -> None:
        done = self.serve(1, 1)
        assert (done.first_token_s, done.finished_s, done.steps) == (0.25, 0.25, 0)


@pytest.mark.parametrize(
    ("of_engine", "finished_s"),
    [  # seconds of each step: alone, with the second sequence, alone
        (False, (2.97 + 3.08 + 3.09, 2.97 + 3.08 + 3.09 + 3.0)),
        (True, (2.98 + 2.99 + 2.1,) * 2),
    ],
)
def test_the_longest_context_determines_a_step_and_in_engines_the_mean(
    of_engine: bool, finished_s: tuple[float, float]
) -> None:
    """Plain steps take 1 s at 100 tokens, 3 s at 300, 0.1 s more with a second sequence; prefill takes nothing."""
    batches = [(at, size) for size in (1, 2) for at in (100, 300)]
    if of_engine:
        chains = tuple(
            ChainLatency(
                context_tokens=at,
                batch_size=size,
                chains=tuple(
                    TimedChain(length=drafted, steps=Timing([at / 100 + 0.1 * (size - 1) + drafted]))
                    for drafted in (0, 1)
                ),
            )
            for at, size in batches
        )
        measured = replace(engine(), chain_latencies=chains)
    else:
        timed = [
            latency(
                seconds(lambda _, at=at, size=size: at / 100 + 0.1 * (size - 1), lambda _: 0.01),
                context_tokens=at,
                batch_size=size,
            )
            for at, size in batches
        ]
        measured = profile(timed, [acceptance([[0.5]] * 3)])
    served = served_by(times_of(measured, prompt_s=0.0), [Request(0.0, 297, 4), Request(0.1, 99, 2)], chain(0), 2)
    assert finish_times(served) == pytest.approx(finished_s)
