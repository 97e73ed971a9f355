"""Several texts decoded at a time: each joins as soon as there is room for it, and leaves when it ends."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple, Protocol

from treeopt.errors import OutOfMemoryError, TextsError, TreeoptError
from treeopt.runtime.decoding.ending import Ending
from treeopt.runtime.decoding.observer import Observer, StepSeconds
from treeopt.runtime.decoding.step_acceptance import StepAcceptance
from treeopt.runtime.decoding.target_text import TargetText
from treeopt.runtime.drafters.drafter import Drafter, Step
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.together import run_together


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
    """Decodes texts in steps of one pass of the target for all, and one of the draft model for each level.

    Args:
        drafter: what drafts.
        targets: the target at each text, by key.
        acceptance: accepts paths of proposals.
        begin: begins a text at both; raises TreeoptError where it cannot be decoded.
        before_step: called with the number of texts before each step of them.
        on_step: told of each text's step once all are committed.
    """

    drafter: Drafter
    targets: Texts[TargetText]
    acceptance: StepAcceptance
    begin: Callable[[BatchText], object]
    before_step: Callable[[int], object]
    on_step: Observer | None = None

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
        """Decode one step of every text."""
        at = [self.targets[text.key] for text in texts]
        keys = [text.key for text in texts]
        start_s = perf_counter()
        proposals = self.drafter.propose(keys, [each.noise for each in at])
        drafted_s = perf_counter()
        outputs = run_together([each.call(proposal) for each, proposal in zip(at, proposals, strict=True)])
        verified_s = perf_counter()
        verdicts = self.acceptance.verdicts(at, proposals, outputs)
        found, steps = [], dict[int, Step]()
        for text, each, proposal, output, verdict in zip(texts, at, proposals, outputs, verdicts, strict=True):
            try:
                step = steps[text.key] = self.acceptance.step_of(each, proposal, output, *verdict)
            except TreeoptError as error:
                found.append((text, TextStep(text.number, [], True, error)))
                continue
            each.cache.keep(0, step.path)
            count = text.ending.count(step.tokens)
            taken = step.tokens[:count]
            found.append((text, TextStep(text.number, taken, text.ending.reached, committed=len(step.tokens))))
        self.drafter.accept(list(steps), list(steps.values()))
        if self.on_step is not None:
            seconds: StepSeconds | None = StepSeconds(
                drafted_s - start_s, verified_s - drafted_s, perf_counter() - verified_s
            )
            for text, each, proposal in zip(texts, at, proposals, strict=True):
                if text.key in steps:
                    each.tell(self.on_step, text.key, proposal, steps[text.key], seconds)
                    seconds = None
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
        self.drafter.end(text.key)
        self.targets.end(text.key)


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
