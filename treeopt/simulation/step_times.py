"""Seconds of steps and of prefill on a server, from the times of a profile."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from treeopt.planner.costs import StepCosts, step_costs
from treeopt.planner.tokens import TokenModels, token_models
from treeopt.records.latency import LatencyTable
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree


@dataclass(frozen=True)
class StepTimes:
    """Times at every batch size up to the largest measured, interpolated as by `Profile.at`."""

    profile: Profile
    acceptance: MeasuredAcceptance
    """One of the profile's; provides the rule and the temperature."""
    prompt_s: float | None = None
    """Prefill seconds of every prompt; None for the profile's."""
    mean_context_tokens: int | None = None
    """Of the load; None for the shortest measured."""
    _costs: dict[tuple[int, int], StepCosts] = field(default_factory=dict, init=False, repr=False)
    _step_s: dict[tuple[TokenTree, int, int], float] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def models(self) -> TokenModels:
        """Token models by context length."""
        return token_models(self.profile, self.acceptance)

    @cached_property
    def max_batch_size(self) -> int:
        """The largest batch size measured."""
        return max(self._contexts)

    @cached_property
    def planned_context(self) -> int:
        """The context length nearest to the load's of those measured at every batch size, else at the smallest one."""
        contexts = set.intersection(*self._contexts.values()) or self._contexts[min(self._contexts)]
        return min(contexts, key=lambda context: (abs(context - (self.mean_context_tokens or 0)), context))

    @property
    def longest_context(self) -> int:
        """The longest context length measured at every batch size; longer ones take as long."""
        return self._measured_range[1]

    @cached_property
    def limiting_point(self) -> OperatingPoint:
        """The measured operating point whose largest verification pass is the smallest."""
        sampling = self.acceptance.sampling
        latencies = self.profile.latencies_at(sampling.temperature)
        points = [self.profile.at(latency.context_tokens, latency.batch_size, sampling) for latency in latencies]
        return min(points, key=lambda point: point.max_nodes)

    @cached_property
    def longest_chain(self) -> int:
        """Draft tokens of the longest chain that can be predicted at every operating point."""
        points = [(size, context) for size, contexts in self._contexts.items() for context in contexts]
        timed = min(self._costs_at(*point).longest_chain for point in points)
        return min(timed, *(model.acceptance.table.max_depth or timed for model in self.models.measured))

    @property
    def first_token_with_prompt(self) -> bool:
        """Whether prefill yields the first token, as in engines; in treeopt's decoder the first step does."""
        return self.profile.engine is not None

    @property
    def longest_prompt(self) -> int | None:
        """Tokens of the longest timed prompt; None without prefill times and with `prompt_s`."""
        return (
            None if self.prompt_s is not None else max((table.max_tokens for table in self._prefill(0)), default=None)
        )

    def step_s(self, tree: TokenTree, context_tokens: Sequence[int]) -> float:
        """Return the seconds of a step in which every sequence has the same tree.

        In treeopt's decoder the longest context determines the time, because batched attention pads all sequences to it
        (`treeopt.runtime.models.attention`).  An engine does not pad: the mean determines it.  Outside the measured context
        lengths the nearest one is used.

        Args:
            tree: of every sequence.
            context_tokens: of each sequence.

        Raises InfeasibleError for larger trees than measured.
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

        Longer prompts take as long per token as the longest measured one.

        Args:
            prompt_tokens: length of the prompt.
            draft_tokens: most draft tokens of a step; with 0 there is no prefill of the draft model.
        """
        if self.prompt_s is not None:
            return self.prompt_s
        return sum(_seconds(table, prompt_tokens) for table in self._prefill(draft_tokens))

    def _prefill(self, draft_tokens: int) -> tuple[LatencyTable, ...]:
        """Return the prefill times to add; of an engine, that of the longest measured chain of at most `draft_tokens`.

        Without prefill times the target's verification passes are used; an engine has none.
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
        """Return the costs at an operating point, cached."""
        if (batch_size, context_tokens) not in self._costs:
            point = self.profile.at(context_tokens, batch_size, self.acceptance.sampling, extrapolate=True)
            self._costs[batch_size, context_tokens] = step_costs(point, rule=self.acceptance.rule)
        return self._costs[batch_size, context_tokens]

    @cached_property
    def _contexts(self) -> dict[int, set[int]]:
        """Measured context lengths by batch size."""
        contexts: dict[int, set[int]] = {}
        for latency in self.profile.latencies_at(self.acceptance.temperature):
            contexts.setdefault(latency.batch_size, set()).add(latency.context_tokens)
        return contexts

    @cached_property
    def _measured_range(self) -> tuple[int, int]:
        """The range of context lengths that was measured at every batch size."""
        shortest = max(map(min, self._contexts.values()))
        return shortest, max(shortest, min(map(max, self._contexts.values())))


def _seconds(table: LatencyTable, tokens: int) -> float:
    """Return the prefill seconds; prompts shorter than the timed ones take as long as the shortest."""
    within = min(max(tokens, int(table.tokens[0])), table.max_tokens)
    return float(table.seconds(within)) * max(1.0, tokens / table.max_tokens)
