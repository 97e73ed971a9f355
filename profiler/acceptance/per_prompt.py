"""The acceptance of a profile: every rule and sampling on every prompt, kept text by text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.profiler.acceptance.contexts import CountedTexts, WholePrompts, check_long_enough
from treeopt.profiler.acceptance.positions import AcceptanceText, TextPositions, texts_together
from treeopt.profiler.acceptance.traversal import ReachSums, count_reach, until_no_gain
from treeopt.profiler.decoding import Decoding
from treeopt.profiler.journal import Journal
from treeopt.profiler.latency.rounds import Step
from treeopt.profiler.processes.processes import Processes
from treeopt.profiler.settings import Settings
from treeopt.records.acceptance import TextSums
from treeopt.records.acceptance_counts import AcceptanceCounts, gained, text_sums
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.categories import text_categories
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree

FastestTree = Callable[[Profile], TokenTree]
"""From a profile of one acceptance to its fastest tree: the planner's, which the caller gives."""
Numbers = tuple[float, ...]
STANDS_FOR = {"traversal": "sequoia"}
"""Rules that are measured on trees, and the rule on whose counts their acceptance is built."""


def counted_rule(rule: str, sampling: Sampling) -> str:
    """Return the rule whose counts the acceptance of a rule is made from: its own, but for those measured on trees."""
    return rule if sampling.greedy else STANDS_FOR.get(rule, rule)


class CountedText(NamedTuple):
    """What is kept of one text under one rule and sampling."""

    counts: AcceptanceCounts
    ranks: Int64
    """int64 (positions,): the rank accepted at each position."""


