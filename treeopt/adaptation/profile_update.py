"""The profile that `--save-profile` writes: updated with the counted acceptance and the measured times."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from treeopt.adaptation.averages import MAX_STRATEGIES, Outcomes, joint
from treeopt.adaptation.candidates import measured_as
from treeopt.errors import TreeoptError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.acceptance_counts import MIN_REACHED
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.proportions import posterior_error
from treeopt.records.sampling import resolve_draft_sampling
from treeopt.records.step_latency import StepLatency, TimedTree
from treeopt.runtime.decoding.decoder import Decoder
from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.trees import TokenTree

MIN_SAMPLES, MAX_SAMPLES = 16, 64
"""Fewest steps of a tree for its times to replace the profile's, and most steps that are stored."""


def store_samples(samples: dict[TokenTree, deque[StepSeconds]], tree: TokenTree, steps: Sequence[StepSeconds]) -> None:
    """Add the latest steps of a tree to those of the latest trees."""
    samples[tree] = samples.pop(tree, deque(maxlen=MAX_SAMPLES))
    samples[tree].extend(steps)
    while len(samples) > MAX_STRATEGIES:
        samples.pop(next(iter(samples)))


def update_profile(
    profile: Profile,
    decoder: Decoder,
    outcomes: Outcomes,
    samples: Mapping[TokenTree, Sequence[StepSeconds]],
    *,
    rule: str,
    sequences: int,
    context_tokens: int,
    batch_size: int,
) -> Profile:
    """Return a profile in which decoded steps replace the nearest acceptance and times.

    Args:
        profile: the earlier measurements.
        decoder: decoded the steps.
        outcomes: counts.
        samples: seconds of steps, by tree.
        rule: of the plan, on which greedy steps do not depend.
        sequences: number of decoded sequences.
        context_tokens: of the steps.
        batch_size: of the steps; times of other batch sizes are kept.

    Raises TreeoptError if hardly any step drafted.
    """
    before = find_acceptance(profile, decoder, rule, context_tokens)
    acceptance = update_acceptance(outcomes, before, sequences=sequences)
    temperature = decoder.sampling.temperature
    timed = [
        latency
        for latency in profile.latencies
        if latency in profile.latencies_at(temperature)
        and latency.sampled in (None, temperature > 0)
        and latency.batch_size == batch_size
    ]
    nearest = min(timed, default=None, key=lambda latency: abs(latency.context_tokens - context_tokens))
    return replace(
        replace_acceptance(profile, acceptance, before),
        latencies=tuple(
            update_latency(latency, samples, acceptance.rule) if latency is nearest else latency
            for latency in profile.latencies
        ),
    )


def update_acceptance(outcomes: Outcomes, before: MeasuredAcceptance, *, sequences: int) -> MeasuredAcceptance:
    """Return the counted acceptance of the depths that were reached and the ranks that were tried.

    A rank that was hardly tried at one depth takes its conditional acceptance over all depths.

    Raises TreeoptError if hardly any step drafted.
    """
    reached = outcomes.tried[:, 0]
    depths = int(np.cumprod(reached >= MIN_REACHED).sum())
    ranks = int(np.cumprod(outcomes.tried.sum(axis=0) >= MIN_REACHED).sum())
    if depths == 0 or ranks == 0:
        raise TreeoptError(
            f"acceptance: expected {MIN_REACHED:g} drafted positions or more. Got {reached[0]:.0f}: decode more text."
        )
    tried, accepted = outcomes.tried[:depths, :ranks], outcomes.accepted[:depths, :ranks]
    over_depths = accepted.sum(axis=0) / tried.sum(axis=0)
    rows = joint(np.where(tried >= MIN_REACHED, accepted / np.maximum(tried, 1.0), over_depths))
    counts = tried[:, 0]
    return replace(
        before,
        table=AcceptanceTable(rows, counts=counts, standard_error=posterior_error(rows, counts[:, None], ranks)),
        sequences=None,
        accepted_ranks=None,
        imported=(),
        chains=(),
        categories=(),
        prompts=sequences,
        positions=round(counts[0]),
    )


def update_latency(before: StepLatency, samples: Mapping[TokenTree, Sequence[StepSeconds]], rule: str) -> StepLatency:
    """Return latencies with the decoded trees' times: verification by size, draft passes of chains, and whole steps."""
    timed = {tree: steps for tree, steps in samples.items() if len(steps) >= MIN_SAMPLES}
    verify: dict[int, list[float]] = {}
    for tree, steps in timed.items():
        verify.setdefault(tree.nodes, []).extend(step.verify for step in steps)
    chains = {tree: steps for tree, steps in timed.items() if 1 < tree.nodes == tree.max_depth + 1}
    drafts = [step.draft / tree.max_depth for tree, steps in chains.items() for step in steps]
    trees = [
        TimedTree(tree=tree, steps=Timing([sum(step) for step in steps]))
        for tree, steps in timed.items()
        if tree.nodes > 1
    ]
    rules = {steps.rule for steps in before.steps}
    return replace(
        before,
        verify=_with_samples(before.verify, verify),
        draft=None if before.draft is None else _with_samples(before.draft, {1: drafts} if drafts else {}),
        steps=tuple(
            replace(steps, trees=(*(old for old in steps.trees if old.tree not in timed), *trees))
            if trees and (steps.rule == rule or (rule not in rules and steps is before.steps[0]))
            else steps
            for steps in before.steps
        ),
    )


def find_acceptance(profile: Profile, decoder: Decoder, rule: str, context_tokens: int) -> MeasuredAcceptance:
    """Return the measured acceptance of the decoder's rule and sampling at the nearest context.

    If there is none, return one of another sampling, with the decoder's sampling; it is not one of the profile's.
    """

    def distance(acceptance: MeasuredAcceptance) -> tuple[bool, int]:
        return acceptance.rule != rule, abs((acceptance.context_tokens or context_tokens) - context_tokens)

    fitting = [acceptance for acceptance in profile.acceptances if measured_as(acceptance, decoder)]
    if fitting:
        return min(fitting, key=distance)
    sampling, drafts = decoder.sampling, decoder.draft_sampling
    other = min(profile.acceptances, key=distance)
    return replace(
        other,
        rule=other.rule if sampling.greedy else decoder.rule.name,
        sampling=sampling,
        draft_sampling=None if drafts == resolve_draft_sampling(sampling, None) else drafts,
        context_tokens=None,
    )


def replace_acceptance(profile: Profile, acceptance: MeasuredAcceptance, before: MeasuredAcceptance) -> Profile:
    """Return a profile with an acceptance in place of `before`, or as an additional one if `before` is not the profile's."""
    acceptances = tuple(acceptance if item is before else item for item in profile.acceptances)
    return replace(profile, acceptances=acceptances if acceptance in acceptances else (*acceptances, acceptance))


def _with_samples(table: LatencyTable, samples: Mapping[int, Sequence[float]]) -> LatencyTable:
    """Return a table with the samples at their counts, if within its range."""
    timings = dict(zip(table.tokens.tolist(), table.timings, strict=True))
    timings |= {count: Timing(seconds) for count, seconds in samples.items() if count <= table.max_tokens}
    counts = sorted(timings)
    return LatencyTable(counts, [timings[count] for count in counts])
