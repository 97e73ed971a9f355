"""What pictures and texts of a profile name it by: pair, machine, rules, temperatures and date."""

from datetime import date

from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import UNKNOWN, Profile
from treeopt.records.rules import rule_label
from treeopt.records.step_latency import StepLatency


def condition_name(latency: StepLatency) -> str:
    """Return a condition in words."""
    way = {None: "", True: ", sampling", False: ", greedy"}[latency.sampled]
    return f"{latency.context_tokens} tokens of context, batch of {latency.batch_size}{way}"


def measured_on(created: str) -> str:
    """Return the day of an ISO 8601 date in words.

    >>> measured_on("2026-11-21T18:17:14+00:00")
    'measured 2026-11-21'
    """
    return f"measured {created[:10]}"


def measured_today() -> str:
    """Return the day of a bench that has just ended, in words."""
    return f"measured {date.today().isoformat()}"


def under(profile: Profile) -> str:
    """Return the rules and temperatures that a profile holds acceptance of, and its date."""
    rules = ", ".join(dict.fromkeys(rule_label(each.rule) for each in profile.acceptances))
    temperatures = ", ".join(dict.fromkeys(f"{each.temperature:g}" for each in profile.acceptances))
    dtype = "" if profile.pair.dtype == UNKNOWN else f"{profile.pair.dtype}, "
    return f"{rules} at temperature {temperatures}; {dtype}{measured_on(profile.created)}"


def labelled_acceptances(profile: Profile) -> list[tuple[str, MeasuredAcceptance]]:
    """Return every acceptance of a profile under a label, those of drafters of static trees too."""
    found = [
        (
            f"{rule_label(each.rule)} at temperature {each.temperature:g}{_context(each.context_tokens)}{_source(each)}",
            each,
        )
        for each in profile.acceptances
    ]
    for drafter in profile.drafters:
        several = len({each.context_tokens for each in drafter.trees}) > 1
        found += [
            (
                f"{drafter.name} at temperature {each.sampling.temperature:g}{_context(each.context_tokens if several else None)}",
                each.acceptance,
            )
            for each in drafter.trees
        ]
    return found


def _context(tokens: int | None) -> str:
    return "" if tokens is None else f", {tokens} tokens of context"


def _source(measured: MeasuredAcceptance) -> str:
    return "".join(f", {each.source}" for each in measured.imported)
