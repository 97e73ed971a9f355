"""Whether an engine's texts are its plain decoding's: near-ties and faults, as lines, a warning and an error."""

from collections.abc import Sequence

from treeopt.errors import EngineError, Warning
from treeopt.records.results import FAULT, NEAR_TIE, UNCHECKED, EngineBench, EngineRow, TextDivergence
from treeopt.report.table import Column, aligned

MOST_SHOWN = 5
"""Faults that are told one by one."""


def losslessness_lines(found: EngineBench) -> list[str]:
    """Return a line for each length where texts differ, and one for each of the first faults; nothing above temperature 0."""
    check = found.losslessness
    if check is None:
        return []
    if not _of(found):
        return ["Every text is plain decoding's."]
    rows: list[tuple[str, ...]] = [("draft tokens", "identical", NEAR_TIE + "s", "largest gap", FAULT + "s", UNCHECKED)]
    rows += [_row(each, check.prompts) for each in found.rows if each.length or each.divergences]
    heading = f"Texts beside plain decoding's; a near-tie is at most {check.near_tie_nats:.2g} nats (--near-tie):"
    lines = ["", heading, *aligned(rows, [Column(">")] * 6)]
    faults = [(row, each) for row in found.rows for each in row.divergences if each.verdict == FAULT]
    lines += [_fault(row, each) for row, each in faults[:MOST_SHOWN]]
    if len(faults) > MOST_SHOWN:
        lines.append(f"{len(faults) - MOST_SHOWN} more: --output FILE has all.")
    if check.unchecked is not None:
        lines.append(f"Not checked: {check.unchecked}")
    return lines


def losslessness_warning(found: EngineBench) -> Warning | None:
    """Return what texts that differ mean and what to do; None where none do."""
    parted = _of(found)
    if not parted:
        return None
    if faults := _of(found, FAULT):
        return Warning(
            f"{_texts(faults)} of {found.engine} part from those of plain decoding where rounding does not explain it.",
            "Report it to its developers with the places in --output; where it computes in a coarser dtype than is taken here, give "
            "--near-tie.",
        )
    if unstable := found.rows[0].divergences:
        return Warning(
            f"plain decoding of {found.engine} does not repeat itself in {_texts(unstable)}.",
            "Ask it for one text at a time, without a cache of prompts, and bench again.",
        )
    if _of(found, UNCHECKED):
        return Warning(
            f"outputs differ from those of plain decoding in {found.engine}. In 16-bit floats, passes of different sizes "
            "round differently, which decides near-ties.",
            "Let it compute in 32-bit floats, and report it to its developers if they still differ.",
        )
    return Warning(
        f"{_texts(parted)} of {found.engine} part from those of plain decoding at near-ties, at most {_largest(parted):.2g} nats "
        "apart, which rounding decides.",
        "Let it compute in 32-bit floats if you need the same texts.",
    )


def losslessness_error(found: EngineBench) -> EngineError | None:
    """Return the error of an engine of which losslessness is not shown; None where texts part at near-ties at most."""
    name = f"{found.engine}: expected"
    if faults := _of(found, FAULT):
        return EngineError(
            f"{name} the texts of plain decoding but for near-ties. Got {_texts(faults)} with a fault: report it, or give a wider "
            "--near-tie for a coarser dtype."
        )
    if unstable := found.rows[0].divergences:
        return EngineError(
            f"{name} plain decoding that repeats itself. Got {_texts(unstable)} that changed: ask it for one text at a time."
        )
    if unchecked := _of(found, UNCHECKED):
        why = None if found.losslessness is None else found.losslessness.unchecked
        told = why or "log-probabilities do not tell"
        return EngineError(f"{name} to be able to check where texts part. Got {_texts(unchecked)} not checked: {told}")
    return None


def _of(found: EngineBench, verdict: str | None = None) -> list[TextDivergence]:
    return [each for row in found.rows for each in row.divergences if verdict in (None, each.verdict)]


def _texts(parted: Sequence[TextDivergence]) -> str:
    return f"{len(parted)} text{'s' * (len(parted) > 1)}"


def _largest(parted: Sequence[TextDivergence]) -> float:
    return max(each.gap or 0.0 for each in parted)


def _row(row: EngineRow, prompts: int) -> tuple[str, ...]:
    by_verdict = {
        verdict: [each for each in row.divergences if each.verdict == verdict]
        for verdict in (NEAR_TIE, FAULT, UNCHECKED)
    }
    near = by_verdict[NEAR_TIE]
    same = prompts - len({each.prompt for each in row.divergences})
    return (
        "plain again" if row.length == 0 else str(row.length),
        f"{same} of {prompts}",
        str(len(near)),
        f"{_largest(near):.2g}" if near else "-",
        str(len(by_verdict[FAULT])),
        str(len(by_verdict[UNCHECKED])),
    )


def _fault(row: EngineRow, each: TextDivergence) -> str:
    place = f"{row.length} draft tokens, prompt {each.prompt}, after {each.place} characters"
    if each.gap is None:
        return f"Fault: {place}, a text ends too early."
    words = "more than " if each.at_least else ""
    return f'Fault: {place}, "{each.other}" in place of "{each.plain}", {words}{each.gap:.2g} nats less likely.'
