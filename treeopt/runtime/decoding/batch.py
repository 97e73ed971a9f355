"""Several texts decoded at a time: each joins as soon as there is room for it, also while others are decoded, and leaves when it ends."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty
from typing import NamedTuple, Protocol

from treeopt.errors import OutOfMemoryError, TextsError, TreeoptError
from treeopt.runtime.decoding.step import Stepper
from treeopt.texts.stop import Ending


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A text that is wanted; the fields are those of `Decoder.generate`."""

    token_ids: Sequence[int]
    max_new_tokens: int
    stop: Sequence[Sequence[int]] = ()
    seed: int | None = None
    ignore_end_tokens: bool = False
    """Go on behind the target's end tokens: a text whose steps are timed is to last."""


class TextStep(NamedTuple):
    """What a step came to in one of several texts."""

    text: int
    """Number of its request, 0 first."""
    tokens: list[int]
    """Those that belong to the text; none where it failed, or was to have none."""
    ended: bool
    """Whether this is the last step of the text."""
    error: TreeoptError | None = None
    """Why the text could not be decoded, or not further."""
    committed: int = 0
    """Tokens that the step brought, those behind the end of the text included."""


class BatchText(NamedTuple):
    """A text that waits for its turn or is decoded."""

    number: int
    """Of its request."""
    key: int
    """By which target and drafter know it."""
    request: TextRequest
    ending: Ending


class Waiting(Protocol):
    """Texts that are to be decoded."""

    def __call__(self, *, wait: bool) -> BatchText | TextStep | None:
        """Return the next, or the only step of one that cannot be decoded.

        Args:
            wait: whether to wait for it; None says then that no more will come, and else that there is none now.
        """


@dataclass(frozen=True, slots=True)
class Batch:
    """Decodes several texts at a time.

    Args:
        stepper: decodes a step of all of them.
        begin: begins a text; raises TreeoptError where it cannot be decoded.
        before_step: called with the number of texts before each step of them.
    """

    stepper: Stepper
    begin: Callable[[BatchText], object]
    before_step: Callable[[int], object]

    def decode(self, waiting: Waiting, size: int) -> Iterator[TextStep]:
        """Yield the steps of texts, `size` of which are decoded at a time; those that wait join before each step."""
        running: list[BatchText] = []
        try:
            while True:
                while len(running) < size and (text := waiting(wait=not running)) is not None:
                    if isinstance(text, TextStep):
                        yield text
                        continue
                    running.append(text)  # before it begins, because it may be broken off there
                    error = self._begin_error(text)
                    if error is not None or text.ending.reached:
                        self._leave(running, text)
                        yield TextStep(text.number, [], True, error)
                if not running:
                    return
                self.before_step(len(running))
                for text, found in self._step(running):
                    if found.ended:
                        self._leave(running, text)
                    yield found
        finally:
            for text in running:
                self._end(text)

    def _step(self, texts: Sequence[BatchText]) -> list[tuple[BatchText, TextStep]]:
        """Return each text with its step."""
        found = []
        for text, step in zip(texts, self.stepper.step([text.key for text in texts]), strict=True):
            if isinstance(step, TreeoptError):
                found.append((text, TextStep(text.number, [], True, step)))
            else:
                taken = step.tokens[: text.ending.count(step.tokens)]
                found.append((text, TextStep(text.number, taken, text.ending.reached, committed=len(step.tokens))))
        return found

    def _begin_error(self, text: BatchText) -> TreeoptError | None:
        """Begin a text, or return why it cannot be decoded."""
        try:
            self.begin(text)
        except OutOfMemoryError:
            raise  # which is no fault of this text
        except TreeoptError as error:
            return error
        return None

    def _leave(self, running: list[BatchText], text: BatchText) -> None:
        running.remove(text)
        self._end(text)

    def _end(self, text: BatchText) -> None:
        self.stepper.drafter.end(text.key)
        self.stepper.targets.end(text.key)


def tokens_of(steps: Iterable[TextStep], texts: int) -> Iterator[tuple[int, list[int]]]:
    """Yield each text's number and tokens, and raise TextsError at the end if some could not be decoded."""
    errors: dict[int, TreeoptError] = {}
    for step in steps:
        if step.error is not None:
            errors[step.text] = step.error
        elif step.tokens:
            yield step.text, step.tokens
    if errors:
        raise TextsError(errors, texts)


class Arriving(Protocol):
    """Where requests come from; a `queue.Queue` that other threads fill is one."""

    def get(self, block: bool, /) -> TextRequest | None:
        """Return the next request, None where no more will come.

        Args:
            block: whether to wait for it, because no text is decoded.

        Raises queue.Empty where there is none now, and it is not to wait.
        """


@dataclass(slots=True)
class ArrivedTexts:
    """What waits to be decoded, of requests that arrive.

    Args:
        source: of the requests.
        new_text: makes the text of a request, given its number; raises TreeoptError for one that cannot be decoded.
    """

    source: Arriving
    new_text: Callable[[int, TextRequest], BatchText]
    _texts: int = 0
    _ended: bool = False

    def __call__(self, *, wait: bool) -> BatchText | TextStep | None:
        try:
            request = None if self._ended else self.source.get(wait)
        except Empty:
            return None
        if request is None:
            self._ended = True
            return None
        number, self._texts = self._texts, self._texts + 1
        try:
            return self.new_text(number, request)
        except TreeoptError as error:
            return TextStep(number, [], True, error)


def waiting_texts(
    requests: Sequence[TextRequest] | Arriving, new_text: Callable[[int, TextRequest], BatchText]
) -> Waiting:
    """Return what waits to be decoded; texts of a sequence are all made now, so that wrong ones are refused before any runs.

    Raises what `new_text` raises.
    """
    if not isinstance(requests, Sequence):
        return ArrivedTexts(requests, new_text)
    texts = iter([new_text(number, request) for number, request in enumerate(requests)])
    return lambda *, wait: next(texts, None)  # noqa: ARG005
