"""The rule and the samplings of measured decoding."""

from dataclasses import dataclass

from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import Observer
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How a tree decodes."""

    rule: str = "sequoia"
    sampling: Sampling = GREEDY
    draft_sampling: Sampling | None = None
    """None for the target's temperature and all tokens."""
    lossy: bool = False
    """Whether rules are allowed that change the output distribution."""

    @classmethod
    def as_measured(cls, acceptance: MeasuredAcceptance, *, lossy: bool = False) -> "Decoding":
        """Return the decoding with which an acceptance was measured."""
        return cls(
            rule=acceptance.rule,
            sampling=acceptance.sampling,
            draft_sampling=acceptance.draft_sampling,
            lossy=lossy,
        )

    def decoder(
        self,
        target: LanguageModel,
        drafter: LanguageModel | Drafter | None,
        tree: TokenTree | None,
        max_tokens: int | None,
        *,
        seed: int = 0,
        on_step: Observer | None = None,
    ) -> Decoder:
        """Return a decoder of sequences up to `max_tokens` tokens, by default as many as the target supports.

        Args:
            target: the model that verifies.
            drafter: a draft model that fills the tree, or any drafter.
            tree: None if the drafter has its own.
            max_tokens: of a sequence, prompt included.
            seed: of the random generator.
            on_step: called after every step.
        """
        return Decoder(
            target,
            drafter,
            tree,
            rule=self.rule,
            sampling=self.sampling,
            draft_sampling=self.draft_sampling,
            lossy=self.lossy,
            seed=seed,
            max_sequence_tokens=max_tokens,
            on_step=on_step,
        )
