"""Online speculative decoding (Liu et al., 2023): the draft model learns what the target says where it was wrong.

The target's distributions are those that verification computed anyway.  Weights change between two steps only, and a
proposal holds the distribution that it was sampled from, so that the text keeps the target's distribution.  The draft's
keys and values of a text that is under way stay those of the weights that computed them: to compute them anew would take
a pass over the text after every update, and a text that begins is read with the newest weights in any case.
"""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from treeopt.errors import InfeasibleError, InvalidValueError, TreeoptWarning, Warning
from treeopt.records.learning import LearningStats
from treeopt.runtime.decoding.observer import DecodedStep
from treeopt.runtime.learning.lessons import Excerpt, Lessons
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.trainable import TrainableCopy, copied
from treeopt.runtime.models.transformer import Transformer
from treeopt.runtime.models.vocabulary import LimitedDraft, limit_draft

SAVE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningSettings:
    """How much is learnt from what, and how fast."""

    rate: float = 1e-4
    """Of AdamW, constant and without weight decay."""
    positions: int = 32
    """Wrong positions that an update is made of."""
    window_tokens: int = 256
    """Most tokens of a text that are read anew for one gradient."""
    largest_norm: float = 1.0
    """That gradients are clipped to."""
    most_share: float = 0.25
    """Of the time: updates beyond it are left out."""

    def __post_init__(self) -> None:
        for name, least in (("positions", 1), ("window_tokens", 2)):
            if getattr(self, name) < least:
                raise InvalidValueError(f"{name}: expected at least {least}. Got {getattr(self, name)}.", field=name)
        for name in ("rate", "largest_norm", "most_share"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidValueError(f"{name}: expected a number above 0. Got {getattr(self, name)!r}.", field=name)


class Learner:
    """Distils the target into the draft model while a decoder decodes with both: `Decoder(…, on_step=Learner(draft))`.

    Args:
        draft: the model that drafts, built in; its weights are changed in place.
        settings: how much is learnt, and how fast.
        save: keeps the draft as it is, if it is to be kept; called after the first update, then at most once in
            `SAVE_EVERY_S`, and its time is learning's.
        now_s: the clock that its share of the time is measured by.

    Raises InfeasibleError for a model whose weights cannot be changed.
    """

    def __init__(
        self,
        draft: LanguageModel,
        settings: LearningSettings | None = None,
        *,
        save: Callable[[], object] | None = None,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.settings = settings or LearningSettings()
        self._limited = draft if isinstance(draft, LimitedDraft) else None
        self.model = built_in(draft)
        """Whose weights are changed."""
        self._copy = TrainableCopy(self.model)
        self._optimizer = torch.optim.AdamW(self._copy.parameters, lr=self.settings.rate, weight_decay=0.0)
        self._lessons = Lessons(self.settings.window_tokens)
        self._save = save
        self._saved_s = -math.inf
        self._now_s = now_s
        self._start_s: float | None = None
        self._learning_s = 0.0
        self._updates = self._dropped = self._left_out = 0

    @property
    def stats(self) -> LearningStats:
        """What was learnt so far, and what it took."""
        start_s = self._start_s
        return LearningStats(
            updates=self._updates,
            dropped=self._dropped,
            left_out=self._left_out,
            learning_s=self._learning_s,
            decoding_s=0.0 if start_s is None else self._now_s() - start_s,
        )

    def __call__(self, told: DecodedStep) -> None:
        """Note where the draft was wrong in a step, and learn where enough has come together."""
        begin_s = self._now_s()
        if self._start_s is None:
            self._start_s = begin_s
        self._lessons.add(told)
        if self._lessons.positions >= self.settings.positions:
            excerpts = self._lessons.take()
            if self._learning_s > self.settings.most_share * (begin_s - self._start_s):
                self._left_out += 1
            else:
                self._update(excerpts)
                self._keep()
        self._learning_s += self._now_s() - begin_s

    def _keep(self) -> None:
        """Keep the draft, if it was not kept for a while."""
        if self._save is not None and self._now_s() >= self._saved_s + SAVE_EVERY_S:
            self._save()
            self._saved_s = self._now_s()

    def _update(self, excerpts: Sequence[Excerpt]) -> None:
        """Change the weights by one step of the optimizer, or drop it where the gradient is not finite."""
        with torch.inference_mode(mode=False), torch.enable_grad():
            self._gradients(excerpts)
            norm = torch.nn.utils.clip_grad_norm_(self._copy.parameters, self.settings.largest_norm)
            if bool(norm.isfinite()):
                self._optimizer.step()
                self._copy.write()
                self._updates += 1
            else:
                self._dropped += 1
                dropped = Warning(
                    f"{self.model.name}: an update was dropped, because its gradient is NaN or infinite; the output does not "
                    "change.",
                    "If this happens again, lower --learning-rate, or leave out --learn.",
                )
                warnings.warn(TreeoptWarning(str(dropped)), stacklevel=2)
            self._optimizer.zero_grad()

    def _gradients(self, excerpts: Sequence[Excerpt]) -> None:
        """Compute the gradients of the mean cross-entropy, in which the target's distributions are those of temperature 1."""
        positions = sum(len(excerpt.rows) for excerpt in excerpts)
        device = self.model.device
        for excerpt in excerpts:  # one after the other, so that one window's activations are held at a time
            tokens = torch.tensor(excerpt.tokens, device=device)
            logits = self._copy.logits(tokens if self._limited is None else self._limited.readable(tokens))
            given = logits[torch.tensor(excerpt.rows, device=device)]
            wanted = torch.stack(excerpt.logits).to(device).float()
            if self._limited is not None:  # it proposes nothing else
                ids = torch.tensor(self._limited.ids, device=device)
                given, wanted = given[:, ids], wanted[:, ids]
            (cross_entropy(given, wanted.softmax(-1), reduction="sum") / positions).backward()


def learning_copy(draft: LanguageModel, settings: LearningSettings | None = None) -> tuple[LanguageModel, Learner]:
    """Return a copy of a draft model, which another decoder may go on with as it is, and what has the copy learn.

    Raises InfeasibleError for a model whose weights cannot be changed.
    """
    own: LanguageModel = copied(built_in(draft))
    if isinstance(draft, LimitedDraft):
        own = limit_draft(own, draft.ids, draft.config.vocabulary)
    return own, Learner(own, settings)


def built_in(draft: LanguageModel) -> Transformer:
    """Return the built-in model that a draft model is, or that it limits.

    Raises InfeasibleError for one that another library runs.
    """
    model = draft.whole if isinstance(draft, LimitedDraft) else draft
    if not isinstance(model, Transformer):
        raise InfeasibleError(
            f"{draft.name}: expected a draft model that is built in, because its weights are changed while it drafts. "
            "Got one that another library runs: choose another draft, or do without learning."
        )
    return model
