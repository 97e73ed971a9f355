"""The conditions of all measurements of a page, as names and values."""

from treeopt.report.bench_heading import heading_words
from treeopt.report.html.contents import Contents
from treeopt.report.html.parts import shortened
from treeopt.report.plan_text import imported
from treeopt.report.profile_words import condition_name


def facts(contents: Contents) -> tuple[tuple[str, str], ...]:
    """Return the conditions of all measurements."""
    planned = contents.planned
    if planned is None:
        return _facts_of_trees(contents) + _facts_of_benches(contents)
    profile, plan = planned.profile, planned.plan
    machine, pair, measured = profile.machine, profile.pair, plan.model.acceptance
    known = [
        ("target", pair.target),
        ("draft", pair.draft),
        ("number format", pair.dtype),
        ("machine", machine.processor),
        ("device", machine.device),
        ("threads", None if machine.threads is None else str(machine.threads)),
        ("system", machine.system),
        ("Python, torch", f"{machine.python}, {machine.torch}"),
        ("engine", None if profile.engine is None else f"{profile.engine.name} {profile.engine.version}"),
        (
            "engine's settings",
            None
            if profile.engine is None
            else ", ".join(f"{each.name} {each.value}" for each in profile.engine.settings),
        ),
        ("planned for", plan.conditions),
        ("target sampled", f"top-p {measured.top_p:g}, top-k {measured.top_k or 'all'}"),
        ("prompts, positions", f"{measured.prompts or 'unknown'}, {measured.positions or 'unknown'}"),
        ("conditions measured", ", ".join(condition_name(each) for each in profile.step_latencies)),
        ("numbers from elsewhere", imported(plan)),
        ("measured", profile.created),
        ("measured by", profile.tool),
    ]
    return tuple((name, value) for name, value in known if value) + _facts_of_benches(contents)


def _facts_of_trees(contents: Contents) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for each in contents.trees:
        known = each.content.provenance
        values = (
            []
            if known is None
            else [
                (name, getattr(known, name))
                for name in ("pair", "machine", "threads", "rule", "temperature", "source", "created")
            ]
        )
        found += [
            (f"{shortened(each.label, 40)}: {name}", f"{value:g}" if isinstance(value, float) else str(value))
            for name, value in values
            if value is not None
        ]
    return tuple(found)


def _facts_of_benches(contents: Contents) -> tuple[tuple[str, str], ...]:
    """Return the heading and the versions of each bench, with the labels of those that share them."""
    labels: dict[str, list[str]] = {}
    for each in contents.sorted_benches:
        heading = each.heading
        python, torch = heading.machine.python, heading.machine.torch
        said = f"{heading_words(heading)}, by {heading.tool}, Python {python}, torch {torch}"
        labels.setdefault(said, []).append(each.label)
    return tuple((shortened(", ".join(names), 60), said) for said, names in labels.items())
