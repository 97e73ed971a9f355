"""Timing whole steps under every rule, and their host overhead.

Steps and passes are timed at different moments, between which the machine may change its speed.  So plain steps are timed
in the same rounds, and all are brought to the speed at which plain steps were timed among the passes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from zlib import crc32

import numpy as np

from treeopt.planner.overheads import draft_counts
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.clock import Work
from treeopt.profiler.latency.curve import PILOT_ROUNDS, Passes
from treeopt.profiler.latency.disturbance import SampleFilter, start_block
from treeopt.profiler.latency.memory import fits_in_memory, release_memory
from treeopt.profiler.latency.passes import DecodingSteps, TimedPoint
from treeopt.profiler.latency.rounds import Recorder, time_rounds
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.step_latency import RuleOverhead, RuleSteps, TimedTree
from treeopt.runtime.decoding.observer import StepEvent
from treeopt.trees import TokenTree, chain

HOST_STEPS = 3
"""Additional steps with each tree, in which the host's work is timed separately."""


def step_key(rule: str, tree: TokenTree) -> int:
    """Return the checkpoint's key of a step, a checksum of its rule and tree."""
    return crc32(f"{rule} {tree.parents.tolist()}".encode())


def plain_key(rule: str) -> int:
    """Return the checkpoint's key of plain steps that were timed in turn with those of a rule."""
    return step_key(rule, chain(0))


def step_overheads(
    steps: Sequence[RuleSteps], verify: LatencyTable, draft: LatencyTable, *, per_block: bool = False
) -> tuple[RuleOverhead, ...]:
    """Return the host overhead of each rule: the seconds of its steps minus those of their passes.

    Args:
        steps: whole steps, at the speed at which the passes were timed.
        verify: passes of the target.
        draft: passes of the drafter, by the internal nodes of a level.
        per_block: whether one pass drafts all levels, by their number.
    """

    def passes_s(tree: TokenTree) -> float:
        drafting_s = draft.seconds(draft_counts(tree, per_block=per_block)).sum()
        return float(verify.seconds(tree.nodes)) + float(drafting_s)

    return tuple(
        RuleOverhead(
            rule=rule_steps.rule,
            overhead=Timing(
                [seconds - passes_s(timed.tree) for timed in rule_steps.trees for seconds in timed.steps.samples_s],
                allow_negative=True,
            ),
        )
        for rule_steps in steps
    )


