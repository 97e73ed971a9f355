"""The whole loop: streams that change, decoded with plans that stay, are re-calibrated, learn, or are made anew."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from treeopt.adaptation import Change, Recalibration
from treeopt.adaptation.ways import LOOKUP, lookup_of, nodes_of, shape_of, take
from treeopt.adaptation.ways import Way as Drafting
from treeopt.methods.drift_streams import Circumstances, Stream
from treeopt.methods.make_drafter import load_named
from treeopt.planner import PlanRequest, Where, requested_plan
from treeopt.planner.drafters import DrafterChoice, best_drafter, drafter_choices
from treeopt.profiler import Journal, Measurement, Settings, clock_for
from treeopt.profiler.bench.drift import DecodedStream, StreamPart, Way, computing, decode_stream
from treeopt.profiler.bench.losslessness import greedy_losslessness
from treeopt.profiler.latency.passes import ROOM_TOKENS
from treeopt.records.drift import DriftStream, TimedStream, TimedText, TreeChange
from treeopt.records.profile import Profile
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.limits import trained_tokens
from treeopt.runtime.decoding.observer import Observer, Steering, observers
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.pair import ModelPair
from treeopt.trees import TokenTree

RULE = "sequoia"
FIXED, ADAPTED, BEST, LEARNING = "fixed", "adapted", "best", "learning"
Learner = Callable[[LanguageModel], tuple[LanguageModel, Observer]]
"""From a draft to one that may be changed, and the observer that has it learn."""
Drafted = Callable[[LanguageModel], tuple[LanguageModel, Observer | None]]
"""From a stream's draft to the one that drafts, and what is told of its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftEffort:
    """How much is measured and decoded."""

    tokens: int = 4000
    """Of every stream."""
    new_tokens: int = 200
    """Of every text."""
    drift_at: float = 0.25
    """Share of the texts before the change."""
    max_nodes: int = 64
    """Of the largest tree, and the largest pass that is timed."""
    rounds: int = 9
    """Samples of every time."""
    positions: int = 1536
    """Generated tokens whose acceptance is counted."""
    branching: int = 8
    depth: int = 12

    @property
    def texts(self) -> int:
        """Of every stream."""
        return max(2, self.tokens // self.new_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftBench:
    """Streams of one pair.

    Args:
        models: the pair; streams may bring another draft.
        effort: how much is measured and decoded.
        learner: what has drafts learn; None where nothing does.
        learning_missing: why nothing does.
        announce: told what begins.
        show_progress: whether bars go to standard error.
    """

    models: ModelPair
    effort: DriftEffort
    learner: Learner | None = None
    learning_missing: str | None = None
    announce: Callable[[str], None] = lambda _: None
    show_progress: bool = True

    def run(self, streams: Sequence[Stream], repeats: int = 1) -> tuple[DriftStream, ...]:
        """Measure what the plans need, and decode every stream in every way; of repeats each text's median time counts."""
        profiles: dict[int, Profile] = {}
        found = []
        for stream in streams:
            for each in (stream.before, stream.behind):
                if id(each) not in profiles:
                    self.announce(
                        f"{stream.name}: measuring for the plan {'before' if each is stream.before else 'behind'}"
                    )
                    profiles[id(each)] = self.profile(each)
            self.announce(f"{stream.name}: decoding")
            measured = profiles[id(stream.before)], profiles[id(stream.behind)]
            found.append(median_of([self.decoded(stream, *measured) for _ in range(repeats)]))
        return tuple(found)

    def profile(self, where: Circumstances) -> Profile:
        """Measure acceptance and times under some circumstances, as `treeopt profile` does."""
        trained, effort = trained_tokens(self.models.target, where.draft), self.effort
        room = (trained - max(map(len, where.measured_prompts))) * len(where.measured_prompts)
        longest = trained - ROOM_TOKENS
        contexts = sorted({min(longest, each) for each in (where.context_tokens, longest // 2, longest)})
        drafters = [load_named(LOOKUP, self.models)] if where.lookups else []
        settings = Settings(
            rules=(RULE,),
            samplings=tuple(each for each in (where.sampling, where.also_measured) if each is not None),
            context_tokens=tuple(contexts),
            max_tokens=effort.max_nodes,
            rounds=effort.rounds,
            positions=min(effort.positions, room),
            branching=effort.branching,
            depth=effort.depth,
            drafters=tuple(each.setting() for each in drafters),
        )
        with computing(busy=where.busy):
            return Measurement(
                self.models.target,
                where.draft,
                where.measured_prompts,
                settings,
                clock=clock_for(self.models.target.device),
                journal=Journal(None, ""),
                drafters=drafters,
            ).profile(show_progress=self.show_progress)

    def decoded(self, stream: Stream, before: Profile, behind: Profile) -> DriftStream:
        """Decode a stream in every way, given what was measured before and behind the change."""
        plans = [plan_for(profile, each) for profile, each in ((before, stream.before), (behind, stream.behind))]
        drafts = [drafting_of(each) for each in plans]
        drift_text = 0 if stream.steady else max(1, round(self.effort.drift_at * self.effort.texts))
        parts = [stream.before.part(drift_text), stream.behind.part(self.effort.texts - drift_text)]
        changes: list[TreeChange] = []
        at = [0]
        adapting = _recalibration(before, stream, drafts[0], partial(_note, changes, at))
        ways = {
            FIXED: self._way(stream, [drafts[0], drafts[0]]),
            ADAPTED: self._way(stream, [drafts[0], drafts[0]], lambda draft: (draft, adapting)),
            BEST: self._way(stream, drafts),
        }
        if self.learner is not None:
            learning = _learning(_recalibration(before, stream, drafts[0]), self.learner)
            ways[LEARNING] = self._way(stream, [drafts[0], drafts[0]], learning)
        first = 1 if stream.steady else 0
        found = decode_stream(
            parts[first:],
            [Way(decoders=way.decoders[first:]) for way in ways.values()],
            new_tokens=self.effort.new_tokens,
            before_text=lambda number: at.__setitem__(0, number),
        )
        texts = dict(zip(ways, found, strict=True))
        return DriftStream(
            name=stream.name,
            what=stream.what,
            drift_text=drift_text,
            fixed=_timed(texts[FIXED]),
            adapted=_timed(texts[ADAPTED]),
            best=_timed(texts[BEST]),
            learning=_timed(texts[LEARNING]) if LEARNING in texts else None,
            learning_missing=self.learning_missing if LEARNING not in texts else None,
            planned=_told(plans[0]),
            planned_behind=_told(plans[1]),
            changes=tuple(changes),
            identical=self._identical(stream, parts[first:], found),
        )

    def _way(self, stream: Stream, plans: Sequence[Drafting], drafted: Drafted = lambda draft: (draft, None)) -> Way:
        """Return decoding with a plan before the change and one behind it, each draft as `drafted` returns it."""

        def decoder(where: Circumstances, plan: Drafting) -> Decoder:
            draft, observer = drafted(where.draft)
            return self._decoder(where, plan, observer, draft)

        parts = zip((stream.before, stream.behind), plans, strict=True)
        return Way(decoders=[partial(decoder, *each) for each in parts])

    def _decoder(
        self, where: Circumstances, plan: Drafting, observer: Observer | None, draft: LanguageModel
    ) -> Decoder:
        tree = plan if isinstance(plan, TokenTree) else ROOT_ALONE
        nodes = None if isinstance(observer, Steering) else nodes_of(plan)
        decoder = Decoder(
            self.models.target, draft, tree, rule=RULE, sampling=where.sampling, max_nodes=nodes, on_step=observer
        )
        if not isinstance(observer, Steering):  # which sees to that itself
            take(decoder, plan)
        return decoder

    def _identical(self, stream: Stream, parts: Sequence[StreamPart], found: Sequence[DecodedStream]) -> bool | None:
        """Return whether all ways decoded the same texts, to rounding; None where any were sampled."""
        if not (stream.before.sampling.greedy and stream.behind.sampling.greedy):
            return None
        prompts = [prompt for part in parts for prompt in part.prompts]
        first, *others = (each.tokens for each in found)
        return all(greedy_losslessness(self.models.target, prompts, first, other).lossless for other in others)


def _recalibration(
    before: Profile, stream: Stream, plan: Drafting, on_change: Callable[[Change], object] = lambda _: None
) -> Recalibration:
    """Return re-calibration of the plan made before the change."""
    begin_with = None if isinstance(plan, TokenTree) else plan
    return Recalibration(before, request_for(stream.before), begin_with=begin_with, on_change=on_change)


def _learning(recalibration: Recalibration, learner: Learner) -> Drafted:
    """Return what has each draft of a stream learn, in one copy, while the plan is re-calibrated."""
    learning: dict[int, tuple[LanguageModel, Observer]] = {}

    def drafted(draft: LanguageModel) -> tuple[LanguageModel, Observer | None]:
        if id(draft) not in learning:
            learning[id(draft)] = learner(draft)
        own, observer = learning[id(draft)]
        return own, observers(recalibration, observer)

    return drafted


def median_of(rows: Sequence[DriftStream]) -> DriftStream:
    """Return repeats of a stream as one: the median time of every text, and the changes of the first."""
    learning = [row.learning for row in rows if row.learning is not None]
    return replace(
        rows[0],
        fixed=_median([row.fixed for row in rows]),
        adapted=_median([row.adapted for row in rows]),
        best=_median([row.best for row in rows]),
        learning=_median(learning) if learning else None,
        identical=None if rows[0].identical is None else all(row.identical for row in rows),
    )


def _median(repeats: Sequence[TimedStream]) -> TimedStream:
    return TimedStream(
        texts=tuple(
            TimedText(tokens=each[0].tokens, seconds=float(np.median([text.seconds for text in each])))
            for each in zip(*(stream.texts for stream in repeats), strict=True)
        )
    )


def plan_for(profile: Profile, where: Circumstances) -> DrafterChoice:
    """Return the fastest plan: of the draft model, or of prompt lookup where it was measured."""
    request = request_for(where)
    return best_drafter(drafter_choices(profile, request, plan=requested_plan(profile, request)))


def _told(choice: DrafterChoice) -> str:
    return choice.shape if choice.tree is not None else shape_of(drafting_of(choice))


def drafting_of(choice: DrafterChoice) -> Drafting:
    """Return what drafts by a plan."""
    found = choice.tree or lookup_of(choice.setting)
    assert found is not None  # nothing else is measured
    return found


def request_for(where: Circumstances) -> PlanRequest:
    """Return what a plan for some circumstances is asked for."""
    return PlanRequest(
        rule=RULE, temperature=where.sampling.temperature, where=Where(context_tokens=where.context_tokens)
    )


def _timed(found: DecodedStream) -> TimedStream:
    return TimedStream(texts=tuple(found.texts))


def _note(changes: list[TreeChange], at: Sequence[int], change: Change) -> None:
    changes.append(TreeChange(text=at[0], why=change.why, before=shape_of(change.before), after=shape_of(change.after)))
