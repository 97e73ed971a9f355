"""Texts of so many new tokens, whose acceptance is that of how the measured ones begin.

Acceptance changes along a text: models that have written much repeat themselves, which drafts follow well.

    P'[d, k] = P[d, k] * counted[d, k] in the first N positions of every text / counted[d, k] in all

At temperature 0, where P is what was counted, this is what N positions of each text would have been profiled as.  Above
it P is an expectation and accepted ranks are draws: their quotient says how acceptance changes.
"""

from dataclasses import replace

import numpy as np

from treeopt.arguments import whole
from treeopt.errors import InfeasibleError, Warning
from treeopt.planner.planning import planned_acceptances
from treeopt.planner.request import PlanRequest
from treeopt.records.acceptance import TextSums
from treeopt.records.acceptance_counts import LEAST_COUNT, gained, text_sums
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile


def for_new_tokens(profile: Profile, new_tokens: int) -> Profile:
    """Return a profile with the acceptance of texts of so many new tokens, as far as accepted ranks along texts tell.

    What was measured by context length stays, because that says itself how acceptance changes; and so does what is known
    of whole texts alone, or of too few positions so near their beginnings.

    Args:
        profile: what was measured.
        new_tokens: of each text, the prompt left out; texts that were measured no further stay whole.

    Raises InvalidValueError for less than one.
    """
    count = whole("new_tokens", new_tokens, 1)
    return replace(profile, acceptances=tuple(_beginnings(each, count) for each in profile.acceptances))


def ranks_along_texts(acceptance: MeasuredAcceptance) -> AcceptedRanks | None:
    """Return the ranks from the beginning of each text on; None where whole texts or context lengths alone are known."""
    return acceptance.accepted_ranks if acceptance.context_tokens is None else None


def check_new_tokens(profile: Profile, request: PlanRequest, new_tokens: int) -> Warning | None:
    """Return a warning where texts of so many new tokens are longer than those measured, else None.

    Raises InfeasibleError where what is planned does not tell how acceptance changes along texts.
    """
    known = []
    for each in planned_acceptances(profile, request):
        what = f"new_tokens: acceptance of {each.rule} at temperature {each.temperature:g}"
        if each.context_tokens is not None:
            raise InfeasibleError(
                f"{what} was measured by context length, which says how it changes. Say --context-tokens in its place."
            )
        if each.accepted_ranks is None:
            raise InfeasibleError(f"{what} is known of whole texts alone. Leave it out, or profile again.")
        if each.accepted_ranks.first(new_tokens).positions < LEAST_COUNT:
            raise InfeasibleError(f"{what}: expected {LEAST_COUNT:g} positions or more. Ask for more tokens.")
        known.append(each.accepted_ranks)
    longest = min(max(map(len, ranks.ranks)) for ranks in known)
    texts = max(len(ranks.ranks) for ranks in known)
    if longest >= new_tokens:
        return None
    return Warning(
        f"acceptance was measured up to token {longest} of a text, and is taken from there for texts of {new_tokens}.",
        f"Profile with --positions {new_tokens * texts}.",
    )


def _beginnings(acceptance: MeasuredAcceptance, positions: int) -> MeasuredAcceptance:
    """Return the acceptance of so many positions of every text; depths that hardly any reached stay as measured."""
    measured, texts, p = ranks_along_texts(acceptance), acceptance.texts, acceptance.table.p
    if measured is None or texts is None or max(map(len, measured.ranks)) <= positions:
        return acceptance
    ranks, counted = measured.first(positions), measured.table(*p.shape).p
    if ranks.positions < LEAST_COUNT:
        return acceptance
    begun = text_sums(ranks.counts(*p.shape))
    depths = begun.reached.shape[1]
    gain = np.divide(p, counted, out=np.full(p.shape, np.nan), where=counted > 0)
    begun = gained(begun, gain[:depths])
    sums = TextSums(
        np.concatenate([begun.reached, texts.reached[:, depths:]], axis=1),
        np.concatenate([begun.accepted, texts.accepted[:, depths:]], axis=1),
    )
    return replace(
        acceptance,
        prompts=int(np.count_nonzero(sums.reached[:, 0])),
        positions=int(sums.reached[:, 0].sum()),
        table=sums.table(),
        texts=sums,
        accepted_ranks=ranks,
    )
