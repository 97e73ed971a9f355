"""Passes that are timed between the runs of a benchmark, to separate drift of the machine from errors of the model."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from treeopt.errors import InvalidValueError
from treeopt.planner.curves import Curve, interpolate
from treeopt.planner.model import StepModel
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.clock import Clock, clock_for
from treeopt.profiler.latency.curve import Passes
from treeopt.profiler.latency.memory import fits_in_memory, release_memory
from treeopt.profiler.latency.passes import ROOM_TOKENS, TimedPoint
from treeopt.profiler.latency.point import PointPasses
from treeopt.profiler.latency.rounds import Recorder, time_rounds
from treeopt.profiler.settings import Settings
from treeopt.records.results import Pace
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree

SHARE = 0.1
"""Fraction of a benchmark's time that reference passes may take."""
PLAIN, VERIFY, DRAFT = "plain", "verify", "draft"


class ReferencePasses:
    """Times a target pass over one token, one over several, and a draft level, as the profile does.

    Args:
        counts: by name, the tokens of the pass.
        seconds: by name, the profile's seconds.
        open_passes: allocates the caches of the passes.
        clock: times them.
    """

    def __init__(
        self,
        counts: dict[str, int],
        seconds: dict[str, float],
        open_passes: Callable[[], dict[str, Passes]],
        clock: Clock,
    ) -> None:
        self._counts, self._seconds, self._open_passes = counts, seconds, open_passes
        self._opened: dict[str, Passes] = {}
        self._recorder = Recorder(clock, Checkpoint(None, ""))
        self._samples = 0
        self._fits = True
        self._start_s = time.monotonic()
        self._spent_s = 0.0

    def time(self) -> None:
        """Time each pass once more, unless their share of the time is used up, or they do not fit the models or memory."""
        start_s = time.monotonic()
        if not self._fits or (self._samples and self._spent_s > SHARE * (start_s - self._start_s)):
            return
        try:
            self._fits = fits_in_memory(self._time)
        except InvalidValueError:
            self._fits = False
        if not self._fits:
            self.close()
        self._spent_s += time.monotonic() - start_s

    def close(self) -> None:
        """Free the caches; the next timed pass allocates them again."""
        if self._opened:
            self._opened = {}
            release_memory()

    def _time(self) -> None:
        if not self._opened:
            self._opened = self._open_passes()
        for name, passes in self._opened.items():
            works = {self._counts[name]: passes.work(self._counts[name])}
            time_rounds(name, works, self._samples + 1, self._recorder, prepare=passes.prepare, lead=passes.lead)
        self._samples += 1

    @property
    def pace(self) -> Pace | None:
        """The pace so far; None before the first round."""
        if not self._samples:
            return None
        ratios = {
            name: float(np.median(self._recorder.checkpoint.samples(name)[count])) / self._seconds[name]
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
        model: determines the context length and the batch size.
        target: the model that verifies.
        draft: the model that drafts, if the profile has its passes.
        trees: that decode.
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
    if any(latency.draft is None for latency in point.latencies):
        draft = None
    passes = PointPasses(
        target,
        draft,
        np.resize(
            np.concatenate([np.asarray(prompt) for prompt in prompts]), point.context_tokens + ROOM_TOKENS
        ).tolist(),
        TimedPoint(context_tokens=point.context_tokens, batch_size=point.batch_size, sampling=acceptance.sampling),
        Settings(
            rules=(acceptance.rule,),
            lossy=True,
            samplings=(acceptance.sampling,),
            draft_sampling=acceptance.draft_sampling,
            max_tokens=max(verify_tokens, draft_width, 2),
        ),
    )
    counts = {PLAIN: 1, VERIFY: verify_tokens}
    seconds = {name: _pass_s(costs.verify, count) for name, count in counts.items()}
    if draft is not None:
        counts[DRAFT] = draft_width
        seconds[DRAFT] = _pass_s(costs.draft, draft_width)

    def open_passes() -> dict[str, Passes]:
        opened = {PLAIN: passes.open_plain_steps(), VERIFY: passes.open_verification()}
        return opened if draft is None else opened | {DRAFT: passes.open_drafting()}

    return ReferencePasses(counts, seconds, open_passes, clock or clock_for(target.device))


def _pass_s(curve: Curve, count: int) -> float:
    """Return the profile's seconds of a pass of exactly `count` tokens, without padding to a faster size."""
    return float(interpolate(curve.tokens, curve.seconds, np.array([count]))[0])
