"""What drafting static trees costs with heads on the target: passes of the heads, and whole steps with them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import torch

from treeopt.profiler.budget import Slice
from treeopt.profiler.clock import Work
from treeopt.profiler.latency.condition import COARSE_STEPS, COARSE_WIDTH, passes_s
from treeopt.profiler.latency.curve import PILOT_ROUNDS, Curve, Passes
from treeopt.profiler.latency.memory import give_back_memory, out_of_memory
from treeopt.profiler.latency.passes import ROOM_TOKENS, ChangeTree, PassTimer, probe_trees
from treeopt.profiler.latency.steps import Steps
from treeopt.profiler.latency.timed_condition import TimedCondition
from treeopt.profiler.recorder import Recorder
from treeopt.profiler.settings import Settings
from treeopt.records.latency import LatencyTable
from treeopt.records.measured_drafter import DrafterLatency
from treeopt.records.rules import GIVEN_TOKENS
from treeopt.records.step_latency import StepLatency
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.dflash import DFlashDrafter, DFlashHead
from treeopt.runtime.drafters.loaded import LoadedDrafter
from treeopt.runtime.drafters.medusa import MedusaDrafter, MedusaHeads
from treeopt.runtime.drafters.static_tree import FilledTreeDrafter
from treeopt.runtime.rules import rule_named
from treeopt.trees import TokenTree

LIKELIEST = 10
"""Tokens at each depth that a timed pass of Medusa's heads or a block returns."""
PASSES_SHARE = 1 / 3
"""Of the time for one condition, what passes of the heads may take; whole steps take the rest."""


