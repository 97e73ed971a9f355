"""Continuous batching: sequences join the batch between steps as soon as there is room, and leave when they end."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty
from typing import NamedTuple, Protocol

from treeopt.errors import BatchError, OutOfMemoryError, TreeoptError
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.drafters.drafter import Step
from treeopt.texts.stop import StoppingCriteria


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A sequence to generate; the fields are the arguments of `Decoder.generate`."""

    token_ids: Sequence[int]
    max_new_tokens: int
    stop: Sequence[Sequence[int]] = ()
    seed: int | None = None
    ignore_end_tokens: bool = False
    """Continue after the target's end tokens, for timing."""


class RequestOutput(NamedTuple):
    """The output of one step of one request."""

    request: int
    """Number of the request, 0 first."""
    tokens: list[int]
    """New tokens up to the end of the sequence; empty if the request failed, or asked for none."""
    finished: bool
    """Whether this is the request's last output."""
    error: TreeoptError | None = None
    """Why the request could not be decoded, or not further."""
    committed_tokens: int = 0
    """Tokens of the step, those after the end of the sequence included."""


class ActiveRequest(NamedTuple):
    """A valid request that is being decoded."""

    number: int
    sequence: int
    """Number of its sequence in the target and the drafter."""
    token_ids: Sequence[int]
    seed: int
    criteria: StoppingCriteria

    def make_output(self, step: Step | TreeoptError) -> RequestOutput:
        """Return the output of a step, up to the end of the sequence."""
        if isinstance(step, TreeoptError):
            return RequestOutput(self.number, [], True, step)
        tokens = step.tokens[: self.criteria.count(step.tokens)]
        return RequestOutput(self.number, tokens, self.criteria.reached, committed_tokens=len(step.tokens))


class RequestQueue(Protocol):
    """Requests that arrive during decoding, such as a `queue.Queue` that other threads fill."""

    def get(self, block: bool, /) -> GenerationRequest | None:
        """Return the next request, None if no more will come; without `block`, raise queue.Empty if there is none."""


@dataclass(slots=True)
class QueuedRequests:
    """Numbers requests in order of arrival; `activate` validates each, and raises TreeoptError for an invalid one."""

    queue: RequestQueue
    activate: Callable[[int, GenerationRequest], ActiveRequest]
    _count: int = 0
    _closed: bool = False

    def next_request(self, *, wait: bool) -> ActiveRequest | RequestOutput | None:
        """Return the next request, the error of an invalid one, or None: with `wait`, because no more will come."""
        try:
            request = None if self._closed else self.queue.get(wait)
        except Empty:
            return None
        if request is None:
            self._closed = True
            return None
        number, self._count = self._count, self._count + 1
        try:
            return self.activate(number, request)
        except TreeoptError as error:
            return RequestOutput(number, [], True, error)


def decode_batch(
    stepper: Stepper,
    source: QueuedRequests,
    batch_size: int,
    *,
    before_step: Callable[[int], object],
) -> Iterator[RequestOutput]:
    """Yield the outputs of all requests, at most `batch_size` at a time; `before_step` receives how many are decoded."""
    running: list[ActiveRequest] = []
    try:
        while True:
            while len(running) < batch_size and (arrival := source.next_request(wait=not running)) is not None:
                if isinstance(arrival, RequestOutput):
                    yield arrival
                    continue
                running.append(arrival)  # before it begins, so that an interruption frees it
                error = _begin(stepper, arrival)
                if error is not None or arrival.criteria.reached:
                    running.remove(arrival)
                    stepper.end(arrival.sequence)
                    yield RequestOutput(arrival.number, [], True, error)
            if not running:
                return
            before_step(len(running))
            steps = stepper.step([active.sequence for active in running])
            for active, step in zip(tuple(running), steps, strict=True):
                output = active.make_output(step)
                if output.finished:
                    running.remove(active)
                    stepper.end(active.sequence)
                yield output
    finally:
        for active in running:
            stepper.end(active.sequence)


def _begin(stepper: Stepper, active: ActiveRequest) -> TreeoptError | None:
    """Begin the sequence of a request, or return why it cannot be decoded."""
    try:
        stepper.begin(active.sequence, active.token_ids, active.seed)
    except OutOfMemoryError:
        raise  # not the fault of this request
    except TreeoptError as error:
        return error
    return None


def iterate_tokens(outputs: Iterable[RequestOutput], requests: int) -> Iterator[tuple[int, list[int]]]:
    """Yield the number and the new tokens of each output; raise BatchError at the end if any request failed."""
    errors: dict[int, TreeoptError] = {}
    for output in outputs:
        if output.error is not None:
            errors[output.request] = output.error
        elif output.tokens:
            yield output.request, output.tokens
    if errors:
        raise BatchError(errors, requests)
