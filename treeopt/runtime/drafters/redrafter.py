"""ReDrafter: one recurrent head on the target's last hidden state drafts by beam search (Zhang et al., 2024).

The head reads the hidden state h before the root and a state s of its own: s_0 is the root's embedding, and a draft token
with embedding e makes it silu(U s + W e + b).  Embedding and output layer are the target's; embeddings are normalised to
a root mean square of 1, because some models keep them tiny.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.beams import Beam, beam_search, merge_beams
from treeopt.runtime.drafters.drafter import ROOT_ONLY, Proposal
from treeopt.runtime.drafters.head_files import HeadFolder
from treeopt.runtime.drafters.heads import HeadDrafter
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Transformer
from treeopt.trees.drafter_parameters import RedrafterSetting

NORM_EPSILON = 1e-9
"""Epsilon of the embedding's norm; torch's default in half precision is too large for small embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrafterHead:
    """The weights of a recurrent head, and the target whose embedding and output layer it shares."""

    target: Transformer
    recurrence: Linear
    """U and b."""
    token: Linear
    from_hidden: Linear
    """The columns of the input layer that read the target's hidden state."""
    from_state: Linear
    """The columns that read the head's own state."""
    blocks: tuple[Linear, ...]
    """Each adds silu of its output to its input."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the normalised embeddings (m, hidden) of tokens, int64 (m,)."""
        embedded = F.embedding(tokens, self.target.weights.embedding)
        return F.rms_norm(embedded, embedded.shape[1:], eps=NORM_EPSILON)

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the states (m, hidden) after states (m, hidden) and tokens, int64 (m,)."""
        return F.silu(self.recurrence(states) + self.token(self.embed(tokens)))

    def log_probs(self, states: Tensor, context: Tensor) -> Tensor:
        """Return float32 (m, V) for the token after each state (m, hidden).

        `context`, (n, hidden), is `from_hidden` of the target's hidden states of n sequences with m / n rows each.
        """
        x = (context[:, None] + self.from_state(states).unflatten(0, (len(context), -1))).flatten(0, 1)
        for block in self.blocks:
            x = x + F.silu(block(x))
        return self.target.logits(x).float().log_softmax(-1)


def load_redrafter(folder: Path | str, target: Transformer) -> RedrafterHead:
    """Read the head from a folder: `config.json` with its number of residual blocks, and `model.safetensors`.

    Raises TreeoptError if a file is missing, FormatError naming the field or the tensor that is wrong,
    InvalidValueError for a head of a target of another size.
    """
    source = HeadFolder(folder, target)
    fields, tensors = source.own_fields("redrafter"), source.tensors
    blocks, hidden = fields.integer("blocks", least=0), target.config.hidden
    fields.end()
    from_hidden, from_state = tensors.get("input.weight", (hidden, 2 * hidden)).chunk(2, dim=1)
    head = RedrafterHead(
        target=target,
        recurrence=_load_linear(tensors, "state", hidden),
        token=Linear(tensors.get("token.weight", (hidden, hidden))),
        from_hidden=Linear(from_hidden.contiguous(), tensors.get("input.bias", (hidden,))),
        from_state=Linear(from_state.contiguous()),
        blocks=tuple(_load_linear(tensors, f"blocks.{index}", hidden) for index in range(blocks)),
    )
    source.check_all_read("a ReDrafter head")
    return head


def _load_linear(tensors: TensorReader, name: str, size: int) -> Linear:
    return Linear(tensors.get(f"{name}.weight", (size, size)), tensors.get(f"{name}.bias", (size,)))


class RedrafterDrafter(HeadDrafter):
    """Drafts `width` merged beams of `length` tokens below the root.

    Raises InvalidValueError for numbers out of range, and for more beams than the vocabulary has tokens.
    """

    def __init__(self, head: RedrafterHead, width: int, length: int) -> None:
        setting, vocabulary = RedrafterSetting(width=width, length=length), head.target.config.vocabulary
        if width > vocabulary:
            raise InvalidValueError(f"width: expected at most {vocabulary}, the vocabulary. Got {width}.")
        super().__init__()
        self.head = head
        self.setting = setting
        self.max_tokens = setting.max_nodes

    def _draft(self, roots: list[int], hidden: Tensor) -> list[Proposal]:
        head, setting = self.head, self.setting
        score = partial(head.log_probs, context=head.from_hidden(hidden))
        states = head.embed(torch.tensor(roots, device=head.target.device))
        beams = beam_search(states, score, head.advance, width=setting.width, length=setting.length)
        return [self._merge(root, root_beams) for root, root_beams in zip(roots, beams, strict=True)]

    def _merge(self, root: int, beams: Sequence[Beam]) -> Proposal:
        if not beams:  # a distribution was not finite
            scores = Scores.missing(f"ReDrafter head of {self.head.target.name}")
            return Proposal(ROOT_ONLY, torch.tensor([root]), scores=scores)
        tree, tokens = merge_beams(beams)
        return Proposal(tree, torch.tensor([root, *tokens]))
