"""Texts that are asked for while others are decoded: each is numbered as it comes, and joins the next step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty
from typing import Protocol

from treeopt.errors import TreeoptError
from treeopt.runtime.decoding.batch import BatchText, TextRequest, TextStep, Waiting


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
