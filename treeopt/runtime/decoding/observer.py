"""What observers of decoding are told of each step, such as one that learns from it or counts what was accepted."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from treeopt.runtime.drafters.drafter import Proposal, Step


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


Observer = Callable[[DecodedStep], object]
"""Called after every step of every text; it may change the tree and the weights of what drafts."""
