"""The acceptance of a profile: every rule and sampling on every prompt, stored prompt by prompt."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.planner import fastest_drafted_tree
from treeopt.profiler.acceptance.contexts import PromptSource, check_sequence_count
from treeopt.profiler.acceptance.positions import PositionSampler, SequencePositions, continue_prompts
from treeopt.profiler.acceptance.traversal import ReachSums, count_reach, iterate_gain
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.decoding import Decoding
from treeopt.profiler.latency.memory import fits_in_memory, release_memory
from treeopt.profiler.latency.rounds import Tick
from treeopt.profiler.processes.processes import Numbers, Processes
from treeopt.profiler.settings import Settings
from treeopt.records.acceptance import SequenceSums
from treeopt.records.acceptance_counts import AcceptanceCounts, combine_counts, count_acceptance, scale_acceptance
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance, select_categories
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree


def rule_to_count(rule: str, sampling: Sampling) -> str:
    """Return the rule whose counts give the acceptance of a rule: `traversal` is measured on trees, relative to `sequoia`."""
    return "sequoia" if rule == "traversal" and not sampling.greedy else rule


class SequenceCounts(NamedTuple):
    """The acceptance of one sequence, with every position as a root once."""

    counts: AcceptanceCounts
    ranks: Int64
    """int64 (roots, D): the accepted rank at each depth below each root; only the first depth of a draft model."""

    @property
    def numbers(self) -> Numbers:
        """One row for the checkpoint: the shape of the ranks, the depths of the sums, the ranks, and the sums."""
        return (*self.ranks.shape, len(self.counts.reached), *self.ranks.ravel().tolist(), *self.counts.numbers)

    @classmethod
    def from_numbers(cls, numbers: Numbers) -> "SequenceCounts":
        roots, ranked, depth = map(int, numbers[:3])
        ranks, sums = np.split(np.array(numbers[3:]), [roots * ranked])
        return cls(AcceptanceCounts.from_numbers(sums, depth), ranks.astype(np.int64).reshape(roots, ranked))


class AcceptanceCounter:
    """Counts acceptance prompt by prompt; several processes may share the prompts.

    The prompt number is the seed, so counts depend neither on an interruption nor on the number of processes.

    Args:
        target, draft: models with one vocabulary.
        source: the prompts, whole or at one context length.
        settings: what to count.
        checkpoint: where the counts of every prompt are stored at once.
        processes: those that count together.
        categories: one for each prompt, `""` for none; by default no prompt has one.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel,
        source: PromptSource,
        settings: Settings,
        *,
        checkpoint: Checkpoint,
        processes: Processes,
        categories: Sequence[str] = (),
    ) -> None:
        self._target, self._draft = target, draft
        self._source = source
        self._categories = categories
        self._settings = settings
        self._branching = min(settings.branching, target.config.vocabulary)
        self._checkpoint = checkpoint
        self._processes = processes
        self._counted = tuple(
            dict.fromkeys((rule_to_count(rule, sampling), sampling) for rule, sampling in settings.rule_samplings)
        )

    def count(self, numbers: Sequence[int], positions: int) -> None:
        """Count some positions of prompts that the checkpoint lacks, in shared passes if memory permits."""
        missing = [number for number in numbers if not self.has_counted(number, positions)]
        if len(missing) > 1 and fits_in_memory(partial(self._count_and_store, missing, positions)):
            return
        for number in missing:
            self._count_and_store([number], positions)

    def has_counted(self, number: int, positions: int) -> bool:
        return all(number in self._checkpoint.rows(kind) for kind in self._acceptance_kinds(positions))

    def acceptances(self, levels: Sequence[int]) -> tuple[MeasuredAcceptance, ...]:
        """Return the acceptance under every rule and sampling that is counted position by position.

        Every process that counts must call this.

        Args:
            levels: numbers of positions that prompts were counted on, ascending; the last one of each prompt is used.
        """
        acceptances = []
        for (rule, sampling), *kinds in zip(self._counted, *map(self._acceptance_kinds, levels), strict=True):
            rows: dict[int, Numbers] = {}
            for kind in kinds:
                rows |= self._checkpoint.rows(kind)
            counted = {number: SequenceCounts.from_numbers(row) for number, row in self._processes.gather(rows).items()}
            numbers = sorted(counted)
            sums = self._sum_sequences([counted[number].counts for number in numbers])
            ranks = AcceptedRanks([counted[number].ranks[:, 0] for number in numbers])
            categories = select_categories(self._categories, numbers)
            acceptances.append(replace(self._acceptance(rule, sampling, sums, ranks), categories=categories))
        return tuple(acceptances)

    def measure_on_trees(
        self, profile: Profile, numbers: Sequence[int], positions: int, tick: Tick
    ) -> tuple[MeasuredAcceptance, ...]:
        """Return the acceptance under every rule and sampling.

        Args:
            profile: with the acceptance that is counted position by position.
            numbers: of the prompts to decode with trees.
            positions: of each sequence.
            tick: called for every sequence and tree.
        """
        acceptances = []
        for rule, sampling in self._settings.rule_samplings:
            base_rule = rule_to_count(rule, sampling)
            acceptance = next(
                iter(self._at_context(profile).acceptances_of(rule=base_rule, temperature=sampling.temperature))
            )
            if base_rule != rule:
                acceptance = self._measure_traversal(profile, acceptance, sampling, numbers, positions, tick)
            acceptances.append(acceptance)
        return tuple(acceptances)

    def _kind(self, name: str) -> str:
        context_tokens = self._source.context_tokens
        return name if context_tokens is None else f"{name} at {context_tokens}"

    def _acceptance_kinds(self, positions: int) -> list[str]:
        """Return the kinds of the rows under every rule and sampling that is counted."""
        start = f"{self._kind('acceptance')} on {positions} positions"
        return [f"{start}, {rule} {sampling.temperature:g}" for rule, sampling in self._counted]

    def _count_and_store(self, numbers: Sequence[int], positions: int) -> None:
        """Store a row for each prompt, rule and sampling.

        All sequences share passes; one that is too short for its context length has no positions.
        """
        prompts: dict[tuple[int, int], Sequence[int]] = {}
        samplers = []
        for number, (index, (rule, sampling)) in product(numbers, enumerate(self._counted)):
            if (prompt := self._source.prompt(number, sampling, positions)) is not None:
                draft_sampling = self._settings.own_draft_sampling(sampling)
                decoding = Decoding(rule=rule, sampling=sampling, draft_sampling=draft_sampling)
                prompts[number, index] = prompt
                samplers.append(PositionSampler(self._target, decoding, branching=self._branching, seed=number))
        counted: dict[tuple[int, int], SequencePositions] = {}
        if prompts:
            continued = continue_prompts(self._target, self._draft, samplers, [*prompts.values()], positions)
            counted = dict(zip(prompts, continued, strict=True))
        empty = SequencePositions.empty(self._branching)
        for number, (index, kind) in product(numbers, enumerate(self._acceptance_kinds(positions))):
            sequence = counted.get((number, index), empty)
            counts = count_acceptance(sequence.expected, sequence.accepted_rank, self._settings.depth)
            row = SequenceCounts(counts, sequence.accepted_rank[:, None]).numbers
            self._checkpoint.append(kind, number, row)

    def _sum_sequences(self, counts: Sequence[AcceptanceCounts]) -> SequenceSums:
        context_tokens = self._source.context_tokens
        if context_tokens is not None:
            long_enough = sum(bool(sequence.reached[0]) for sequence in counts)
            check_sequence_count(context_tokens, long_enough, len(counts))
        return combine_counts(counts)

    def _acceptance(
        self, rule: str, sampling: Sampling, sums: SequenceSums, accepted_ranks: AcceptedRanks | None
    ) -> MeasuredAcceptance:
        return MeasuredAcceptance(
            rule=rule,
            sampling=sampling,
            draft_sampling=self._settings.own_draft_sampling(sampling),
            context_tokens=self._source.context_tokens,
            prompts=sums.prompts,
            positions=sums.positions,
            table=sums.table(),
            sequences=sums,
            accepted_ranks=accepted_ranks,
        )

    def _at_context(self, profile: Profile) -> Profile:
        context_tokens = self._source.context_tokens
        if context_tokens is None:
            return profile
        at_context = tuple(latency for latency in profile.latencies if latency.context_tokens == context_tokens)
        return replace(
            profile,
            latencies=at_context or profile.latencies,
            acceptances=tuple(
                acceptance for acceptance in profile.acceptances if acceptance.context_tokens == context_tokens
            ),
        )

    def _measure_traversal(
        self,
        profile: Profile,
        base: MeasuredAcceptance,
        sampling: Sampling,
        numbers: Sequence[int],
        positions: int,
        tick: Tick,
    ) -> MeasuredAcceptance:
        sums = base.sequences
        assert sums is not None
        _, depths, ranks = sums.accepted.shape

        def acceptance(gain: Float64) -> MeasuredAcceptance:
            measured = self._acceptance("traversal", sampling, scale_acceptance(sums, gain), base.accepted_ranks)
            return replace(measured, categories=base.categories)

        def fastest(gain: Float64) -> TokenTree:
            return fastest_drafted_tree(replace(self._at_context(profile), acceptances=(acceptance(gain),)))

        def measure(round_number: int, tree: TokenTree) -> ReachSums:
            kind = f"{self._kind(f'reach {sampling.temperature:g} {round_number}')} {tree.parents.tolist()}"
            counted = self._checkpoint.rows(kind)
            for number in numbers:
                if number not in counted and self._processes.owns(number):
                    counted[number] = self._count_reach(number, tree, sampling, positions)
                    self._checkpoint.append(kind, number, counted[number])
                tick()
            counted = self._processes.gather(counted)
            traversal, sequoia = np.sum([counted[number] for number in numbers], axis=0).reshape(2, tree.nodes)
            return ReachSums(tree, traversal, sequoia)

        return acceptance(iterate_gain(fastest, measure, depths, ranks))

    def _count_reach(self, number: int, tree: TokenTree, sampling: Sampling, positions: int) -> Numbers:
        prompt = self._source.prompt(number, sampling, positions)
        if prompt is None:
            return (0.0,) * (2 * tree.nodes)
        decoding = Decoding(rule="traversal", sampling=sampling, draft_sampling=self._settings.draft_sampling)
        reach = count_reach(self._target, self._draft, tree, prompt, positions, decoding, seed=number)
        release_memory()  # decoders refer to themselves, so their caches outlive them
        return tuple(reach.ravel().tolist())
