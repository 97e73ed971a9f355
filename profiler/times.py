"""The times of a profile: passes of every size, and whole steps under every rule."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache

from treeopt.latency import LatencyTable, Timing
from treeopt.profile import RuleOverhead, StepLatency
from treeopt.profiler.clock import Clock, Work
from treeopt.profiler.journal import Journal
from treeopt.profiler.passes import PROBE_TREES, StepProbe, draft_pass, filled_cache, verify_pass
from treeopt.profiler.settings import Settings
from treeopt.profiler.sweep import Step, first_points, latency_table, sweep
from treeopt.runtime import Decoder, Transformer
from treeopt.runtime.graphs import passes_over, pool_for
from treeopt.runtime.rules import rule_named
from treeopt.runtime.tree_pass import Passes

EXTRA_POINTS = 8
"""Token counts added where the curve bends."""
ROUNDS_PER_BLOCK = 5
STEP_ROOM_TOKENS = 64
"""Tokens that the timed steps may add to the context."""


class Times:
    """Times the passes and steps of one pair behind one context."""

    def __init__(
        self,
        target: Transformer,
        draft: Transformer,
        context: Sequence[int],
        settings: Settings,
        *,
        clock: Clock,
        journal: Journal,
    ) -> None:
        self._target, self._draft = target, draft
        self._context = context
        self._settings = settings
        self._clock = clock
        self._journal = journal

    @property
    def calls(self) -> int:
        """How many calls are timed in all."""
        points = len(first_points(self._settings.max_tokens)) + EXTRA_POINTS
        return self._settings.rounds * (2 * points + len(self._settings.rules) * len(PROBE_TREES))

    def measure(self, step: Step) -> StepLatency:
        """Time all that the journal does not hold yet; `step` is called after every call."""
        settings = self._settings
        device = self._target.device
        verified, drafted = (self._passes(model) for model in (self._target, self._draft))
        rule = rule_named(settings.rules[0], lossy=True)

        @cache
        def verify_work(tokens: int) -> Work:
            return verify_pass(verified, device, tokens, settings.sampling)

        @cache
        def draft_work(tokens: int) -> Work:
            return draft_pass(drafted, device, tokens, settings.draft_law, rule)

        probes = [self._probes(name) for name in settings.rules]
        for rounds in _blocks(settings.rounds):  # verify, draft and steps in turn, so that drift hits all alike
            verify = self._table("verify", verify_work, rounds, step)
            draft = self._table("draft", draft_work, rounds, step)
            self._time_steps(probes, rounds, step)
        overheads = [
            RuleOverhead(rule=name, overhead=self._overhead(of_rule, verify, draft))
            for name, of_rule in zip(settings.rules, probes, strict=True)
        ]
        return StepLatency(
            context_tokens=settings.context_tokens,
            batch_size=1,
            verify=verify,
            draft=draft,
            overhead=overheads[0].overhead,
            rule_overheads=tuple(overheads) if len(overheads) > 1 else (),
        )

    def _passes(self, model: Transformer) -> Passes:
        """Return what makes the passes of a model behind the context, as decoding makes them on this device."""
        cache = filled_cache(model, self._context, self._settings.max_tokens)
        capacity, most = len(self._context), self._settings.max_tokens
        return passes_over(model, cache, capacity=capacity, max_nodes=most, pool=pool_for(model.device))

    def _table(self, kind: str, make_work: Callable[[int], Work], rounds: int, step: Step) -> LatencyTable:
        return latency_table(
            kind,
            make_work,
            self._settings.max_tokens,
            rounds=rounds,
            extra_points=EXTRA_POINTS,
            clock=self._clock,
            journal=self._journal,
            step=step,
        )

    def _probes(self, rule: str) -> dict[int, StepProbe]:
        """Return the probe trees that are no larger than the largest pass, numbered throughout all rules."""
        settings = self._settings
        first = settings.rules.index(rule) * len(PROBE_TREES)
        return {
            number: StepProbe(
                Decoder(
                    self._target,
                    self._draft,
                    tree,
                    rule=rule,
                    **asdict(settings.sampling),
                    draft_sampling=settings.draft_law,
                    lossy=settings.lossy,
                    max_text_tokens=settings.context_tokens + STEP_ROOM_TOKENS,
                ),
                self._context,
            )
            for number, tree in enumerate(PROBE_TREES, start=first)
            if tree.nodes <= settings.max_tokens
        }

    def _time_steps(self, probes: list[dict[int, StepProbe]], rounds: int, step: Step) -> None:
        """Time the steps under all rules in one random order, because rules are compared by them."""
        by_number = {number: probe for of_rule in probes for number, probe in of_rule.items()}
        works = {number: probe.step for number, probe in by_number.items()}
        sweep("step", works, rounds, self._clock, self._journal, step, prepare=lambda n: by_number[n].prepare())

    def _overhead(self, probes: dict[int, StepProbe], verify: LatencyTable, draft: LatencyTable) -> Timing:
        """Return what the passes of the probe trees' steps do not explain."""
        samples = [
            seconds - probes[number].passes_s(verify, draft)
            for number, steps in self._journal.samples("step").items()
            if number in probes
            for seconds in steps
        ]
        return Timing(samples, allow_negative=True)


def _blocks(rounds: int) -> list[int]:
    """Return the rounds after which measuring moves on to the next kind: 5, 10, …, `rounds`."""
    return [*range(ROUNDS_PER_BLOCK, rounds, ROUNDS_PER_BLOCK), rounds]