class Counting:
    """Counts on prompts, shared among processes; every prompt has its own seed and is counted as if it were alone.

    So a resumed profile equals a whole one, and so do counts by one process and by several.

    Args:
        target, draft: models with one vocabulary.
        prompts: token ids that the target continues.
        settings: what to count.
        journal: where the counts of every prompt are kept at once.
        processes: those that count together.
        texts: what is continued in place of the prompts, to count at one context length.
        categories: one for each prompt, `""` for none; by default no prompt has one.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        *,
        journal: Journal,
        processes: Processes,
        texts: CountedTexts | None = None,
        categories: Sequence[str] = (),
    ) -> None:
        self._target, self._draft = target, draft
        self.numbers: Sequence[int] = range(len(prompts))
        self._texts = texts or WholePrompts(prompts)
        self._categories = categories
        self._settings = settings
        self._journal = journal
        self._processes = processes
        self._counted = tuple(
            dict.fromkeys((counted_rule(rule, distribution), distribution) for rule, distribution in settings.asked)
        )

    def measure(self, positions: int, step: Step) -> tuple[MeasuredAcceptance, ...]:
        """Return the acceptance of what is counted on positions: all that is asked for, but for rules on trees."""
        kind = self._kind("acceptance")
        texts = self._by_prompt(kind, lambda number: self._count(number, positions), step)
        return self._measured(dict(zip(self.numbers, texts, strict=True)))

    def count(self, number: int, positions: int) -> None:
        """Count so many positions of one prompt, unless the journal holds them."""
        if not self.has_counted(number, positions):
            self._journal.append(self._sliced_kind(positions), number, self._count(number, positions))

    def has_counted(self, number: int, positions: int) -> bool:
        """Return whether the journal holds so many positions of a prompt."""
        return any(entry.key == number for entry in self._journal.entries(self._sliced_kind(positions)))

    def counted(self, positions: Sequence[int]) -> tuple[MeasuredAcceptance, ...]:
        """Return the acceptance of the prompts that were counted, each on as many positions as it was counted on last.

        Args:
            positions: that prompts were counted on, rising.
        """
        texts: dict[int, Numbers] = {}
        for each in positions:
            texts |= {entry.key: entry.values for entry in self._journal.entries(self._sliced_kind(each))}
        return self._measured({number: texts[number] for number in sorted(texts)})

    def _sliced_kind(self, positions: int) -> str:
        return f"{self._kind('acceptance')} on {positions} positions"

    def _measured(self, texts: Mapping[int, Numbers]) -> tuple[MeasuredAcceptance, ...]:
        """Return the acceptance of some texts, by the numbers of their prompts."""
        measured = []
        rows = [self._rows(numbers) for numbers in texts.values()]
        categories = text_categories(self._categories, texts)
        for place, (rule, sampling) in enumerate(self._counted):
            sums = self._sums([row[place].counts for row in rows])
            accepted_ranks = AcceptedRanks([row[place].ranks for row in rows])
            measured.append(replace(self._acceptance(rule, sampling, sums, accepted_ranks), categories=categories))
        return tuple(measured)

    def on_trees(
        self, profile: Profile, positions: int, fastest_tree: FastestTree, step: Step
    ) -> tuple[MeasuredAcceptance, ...]:
        """Return all that is asked for, in that order, given a profile that holds what `measure` returned."""
        found = []
        for rule, sampling in self._settings.asked:
            counted = counted_rule(rule, sampling)
            base = next(
                each for each in self._own(profile).acceptances_of(rule=counted, temperature=sampling.temperature)
            )
            if counted != rule:
                base = self._from_the_leaves(profile, base, sampling, positions, fastest_tree, step)
            found.append(base)
        return tuple(found)

    def _count(self, number: int, positions: int) -> Numbers:
        """Return the sums of one prompt under every rule and sampling, one after the other."""
        settings = self._settings
        texts = [
            AcceptanceText(
                self._target,
                self._draft,
                Decoding(rule=rule, sampling=sampling, draft_sampling=settings.own_draft_sampling(sampling)),
                branching=min(settings.branching, self._target.config.vocabulary),
                depth=settings.depth,
                seed=number,
            )
            for rule, sampling in self._counted
        ]
        generated = self._generated(number, texts, positions)
        return tuple(
            value
            for text, each in zip(texts, generated, strict=True)
            for value in (*text.counts(each).numbers, len(each.accepted_rank), *each.accepted_rank.tolist())
        )

    def _generated(self, number: int, texts: Sequence[AcceptanceText], positions: int) -> list[TextPositions]:
        """Return the positions of every text, none of those that end too early; one pass for all with one prompt."""
        ranks = min(self._settings.branching, self._target.config.vocabulary)
        found = [TextPositions.none(ranks)] * len(texts)
        places: dict[tuple[int, ...], list[int]] = {}
        for place, (_, sampling) in enumerate(self._counted):
            if (prompt := self._texts.prompt(number, sampling)) is not None:
                places.setdefault(tuple(prompt), []).append(place)
        for prompt, alike in places.items():
            together = [texts[place] for place in alike]
            positions_of = texts_together(self._target, self._draft, together, list(prompt), positions)
            for place, each in zip(alike, positions_of, strict=True):
                found[place] = each
        return found

    def _sums(self, texts: Sequence[AcceptanceCounts]) -> TextSums:
        """Return the sums of all texts; raises TreeoptError saying where too little could be measured."""
        context = self._texts.context_tokens
        long_enough = sum(bool(each.reached[0]) for each in texts)
        if context is not None:
            check_long_enough(context, long_enough, len(texts))
        return text_sums(texts)

    def _kind(self, name: str) -> str:
        """Return the journal's name of what is counted here."""
        context = self._texts.context_tokens
        return name if context is None else f"{name} at {context}"

    def _own(self, profile: Profile) -> Profile:
        """Return the part of a profile that is of this context length: all of it where none is said."""
        context = self._texts.context_tokens
        if context is None:
            return profile
        return replace(
            profile,
            latencies=tuple(each for each in profile.latencies if each.context_tokens == context) or profile.latencies,
            acceptances=tuple(each for each in profile.acceptances if each.context_tokens == context),
        )

    def _rows(self, numbers: Numbers) -> list[CountedText]:
        """Return what `_count` gave as one row: for every rule and sampling its sums, and the ranks behind their number."""
        depth = self._settings.depth
        sums = depth * (1 + min(self._settings.branching, self._target.config.vocabulary))
        values, rows = np.array(numbers), []
        while len(values):
            ranks = values[sums + 1 : sums + 1 + int(values[sums])]
            rows.append(CountedText(AcceptanceCounts.from_numbers(values[:sums], depth), ranks.astype(np.int64)))
            values = values[sums + 1 + len(ranks) :]
        return rows

    def _by_prompt(self, kind: str, count: Callable[[int], Numbers], step: Step) -> list[Numbers]:
        """Return the numbers of every prompt, counting those that the journals do not hold."""
        done = {entry.key: entry.values for entry in self._journal.entries(kind)}
        for number in self.numbers:
            if number not in done and self._processes.owns(number):
                done[number] = count(number)
                self._journal.append(kind, number, done[number])
            step()
        together = self._processes.together(done)
        return [together[number] for number in self.numbers]

    def _acceptance(
        self, rule: str, sampling: Sampling, sums: TextSums, accepted_ranks: AcceptedRanks | None
    ) -> MeasuredAcceptance:
        return MeasuredAcceptance(
            rule=rule,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            context_tokens=self._texts.context_tokens,
            prompts=int(np.count_nonzero(sums.reached[:, 0])),
            positions=int(sums.reached[:, 0].sum()),
            table=sums.table(),
            texts=sums,
            top_k=sampling.top_k,
            draft_sampling=self._settings.own_draft_sampling(sampling),
            accepted_ranks=accepted_ranks,
        )

    def _from_the_leaves(
        self,
        profile: Profile,
        base: MeasuredAcceptance,
        sampling: Sampling,
        positions: int,
        fastest_tree: FastestTree,
        step: Step,
    ) -> MeasuredAcceptance:
        """Return the acceptance of `traversal`: solve and measure take turns until the fastest tree is a measured one."""
        sums = base.texts
        assert sums is not None
        _, depths, ranks = sums.accepted.shape

        def acceptance(gain: Float64) -> MeasuredAcceptance:
            found = self._acceptance("traversal", sampling, gained(sums, gain), base.accepted_ranks)
            return replace(found, categories=base.categories)

        def fastest(gain: Float64) -> TokenTree:
            return fastest_tree(replace(self._own(profile), acceptances=(acceptance(gain),)))

        def measure(turn: int, tree: TokenTree) -> ReachSums:
            return self._reach(self._kind(f"reach {sampling.temperature:g} {turn}"), tree, sampling, positions, step)

        return acceptance(until_no_gain(fastest, measure, depths, ranks))

    def _reach(self, kind: str, tree: TokenTree, sampling: Sampling, positions: int, step: Step) -> ReachSums:
        """Return the reach of a tree's nodes on all prompts."""

        def count(number: int) -> Numbers:
            prompt = self._texts.prompt(number, sampling)
            if prompt is None:
                return (0.0,) * (2 * tree.nodes)
            reach = count_reach(
                self._target,
                self._draft,
                tree,
                prompt,
                positions,
                Decoding(rule="traversal", sampling=sampling, draft_sampling=self._settings.draft_sampling),
                seed=number,
            )
            return tuple(reach.ravel().tolist())

        texts = self._by_prompt(f"{kind} {tree.parents.tolist()}", count, step)
        traversal, sequoia = np.array(texts).sum(axis=0).reshape(2, tree.nodes)
        return ReachSums(tree, traversal, sequoia)