class StepTimer:
    """Times the steps of some trees under every rule.

    Args:
        open_steps: allocates the caches of steps under a rule.
        open_plain: allocates the caches of plain steps; without memory for them, steps stay as they were timed.
        point: of the steps.
        rules: at temperature 0 only the first is timed, because all are the same.
        trees: each once.
        recorder: times the steps.
        drafter: prefix of the kinds of samples in the checkpoint; empty for the draft model.
    """

    def __init__(
        self,
        open_steps: Callable[[str], DecodingSteps],
        open_plain: Callable[[], Passes],
        point: TimedPoint,
        rules: Sequence[str],
        trees: Sequence[TokenTree],
        *,
        recorder: Recorder,
        drafter: str = "",
    ) -> None:
        self._open_steps, self._open_plain = open_steps, open_plain
        self._kind, self._host_kind = drafter + point.kind("step"), drafter + point.kind("host")
        self._recorder, self._checkpoint = recorder, recorder.checkpoint
        self._filter = recorder.sample_filter or SampleFilter(recorder.checkpoint)
        self._rules = rules[:1] if point.sampling.greedy else rules
        self._trees = trees
        self._opened: tuple[str, DecodingSteps] | None = None
        self._plain: Passes | None = None
        self._by_rule = {rule: {step_key(rule, tree): tree for tree in self._trees} for rule in self._rules}

    @property
    def disturbed(self) -> set[int]:
        """The keys of steps with disturbed samples among the usable ones."""
        return self._filter.disturbed(self._kind) & {key for trees in self._by_rule.values() for key in trees}

    @property
    def samples(self) -> int:
        """The smallest number of samples of any step."""
        return min(map(self._min_samples, self._rules))

    def sample(self, rounds: int, deadline: Deadline = NO_DEADLINE) -> None:
        """Time every tree under every rule until it has `rounds` usable samples; after the deadline once more."""
        self._time(self._rules, rounds, deadline)
        self._time_host()

    def repeat_disturbed(self, deadline: Deadline) -> None:
        """Time the steps with disturbed samples until enough of them are undisturbed, or to the deadline."""
        self._time(self._rules, PILOT_ROUNDS, deadline, self._filter.undisturbed(self._kind))

    def refine(self, deadline: Deadline, rounds: int) -> None:
        """Time the steps of the rule with the fewest samples until the deadline or for some rounds."""
        self._time([min(self._rules, key=self._min_samples)], rounds, deadline)

    def close(self) -> None:
        """Free the caches; the next timed step allocates them again."""
        self._opened, self._plain = None, None

    def timed_steps(self, plain_s: float) -> tuple[RuleSteps, ...]:
        """Return the samples of every rule and tree, at the speed at which a plain step takes `plain_s`."""
        samples = self._samples_at(plain_s)
        return tuple(
            RuleSteps(
                rule=rule,
                trees=tuple(TimedTree(tree=tree, steps=Timing(samples[step_key(rule, tree)])) for tree in self._trees),
            )
            for rule in self._rules
        )

    @property
    def host(self) -> Timing | None:
        """Seconds of the host's work; None before any was timed."""
        samples = self._checkpoint.samples(self._host_kind)
        seconds = [sample for trees in self._by_rule.values() for key in trees for sample in samples.get(key, ())]
        return Timing(seconds) if seconds and min(seconds) > 0 else None

    def _samples_at(self, plain_s: float) -> dict[int, list[float]]:
        """Return the usable samples of every step."""
        samples = self._filter.usable(self._kind)
        for rule, trees in self._by_rule.items():
            if plain := samples.get(plain_key(rule)):
                speed = plain_s / float(np.median(plain))
                samples |= {key: [speed * seconds for seconds in samples[key]] for key in trees if key in samples}
        return samples

    def _min_samples(self, rule: str) -> int:
        samples = self._filter.usable(self._kind)
        return min(len(samples.get(key, ())) for key in self._by_rule[rule])

    def _time(
        self,
        rules: Sequence[str],
        rounds: int,
        deadline: Deadline,
        counted: Mapping[int, Sequence[float]] | None = None,
    ) -> None:
        """Time the steps of some rules until they have `rounds` of the counted samples, by default the usable ones."""
        start_block(self._checkpoint, self._kind)
        rounds = min(rounds, self._recorder.most_samples)
        counted = self._filter.usable(self._kind) if counted is None else counted
        for rule in rules:
            trees = self._by_rule[rule]
            missing = {key: tree for key, tree in trees.items() if len(counted.get(key, ())) < rounds}
            if missing:
                self._time_rule(rule, missing, rounds, deadline, counted)

    def _time_rule(
        self,
        rule: str,
        trees: Mapping[int, TokenTree],
        rounds: int,
        deadline: Deadline,
        counted: Mapping[int, Sequence[float]],
    ) -> None:
        steps = self._open(rule)
        works: dict[int, Work] = dict.fromkeys(trees, steps.step)
        prepares: dict[int, Callable[[], object]] = {key: partial(steps.prepare, tree) for key, tree in trees.items()}
        if self._plain is not None:
            works[plain_key(rule)] = self._plain.work(1)
            prepares[plain_key(rule)] = partial(self._plain.prepare, 1)
        time_rounds(
            self._kind,
            works,
            rounds,
            self._recorder,
            prepare=lambda key: prepares[key](),
            counted=counted,
            deadline=deadline,
            first_calls=1,
        )

    def _allocate_plain(self) -> None:
        plain = self._open_plain()
        plain.prepare(1)
        self._plain = plain

    def _time_host(self) -> None:
        """Time the host's work after the target's pass, in separate steps that wait for the device."""
        samples = self._checkpoint.samples(self._host_kind)
        for rule, trees in self._by_rule.items():
            for key, tree in trees.items():
                self._time_host_steps(rule, key, tree, HOST_STEPS - len(samples.get(key, ())))

    def _time_host_steps(self, rule: str, key: int, tree: TokenTree, count: int) -> None:
        # not inlined: its variables would keep the caches of one rule alive while those of the next are allocated
        for _ in range(count):
            steps = self._open(rule)
            steps.prepare(tree)
            with steps.decoder.observed(partial(self._record_host, key), self._recorder.clock.now_s):
                steps.step()

    def _record_host(self, key: int, step: StepEvent) -> None:
        if step.seconds is not None:
            self._checkpoint.append(self._host_kind, key, (step.seconds.accept,))

    def _open(self, rule: str) -> DecodingSteps:
        """Return the steps under a rule, after freeing the caches of another one."""
        if self._opened is None or self._opened[0] != rule:
            self.close()
            release_memory()  # decoders refer to themselves, so their caches outlive them
            steps = self._open_steps(rule)
            self._opened = rule, steps
            steps.prepare(self._trees[0])  # allocates, before plain steps take what is left
            fits_in_memory(self._allocate_plain)
        return self._opened[1]
