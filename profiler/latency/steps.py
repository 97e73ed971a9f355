"""Whole steps under every rule, and what of them their passes do not explain."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from zlib import crc32

from treeopt.profiler.budget import Slice
from treeopt.profiler.latency.memory import give_back_memory
from treeopt.profiler.latency.passes import ChangeTree, StepTimer, step_timer
from treeopt.profiler.latency.rounds import timed_rounds
from treeopt.profiler.latency.timed_condition import TimedCondition
from treeopt.profiler.latency.watch import Watched
from treeopt.profiler.recorder import Recorder
from treeopt.records.latency import Timing
from treeopt.records.step_latency import RuleOverhead, RuleSteps, TimedTree
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import DecodedStep
from treeopt.trees import TokenTree

HOST_STEPS = 3
"""Further steps with each tree, in which the host's work is timed apart."""


def step_key(rule: str, tree: TokenTree) -> int:
    """Return the number of a step in the journal, a checksum: steps of another rule or tree have another."""
    return crc32(f"{rule} {tree.parents.tolist()}".encode())


class Steps:
    """Times the steps of some trees under every rule.

    Args:
        open_decoder: makes a decoder for a rule, and what has it draft another tree.
        context: tokens in the cache.
        condition: how tokens are sampled, and how many texts share a step.
        rules: at temperature 0 the first stands for all, which are one.
        trees: each once.
        recorder: what times the steps, and where samples go.
        drafter: before the kinds of samples in the journal; nothing for the draft model.
    """

    def __init__(
        self,
        open_decoder: Callable[[str], tuple[Decoder, ChangeTree]],
        context: Sequence[int],
        condition: TimedCondition,
        rules: Sequence[str],
        trees: Sequence[TokenTree],
        *,
        recorder: Recorder,
        drafter: str = "",
    ) -> None:
        self._open_decoder, self._context, self._condition = open_decoder, context, condition
        self._kind, self._host_kind = drafter + condition.kind("step"), drafter + condition.kind("host")
        self._recorder = recorder
        self._watched = recorder.watched or Watched(recorder.journal)
        self._rules = rules[:1] if condition.sampling.greedy else rules
        self._trees = trees
        self._opened: tuple[str, Decoder, StepTimer] | None = None
        self._steps = {rule: {step_key(rule, tree): tree for tree in self._trees} for rule in self._rules}

    @property
    def fewest_undisturbed(self) -> int:
        """Undisturbed samples of the step that has the fewest."""
        return self._watched.fewest(self._kind, [key for steps in self._steps.values() for key in steps])

    def sample(self, rounds: int, over: Callable[[], bool] = lambda: False) -> None:
        """Time every tree under every rule until it has so many samples, or until a time is over."""
        self._timed_rounds(rounds, over=over)
        self._time_host()

    def close(self) -> None:
        """Free the caches; they are allocated again for the next step that is timed."""
        self._opened = None

    def sample_again(self, rounds: int) -> None:
        """Time every tree under every rule until it has so many samples that nothing disturbed."""
        self._timed_rounds(rounds, self._watched.undisturbed(self._kind))

    def coarse(self, rounds: int, time: Slice) -> None:
        """Time every tree under every rule a few times, once where there is no time for more."""
        for rule, steps in self._steps.items():
            if self._fewest(steps) < 1 or not time.over():
                self._time_rule(rule, steps, rounds, over=time.over, first_calls=1)
        self._time_host()

    def refine(self, time: Slice, rounds: int) -> None:
        """Time the steps under the rule that has the fewest samples until a time or some rounds are over."""
        rule = min(self._rules, key=lambda rule: self._fewest(self._steps[rule]))
        self._time_rule(rule, self._steps[rule], rounds, over=time.over)

    @property
    def samples(self) -> int:
        """Samples of the step that has the fewest."""
        return min(map(self._fewest, self._steps.values()))

    def _fewest(self, keys: Iterable[int]) -> int:
        samples = self._recorder.journal.samples(self._kind)
        return min(len(samples.get(key, ())) for key in keys)

    def _timed_rounds(
        self,
        rounds: int,
        counted: Mapping[int, Sequence[float]] | None = None,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        have = self._recorder.journal.samples(self._kind) if counted is None else counted
        for rule, steps in self._steps.items():
            due = {key: tree for key, tree in steps.items() if len(have.get(key, ())) < rounds}
            if due:
                self._time_rule(rule, due, rounds, counted, over)

    def _time_rule(
        self,
        rule: str,
        trees: Mapping[int, TokenTree],
        rounds: int,
        counted: Mapping[int, Sequence[float]] | None = None,
        over: Callable[[], bool] = lambda: False,
        first_calls: int | None = None,
    ) -> None:
        """Time the steps of some trees."""
        _, timer = self._open(rule)
        timed_rounds(
            self._kind,
            dict.fromkeys(trees, timer.step),
            rounds,
            self._recorder,
            prepare=lambda key: timer.prepare(trees[key]),
            counted=counted,
            over=over,
            first_calls=first_calls,
        )

    def _time_host(self) -> None:
        """Time the host's work after the target's pass, in steps of their own, because a device is waited for in them."""
        known = self._recorder.journal.samples(self._host_kind)
        for rule, steps in self._steps.items():
            for key, tree in steps.items():
                self._time_host_of(rule, key, tree, HOST_STEPS - len(known.get(key, ())))

    def _time_host_of(self, rule: str, key: int, tree: TokenTree, steps: int) -> None:
        for _ in range(steps):
            decoder, timer = self._open(rule)
            timer.prepare(tree)
            with decoder.observed(partial(self._record_host, key), self._recorder.clock.now_s):
                timer.step()

    def _record_host(self, key: int, step: DecodedStep) -> None:
        if step.seconds is not None:
            self._recorder.journal.append(self._host_kind, key, (step.seconds.rest,))

    def _open(self, rule: str) -> tuple[Decoder, StepTimer]:
        """Return the decoder and the steps under a rule, after freeing the caches of another one."""
        if self._opened is None or self._opened[0] != rule:
            self.close()
            give_back_memory()  # decoders refer to themselves, so that their caches outlive them
            decoder, change_tree = self._open_decoder(rule)
            timer = step_timer(decoder, self._context, self._condition.batch_size, change_tree)
            self._opened = rule, decoder, timer
        return self._opened[1:]

    def timed(self) -> tuple[RuleSteps, ...]:
        """Return the samples of every rule and tree."""
        samples = self._watched.kept(self._kind)
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
        samples = self._recorder.journal.samples(self._host_kind)
        seconds = [each for steps in self._steps.values() for key in steps for each in samples.get(key, ())]
        return Timing(seconds) if seconds and min(seconds) > 0 else None

    def overheads(self, passes_s: Callable[[TokenTree], float]) -> tuple[RuleOverhead, ...]:
        """Return, rule by rule, what the passes of the timed steps do not explain.

        Args:
            passes_s: from a tree to the seconds of the passes in a step with it.
        """
        samples = self._watched.kept(self._kind)
        return tuple(
            RuleOverhead(
                rule=rule,
                overhead=Timing(
                    [
                        seconds - passes_s(tree)
                        for tree in self._trees
                        for seconds in samples.get(step_key(rule, tree), [])
                    ],
                    allow_negative=True,
                ),
            )
            for rule in self._rules
        )
