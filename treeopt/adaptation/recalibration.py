"""The controller: every `CHECK_STEPS` steps it predicts the speed of each candidate, and switches to a faster one.

It changes how tokens are drafted, never the distribution of the output.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import log
from time import perf_counter

from treeopt.adaptation.averages import AcceptanceAverage, StepTimes, Visits
from treeopt.adaptation.candidates import Candidates, measured_as, measured_request
from treeopt.adaptation.lookups import Lookups, measured_lookups, one_of_each_length
from treeopt.adaptation.probing import Probe
from treeopt.adaptation.profile_update import store_samples, update_profile
from treeopt.adaptation.strategy import Change, PredictedRate, Strategy, apply_strategy
from treeopt.errors import InvalidValueError
from treeopt.planner.planning import check_profile
from treeopt.planner.request import PlanRequest
from treeopt.records.machine import Machine
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime.decoding.decoder import Decoder
from treeopt.runtime.decoding.observer import StepEvent, StepSeconds
from treeopt.runtime.drafters.drafter import ROOT_ONLY
from treeopt.trees import TokenTree
from treeopt.trees.drafter_parameters import PromptLookupSetting

CHECK_STEPS, NEXT_CHECK_STEPS = 32, 8
"""Steps between two checks, and before the check that confirms a gain."""
MIN_GAIN, MIN_RETURN_GAIN = 0.05, 0.01
"""Smallest predicted gain for a switch, at two checks in a row; the second if the switch is back to the plan."""
SHIFT_STEP, DRAFTING_STEP = 0.25, 0.1
"""Change of the log odds of acceptance, or of the log time ratio, after which trees are solved again."""
MAX_CHECK_FRACTION, HEAD_START_S = 0.01, 0.03
"""Fraction of the decoding time that checks may take, and seconds that they may take in addition."""
MAX_CHANGES = 1000
MAX_RESERVED_NODES = 64
"""Nodes for which a decoder allocates memory, so that larger trees than the first are candidates."""


class Recalibration:
    """Keeps the fastest strategy while decoding: `Decoder(…, on_step=Recalibration(profile))`.

    Candidates are plain decoding, chains and trees of at most the decoder's `max_nodes`, and the settings of prompt
    lookup that the profile measured with single sequences.

    Args:
        profile: the measurements.
        request: rule, temperature, context and batch size of the plan; by default the decoder's, if measured.
        begin_with: setting of prompt lookup that drafts first, instead of the decoder's tree.
        on_change: called with every `Change`.
        now_s: the clock for the time of the checks.

    Raises InvalidValueError if `profile` is not a Profile.  `attach` raises InvalidValueError for a decoder whose drafter
    builds its own trees, InfeasibleError for a tree, setting or operating point beyond the measured ones.
    """

    def __init__(
        self,
        profile: Profile,
        request: PlanRequest | None = None,
        *,
        begin_with: PromptLookupSetting | None = None,
        on_change: Callable[[Change], object] = lambda _: None,
        now_s: Callable[[], float] = perf_counter,
    ) -> None:
        check_profile(profile)
        self.profile = profile
        self._request, self._begin_with = request or PlanRequest(), begin_with
        self._on_change, self._now_s = on_change, now_s
        self._decoder: Decoder | None = None
        self._sequence: int | None = None
        self._probe: Probe
        self._planned: Strategy
        self._predicted_s: tuple[float, float]
        self._drafted_by: tuple[Sampling, object] | None = None
        """The decoder's sampling and draft model; a decoder may get another draft model later."""
        self.changes: list[Change] = []
        """The latest changes, oldest first."""
        self.sequences = self.steps = 0
        self.decoding_s = self.check_s = 0.0
        """Seconds of all steps, and of all checks."""

    def largest_tree_nodes(self, tree: TokenTree) -> int:
        measured = max(latency.verify.max_tokens for latency in self.profile.step_latencies)
        first = 1 if self._begin_with is None else self._begin_with.max_nodes
        return max(tree.nodes, first, min(MAX_RESERVED_NODES, measured))

    def attach(self, decoder: Decoder) -> None:
        """Start to control a decoder.  A later decoder continues with the strategy and the averages of the previous one.

        After a change of the draft model or the sampling the averages start again.  If the profile contains the new
        sampling, the fastest strategy by the profile is used from the first step on.
        """
        if not decoder.takes_trees:
            raise InvalidValueError(
                "on_step: expected a decoder whose draft model fills static trees. Got a drafter that brings its own: "
                "re-calibrate the draft model, with begin_with=… for prompt lookup, or leave Recalibration out."
            )
        self._decoder, self._sequence = decoder, None
        before, self._drafted_by = self._drafted_by, (decoder.sampling, decoder.draft_model)
        if before is None:
            self._begin(measured_request(self.profile, self._request, decoder), decoder.tree, self._begin_with)
            if not measured_as(self._candidates.measured, decoder):
                self._forget()
            return
        apply_strategy(decoder, self.strategy)
        self._probe.attach(decoder)
        measured = [acceptance for acceptance in self.profile.acceptances if measured_as(acceptance, decoder)]
        if decoder.sampling != before[0] and measured:
            rule = self._candidates.acceptance.rule
            acceptance = next((acceptance for acceptance in measured if acceptance.rule == rule), measured[0])
            previous = self.strategy
            request = replace(self._request, rule=acceptance.rule, temperature=acceptance.temperature)
            self._begin(request, ROOT_ONLY, None)
            self._switch(
                previous, self._fastest(), f"sampling: the profile contains temperature {acceptance.temperature:g}"
            )
            self._planned = self.strategy
        elif decoder.sampling != before[0] or decoder.draft_model is not before[1]:
            self._forget()

    def _begin(self, request: PlanRequest, tree: TokenTree, begin_with: PromptLookupSetting | None) -> None:
        """Initialize everything from the profile, with a tree or a setting of prompt lookup."""
        decoder = self._decoder
        assert decoder is not None
        self._candidates = candidates = Candidates(self.profile, request, tree, decoder.max_nodes)
        costs, sampling = candidates.costs, candidates.acceptance.sampling
        lookups = measured_lookups(self.profile, costs, sampling, decoder.max_nodes)
        self._lookups = Lookups(one_of_each_length(lookups, candidates.max_nodes, begin_with), costs)
        if begin_with is not None:
            self._lookups.check(begin_with)
            apply_strategy(decoder, begin_with)
        self._context, self._times, self._solve_s = costs.planned, StepTimes(), 0.0
        self._solved_for: dict[int, tuple[float, float]] = {}
        """By context, the inputs of its last solution."""
        self._start_averages()
        self._planned = begin_with or tree
        self._start(self._planned)
        self._solve()
        self._probe = Probe(decoder, sum(self._predicted_s), self._now_s)  # a draft pass takes less than a step

    def _start_averages(self) -> None:
        self._acceptance = AcceptanceAverage(self._candidates.depths, self._candidates.ranks)
        self._samples: dict[TokenTree, deque[StepSeconds]] = {}
        self._earlier_sequences = self.sequences

    def _forget(self) -> None:
        """Start the averages again: the profile was measured with another draft model or sampling."""
        self._start_averages()
        self._acceptance.forget()
        self._lookups.forget()
        self._probe.schedule()
        self._check_interval = NEXT_CHECK_STEPS

    def _start(self, strategy: Strategy) -> None:
        """Attribute the next steps to a strategy."""
        self.strategy = strategy
        tree = strategy if isinstance(strategy, TokenTree) else ROOT_ONLY
        self._visits = Visits(tree, self._candidates.depths, self._candidates.ranks)
        self._drafts = tree.nodes > 1
        self._expected = self._candidates.conditional(tree)
        self._step_seconds: list[StepSeconds] = []
        self._context_sum, self._check_interval = 0, CHECK_STEPS
        self._gain_seen = self._skip_next = False
        self._predicted_s = self._predicted_step_s()

    def _predicted_step_s(self) -> tuple[float, float]:
        """Return the profile's seconds of drafting with host overhead, and of verification; of prompt lookup, 0 and the whole step."""
        if isinstance(self.strategy, TokenTree):
            return self._candidates.step_parts(self.strategy, self._context)
        return 0.0, self._lookups.prediction(self.strategy, self._context).step_s

    def __call__(self, step: StepEvent) -> None:
        """Count a step; every `CHECK_STEPS` steps, check for a faster strategy."""
        seconds, outcome, is_tree = step.seconds, step.step, isinstance(self.strategy, TokenTree)
        if seconds is not None and step.sequence != self._sequence:
            if self._sequence is not None and self._acceptance.end_sequence():
                self._visits.paths.clear()
                self._gain_seen, self._check_interval = True, 1  # leave at once what was only for that sequence
            self._sequence = step.sequence
            self.sequences += 1
        self._lookups.add(step.sequence, step.tokens, outcome.tokens)
        if is_tree and step.proposal.tree != self.strategy:
            return  # drafted before the tree changed, or without a draft yet
        if self._drafts and not outcome.truncated:
            self._visits.paths.append(outcome.path)
        if seconds is None:
            return
        if not self._drafts:  # of a batch, only the sequence with the times is probed
            for node, token in zip(outcome.path, outcome.tokens, strict=True):
                self._probe.add(step.sequence, step.tokens, token, outcome.logits[node : node + 1])
        self.decoding_s += sum(seconds)
        self.steps += 1
        if self._skip_next:  # the first step of a strategy includes the prefill of its drafter
            self._skip_next = False
            return
        # the time of prompt lookup is part of the measured overhead
        self._step_seconds.append(
            seconds if is_tree else StepSeconds(0.0, seconds.verify, seconds.accept + seconds.draft)
        )
        self._context_sum += len(step.tokens)
        if len(self._step_seconds) >= self._check_interval and self._affordable(0.0):
            start_s = self._now_s()
            self._check()
            self.check_s += self._now_s() - start_s

    def _affordable(self, seconds: float) -> bool:
        return self.check_s + seconds <= HEAD_START_S + MAX_CHECK_FRACTION * self.decoding_s

    def _check(self) -> None:
        """Update the averages, and switch if another strategy is faster for the second time in a row."""
        self._update_averages()
        if self._solution_is_outdated() and self._affordable(self._solve_s):
            self._solve()
        predictions = self._predictions()
        current, best, planned = predictions[self.strategy], self._fastest(predictions), predictions.get(self._planned)
        min_gain = MIN_GAIN
        if planned is not None and best.tokens_per_s < (1 + MIN_GAIN) * planned.tokens_per_s:
            best, min_gain = planned, MIN_RETURN_GAIN  # otherwise a switch by noise would be final
        gained = best.tokens_per_s >= (1 + min_gain) * current.tokens_per_s
        if gained and self._gain_seen:
            self._switch(self.strategy, best, self._describe_averages(), best.tokens_per_s / current.tokens_per_s - 1)
        else:
            self._gain_seen, self._check_interval = gained, NEXT_CHECK_STEPS if gained else CHECK_STEPS

    def _update_averages(self) -> None:
        """Add the steps since the last check to the averages."""
        seconds, self._step_seconds = self._step_seconds, []
        if not seconds:
            return
        candidates = self._candidates
        if self._drafts:
            outcomes = self._visits.take()
        else:
            outcomes = self._probe.take(candidates.depths, candidates.ranks, self.decoding_s)
        self._acceptance.add(outcomes, len(seconds), self._expected)
        self._times.add(self.strategy, seconds, *self._predicted_s)
        if isinstance(self.strategy, TokenTree):
            store_samples(self._samples, self.strategy, seconds)
        self._lookups.replay()
        self._context, self._context_sum = candidates.costs.rounded(self._context_sum // len(seconds)), 0
        self._predicted_s = self._predicted_step_s()

    def _predictions(self) -> dict[Strategy, PredictedRate]:
        shift, times = self._acceptance.shift(self._expected), self._times
        trees = self._candidates.predict(shift, times, self._context, (self._planned, self.strategy))
        lookups = [
            rate._replace(step_s=times.step_s(rate.strategy, 0.0, rate.step_s))
            for rate in self._lookups.predict(self._context, self.strategy)
        ]
        return {rate.strategy: rate for rate in [*trees, *lookups]}

    def _fastest(self, predictions: dict[Strategy, PredictedRate] | None = None) -> PredictedRate:
        return max((predictions or self._predictions()).values(), key=lambda rate: rate.tokens_per_s)

    def _solver_inputs(self) -> tuple[float, float]:
        """Return the log odds of acceptance and the log time ratio, over the profile's."""
        return float(self._acceptance.shift(self._expected)[:, 0].mean()), log(self._times.drafting)

    def _solution_is_outdated(self) -> bool:
        """Return whether acceptance or times have changed since the context's last solution, or it has none yet."""
        if self._context not in self._solved_for:
            return True
        (shift, drafting), (solved_shift, solved_drafting) = self._solver_inputs(), self._solved_for[self._context]
        return abs(shift - solved_shift) >= SHIFT_STEP or abs(drafting - solved_drafting) >= DRAFTING_STEP

    def _solve(self) -> None:
        start_s = self._now_s()
        self._candidates.solve(self._acceptance.shift(self._expected), self._times, self._context)
        self._solved_for[self._context] = self._solver_inputs()
        self._solve_s = self._now_s() - start_s

    def _describe_averages(self) -> str:
        return (
            f"acceptance: {self._acceptance.describe()}; "
            f"draft-to-target time {self._times.drafting:.2f} times the profile's; context {self._context}"
        )

    def _switch(self, before: Strategy, best: PredictedRate, why: str, gain: float = 0.0) -> None:
        assert self._decoder is not None
        apply_strategy(self._decoder, best.strategy)
        self._start(best.strategy)
        self._skip_next = True
        self._probe.schedule()
        if before == best.strategy:
            return
        change = Change(
            step=self.steps,
            why=why,
            before=before,
            after=best.strategy,
            gain=gain,
            tokens_per_step=best.tokens_per_step,
            step_s=best.step_s,
        )
        self.changes.append(change)
        del self.changes[:-MAX_CHANGES]
        self._on_change(change)

    def updated_profile(self, *, created: str, tool: str, machine: Machine) -> Profile:
        """Return the profile, updated with the counted acceptance and the measured times.

        Args:
            created: date and time, ISO 8601.
            tool: program and version.
            machine: where the steps were decoded.

        Raises TreeoptError if hardly any step drafted.
        """
        assert self._decoder is not None
        self._update_averages()
        profile = update_profile(
            self.profile,
            self._decoder,
            self._acceptance.outcomes,
            self._samples,
            rule=self._candidates.acceptance.rule,
            sequences=self.sequences - self._earlier_sequences,
            context_tokens=self._context,
            batch_size=self._candidates.costs.batch_size,
        )
        return replace(profile, created=created, tool=tool, machine=machine)
