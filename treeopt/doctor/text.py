"""What was found as lines and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from treeopt.doctor.facts import Facts, Host
from treeopt.errors import Warning, printable
from treeopt.files.record_form import in_file
from treeopt.report.json_text import json_text
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted

GIB = 2**30
WIDTH = 100
ABSENT = "not installed"
WELL = "Nothing was found that stands in the way of good measurements."


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All that was found, and what to do; docs/install.md lists the keys."""

    facts: Facts = field(metadata=in_file(inline=True))
    remarks: tuple[str, ...]


def doctor_json(facts: Facts, remarks: Sequence[Warning]) -> str:
    """Return one JSON object."""
    return json_text(DoctorReport(facts=facts, remarks=tuple(map(str, remarks))))


def doctor_text(facts: Facts, remarks: Sequence[Warning]) -> str:
    """Return what was found in lines, and below it what to do."""
    found = [*_machine(facts), "", *_packages(facts), "", *_engines(facts), ""]
    said = [f"- {each}" for each in remarks]
    return "\n".join(printable(line) for line in [*found, *(said or [WELL])])


def _machine(facts: Facts) -> list[str]:
    host, torch = facts.host, facts.torch
    rows = [
        ("treeopt", f"{facts.treeopt}, Python {facts.python}, {host.system}"),
        (
            "processor",
            f"{host.processor}: {counted(host.processors, 'thread')} on {counted(host.cores, 'core')}{_limits(host)}",
        ),
        ("memory", f"{_gib(host.memory_bytes)}, {_gib(host.available_bytes)} available"),
        ("torch", _torch(facts)),
        *(
            (each.name, f"{each.model}: {_gib(each.memory_bytes)}, {_gib(each.free_bytes)} free")
            for each in torch.devices
        ),
        ("other load", facts.load.sight or "not known"),
    ]
    return aligned(rows, [Column(least=12), Column()])


def _limits(host: Host) -> str:
    quota = "" if host.quota_processors is None else f", at most {host.quota_processors:g} processors of time"
    return quota + ("" if host.governor is None else f", governor {host.governor}")


def _torch(facts: Facts) -> str:
    torch = facts.torch
    if torch.version is None:
        return f"cannot be imported: {torch.failure}"
    device = "" if torch.devices else ", no device but cpu"
    return f"{torch.version}, {counted(torch.threads or 0, 'thread')}{device}"


def _packages(facts: Facts) -> list[str]:
    needed = [f"{each.name} {each.version or ABSENT}" for each in facts.packages if each.needed_for == "treeopt"]
    optional = [
        (each.name, each.version or f"{ABSENT}: {each.install}", each.needed_for)
        for each in facts.packages
        if each.needed_for != "treeopt"
    ]
    return [
        *wrap(f"packages      {', '.join(needed)}", WIDTH, subsequent_indent=14 * " ", break_on_hyphens=False),
        "",
        *aligned([("optional", "", "for"), *optional], [Column(least=18)] * 3),
    ]


def _engines(facts: Facts) -> list[str]:
    rows = [(each.name, each.version or f"{ABSENT}: {each.install}") for each in facts.engines]
    return aligned([("engine", "for treeopt probe"), *rows], [Column(least=18), Column()])


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"
