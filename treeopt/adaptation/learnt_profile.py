"""What decoding told, as a profile: counts and times that were taken, and where none were, those of the profile before."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from treeopt.adaptation.candidates import measured_as
from treeopt.adaptation.counts import Outcomes
from treeopt.adaptation.estimate import joint
from treeopt.errors import TreeoptError
from treeopt.planner.request import Where
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.acceptance_counts import LEAST_COUNT
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.proportions import posterior_error
from treeopt.records.sampling import draft_sampling_of
from treeopt.records.step_latency import RuleSteps, StepLatency, TimedTree
from treeopt.runtime.decoding.observer import Steered, StepSeconds
from treeopt.trees import TokenTree

LEAST_SAMPLES = 16
"""Steps that a time takes the place of the profile's for."""


def learnt_profile(
    profile: Profile,
    decoder: Steered,
    outcomes: Outcomes,
    samples: Mapping[TokenTree, Sequence[StepSeconds]],
    *,
    rule: str,
    texts: int,
    where: Where,
) -> Profile:
    """Return what decoding told as a profile, and for the rest what was measured before.

    Args:
        profile: what was measured before.
        decoder: whose steps were counted.
        outcomes: of them.
        samples: what they took, by tree.
        rule: by which greedy steps were planned; their acceptance is that of every rule.
        texts: that were decoded.
        where: how many at a time, at which context.

    Raises TreeoptError where hardly any step drafted.
    """
    context_tokens = where.context_tokens or 0
    before = acceptance_before(profile, decoder, rule, context_tokens)
    acceptance = learnt_acceptance(outcomes, before, texts=texts)
    number = nearest_latency(profile, decoder.sampling.temperature, where.batch_size or 1, context_tokens)
    latencies = {} if number is None else {number: learnt_latency(profile.latencies[number], samples, acceptance.rule)}
    return with_learnt(profile, acceptance, before, latencies)


def learnt_acceptance(outcomes: Outcomes, before: MeasuredAcceptance, *, texts: int) -> MeasuredAcceptance:
    """Return the acceptance that was counted, at the depths that were reached and for the ranks that were tried.

    Where a rank was hardly tried at a depth, what was counted of it at all depths together stands there.  Errors are those
    of as many independent outcomes as were counted, older ones for less.

    Raises TreeoptError where hardly any step drafted.
    """
    reached = outcomes.tried[:, 0]
    depths = int(np.cumprod(reached >= LEAST_COUNT).sum())
    ranks = int(np.cumprod(outcomes.tried.sum(axis=0) >= LEAST_COUNT).sum())
    if depths == 0 or ranks == 0:
        raise TreeoptError(
            f"acceptance: expected {LEAST_COUNT:g} drafted positions or more. Got {reached[0]:.0f}: decode more text."
        )
    tried, accepted = outcomes.tried[:depths, :ranks], outcomes.accepted[:depths, :ranks]
    common = accepted.sum(axis=0) / tried.sum(axis=0)
    p = np.where(tried >= LEAST_COUNT, accepted / np.maximum(tried, 1.0), common)
    rows = joint(p)
    counts = tried[:, 0]
    table = AcceptanceTable(rows, counts=counts, standard_error=posterior_error(rows, counts[:, None], ranks))
    return replace(
        before,
        table=table,
        texts=None,
        accepted_ranks=None,
        imported=(),
        chains=(),
        categories=(),
        prompts=texts,
        positions=round(counts[0]),
    )


