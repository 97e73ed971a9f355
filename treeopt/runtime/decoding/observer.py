"""Observers of decoding: they receive an event for each step, and controllers may change the tree in response."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.trees import TokenTree


class StepSeconds(NamedTuple):
    """Seconds of a step, for the whole batch."""

    draft: float
    verify: float
    """The target's pass, as long as the host waits for it."""
    accept: float
    """Accept and commit; on a device also what is left of the pass."""


class StepEvent(NamedTuple):
    """One committed step of one sequence; its tensors and tokens are valid until the next step."""

    sequence: int
    """Number of the sequence in target and drafter; later sequences have higher numbers."""
    tokens: Sequence[int]
    """All tokens before the step, prompt included; the last is the root."""
    proposal: Proposal
    """The draft, as it was sampled: later changes of weights or tree do not affect it."""
    step: Step
    seconds: StepSeconds | None = None
    """With the first sequence of a batch, None with the others."""


Observer = Callable[[StepEvent], object]
"""Called after every step of every sequence; it may change the tree and the draft model's weights."""


@runtime_checkable
class Controller(Protocol):
    """An observer that changes the decoder's tree."""

    def attach(self, decoder: Any) -> None:
        """Take the new `treeopt.runtime.Decoder` whose steps it will observe."""

    def largest_tree_nodes(self, tree: TokenTree) -> int:
        """Return the nodes of the largest tree that it may change to, for a decoder that starts with `tree`."""

    def __call__(self, step: StepEvent) -> object: ...


def combine_observers(*observers: Observer | None) -> Observer | None:
    """Return an observer that calls all of them in order, None if there are none."""
    present = [observer for observer in observers if observer is not None]
    if len(present) <= 1:
        return present[0] if present else None
    return _CombinedObservers(present)


class _CombinedObservers:
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._controllers = [observer for observer in observers if isinstance(observer, Controller)]

    def attach(self, decoder: Any) -> None:
        for controller in self._controllers:
            controller.attach(decoder)

    def largest_tree_nodes(self, tree: TokenTree) -> int:
        return max([tree.nodes, *(controller.largest_tree_nodes(tree) for controller in self._controllers)])

    def __call__(self, step: StepEvent) -> None:
        for observer in self._observers:
            observer(step)
