"""What observers of decoding are told of each step, such as one that learns from it or counts what was accepted."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.drafter import Drafter, Proposal, Step
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.rules import Rule
from treeopt.trees import TokenTree


class StepSeconds(NamedTuple):
    """What a step took; of texts decoded together, all of them."""

    draft: float
    verify: float
    """The target's pass, as long as the host waits for it."""
    rest: float
    """Accepting and committing; on a device what is left of the pass."""


class DecodedStep(NamedTuple):
    """One step of one text, committed a moment ago; its tensors last until the next step."""

    text: int
    """Number of the text, by which its drafter knows it; it rises from text to text."""
    tokens: Sequence[int]
    """The text before the step, prompt included; the last is the root that was drafted below.  It lasts as long."""
    proposal: Proposal
    """What was drafted, as it was sampled: weights and trees that change later do not change it."""
    step: Step
    """What was accepted of it, and the target's logits after every node."""
    seconds: StepSeconds | None = None
    """Told with the first of texts that are decoded together, None with the others."""


Observer = Callable[[DecodedStep], object]
"""Called after every step of every text; it may change the tree and the weights of what drafts."""


class Steered(Protocol):
    """A decoder as those see it that change its tree; `treeopt.runtime.Decoder` says what everything is."""

    target: LanguageModel
    draft_model: LanguageModel | None
    """That fills the tree."""
    max_nodes: int
    rule: Rule
    """The verification rule."""
    sampling: Sampling
    """Of the target."""
    draft_sampling: Sampling
    """Of the tree's children."""

    @property
    def tree(self) -> TokenTree:
        """The static tree."""

    @property
    def takes_trees(self) -> bool:
        """Whether it may be changed."""

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree from the next step on."""

    def change_drafter(self, drafter: Drafter) -> None:
        """Have another drafter draft from the next step on, until `change_tree`."""

    def draft_logits(self, tokens: Sequence[int]) -> Tensor | None:
        """Return the draft model's logits (n, V) after each of some tokens."""


@runtime_checkable
class Steering(Protocol):
    """An observer that changes the decoder's tree, and has to know the decoder for it."""

    def attach(self, decoder: Steered) -> None:
        """Take a decoder that was made a moment ago, whose steps it will be told of."""

    def room_nodes(self, tree: TokenTree) -> int:
        """Return the nodes of the largest tree that it will change to, in a decoder that begins with a tree."""

    def __call__(self, step: DecodedStep) -> object: ...


def observers(*each: Observer | None) -> Observer | None:
    """Return what tells every one of some observers in turn, None where there is none."""
    found = [one for one in each if one is not None]
    return found[0] if len(found) == 1 else _Several(found) if found else None


class _Several:
    def __init__(self, each: Sequence[Observer]) -> None:
        self._each = each

    def attach(self, decoder: Steered) -> None:
        for observer in self._each:
            if isinstance(observer, Steering):
                observer.attach(decoder)

    def room_nodes(self, tree: TokenTree) -> int:
        return max([tree.nodes, *(each.room_nodes(tree) for each in self._each if isinstance(each, Steering))])

    def __call__(self, step: DecodedStep) -> None:
        for observer in self._each:
            observer(step)