@dataclass(frozen=True, slots=True)
class DrafterTimes:
    """Times the passes and steps of a drafter that fills static trees.

    Args:
        drafter: heads on the target.
        text: token ids that contexts are made of.
        settings: how much to measure.
        recorder: what times the calls, and where samples go.
    """

    drafter: LoadedDrafter
    text: Sequence[int]
    settings: Settings
    recorder: Recorder

    def measure(self, latencies: Sequence[StepLatency], time: Slice) -> tuple[DrafterLatency, ...]:
        """Return the times under the conditions that the target's passes were timed at, as far as they fit into memory.

        Args:
            latencies: of the target's passes.
            time: how long all of it may take; every pass and tree is timed once in any case.
        """
        found = []
        for number, latency in enumerate(latencies):
            try:
                found.append(self._latency(latency, time.part(1 / (len(latencies) - number))))
            except Exception as error:
                if not out_of_memory(error):
                    raise
            give_back_memory()
        return tuple(found)

    def _latency(self, latency: StepLatency, time: Slice) -> DrafterLatency:
        condition = self._condition(latency)
        text = np.resize(np.asarray(self.text), condition.context_tokens + ROOM_TOKENS).tolist()
        most = min(self.settings.max_tokens, latency.verify.max_tokens)
        passes = Curve(
            self._name(condition.kind("draft")),
            partial(self._passes, text, condition, most),
            1 if self._per_block else most,
            self.recorder,
        )
        trees = self._trees(most)
        steps = Steps(
            lambda _: self._decoder(trees, condition),
            text[: condition.context_tokens],
            condition,
            (GIVEN_TOKENS,),
            trees,
            recorder=self.recorder,
            drafter=self._name(""),
        )
        self._time(passes, steps, time)
        draft = self._table(passes)
        (overhead,) = steps.overheads(lambda tree: passes_s(latency.verify, draft, tree, per_block=self._per_block))
        (timed,) = steps.timed()
        return DrafterLatency(
            context_tokens=condition.context_tokens,
            batch_size=condition.batch_size,
            draft=draft,
            per_block=self._per_block,
            overhead=overhead.overhead,
            host=steps.host,
            sampled=not condition.sampling.greedy,
            steps=timed.trees,
        )

    def _time(self, passes: Curve, steps: Steps, time: Slice) -> None:
        """Time as many rounds as the settings have; under a time budget, as many as there is time for."""
        if self.settings.time_budget_s is None:
            passes.pilot(self.settings.rounds)
            passes.sample(self.settings.rounds)
            passes.close()
            steps.sample(self.settings.rounds)
        else:
            passes.coarse(COARSE_WIDTH, time.part(PASSES_SHARE))
            passes.close()
            steps.coarse(COARSE_STEPS, time)
            steps.sample(PILOT_ROUNDS, time.over)
        steps.close()

    @property
    def _per_block(self) -> bool:
        return isinstance(self.drafter.heads, MedusaHeads | DFlashHead)

    def _name(self, kind: str) -> str:
        return f"{self.drafter.name} {kind}"

    def _condition(self, latency: StepLatency) -> TimedCondition:
        samplings = {each.greedy: each for each in reversed(self.settings.samplings)}
        sampling = samplings.get(not latency.sampled, self.settings.samplings[0])
        return TimedCondition(context_tokens=latency.context_tokens, batch_size=latency.batch_size, sampling=sampling)

    def _trees(self, most: int) -> tuple[TokenTree, ...]:
        heads = self.drafter.heads
        return probe_trees(most, heads.levels if self._per_block else self.settings.depth, heads.tokens)

    def _table(self, passes: Curve) -> LatencyTable:
        """Return the seconds of drafting a level by its internal nodes, or all levels by their number."""
        table = passes.table()
        if not self._per_block:
            return table
        (timing,) = table.timings
        levels = sorted({1, self.drafter.heads.levels})  # one pass drafts all, however few levels a tree has
        return LatencyTable(levels, [timing] * len(levels))

    def _passes(self, text: Sequence[int], condition: TimedCondition, most: int) -> Passes:
        heads, rule = self.drafter.heads, rule_named(GIVEN_TOKENS)
        if isinstance(heads, MedusaHeads):
            return Passes(lambda _: _medusa_pass(heads, condition.batch_size))
        if isinstance(heads, DFlashHead):
            return Passes(lambda _: _dflash_pass(heads, len(text), condition.batch_size))
        timer = PassTimer(heads, text, condition.batch_size, most, cuda_graphs=self.settings.cuda_graphs)
        return Passes(cache(lambda width: timer.draft(width, condition.sampling, rule)))

    def _decoder(self, trees: Sequence[TokenTree], condition: TimedCondition) -> tuple[Decoder, ChangeTree]:
        """Return a decoder with room for every tree, and what has it draft another one."""
        largest = max(trees, key=lambda tree: tree.nodes)
        capacity = condition.context_tokens + ROOM_TOKENS
        drafter = replace(self.drafter, capacity=capacity).filling(largest)
        assert isinstance(drafter, FilledTreeDrafter | MedusaDrafter | DFlashDrafter)  # they fill any tree
        decoder = Decoder(
            self.drafter.target,
            drafter,
            sampling=condition.sampling,
            max_text_tokens=capacity,
            cuda_graphs=self.settings.cuda_graphs,
        )
        return decoder, drafter.change_tree


def _medusa_pass(heads: MedusaHeads, batch_size: int) -> Work:
    """Return the work of drafting all levels for `batch_size` texts."""
    target = heads.target
    hidden = torch.zeros((batch_size, target.config.hidden), dtype=target.dtype, device=target.device)
    count = min(LIKELIEST, heads.tokens)
    return lambda: heads.likeliest(hidden, count)


def _dflash_pass(head: DFlashHead, context_tokens: int, batch_size: int) -> Work:
    """Return the work of drafting a block for `batch_size` texts after contexts of `context_tokens` tokens."""
    caches = head.new_caches(context_tokens, batch_size)
    for each in caches:
        head.read([head.zero_states(context_tokens)], [each])
    roots, count = [0] * batch_size, min(LIKELIEST, head.tokens)
    return lambda: head.draft(roots, caches).topk(count)
