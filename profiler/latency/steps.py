"""Whole steps under every rule, and what of them their passes do not explain."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from zlib import crc32

from treeopt.profiler.budget import Slice
from treeopt.profiler.latency.memory import give_back_memory
from treeopt.profiler.latency.passes import PROBE_TREES, ROOM_TOKENS, StepTimer, step_timer
from treeopt.profiler.latency.rounds import timed_rounds
from treeopt.profiler.latency.timed_condition import TimedCondition
from treeopt.profiler.latency.watch import Watched
from treeopt.profiler.recorder import Recorder
from treeopt.profiler.settings import Settings
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.step_latency import RuleOverhead, RuleSteps, TimedTree
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import DecodedStep
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree

HOST_STEPS = 3
"""Further steps with each tree, in which the host's work is timed apart."""


def step_key(rule: str, tree: TokenTree) -> int:
    """Return the number of a step in the journal, a checksum: steps of another rule or tree have another."""
    return crc32(f"{rule} {tree.parents.tolist()}".encode())


class Steps:
    """Times the steps of the probe trees that are no larger than the largest pass, under every rule.

    Args:
        target, draft: the pair.
        context: tokens in the cache.
        condition: how tokens are sampled, and how many texts share a step.
        settings: the rules, and the largest pass.
        recorder: what times the steps, and where samples go.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel,
        context: Sequence[int],
        condition: TimedCondition,
        settings: Settings,
        *,
        recorder: Recorder,
    ) -> None:
        self._models, self._context = (target, draft), context
        self._condition, self._settings = condition, settings
        self._kind, self._host_kind = condition.kind("step"), condition.kind("host")
        self._recorder = recorder
        self._watched = recorder.watched or Watched(recorder.journal)
        greedy = condition.sampling.greedy  # at temperature 0 all rules are one
        self._rules = settings.rules[:1] if greedy else settings.rules
        self._trees = [tree for tree in PROBE_TREES if tree.nodes <= settings.max_tokens]
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
            decoder = self._decoder(rule)
            self._opened = rule, decoder, step_timer(decoder, self._context, self._condition.batch_size)
        return self._opened[1:]

    def _decoder(self, rule: str) -> Decoder:
        settings, sampling = self._settings, self._condition.sampling
        return Decoder(
            *self._models,
            self._trees[0],
            rule=rule,
            sampling=sampling,
            draft_sampling=settings.own_draft_sampling(sampling),
            lossy=settings.lossy,
            max_text_tokens=len(self._context) + ROOM_TOKENS,
            max_nodes=max(tree.nodes for tree in self._trees),
            cuda_graphs=settings.cuda_graphs,
        )

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

    def overheads(self, verify: LatencyTable, draft: LatencyTable) -> tuple[RuleOverhead, ...]:
        """Return, rule by rule, what the passes of the timed steps do not explain."""
        samples = self._watched.kept(self._kind)
        return tuple(
            RuleOverhead(
                rule=rule,
                overhead=Timing(
                    [
                        seconds - float(verify.seconds(tree.nodes)) - float(draft.seconds(tree.draft_widths).sum())
                        for tree in self._trees
                        for seconds in samples.get(step_key(rule, tree), [])
                    ],
                    allow_negative=True,
                ),
            )
            for rule in self._rules
        )
