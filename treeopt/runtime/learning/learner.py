"""Online speculative decoding (Liu et al., 2023): the draft model learns the target's distributions where it was rejected.

The distributions come from verification.  Weights change only between steps, and a proposal keeps the distributions that
it was sampled from, so the output keeps the target's distribution.  The draft's cached keys and values are not recomputed
after an update, which would take a pass over the whole sequence; new sequences are prefilled with the newest weights.
"""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from treeopt.errors import InfeasibleError, InvalidValueError, TreeoptWarning, Warning
from treeopt.runtime.decoding.observer import StepEvent
from treeopt.runtime.learning.replay_buffer import ReplayBuffer, ReplayWindow
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.trainable import TrainableCopy, copy_model
from treeopt.runtime.models.transformer import Transformer
from treeopt.runtime.models.vocabulary import LimitedDraft, limit_draft

SAVE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningStats:
    """Counts and times of one learner.

    >>> print(LearningStats(updates=12, dropped=1, skipped=0, learning_s=0.6, decoding_s=10.0))
    learning: 6 % of the time, 12 updates, 1 dropped
    """

    updates: int
    dropped: int
    """Updates whose gradient was not finite."""
    skipped: int
    """Updates skipped to stay within the time share."""
    learning_s: float
    decoding_s: float
    """Since the first step, learning included."""

    @property
    def share(self) -> float:
        """Learning's share of the decoding time, from 0 to 1; 0 before the first step."""
        return self.learning_s / self.decoding_s if self.decoding_s > 0 else 0.0

    def __str__(self) -> str:
        updates = f"{self.updates} update{'' if self.updates == 1 else 's'}"
        failed = [f"{count} {name}" for count, name in ((self.dropped, "dropped"), (self.skipped, "left out")) if count]
        return ", ".join([f"learning: {100 * self.share:.0f} % of the time", updates, *failed])


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningSettings:
    """Settings of the updates."""

    rate: float = 1e-4
    """Learning rate of AdamW, constant and without weight decay."""
    positions: int = 32
    """Rejected positions in each update."""
    window_tokens: int = 256
    """Longest window of a sequence in a gradient."""
    max_grad_norm: float = 1.0
    max_time_share: float = 0.25
    """Share of the decoding time that learning may take; updates beyond it are skipped."""

    def __post_init__(self) -> None:
        for name, minimum in (("positions", 1), ("window_tokens", 2)):
            if getattr(self, name) < minimum:
                raise InvalidValueError(f"{name}: expected at least {minimum}. Got {getattr(self, name)}.", field=name)
        for name in ("rate", "max_grad_norm", "max_time_share"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidValueError(f"{name}: expected a number above 0. Got {getattr(self, name)!r}.", field=name)


class Learner:
    """Distils the target into the draft model during decoding: `Decoder(…, on_step=Learner(draft))`.

    Args:
        draft: the draft model; its weights are changed in place.
        settings: of the updates.
        save: saves the draft; called after the first update, then at most once in `SAVE_EVERY_S` seconds.  Its time
            counts as learning.
        now_s: clock of the time share.

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
        self.model = built_in_model(draft)
        """The model whose weights change."""
        self._copy = TrainableCopy(self.model)
        self._optimizer = torch.optim.AdamW(self._copy.parameters, lr=self.settings.rate, weight_decay=0.0)
        self._buffer = ReplayBuffer(self.settings.window_tokens)
        self._save = save
        self._saved_s = -math.inf
        self._now_s = now_s
        self._start_s: float | None = None
        self._learning_s = 0.0
        self._updates = self._dropped = self._skipped = 0

    @property
    def stats(self) -> LearningStats:
        start_s = self._start_s
        return LearningStats(
            updates=self._updates,
            dropped=self._dropped,
            skipped=self._skipped,
            learning_s=self._learning_s,
            decoding_s=0.0 if start_s is None else self._now_s() - start_s,
        )

    def __call__(self, event: StepEvent) -> None:
        """Buffer the rejected positions of a step, and update the weights once there are enough."""
        begin_s = self._now_s()
        if self._start_s is None:
            self._start_s = begin_s
        self._buffer.add(event)
        if self._buffer.positions >= self.settings.positions:
            windows = self._buffer.take()
            if self._learning_s > self.settings.max_time_share * (begin_s - self._start_s):
                self._skipped += 1
            else:
                self._update(windows)
                self._save_if_due()
        self._learning_s += self._now_s() - begin_s

    def _save_if_due(self) -> None:
        if self._save is not None and self._now_s() >= self._saved_s + SAVE_EVERY_S:
            self._save()
            self._saved_s = self._now_s()

    def _update(self, windows: Sequence[ReplayWindow]) -> None:
        """Run one optimizer step, or drop it if the gradient is not finite."""
        with torch.inference_mode(mode=False), torch.enable_grad():
            self._compute_gradients(windows)
            norm = torch.nn.utils.clip_grad_norm_(self._copy.parameters, self.settings.max_grad_norm)
            if bool(norm.isfinite()):
                self._optimizer.step()
                self._copy.write()
                self._updates += 1
            else:
                self._dropped += 1
                warning = Warning(
                    f"{self.model.name}: an update was dropped, because its gradient is NaN or infinite; the output does not "
                    "change.",
                    "If this happens again, lower --learning-rate, or leave out --learn.",
                )
                warnings.warn(TreeoptWarning(str(warning)), stacklevel=2)
            self._optimizer.zero_grad()

    def _compute_gradients(self, windows: Sequence[ReplayWindow]) -> None:
        """Compute the gradients of the mean cross-entropy with the target's distributions at temperature 1."""
        positions = sum(len(window.rows) for window in windows)
        device = self.model.device
        for window in windows:  # one at a time, which limits the memory of activations
            tokens = torch.tensor(window.tokens, device=device)
            logits = self._copy.logits(tokens if self._limited is None else self._limited.substitute_unknown(tokens))
            draft_logits = logits[torch.tensor(window.rows, device=device)]
            target_logits = torch.stack(window.logits).to(device).float()
            if self._limited is not None:  # it proposes only these tokens
                ids = torch.tensor(self._limited.ids, device=device)
                draft_logits, target_logits = draft_logits[:, ids], target_logits[:, ids]
            (cross_entropy(draft_logits, target_logits.softmax(-1), reduction="sum") / positions).backward()


def make_learning_copy(draft: LanguageModel, settings: LearningSettings | None = None) -> tuple[LanguageModel, Learner]:
    """Return a copy of a draft model, and the learner of the copy; the original does not change.

    Raises InfeasibleError for a model whose weights cannot be changed.
    """
    copy: LanguageModel = copy_model(built_in_model(draft))
    if isinstance(draft, LimitedDraft):
        copy = limit_draft(copy, draft.ids, draft.config.vocabulary)
    return copy, Learner(copy, settings)


def built_in_model(draft: LanguageModel) -> Transformer:
    """Return a draft model without its vocabulary limit; InfeasibleError for one that another library runs."""
    model = draft.model if isinstance(draft, LimitedDraft) else draft
    if not isinstance(model, Transformer):
        raise InfeasibleError(
            f"{draft.name}: expected a draft model that is built in, because its weights are changed while it drafts. "
            "Got one that another library runs: choose another draft, or do without learning."
        )
    return model
