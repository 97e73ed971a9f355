"""Timing the drafting of static trees with heads on the target: passes of the heads, and whole steps with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from treeopt.planner.overheads import draft_counts
from treeopt.profiler.budget import Deadline
from treeopt.profiler.clock import Work
from treeopt.profiler.latency.curve import STEP_ROUNDS, LatencyCurve, Passes
from treeopt.profiler.latency.memory import fits_in_memory, release_memory
from treeopt.profiler.latency.passes import (
    ROOM_TOKENS,
    DecodingSteps,
    ModelPasses,
    TimedPoint,
    probe_trees,
    zero_states,
)
from treeopt.profiler.latency.point import COARSE_STEPS, COARSE_WIDTH, PointPasses, sample_in_turns
from treeopt.profiler.latency.rounds import Recorder
from treeopt.profiler.latency.steps import StepTimer, step_overheads
from treeopt.profiler.settings import Settings
from treeopt.records.latency import LatencyTable
from treeopt.records.measured_drafter import DrafterLatency
from treeopt.records.rules import TARGET_RULE
from treeopt.records.step_latency import StepLatency
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.dflash import DFlashDrafter, DFlashHead, tree_filler
from treeopt.runtime.drafters.dflash.drafters import make_block_runner, run_blocks
from treeopt.runtime.drafters.eagle import PEagleDrafter, PEagleHead
from treeopt.runtime.drafters.medusa import MedusaDrafter, MedusaHeads
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.runtime.rules import get_rule
from treeopt.trees import TokenTree, chain

TOP_K = 10
"""Tokens at each depth that a timed pass of all levels returns."""
PASSES_SHARE = 1 / 3
"""Fraction of the time at one operating point that passes of the heads may take; whole steps have the rest."""


@dataclass(frozen=True, slots=True)
class DrafterTimer:
    """Times the passes and steps of a drafter that fills static trees.

    Args:
        drafter: heads on the target.
        tokens: token ids that contexts are made of.
        settings: how much to measure.
        recorder: times the calls.
    """

    drafter: LoadedDrafter
    tokens: Sequence[int]
    settings: Settings
    recorder: Recorder

    def measure(self, latencies: Sequence[StepLatency], deadline: Deadline) -> tuple[DrafterLatency, ...]:
        """Return the latencies at the operating points of the target's, as far as they fit into memory.

        Args:
            latencies: of the target's passes.
            deadline: after which only the necessary minimum is timed.
        """
        measured: list[DrafterLatency] = []
        for case in deadline.split(latencies):
            fits_in_memory(partial(self._add_point, measured, *case))
            release_memory()
        return tuple(measured)

    def _add_point(self, measured: list[DrafterLatency], latency: StepLatency, deadline: Deadline) -> None:
        measured.append(self._measure_point(latency, deadline))

    def _measure_point(self, latency: StepLatency, deadline: Deadline) -> DrafterLatency:
        point = self._point(latency)
        tokens = np.resize(np.asarray(self.tokens), point.context_tokens + ROOM_TOKENS).tolist()
        max_tokens = min(self.settings.max_tokens, latency.verify.max_tokens)
        most_samples = STEP_ROUNDS if self.settings.time_budget_s is not None else self.settings.rounds
        recorder = replace(self.recorder, most_samples=most_samples)
        passes = LatencyCurve(
            f"{self.drafter.label} {point.kind('draft')}",
            partial(self._open_passes, tokens, point, max_tokens),
            self._largest_draft(max_tokens),
            recorder,
        )
        heads = self.drafter.heads
        trees = probe_trees(max_tokens, heads.levels if self._per_block else self.settings.depth, heads.tokens)
        steps = StepTimer(
            lambda _: self._open_steps(tokens, trees, point),
            PointPasses(self.drafter.target, None, tokens, point, self.settings).open_plain_steps,
            point,
            (TARGET_RULE,),
            trees,
            recorder=recorder,
            drafter=f"{self.drafter.label} ",
        )
        counts = {count for tree in trees for count in draft_counts(tree, per_block=self._per_block).tolist()}
        passes.coarse(COARSE_WIDTH, deadline.part(PASSES_SHARE), counts)
        passes.close()
        steps.sample(COARSE_STEPS, deadline)
        steps.close()
        sample_in_turns([steps, passes], recorder.most_samples, deadline)
        draft = self._table(passes)
        timed = steps.timed_steps(plain_s=float(latency.verify.seconds(1)))
        (overhead,) = step_overheads(timed, latency.verify, draft, per_block=self._per_block)
        return DrafterLatency(
            context_tokens=point.context_tokens,
            batch_size=point.batch_size,
            draft=draft,
            per_block=self._per_block,
            overhead=overhead.overhead,
            host=steps.host,
            sampled=not point.sampling.greedy,
            steps=timed[0].trees,
        )

    @property
    def _per_block(self) -> bool:
        return isinstance(self.drafter.heads, MedusaHeads | DFlashHead | PEagleHead)

    @property
    def _block_grows(self) -> bool:
        """Whether drafting a block takes longer with every level: P-EAGLE has a row for each, a Markov head a product."""
        heads = self.drafter.heads
        return isinstance(heads, PEagleHead) or (isinstance(heads, DFlashHead) and heads.markov is not None)

    def _largest_draft(self, max_tokens: int) -> int:
        """Return the most internal nodes of a level that are timed, or the most levels of a block."""
        if self._block_grows:
            levels: int = self.drafter.heads.levels
            return levels
        return 1 if self._per_block else max_tokens

    def _point(self, latency: StepLatency) -> TimedPoint:
        samplings = {sampling.greedy: sampling for sampling in self.settings.timed_samplings}
        sampling = samplings.get(not latency.sampled, self.settings.sampling)
        return TimedPoint(context_tokens=latency.context_tokens, batch_size=latency.batch_size, sampling=sampling)

    def _table(self, passes: LatencyCurve) -> LatencyTable:
        """Return the seconds of drafting a level by its internal nodes, or of all levels by their number."""
        table = passes.table()
        if not self._per_block or self._block_grows:
            return table
        (timing,) = table.timings
        levels = sorted({1, self.drafter.heads.levels})  # one pass drafts all, however few levels a tree has
        return LatencyTable(levels, [timing] * len(levels))

    def _open_passes(self, tokens: Sequence[int], point: TimedPoint, max_tokens: int) -> Passes:
        heads, rule, graphs = self.drafter.heads, get_rule(TARGET_RULE), self.drafter.cuda_graphs
        if isinstance(heads, MedusaHeads):
            return Passes(lambda _: _medusa_pass(heads, point.batch_size))
        if isinstance(heads, DFlashHead):
            return Passes(_dflash_passes(heads, len(tokens), point.batch_size, cuda_graphs=graphs))
        if isinstance(heads, PEagleHead):
            block = ModelPasses(heads, tokens, point.batch_size, heads.levels, cuda_graphs=graphs)
            return Passes(lambda levels: block.draft_levels(levels, min(TOP_K, heads.tokens)))
        passes = ModelPasses(heads, tokens, point.batch_size, max_tokens, cuda_graphs=graphs)
        return Passes(lambda width: passes.draft(width, point.sampling, rule))

    def _open_steps(self, tokens: Sequence[int], trees: Sequence[TokenTree], point: TimedPoint) -> DecodingSteps:
        """Return the steps of a decoder with room for every tree."""
        largest = max(trees, key=lambda tree: tree.nodes)
        capacity = point.context_tokens + ROOM_TOKENS
        drafter = replace(self.drafter, capacity=capacity).make_with_tree(largest)
        assert isinstance(
            drafter, StaticTreeDrafter | MedusaDrafter | DFlashDrafter | PEagleDrafter
        )  # they fill any tree
        decoder = Decoder(
            self.drafter.target,
            drafter,
            sampling=point.sampling,
            max_sequence_tokens=capacity,
            cuda_graphs=self.drafter.cuda_graphs,
        )
        return DecodingSteps(decoder, tokens[: point.context_tokens], point.batch_size, drafter.change_tree)


def _medusa_pass(heads: MedusaHeads, batch_size: int) -> Work:
    target = heads.target
    hidden = torch.zeros((batch_size, target.config.hidden), dtype=target.dtype, device=target.device)
    count = min(TOP_K, heads.tokens)
    return lambda: heads.logits(hidden).topk(count)


def _dflash_passes(
    head: DFlashHead, context_tokens: int, batch_size: int, *, cuda_graphs: bool | None
) -> Callable[[int], Work]:
    """Return a function from a number of levels to the pass that drafts them; with a Markov head, a chain."""
    caches = head.new_caches(context_tokens, batch_size)
    for block_cache in caches:
        head.read(zero_states(head.target, head.requested_states, context_tokens), block_cache)
    runner, count = make_block_runner(head, cuda_graphs), min(TOP_K, head.tokens)
    inputs = [head.feed_block(0, head.no_states, block_cache) for block_cache in caches]

    def draft(levels: int) -> Work:
        if head.markov is None:
            return lambda: run_blocks(runner, inputs, head.levels).topk(count)
        fill = tree_filler(head, chain(levels))
        return lambda: fill([0] * batch_size, run_blocks(runner, inputs, head.levels))

    return draft