def learnt_latency(before: StepLatency, samples: Mapping[TokenTree, Sequence[StepSeconds]], rule: str) -> StepLatency:
    """Return a condition's times with those of the steps that were decoded in the place of what they measure anew.

    A pass over as many tokens as a tree has nodes, a draft pass over one token from chains, and whole steps.
    """
    known = {tree: taken for tree, taken in samples.items() if len(taken) >= LEAST_SAMPLES}
    verify = {tree.nodes: [each.verify for each in taken] for tree, taken in known.items()}
    drafts = [
        each.draft / tree.max_depth
        for tree, taken in known.items()
        if 1 < tree.nodes == tree.max_depth + 1
        for each in taken
    ]
    steps = tuple(
        TimedTree(tree=tree, steps=Timing([sum(each) for each in taken]))
        for tree, taken in known.items()
        if tree.nodes > 1
    )
    return replace(
        before,
        verify=_with(before.verify, verify),
        draft=None if before.draft is None else _with(before.draft, {1: drafts} if drafts else {}),
        steps=_with_steps(before, steps, rule),
    )


def acceptance_before(profile: Profile, decoder: Steered, rule: str, context_tokens: int) -> MeasuredAcceptance:
    """Return the acceptance of a decoder's rule and sampling that was measured nearest to a context.

    Where none was measured so, one of another sampling is returned as the decoder's: its numbers say nothing, and it is
    none of the profile's own.
    """

    def distance(each: MeasuredAcceptance) -> tuple[bool, int]:
        return each.rule != rule, abs((each.context_tokens or context_tokens) - context_tokens)

    fitting = [each for each in profile.acceptances if measured_as(each, decoder)]
    if fitting:
        return min(fitting, key=distance)
    return _as_decoded(min(profile.acceptances, key=distance), decoder)


def _as_decoded(each: MeasuredAcceptance, decoder: Steered) -> MeasuredAcceptance:
    """Return an acceptance with a decoder's rule and sampling."""
    sampling, drafts = decoder.sampling, decoder.draft_sampling
    return replace(
        each,
        rule=each.rule if sampling.greedy else decoder.rule.name,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        draft_sampling=None if drafts == draft_sampling_of(sampling, None) else drafts,
        context_tokens=None,
    )


def nearest_latency(profile: Profile, temperature: float, batch_size: int, context_tokens: int) -> int | None:
    """Return the number of the measured condition that is nearest to a batch size and a context.

    None where no steps were timed that sample, or decode greedily, as they do at a temperature.
    """
    fitting = profile.latencies_at(temperature)
    numbers = [
        number
        for number, each in enumerate(profile.latencies)
        if each in fitting and each.sampled in (None, temperature > 0)
    ]
    return min(
        numbers,
        default=None,
        key=lambda number: (
            profile.latencies[number].batch_size != batch_size,
            abs(profile.latencies[number].context_tokens - context_tokens),
        ),
    )


def with_learnt(
    profile: Profile, acceptance: MeasuredAcceptance, before: MeasuredAcceptance, latencies: Mapping[int, StepLatency]
) -> Profile:
    """Return a profile with an acceptance in the place of another, and latencies in the place of those of some numbers.

    In the place of an acceptance that is none of the profile's own it stands behind them all.
    """
    found = tuple(acceptance if each is before else each for each in profile.acceptances)
    return replace(
        profile,
        acceptances=found if acceptance in found else (*found, acceptance),
        latencies=tuple(latencies.get(number, each) for number, each in enumerate(profile.latencies)),
    )


def _with(table: LatencyTable, samples: Mapping[int, Sequence[float]]) -> LatencyTable:
    """Return a table with other samples at some counts within its range."""
    timings = dict(zip(table.tokens.tolist(), table.timings, strict=True))
    timings |= {count: Timing(taken) for count, taken in samples.items() if count <= table.max_tokens}
    counts = sorted(timings)
    return LatencyTable(counts, [timings[count] for count in counts])


def _with_steps(before: StepLatency, steps: tuple[TimedTree, ...], rule: str) -> tuple[RuleSteps, ...]:
    """Return the whole steps of every rule, those with trees that were decoded with timed anew."""
    if not steps or not before.steps:
        return before.steps
    anew = {each.tree for each in steps}
    names = {each.rule for each in before.steps}
    return tuple(
        replace(each, trees=(*(old for old in each.trees if old.tree not in anew), *steps))
        if each.rule == rule or (rule not in names and each is before.steps[0])
        else each
        for each in before.steps
    )
