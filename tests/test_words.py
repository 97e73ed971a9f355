"""One word for one thing: words that others have replaced do not come back, in code or on pages.

Names are taken apart, `draft_law` and `TrialRow` into their words, so that no name hides one.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.source
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("treeopt", "trees", "profiler", "cli", "docs", "tests", "benchmarks", "tools", "examples")
REPLACED = {
    "law|laws": "distribution",
    "judge|judges|judged|judging|judgement": "accept test, verify",
    "guess|guesses|guessed|guessing": "proposal; to predict",
    "settle|settles|settled|settling": "accept",
    "trial|trials": "decode stats, check",
    "grounds": "inputs",
    "worlds": "draws",
    "surface|surfaces": "latency grid",
    "sweep|sweeps": "rounds",
    "heard|story": "watched, message",
    "came of": "the thing itself: accepted ranks, result, count",
    "last words": "exit reasons",
    "text drawing": "text diagram",
}
"""Words, singular and plural, and what is said in their place."""
IN_RUNTIME = {
    "family|families": "sibling groups",
    "growth|growing|grown": "beam expansion, dynamic tree",
    "outcome|outcomes": "accepted ranks",
    "drawn|drawing": "sampled, sampling",
}
"""Words that are free elsewhere: rows that rise, pictures that are drawn."""
ALLOWED = {
    "treeopt/former_names.py": "*",
    "tests/test_former_names.py": "*",
    "tests/test_words.py": "*",
    "docs/glossary.md": "outcome|outcomes",
    "treeopt/runtime/__init__.py": "law",
    "treeopt/runtime/models/config.py": "family",
    "treeopt/runtime/models/transformer.py": "family",
    "treeopt/runtime/models/vocabulary.py": "family",
    "treeopt/runtime/decoding/limits.py": "family",
}
FILES = re.compile(r"bundled-2-cores-surface")
"""Names of files that users have."""


def words_of(text: str) -> str:
    """Return a text in lower case, its names taken apart into their words.

    >>> words_of("draft_law(TrialRow, LAWS)")
    'draft law trial row laws'
    """
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", FILES.sub("", text))
    return " ".join(re.findall(r"[a-z0-9]+", apart.lower()))


def found(text: str, replaced: dict[str, str], allowed: str = "") -> Iterator[str]:
    """Yield the words of a text that others have replaced."""
    either = "|".join(replaced)
    if re.search(either.replace(" ", "|"), text, re.IGNORECASE):
        words = re.findall(rf"\b(?:{either})\b", words_of(text))
        yield from (word for word in words if word not in allowed.split("|"))


def tracked() -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", *FOLDERS, "README.md"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = done.stdout.split() or [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.suffix in (".py", ".md")
    ]
    return [name for name in names if name.endswith((".py", ".md")) and (ROOT / name).is_file()]


def test_no_word_comes_back():
    faults = []
    for name in tracked():
        allowed = ALLOWED.get(name, "")
        if allowed == "*":
            continue
        replaced = REPLACED | (IN_RUNTIME if name.startswith("treeopt/runtime/") else {})
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), start=1):
            faults += [f"{name}, line {number}: {word}" for word in found(line, replaced, allowed)]
    assert faults == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("the target's law", "law"),
        ("def draft_laws(", "laws"),
        ("class TrialRow:", "trial"),
        ("JUDGING = 1", "judging"),
        ("what came of it", "came of"),
        ("self._last_words", "last words"),
    ],
)
def test_they_are_found_in_names_too(text, word):
    assert list(found(text, REPLACED)) == [word]


@pytest.mark.parametrize("text", ["lawful flaws", "a world", "bundled-2-cores-surface.yaml", "became of"])
def test_other_words_are_left_alone(text):
    assert list(found(text, REPLACED)) == []
