"""The page itself, written as one file that requests nothing."""

import base64
import hashlib
import json
from importlib import resources

from treeopt.pictures.style import DARK, LIGHT, PAPER
from treeopt.report.html.answer import Answer, answer, answer_figure, commands
from treeopt.report.html.contents import Contents
from treeopt.report.html.facts import facts
from treeopt.report.html.page_warnings import page_warnings
from treeopt.report.html.parts import shortened
from treeopt.report.html.sections import sections
from treeopt.report.plan_text import models_and_machine, subject
from treeopt.version import TOOL


def page(contents: Contents) -> str:
    """Return the whole page as HTML; texts of files and models are never more than text."""
    from jinja2 import Environment, StrictUndefined

    found = answer(contents)
    script, style = _part("page.js"), _style()
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_part("page.html.j2")).render(
        tool=TOOL,
        title=shortened(_title(contents), 120),
        answer="Ways of decoding, measured." if found is None else found.sentence,
        figure=answer_figure(contents),
        commands=commands(contents),
        sections=sections(contents),
        warnings=page_warnings(contents),
        facts=facts(contents),
        script=script,
        style=style,
        script_hash=_checksum(script),
        style_hash=_checksum(style),
        summary=in_script(_summary(found)),
    )


def in_script(value: object) -> str:
    r"""Return a value as JSON for a script element, which no text in it can end.

    >>> in_script({"name": "</script>"})
    '{"name": "\\u003c/script>"}'
    """
    return json.dumps(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _title(contents: Contents) -> str:
    if contents.planned is not None:
        return subject(contents.planned.profile)
    for each in contents.trees:
        known = each.content.provenance
        if known is not None and known.pair is not None:
            return known.pair + ("" if known.machine is None else f" on {known.machine}")
    for bench in contents.sorted_benches:
        return models_and_machine(bench.heading.pair, bench.heading.machine)
    return "Speculative decoding"


def _summary(found: Answer | None) -> dict[str, object]:
    if found is None:
        return {"tool": TOOL}
    return {
        "tool": TOOL,
        "choice": {"shape": found.shape, "nodes": found.nodes, "depth": found.depth},
        "predicted_speedup": found.predicted,
        "measured_speedup": found.measured,
    }


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
