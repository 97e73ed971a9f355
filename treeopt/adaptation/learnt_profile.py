"""The profile that `--save-profile` writes: counted acceptance and measured times; what was not measured stays."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from treeopt.adaptation.averages import MOST_STRATEGIES, Outcomes, joint
from treeopt.adaptation.candidates import measured_as
from treeopt.adaptation.strategy import Strategy
from treeopt.errors import TreeoptError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.acceptance_counts import LEAST_COUNT
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.proportions import posterior_error
from treeopt.records.sampling import draft_sampling_of
from treeopt.records.step_latency import StepLatency, TimedTree
from treeopt.runtime.decoding.observer import Steered, StepSeconds
from treeopt.trees import TokenTree

LEAST_SAMPLES, MOST_SAMPLES = 16, 64
"""Steps of a tree whose times replace the profile's, and steps that are kept of each."""


class StepSamples:
    """The times of the latest steps with each tree."""

    def __init__(self) -> None:
        self.by_tree: dict[TokenTree, deque[StepSeconds]] = {}

    def add(self, strategy: Strategy, steps: Sequence[StepSeconds]) -> None:
        if not isinstance(strategy, TokenTree):
            return
        self.by_tree[strategy] = self.by_tree.pop(strategy, deque(maxlen=MOST_SAMPLES))
        self.by_tree[strategy].extend(steps)
        while len(self.by_tree) > MOST_STRATEGIES:
            self.by_tree.pop(next(iter(self.by_tree)))


def learnt_profile(
    profile: Profile,
    decoder: Steered,
    outcomes: Outcomes,
    samples: Mapping[TokenTree, Sequence[StepSeconds]],
    *,
    rule: str,
    sequences: int,
    context_tokens: int,
    batch_size: int,
) -> Profile:
    """Return a profile with the acceptance and the times nearest to the operating point replaced by those of decoded steps.

    Args:
        profile: the earlier measurements.
        decoder: of the steps.
        outcomes: counted.
        samples: seconds of steps, by tree.
        rule: of the plan, which greedy steps do not depend on.
        sequences: number of decoded sequences.
        context_tokens: of the steps.
        batch_size: of the steps.

    Raises TreeoptError if hardly any step drafted.
    """
    context, batch = context_tokens, batch_size
    before = acceptance_before(profile, decoder, rule, context)
    acceptance = learnt_acceptance(outcomes, before, sequences=sequences)
    temperature = decoder.sampling.temperature
    timed = [each for each in profile.latencies_at(temperature) if each.sampled in (None, temperature > 0)]
    nearest = min(
        (each for each in profile.latencies if each in timed),
        default=None,
        key=lambda each: (each.batch_size != batch, abs(each.context_tokens - context)),
    )
    return replace(
        with_acceptance(profile, acceptance, before),
        latencies=tuple(
            learnt_latency(each, samples, acceptance.rule) if each is nearest else each for each in profile.latencies
        ),
    )


def learnt_acceptance(outcomes: Outcomes, before: MeasuredAcceptance, *, sequences: int) -> MeasuredAcceptance:
    """Return the counted acceptance, for the depths that were reached and the ranks that were tried.

    A rank that was hardly tried at one depth takes its share of all depths.

    Raises TreeoptError if hardly any step drafted.
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
    rows = joint(np.where(tried >= LEAST_COUNT, accepted / np.maximum(tried, 1.0), common))
    counts = tried[:, 0]
    return replace(
        before,
        table=AcceptanceTable(rows, counts=counts, standard_error=posterior_error(rows, counts[:, None], ranks)),
        texts=None,
        accepted_ranks=None,
        imported=(),
        chains=(),
        categories=(),
        prompts=sequences,
        positions=round(counts[0]),
    )


def learnt_latency(before: StepLatency, samples: Mapping[TokenTree, Sequence[StepSeconds]], rule: str) -> StepLatency:
    """Return latencies with the decoded trees' times: verification by size, draft passes of chains, and whole steps."""
    timed = {tree: steps for tree, steps in samples.items() if len(steps) >= LEAST_SAMPLES}
    verify = {tree.nodes: [each.verify for each in steps] for tree, steps in timed.items()}
    chains = {tree: steps for tree, steps in timed.items() if 1 < tree.nodes == tree.max_depth + 1}
    drafts = [each.draft / tree.max_depth for tree, steps in chains.items() for each in steps]
    trees = [
        TimedTree(tree=tree, steps=Timing([sum(each) for each in steps]))
        for tree, steps in timed.items()
        if tree.nodes > 1
    ]
    rules = {each.rule for each in before.steps}
    return replace(
        before,
        verify=_with(before.verify, verify),
        draft=None if before.draft is None else _with(before.draft, {1: drafts} if drafts else {}),
        steps=tuple(
            replace(each, trees=(*(old for old in each.trees if old.tree not in timed), *trees))
            if trees and (each.rule == rule or (rule not in rules and each is before.steps[0]))
            else each
            for each in before.steps
        ),
    )


def acceptance_before(profile: Profile, decoder: Steered, rule: str, context_tokens: int) -> MeasuredAcceptance:
    """Return the measured acceptance of the decoder's rule and sampling at the nearest context.

    If there is none, return one of another sampling with the decoder's; it is not one of the profile's.
    """

    def distance(each: MeasuredAcceptance) -> tuple[bool, int]:
        return each.rule != rule, abs((each.context_tokens or context_tokens) - context_tokens)

    fitting = [each for each in profile.acceptances if measured_as(each, decoder)]
    if fitting:
        return min(fitting, key=distance)
    sampling, drafts = decoder.sampling, decoder.draft_sampling
    other = min(profile.acceptances, key=distance)
    return replace(
        other,
        rule=other.rule if sampling.greedy else decoder.rule.name,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        draft_sampling=None if drafts == draft_sampling_of(sampling, None) else drafts,
        context_tokens=None,
    )


def with_acceptance(profile: Profile, acceptance: MeasuredAcceptance, before: MeasuredAcceptance) -> Profile:
    """Return a profile with an acceptance in place of `before`, or as an additional one if `before` is not its own."""
    acceptances = tuple(acceptance if each is before else each for each in profile.acceptances)
    return replace(profile, acceptances=acceptances if acceptance in acceptances else (*acceptances, acceptance))


def _with(table: LatencyTable, samples: Mapping[int, Sequence[float]]) -> LatencyTable:
    """Return a table with other samples at some counts within its range."""
    timings = dict(zip(table.tokens.tolist(), table.timings, strict=True))
    timings |= {count: Timing(seconds) for count, seconds in samples.items() if count <= table.max_tokens}
    counts = sorted(timings)
    return LatencyTable(counts, [timings[count] for count in counts])
