"""How long steps take, by tree, number of texts and context length, and reading a prompt: measured seconds throughout."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from treeopt.errors import InfeasibleError
from treeopt.planner.model import model_at
from treeopt.planner.tokens import TokenModel, TokenModels, token_models
from treeopt.records.latency import LatencyTable
from treeopt.records.profile import Profile
from treeopt.records.step_latency import StepLatency
from treeopt.trees import TokenTree


@dataclass(frozen=True)
class StepSeconds:
    """The seconds of a profile, for as many texts as were measured together."""

    profile: Profile
    model: TokenModel
    prompt_s: float | None = None
    """Seconds of reading any prompt, as its user knows them; None takes those of the profile, as far as it has them."""
    _steps: dict[tuple[TokenTree, int], list[float]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def most_texts(self) -> int:
        """The largest batch size measured."""
        return max(item.batch_size for item in self._latencies)

    @cached_property
    def models(self) -> TokenModels:
        """The model at every context length that acceptance was measured at, or itself alone."""
        found = token_models(self.profile, self.model.acceptance)
        return found if len(found.measured) > 1 else TokenModels((self.model,))

    @cached_property
    def contexts(self) -> list[int]:
        """Context lengths that were measured at every batch size, or the one of the smallest batch size."""
        sizes = {item.batch_size for item in self._latencies}
        at = [{item.context_tokens for item in self._latencies if item.batch_size == size} for size in sorted(sizes)]
        return sorted(set.intersection(*at)) or [min(at[0])]

    @property
    def first_token_with_prompt(self) -> bool:
        """Whether a text's first token comes with its prompt's pass, as engines count; treeopt's comes with a step."""
        return self.profile.engine is not None

    @property
    def tells_prompts(self) -> bool:
        """Whether the seconds of reading a prompt are known."""
        return self.prompt_s is not None or self.profile.engine is None or bool(self._chain_prefill)

    @property
    def longest_prompt(self) -> int | None:
        """Tokens of the longest prompt that was timed; None where none was, or the seconds of any are given."""
        if self.prompt_s is not None:
            return None
        prefill = self.profile.prefill
        tables = self._chain_prefill.values() if prefill is None else (prefill.target,)
        return max((table.max_tokens for table in tables), default=None)

    def step_of_s(self, tree: TokenTree, contexts_tokens: Sequence[int]) -> float:
        """Return the seconds of a step of texts of these lengths, each with this tree.

        treeopt's decoder takes as long as if all were as long as the longest, because attention at once hides slots of the
        others (`treeopt.runtime.models.attention`); an engine, which pads nothing, as if all were as long as the mean.

        Args:
            tree: of every text.
            contexts_tokens: of each text.
        """
        texts = len(contexts_tokens)
        context = max(contexts_tokens) if self.profile.engine is None else sum(contexts_tokens) / texts
        return self.step_s(tree, texts, context)

    def step_s(self, tree: TokenTree, texts: int, context_tokens: float) -> float:
        """Return the seconds of a step of so many texts of one length, each with this tree.

        Args:
            tree: of every text.
            texts: from 1 to the largest batch size measured; between measured ones on a straight line.
            context_tokens: between measured lengths likewise, outside them as at the nearest.

        Raises InfeasibleError for more texts or larger trees than were measured.
        """
        if (tree, texts) not in self._steps:
            self._steps[tree, texts] = [self._step_s(tree, texts, context) for context in self.contexts]
        seconds = self._steps[tree, texts]
        return seconds[0] if len(seconds) == 1 else float(np.interp(context_tokens, self.contexts, seconds))

    def reading_s(self, prompt_tokens: int, draft_tokens: int) -> float:
        """Return the seconds of reading a prompt, between measured lengths on a straight line.

        Longer prompts than were measured take as long by the token as the longest.  In profiles of treeopt's decoder
        that have no seconds of prompts, passes of the target stand for them: the largest measured, and the rest's.

        Args:
            prompt_tokens: of the prompt.
            draft_tokens: most that are drafted in a step; 0 is a server without a draft model, which reads nothing.
        """
        if self.prompt_s is not None:
            return self.prompt_s
        if self.profile.engine is not None:
            return self._engine_reading_s(prompt_tokens, draft_tokens)
        if self.profile.prefill is not None:
            draft = self.profile.prefill.draft if draft_tokens > 0 else None
            models = [self.profile.prefill.target, *([] if draft is None else [draft])]
            return sum(_reading_s(table, prompt_tokens) for table in models)
        passes, rest = divmod(prompt_tokens, len(self._pass_s) - 1)
        return float(passes * self._pass_s[-1] + self._pass_s[rest])

    def _engine_reading_s(self, prompt_tokens: int, draft_tokens: int) -> float:
        """Return the same of an engine with the longest measured chain that is not longer; 0 where it does not tell."""
        lengths = [length for length in self._chain_prefill if length <= draft_tokens] or [*self._chain_prefill]
        return _reading_s(self._chain_prefill[max(lengths)], prompt_tokens) if lengths else 0.0

    def _step_s(self, tree: TokenTree, texts: int, context: int) -> float:
        if texts > self.most_texts:
            raise InfeasibleError(
                f"texts at a time: {self.most_texts} were measured. Got {texts}: profile or probe with larger --batch-sizes."
            )
        point = self.profile.at(context, texts, self.model.acceptance.sampling, extrapolate=True)
        return model_at(point, self.model).step_s(tree)

    @cached_property
    def _pass_s(self) -> list[float]:
        """Seconds of the target's pass over 0, 1, 2, … tokens of one text, all that were measured."""
        point = self.profile.at(self.contexts[0], sampling=self.model.acceptance.sampling)
        return list(model_at(point, self.model).costs.verify_s.tolist())

    @cached_property
    def _chain_prefill(self) -> dict[int, LatencyTable]:
        """What an engine tells of reading prompts, by draft length."""
        chains = [each for latency in self.profile.chain_latencies for each in latency.chains]
        return {each.length: each.prefill for each in chains if each.prefill is not None}

    @cached_property
    def _latencies(self) -> tuple[StepLatency, ...]:
        return self.profile.latencies_at(self.model.acceptance.temperature)


def _reading_s(table: LatencyTable, tokens: int) -> float:
    """Return the seconds of reading so many tokens; fewer than were timed take as long as the fewest."""
    within = min(max(tokens, int(table.tokens[0])), table.max_tokens)
    return float(table.seconds(within)) * max(1.0, tokens / table.max_tokens)
