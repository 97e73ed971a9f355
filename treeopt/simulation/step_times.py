"""Seconds of decoding steps and of prefill on a server, from the measured times of a profile."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from treeopt.planner.costs import StepCosts, step_costs
from treeopt.planner.tokens import TokenModels, token_models
from treeopt.records.latency import LatencyTable
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree


@dataclass(frozen=True)
class StepTimes:
    """Seconds at every batch size up to the largest measured; between measured conditions as in `Profile.at`."""

    profile: Profile
    acceptance: MeasuredAcceptance
    """One of the profile's: its rule and temperature count."""
    prompt_s: float | None = None
    """Prefill seconds of any prompt; None takes those of the profile, if it has them."""
    _costs: dict[tuple[int, int], StepCosts] = field(default_factory=dict, init=False, repr=False)
    _step_s: dict[tuple[TokenTree, int, int], float] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def models(self) -> TokenModels:
        """Tokens per step by context length."""
        return token_models(self.profile, self.acceptance)

    @cached_property
    def max_batch_size(self) -> int:
        """The largest batch size measured."""
        return max(self._contexts)

    @cached_property
    def planned_context(self) -> int:
        """The shortest context length that was measured at every batch size, else at the smallest."""
        return min(set.intersection(*self._contexts.values()) or self._contexts[min(self._contexts)])

    @property
    def first_token_with_prompt(self) -> bool:
        """Whether prefill yields a sequence's first token, as in engines; in treeopt's decoder the first step does."""
        return self.profile.engine is not None

    @property
    def longest_prompt(self) -> int | None:
        """Tokens of the longest prompt that was timed; None if no prefill was, or if `prompt_s` replaces it."""
        return None if self.prompt_s is not None else max((each.max_tokens for each in self._prefill(0)), default=None)

    def step_s(self, tree: TokenTree, context_tokens: Sequence[int]) -> float:
        """Return the seconds of a step in which every sequence has the same tree.

        In treeopt's decoder a step takes as long as if all sequences had the longest context, because batched attention
        reads as many slots of each (`treeopt.runtime.models.attention`).  An engine pads nothing: there the mean counts.
        Outside the measured context lengths the nearest one holds.

        Args:
            tree: of every sequence.
            context_tokens: of each sequence.

        Raises InfeasibleError for larger trees than were measured.
        """
        batch = len(context_tokens)
        context = max(context_tokens) if self.profile.engine is None else round(sum(context_tokens) / batch)
        shortest, longest = self._measured_range
        key = tree, batch, min(max(context, shortest), longest)
        if key not in self._step_s:
            self._step_s[key] = float(self._costs_at(*key[1:]).tree_s(tree))
        return self._step_s[key]

    def prefill_s(self, prompt_tokens: int, draft_tokens: int) -> float:
        """Return the seconds of a prompt's prefill, linear between measured lengths.

        Longer prompts than were measured take as long per token as the longest.

        Args:
            prompt_tokens: of the prompt.
            draft_tokens: most that are drafted in a step; without any, no draft model reads the prompt.
        """
        if self.prompt_s is not None:
            return self.prompt_s
        return sum(_seconds(table, prompt_tokens) for table in self._prefill(draft_tokens))

    def _prefill(self, draft_tokens: int) -> tuple[LatencyTable, ...]:
        """Return the prefill times that add up; of an engine, with the longest measured chain that is not longer.

        Without prefill times, the target's verification passes are as good; an engine's are not known.
        """
        prefill = self.profile.prefill
        if self.profile.engine is not None:
            chains = [chain for latency in self.profile.chain_latencies for chain in latency.chains if chain.prefill]
            fitting = [chain for chain in chains if chain.length <= draft_tokens] or chains
            tables = [max(fitting, key=lambda chain: chain.length).prefill] if fitting else []
        elif prefill is None:
            tables = [self.profile.latencies_at(self.acceptance.temperature)[0].verify]
        else:
            tables = [prefill.target, prefill.draft if draft_tokens else None]
        return tuple(table for table in tables if table is not None)

    def _costs_at(self, batch_size: int, context_tokens: int) -> StepCosts:
        """Return the costs at an operating point; kept, because steps meet again there."""
        if (batch_size, context_tokens) not in self._costs:
            point = self.profile.at(context_tokens, batch_size, self.acceptance.sampling, extrapolate=True)
            self._costs[batch_size, context_tokens] = step_costs(point, rule=self.acceptance.rule)
        return self._costs[batch_size, context_tokens]

    @cached_property
    def _contexts(self) -> dict[int, set[int]]:
        """The measured context lengths of every batch size."""
        contexts: dict[int, set[int]] = {}
        for latency in self.profile.latencies_at(self.acceptance.temperature):
            contexts.setdefault(latency.batch_size, set()).add(latency.context_tokens)
        return contexts

    @cached_property
    def _measured_range(self) -> tuple[int, int]:
        """The shortest and the longest context length within what was measured at every batch size."""
        shortest = max(map(min, self._contexts.values()))
        return shortest, max(shortest, min(map(max, self._contexts.values())))


def _seconds(table: LatencyTable, tokens: int) -> float:
    """Return the seconds of a prompt; one that is shorter than those timed takes as long as the shortest."""
    within = min(max(tokens, int(table.tokens[0])), table.max_tokens)
    return float(table.seconds(within)) * max(1.0, tokens / table.max_tokens)
