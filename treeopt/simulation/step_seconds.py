"""How long steps take, by tree, number of texts and context length, and reading a prompt: measured seconds throughout."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from treeopt.errors import InfeasibleError
from treeopt.planner.condition import condition
from treeopt.planner.contexts import ContextModels, context_models
from treeopt.planner.model import TokenModel
from treeopt.planner.request import Where
from treeopt.records.profile import Profile
from treeopt.records.step_latency import StepLatency
from treeopt.trees import TokenTree


@dataclass(frozen=True)
class StepSeconds:
    """The seconds of a profile, for as many texts as were measured together."""

    profile: Profile
    model: TokenModel
    prompt_s: float | None = None
    """Seconds of reading any prompt, as its user knows them; None takes passes of the profile, which a profile of an
    engine does not have."""
    _steps: dict[tuple[TokenTree, int], list[float]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def most_texts(self) -> int:
        """The largest batch size measured."""
        return max(item.batch_size for item in self._latencies)

    @cached_property
    def models(self) -> ContextModels:
        """The model at every context length that acceptance was measured at, or itself alone."""
        found = context_models(self.profile, self.model.acceptance)
        return found if len(found.measured) > 1 else ContextModels((self.model,))

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
        return self.prompt_s is not None or self.profile.engine is None

    def step_s(self, tree: TokenTree, texts: int, context_tokens: float) -> float:
        """Return the seconds of a step of so many texts, each with this tree.

        Args:
            tree: of every text.
            texts: from 1 to the largest batch size measured; between measured ones on a straight line.
            context_tokens: on average; between measured lengths likewise, outside them as at the nearest.

        Raises InfeasibleError for more texts or larger trees than were measured.
        """
        if (tree, texts) not in self._steps:
            self._steps[tree, texts] = [self._step_s(tree, texts, context) for context in self.contexts]
        seconds = self._steps[tree, texts]
        return seconds[0] if len(seconds) == 1 else float(np.interp(context_tokens, self.contexts, seconds))

    def reading_s(self, prompt_tokens: int) -> float:
        """Return the seconds of reading a prompt: passes of the target of the largest size measured, and the rest's."""
        if self.prompt_s is not None:
            return self.prompt_s
        if self.profile.engine is not None:
            return 0.0
        passes, rest = divmod(prompt_tokens, len(self._pass_s) - 1)
        return float(passes * self._pass_s[-1] + self._pass_s[rest])

    def _step_s(self, tree: TokenTree, texts: int, context: int) -> float:
        if texts > self.most_texts:
            raise InfeasibleError(
                f"texts at a time: {self.most_texts} were measured. Got {texts}: profile or probe with larger --batch-sizes."
            )
        temperature = self.model.acceptance.temperature
        where = condition(self.profile, temperature, Where(context_tokens=context, batch_size=texts, extrapolate=True))
        return self.model.under(where).step_s(tree)

    @cached_property
    def _pass_s(self) -> list[float]:
        """Seconds of the target's pass over 0, 1, 2, … tokens of one text, all that were measured."""
        first = condition(self.profile, self.model.acceptance.temperature, Where(context_tokens=self.contexts[0]))
        return list(self.model.under(first).costs.verify_s.tolist())

    @cached_property
    def _latencies(self) -> tuple[StepLatency, ...]:
        return self.profile.latencies_at(self.model.acceptance.temperature)
