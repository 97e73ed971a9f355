"""Whole steps under every rule, and what of them their passes do not explain."""

from collections.abc import Sequence
from dataclasses import asdict
from zlib import crc32

from treeopt.latency import LatencyTable, Timing
from treeopt.profile import RuleOverhead, RuleSteps, TimedTree
from treeopt.profiler.clock import Clock
from treeopt.profiler.journal import Journal
from treeopt.profiler.passes import PROBE_TREES, ROOM_TOKENS, StepTimer
from treeopt.profiler.settings import Settings
from treeopt.profiler.sweep import Step, sweep
from treeopt.runtime import Decoder
from treeopt.runtime.model import LanguageModel
from treeopt.sampling import Sampling
from treeopt.trees import TokenTree


def step_key(rule: str, tree: TokenTree) -> int:
    """Return the number of a step in the journal, a checksum: steps of another rule or tree have another."""
    return crc32(f"{rule} {tree.parents.tolist()}".encode())


class Steps:
    """Times the steps of the probe trees that are no larger than the largest pass, under every rule.

    Args:
        target, draft: the pair.
        context: tokens in the cache.
        sampling: how tokens are sampled.
        settings: the rules, and the largest pass.
        kind: the steps' name in the journal.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel,
        context: Sequence[int],
        sampling: Sampling,
        settings: Settings,
        *,
        kind: str,
    ) -> None:
        self._kind = kind
        self._rules = settings.rules[:1] if sampling.greedy else settings.rules  # at temperature 0 all are one
        self._trees = [tree for tree in PROBE_TREES if tree.nodes <= settings.max_tokens]
        self._timers = [
            StepTimer(
                Decoder(
                    target,
                    draft,
                    self._trees[0],
                    rule=rule,
                    **asdict(sampling),
                    draft_sampling=settings.own_draft_sampling(sampling),
                    lossy=settings.lossy,
                    max_text_tokens=len(context) + ROOM_TOKENS,
                    max_nodes=max(tree.nodes for tree in self._trees),
                    cuda_graphs=settings.cuda_graphs,
                ),
                context,
            )
            for rule in self._rules
        ]

    def sample(self, rounds: int, clock: Clock, journal: Journal, step: Step) -> None:
        """Time every tree under every rule until it has so many samples, in one random order, to compare rules by."""
        steps = {
            step_key(rule, tree): (timer, tree)
            for rule, timer in zip(self._rules, self._timers, strict=True)
            for tree in self._trees
        }

        def prepare(key: int) -> None:
            timer, tree = steps[key]
            timer.prepare(tree)

        works = {key: timer.step for key, (timer, _) in steps.items()}
        sweep(self._kind, works, rounds, clock, journal, step, prepare=prepare)

    def timed(self, journal: Journal) -> tuple[RuleSteps, ...]:
        """Return the samples of every rule and tree."""
        samples = journal.samples(self._kind)
        return tuple(
            RuleSteps(
                rule=rule,
                trees=tuple(TimedTree(tree=tree, steps=Timing(samples[step_key(rule, tree)])) for tree in self._trees),
            )
            for rule in self._rules
        )

    def overheads(self, verify: LatencyTable, draft: LatencyTable, journal: Journal) -> tuple[RuleOverhead, ...]:
        """Return, rule by rule, what the passes of the timed steps do not explain."""
        samples = journal.samples(self._kind)
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
