"""A whole profile: verification, draft and overhead times, then acceptance, rule by rule."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from treeopt.acceptance import TextSums
from treeopt.errors import InvalidValueError
from treeopt.profile import MeasuredAcceptance, Profile
from treeopt.profiler.acceptance import AcceptanceText, TextCounts, text_sums
from treeopt.profiler.clock import Clock
from treeopt.profiler.journal import Journal
from treeopt.profiler.machine import describe_machine, describe_pair, now, tool
from treeopt.profiler.settings import Settings
from treeopt.profiler.sweep import Step
from treeopt.profiler.times import STEP_ROOM_TOKENS, Times
from treeopt.profiler.traversal import FloatArray, ReachSums, count_reach, gained, until_no_gain
from treeopt.runtime import Transformer
from treeopt.trees import TokenTree

FastestTree = Callable[[Profile], TokenTree]
"""From a profile of one acceptance to its fastest tree: the planner, which lives above this room."""


class Measurement:
    """One profile in the making.

    Args:
        target, draft: models with one vocabulary, on the device to be measured.
        prompts: token ids that the target continues; at least two.
        settings: what to measure.
        clock: what times the calls.
        journal: where every measurement is kept at once.
        fastest_tree: what the rule `traversal` is measured on; other rules do not need it.

    Raises InvalidValueError when prompts are missing, the context does not fit the models, or `fastest_tree` is missing.
    """

    def __init__(
        self,
        target: Transformer,
        draft: Transformer,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        *,
        clock: Clock,
        journal: Journal,
        fastest_tree: FastestTree | None = None,
    ) -> None:
        _check(target, draft, prompts, settings)
        self._on_trees = "traversal" in settings.rules and not settings.sampling.greedy  # greedy, all rules are one
        if self._on_trees and fastest_tree is None:
            raise InvalidValueError(
                "fastest_tree: expected a planner, since `traversal` is measured on trees. Got None."
            )
        self._target, self._draft = target, draft
        self._prompts = prompts
        self._settings = settings
        self._positions = settings.text_positions(len(prompts))
        self._journal = journal
        self._fastest_tree = fastest_tree
        text = np.concatenate([np.asarray(prompt) for prompt in prompts])
        context: list[int] = np.resize(text, settings.context_tokens).tolist()
        self._times = Times(target, draft, context, settings, clock=clock, journal=journal)

    def profile(self, *, show_progress: bool = True) -> Profile:
        """Measure everything that the journal does not hold yet; bars go to standard error."""
        hidden = None if show_progress else True  # None: hidden where standard error is not a terminal
        with tqdm(total=self._times.calls, desc="times     ", unit="call", disable=hidden) as bar:
            latency = self._times.measure(bar.update)
        stands_for = {"traversal": "sequoia"} if self._on_trees else {}
        counted = list(dict.fromkeys(stands_for.get(rule, rule) for rule in self._settings.rules))
        with tqdm(total=len(self._prompts) * len(counted), desc="acceptance", unit="text", disable=hidden) as bar:
            sums = {rule: text_sums(self._texts(rule, bar.update)) for rule in counted}
        profile = Profile(
            created=now(),
            tool=tool(),
            machine=describe_machine(self._target.device),
            pair=describe_pair(self._target, self._draft),
            latencies=(latency,),
            acceptances=tuple(self._acceptance(rule, sums[rule]) for rule in counted),
        )
        if not self._on_trees:
            return profile
        with tqdm(desc="traversal ", unit="text", disable=hidden) as bar:
            judged = self._judged_from_the_leaves(profile, sums["sequoia"], bar.update)
        measured = {each.rule: each for each in (*profile.acceptances, judged)}
        return replace(profile, acceptances=tuple(measured[rule] for rule in self._settings.rules))

    def _texts(self, rule: str, step: Step) -> list[TextCounts]:
        settings = self._settings
        kind = f"acceptance {rule}"
        done = {entry.key: entry.values for entry in self._journal.entries(kind)}
        for number, prompt in enumerate(self._prompts):
            if number not in done:
                done[number] = self._acceptance_text(rule, number).count(prompt, self._positions).numbers
                self._journal.append(kind, number, done[number])
            step()
        return [TextCounts.from_numbers(np.array(values), settings.depth) for _, values in sorted(done.items())]

    def _acceptance_text(self, rule: str, seed: int) -> AcceptanceText:
        """Return the generator of one text; each has its own seed, so that a resumed profile equals a whole one."""
        settings = self._settings
        return AcceptanceText(
            self._target,
            self._draft,
            rule=rule,
            sampling=settings.sampling,
            draft_sampling=settings.draft_sampling,
            branching=min(settings.branching, self._target.config.vocabulary),
            depth=settings.depth,
            seed=seed,
        )

    def _acceptance(self, rule: str, sums: TextSums) -> MeasuredAcceptance:
        sampling = self._settings.sampling
        return MeasuredAcceptance(
            rule=rule,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            prompts=len(sums.reached),
            positions=int(sums.reached[:, 0].sum()),
            table=sums.table(),
            texts=sums,
            top_k=sampling.top_k,
            draft_sampling=self._settings.draft_sampling,
        )

    def _judged_from_the_leaves(self, profile: Profile, sums: TextSums, step: Step) -> MeasuredAcceptance:
        """Return the acceptance of `traversal`: solve and measure take turns until the fastest tree is a measured one."""
        _, depths, ranks = sums.accepted.shape

        def acceptance(gain: FloatArray) -> MeasuredAcceptance:
            return self._acceptance("traversal", gained(sums, gain))

        def fastest(gain: FloatArray) -> TokenTree:
            assert self._fastest_tree is not None
            return self._fastest_tree(replace(profile, acceptances=(acceptance(gain),)))

        return acceptance(until_no_gain(fastest, lambda turn, tree: self._reach(turn, tree, step), depths, ranks))

    def _reach(self, turn: int, tree: TokenTree, step: Step) -> ReachSums:
        """Return the reach of a tree's nodes on all prompts."""
        settings = self._settings
        kind = f"reach {turn} {tree.parents.tolist()}"
        done = {entry.key: entry.values for entry in self._journal.entries(kind)}
        for number, prompt in enumerate(self._prompts):
            if number not in done:
                reach = count_reach(
                    self._target,
                    self._draft,
                    tree,
                    prompt,
                    self._positions,
                    sampling=settings.sampling,
                    draft_sampling=settings.draft_sampling,
                    seed=number,
                )
                done[number] = tuple(reach.ravel().tolist())
                self._journal.append(kind, number, done[number])
            step()
        traversal, sequoia = np.array(list(done.values())).sum(axis=0).reshape(2, tree.nodes)
        return ReachSums(tree, traversal, sequoia)


def _check(target: Transformer, draft: Transformer, prompts: Sequence[Sequence[int]], settings: Settings) -> None:
    trained = min(target.config.max_positions, draft.config.max_positions)
    if len(prompts) < 2 or min(map(len, prompts)) == 0:
        raise InvalidValueError(f"prompts: expected at least two, none empty. Got {len(prompts)}.")
    if settings.context_tokens + STEP_ROOM_TOKENS > trained:
        raise InvalidValueError(
            f"context_tokens: expected at most {trained - STEP_ROOM_TOKENS}, since the models were trained on "
            f"{trained} tokens and the timed steps need {STEP_ROOM_TOKENS}. Got {settings.context_tokens}."
        )
    longest = max(map(len, prompts))
    if settings.positions > (trained - longest) * len(prompts):
        raise InvalidValueError(
            f"positions: expected at most {(trained - longest) * len(prompts)}, since {len(prompts)} prompts of up "
            f"to {longest} tokens are continued and the models were trained on {trained}. "
            f"Got {settings.positions}: ask for fewer, or give more prompts."
        )
