"""The decode loop: one text at a time, step by step, with all that does not depend on what a step drafts."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.finite import draft_warning, not_finite_error
from treeopt.runtime.models.memory import check_decoder
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.rules.verify import Verdict
from treeopt.texts.stop import Stopping
from treeopt.trees import TokenTree


class DecodeLoop(ABC):
    """Decodes one text at a time; the classes below say what a step is.

    Args:
        target: the model whose text is wanted.
        drafter: the draft model, or None.
        sampling: how the target's tokens are sampled.
        seed: of all randomness.
        max_text_tokens: longest text, prompt included; at most and by default what both models were trained for.
        max_nodes: most nodes that the target verifies in a step.
        tree: what is drafted; None where it is not known, or another may come.

    Raises InvalidValueError for values out of range and models whose vocabularies differ in size, OutOfMemoryError where
    caches, masks and probabilities need more memory than is free.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: LanguageModel | None,
        *,
        sampling: Sampling,
        seed: int,
        max_text_tokens: int | None,
        max_nodes: int,
        tree: TokenTree | None = None,
    ) -> None:
        check_vocabularies(target, drafter)
        self._trained_tokens = trained_tokens(target, drafter)
        self.max_text_tokens = text_limit(max_text_tokens, self._trained_tokens)
        self.max_nodes = max_nodes
        self.target = target
        self._sampling = sampling
        self._generator = torch.Generator(target.device).manual_seed(seed)
        check_decoder(target, drafter, tree, text_tokens=self.max_text_tokens, max_nodes=max_nodes, sampling=sampling)
        self._cache = target.new_cache(self.max_text_tokens + max_nodes)
        self._texts = 0
        self._warned = False

    def generate(
        self,
        token_ids: Sequence[int],
        max_new_tokens: int,
        *,
        stop: Sequence[Sequence[int]] = (),
        seed: int | None = None,
    ) -> Iterator[int]:
        """Return an iterator over the committed tokens, decoded as they are asked for.

        It ends after `max_new_tokens`, with the target's end token, or with the first of the token sequences `stop`
        that the new text holds; what ended it is its last tokens.  It may be given up at any time.

        Args:
            token_ids: the prompt.
            max_new_tokens: most tokens.
            stop: token sequences that end the text.
            seed: of this text, which then does not depend on what was decoded before.

        Raises InvalidValueError, before anything runs, for an empty prompt, a token outside the vocabulary, or a text
        longer than the models were trained for; TreeoptError where another text was begun meanwhile.
        """
        return chain.from_iterable(self.steps(token_ids, max_new_tokens, stop=stop, seed=seed))

    def steps(
        self,
        token_ids: Sequence[int],
        max_new_tokens: int,
        *,
        stop: Sequence[Sequence[int]] = (),
        seed: int | None = None,
    ) -> Iterator[list[int]]:
        """Return an iterator over the tokens of each step; `generate` returns them one by one."""
        self._check_text(token_ids, max_new_tokens)
        ends = [(token,) for token in self.target.config.end_tokens]
        stopping = Stopping([*ends, *stop], vocabulary=self.target.config.vocabulary)
        if seed is not None:
            self._generator.manual_seed(seed)
        self.start(token_ids)
        return self._steps(max_new_tokens, stopping, self._texts)

    @torch.inference_mode()
    def start(self, token_ids: Sequence[int]) -> None:
        """Begin a text: fill the caches with all of it but the last token, which becomes the root."""
        self._begin(token_ids)

    def _begin(self, token_ids: Sequence[int]) -> Tensor | None:
        """Fill the target's cache and return its last hidden state (1, hidden), None where the root stands alone."""
        self._texts += 1
        self._cache.clear()
        tokens = torch.tensor(token_ids[:-1], dtype=torch.int64, device=self.target.device)
        return self.target.prefill(tokens, self._cache)

    def step(self) -> list[int]:
        """Decode one step: return the accepted draft tokens and the one sampled after them."""
        drafted = self.draft()
        return self.settle(drafted, self.read(drafted))

    @abstractmethod
    def draft(self) -> Any:
        """Return what a step guesses."""

    @abstractmethod
    def read(self, drafted: Any) -> Any:
        """Return what the target says of it, after one pass."""

    @abstractmethod
    def settle(self, drafted: Any, read: Any) -> list[int]:
        """Accept a path of the guesses, commit it, and return the tokens of the step."""

    def _warn_of_draft(self, name: str) -> None:
        """Warn, once for this decoder, that the model of this name gave a distribution that is not finite."""
        if not self._warned:
            self._warned = True
            warnings.warn(draft_warning(name), stacklevel=2)

    def _check_target(self, verdict: Verdict) -> None:
        """Raise TreeoptError where a token came from a distribution of the target that is not finite."""
        if not verdict.finite:
            raise not_finite_error(self.target.name, "target")

    def _steps(self, left: int, stopping: Stopping, text: int) -> Iterator[list[int]]:
        while left > 0:
            if self._texts != text:
                raise TreeoptError("generate: another text was begun on this decoder. Make a decoder for each.")
            tokens = self.step()[:left]
            length = stopping.length(tokens)
            left = 0 if length is not None else left - len(tokens)
            yield tokens[:length]

    def _check_text(self, token_ids: Sequence[int], max_new_tokens: int) -> None:
        vocabulary = self.target.config.vocabulary
        if len(token_ids) == 0:
            raise InvalidValueError("token_ids: expected at least one token. Got an empty prompt.")
        if not all(0 <= token < vocabulary for token in token_ids):
            raise InvalidValueError(f"token_ids: expected tokens from 0 to {vocabulary - 1}.")
        room = self.max_text_tokens - len(token_ids)
        if room < 0:
            raise InvalidValueError(
                f"token_ids: expected at most {self.max_text_tokens} tokens, the longest text. Got {len(token_ids)}: "
                "give a shorter prompt."
            )
        if not 0 <= max_new_tokens <= room:
            raise InvalidValueError(
                f"max_new_tokens: expected 0 to {room} after a prompt of "
                f"{len(token_ids)}, because the models were trained on texts of {self.max_text_tokens} tokens. "
                f"Got {max_new_tokens}."
            )


def trained_tokens(*models: LanguageModel | None) -> int:
    """Return the longest text that all of some models were trained for; None stands for no model."""
    return min(model.config.max_positions for model in models if model is not None)


def text_limit(asked: int | None, trained: int) -> int:
    """Return the longest text that models trained for so many tokens can be used for."""
    if asked is not None and not 1 <= asked <= trained:
        raise InvalidValueError(f"max_text_tokens: expected 1 to {trained}, the trained length. Got {asked}.")
    return trained if asked is None else asked


def check_vocabularies(target: LanguageModel, drafter: LanguageModel | None) -> None:
    """Refuse a draft model whose vocabulary has another size than the target's."""
    vocabulary = target.config.vocabulary
    if drafter is not None and drafter.config.vocabulary != vocabulary:
        raise InvalidValueError(
            f"drafter: expected the target's vocabulary of {vocabulary} tokens. "
            f"Got {drafter.config.vocabulary}: choose a draft model of the same family."
        )
