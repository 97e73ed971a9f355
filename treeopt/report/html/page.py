"""The report page: one HTML file that loads nothing else."""

import base64
import hashlib
from importlib import resources

from treeopt.planner.profile_plan import ProfilePlan
from treeopt.plotting.style import DARK, LIGHT, PAPER
from treeopt.records.profile import IMPORTED, UNKNOWN
from treeopt.report.bench_text import describe_heading
from treeopt.report.html.answer import answer, answer_figure, commands
from treeopt.report.html.contents import Contents
from treeopt.report.html.page_warnings import page_warnings
from treeopt.report.html.parts import shortened
from treeopt.report.html.sections import sections
from treeopt.report.plan_text import plan_origins
from treeopt.report.profile_text import describe_point
from treeopt.report.text import models_and_machine, subject
from treeopt.version import TOOL


def page(contents: Contents) -> str:
    """Return the page as HTML; names and other text from files are escaped."""
    from jinja2 import Environment, StrictUndefined

    result = answer(contents)
    script, style = _part("page.js"), _style()
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_part("page.html.j2")).render(
        tool=TOOL,
        title=shortened(_title(contents), 120),
        answer="Measurements of speculative decoding" if result is None else result.sentence,
        figure=answer_figure(contents),
        commands=commands(contents),
        sections=sections(contents),
        warnings=page_warnings(contents),
        facts=facts(contents),
        script=script,
        style=style,
        script_hash=_checksum(script),
        style_hash=_checksum(style),
    )


def facts(contents: Contents) -> tuple[tuple[str, str], ...]:
    """Return the conditions of all measurements on the page as names and values."""
    profile_facts = _facts_of_trees(contents) if contents.planned is None else _facts_of_profile(contents.planned)
    return profile_facts + _facts_of_benches(contents)


def _facts_of_profile(planned: ProfilePlan) -> tuple[tuple[str, str], ...]:
    profile, plan = planned.profile, planned.plan
    machine, pair, engine, acceptance = profile.machine, profile.pair, profile.engine, plan.model.acceptance
    sampling = acceptance.sampling
    settings = "" if engine is None else ", ".join(f"{setting.name} {setting.value}" for setting in engine.settings)
    values = [
        ("target", pair.target),
        ("draft", pair.draft),
        ("dtype", pair.dtype),
        ("machine", machine.processor),
        ("device", machine.device),
        ("threads", None if machine.threads is None else str(machine.threads)),
        ("system", machine.system),
        ("Python, torch", f"{machine.python}, {machine.torch}"),
        ("engine", None if engine is None else f"{engine.name} {engine.version}"),
        ("engine settings", settings),
        ("planned for", plan.conditions),
        ("target sampling", f"top-p {sampling.top_p:g}, top-k {sampling.top_k or 'all'}"),
        ("prompts, positions", f"{acceptance.prompts or UNKNOWN}, {acceptance.positions or UNKNOWN}"),
        ("measured at", ", ".join(describe_point(latency) for latency in profile.step_latencies)),
        ("imported", plan_origins(plan)),
        ("measured", profile.created),
        ("measured by", profile.tool),
    ]
    missing = (UNKNOWN, IMPORTED, f"{UNKNOWN}, {UNKNOWN}", f"{IMPORTED} {UNKNOWN}")
    return tuple((name, value) for name, value in values if value and value not in missing)


def _facts_of_trees(contents: Contents) -> tuple[tuple[str, str], ...]:
    names = ("pair", "machine", "threads", "rule", "temperature", "source", "created")
    return tuple(
        (f"{shortened(label, 40)}: {name}", f"{value:g}" if isinstance(value, float) else str(value))
        for label, tree in contents.trees
        if tree.provenance is not None
        for name in names
        if (value := getattr(tree.provenance, name)) is not None
    )


def _facts_of_benches(contents: Contents) -> tuple[tuple[str, str], ...]:
    """Return the heading and the versions of each bench, benches with the same ones together."""
    labels: dict[str, list[str]] = {}
    for bench in contents.sorted_benches:
        heading = bench.heading
        versions = f"by {heading.tool}, Python {heading.machine.python}, torch {heading.machine.torch}"
        labels.setdefault(f"{describe_heading(heading)}, {versions}", []).append(bench.label)
    return tuple((shortened(", ".join(names), 60), conditions) for conditions, names in labels.items())


def _title(contents: Contents) -> str:
    if contents.planned is not None:
        return subject(contents.planned.profile)
    for _, tree in contents.trees:
        provenance = tree.provenance
        if provenance is not None and provenance.pair is not None:
            return provenance.pair + ("" if provenance.machine is None else f" on {provenance.machine}")
    for bench in contents.sorted_benches:
        return models_and_machine(bench.heading.pair, bench.heading.machine)
    return "Speculative decoding"


def _style() -> str:
    """Return the style sheet with the colours of both themes."""
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in {"paper": PAPER[theme], **colours}.items())
        for theme, colours in (("light", LIGHT), ("dark", DARK))
    )
    themes = (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f":root[data-theme=light]{{color-scheme:light;{light}}}:root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"@media print{{:root,:root[data-theme]{{color-scheme:light;{light}}}}}"
    )
    return themes + _part("page.css")


def _part(name: str) -> str:
    return resources.files("treeopt.report.html").joinpath(name).read_text("utf-8")


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
