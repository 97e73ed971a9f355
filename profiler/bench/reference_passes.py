"""Passes that are timed between the runs of a benchmark, to tell a machine that drifts from a model that is wrong."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from treeopt.errors import InvalidValueError, OutOfMemoryError
from treeopt.planner.curves import interpolate
from treeopt.planner.model import StepModel
from treeopt.profiler.clock import Clock, Work, clock_for
from treeopt.profiler.journal import Journal
from treeopt.profiler.latency.condition import ConditionPasses
from treeopt.profiler.latency.curve import Passes
from treeopt.profiler.latency.memory import give_back_memory, out_of_memory
from treeopt.profiler.latency.passes import ROOM_TOKENS
from treeopt.profiler.latency.rounds import timed_rounds
from treeopt.profiler.latency.timed_condition import TimedCondition
from treeopt.profiler.recorder import Recorder
from treeopt.profiler.settings import Settings
from treeopt.records.results import Pace
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree

SHARE = 0.1
"""Of a benchmark's time, what reference passes may take."""
PLAIN, VERIFY, DRAFT = "plain", "verify", "draft"


class ReferencePasses:
    """Times a target pass over one token, one over several, and a draft level, as the profile timed them.

    Args:
        counts: by name, the tokens of the pass.
        seconds: by name, what the profile has for it.
        open_passes: allocates the caches of the passes.
        clock: what times them.
    """

    def __init__(
        self,
        counts: dict[str, int],
        seconds: dict[str, float],
        open_passes: Callable[[], dict[str, Passes]],
        clock: Clock,
    ) -> None:
        self._counts, self._seconds, self._open_passes = counts, seconds, open_passes
        self._opened: dict[str, tuple[Passes, Work]] = {}
        self._recorder = Recorder(clock, Journal(None, ""))
        self._samples = 0
        self._fit = True
        self._began_s = time.monotonic()
        self._spent_s = 0.0

    def time(self) -> None:
        """Time each pass once more, unless they had their share of the time, or do not fit the models or memory."""
        start_s = time.monotonic()
        if not self._fit or (self._samples and self._spent_s > SHARE * (start_s - self._began_s)):
            return
        try:
            self._time()
        except Exception as error:
            if not (isinstance(error, InvalidValueError | OutOfMemoryError) or out_of_memory(error)):
                raise
            self._fit = False
        if not self._fit:
            self.close()
        self._spent_s += time.monotonic() - start_s

    def close(self) -> None:
        """Free the caches; they are allocated again for the next pass that is timed."""
        if self._opened:
            self._opened = {}
            give_back_memory()

    def _time(self) -> None:
        if not self._opened:
            opened = self._open_passes()
            self._opened = {name: (each, each.make_work(self._counts[name])) for name, each in opened.items()}
        for name, (passes, work) in self._opened.items():

            def lead(count: int, work: Work = work, passes: Passes = passes) -> None:
                work()
                passes.between(count)

            timed_rounds(
                name,
                {self._counts[name]: work},
                self._samples + 1,
                self._recorder,
                prepare=passes.prepare,
                lead=lead,
            )
        self._samples += 1

    @property
    def pace(self) -> Pace | None:
        """The pace so far; None before every pass was timed."""
        if not self._samples:
            return None
        ratios = {
            name: float(np.median(self._recorder.journal.samples(name)[count])) / self._seconds[name]
            for name, count in self._counts.items()
        }
        return Pace(
            plain=ratios[PLAIN],
            verify=ratios[VERIFY],
            verify_tokens=self._counts[VERIFY],
            draft=ratios.get(DRAFT),
            draft_width=self._counts.get(DRAFT),
            samples=self._samples,
        )


def reference_passes(
    model: StepModel | None,
    target: LanguageModel,
    draft: LanguageModel | None,
    trees: Sequence[TokenTree],
    prompts: Sequence[Sequence[int]],
    *,
    clock: Clock | None = None,
) -> ReferencePasses | None:
    """Return the passes of median size among some trees; None without a model of passes.

    Args:
        model: predicts from the profile; its context and batch size are those of the passes.
        target: the model that verifies.
        draft: the model that drafts, if the profile has its passes.
        trees: what is decoded with.
        prompts: token ids that the context is made of.
        clock: by default that of the target's device.
    """
    if model is None or model.costs.whole_steps:
        return None
    costs, point, acceptance = model.costs, model.point, model.acceptance
    nodes = [tree.nodes for tree in trees if tree.nodes > 1]
    widths = [int(width) for tree in trees for width in tree.draft_widths]
    verify_tokens = int(min(costs.max_nodes, np.median(nodes or [2])))
    draft_width = int(min(costs.max_draft_width, np.median(widths or [1])))
    if draft is None or any(latency.draft is None for latency in point.latencies):
        draft = None
    passes = ConditionPasses(
        target,
        draft,
        np.resize(np.concatenate([np.asarray(each) for each in prompts]), point.context_tokens + ROOM_TOKENS).tolist(),
        TimedCondition(context_tokens=point.context_tokens, batch_size=point.batch_size, sampling=acceptance.sampling),
        Settings(
            rules=(acceptance.rule,),
            lossy=True,
            samplings=(acceptance.sampling,),
            draft_sampling=acceptance.draft_sampling,
            max_tokens=max(verify_tokens, draft_width, 2),
        ),
    )
    counts, verify, drafted = {PLAIN: 1, VERIFY: verify_tokens}, costs.verify, costs.draft
    seconds = dict(
        zip(counts, interpolate(verify.tokens, verify.seconds, np.array([*counts.values()])).tolist(), strict=True)
    )
    if draft is not None:
        counts[DRAFT] = draft_width
        seconds[DRAFT] = float(interpolate(drafted.tokens, drafted.seconds, np.array([draft_width]))[0])

    def open_passes() -> dict[str, Passes]:
        opened = {PLAIN: passes.plain(), VERIFY: passes.verify()}
        return opened if draft is None else opened | {DRAFT: Passes(passes.draft(draft))}

    return ReferencePasses(counts, seconds, open_passes, clock or clock_for(target.device))
