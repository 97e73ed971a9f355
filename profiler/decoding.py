"""How is decoded while something is measured: the rule, and how target and draft sample."""

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
    """How it is decoded with a tree."""

    rule: str = "sequoia"
    sampling: Sampling = GREEDY
    draft_sampling: Sampling | None = None
    """The draft's own; None for the target's temperature and all tokens."""
    lossy: bool = False
    """Whether rules are allowed that change the text's distribution."""
    cuda_graphs: bool | None = None
    """Whether passes are captured; None captures them on a CUDA device. Texts share no pass that is captured."""

    @classmethod
    def as_measured(cls, acceptance: MeasuredAcceptance, *, lossy: bool = False) -> "Decoding":
        """Return that with which an acceptance was measured."""
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
        text_tokens: int | None,
        *,
        seed: int = 0,
        on_step: Observer | None = None,
    ) -> Decoder:
        """Return the decoder with a tree that a draft model fills, or with any drafter.

        Sequences have at most `text_tokens` tokens, by default as many as the target takes.
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
            max_text_tokens=text_tokens,
            cuda_graphs=self.cuda_graphs,
            on_step=on_step,
        )
