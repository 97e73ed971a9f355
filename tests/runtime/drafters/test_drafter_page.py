"""The drafter of docs/guides/add-a-drafter.md runs, and everything that the pages name exists."""

import pkgutil
import re
import runpy
from pathlib import Path

import pytest

from tests.support.decoded import joined
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [
    DOCS / name
    for name in ("guides/add-a-drafter.md", "reference/drafters/lookahead.md", "reference/drafters/prompt-lookup.md")
]
FILE, USE = re.findall(r"^```python\n(.*?)^```$", PAGES[0].read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def drafter_names(tmp_path_factory):
    """Return the names that the page's file defines."""
    path = tmp_path_factory.mktemp("page") / "repeat_drafter.py"
    path.write_text(FILE, "utf-8")
    return runpy.run_path(str(path))


def test_the_drafter_keeps_the_bundled_targets_output(bundled_pair, bundled_outputs, drafter_names):
    repeat_drafter = drafter_names["RepeatDrafter"]
    decoder = Decoder(bundled_pair.target, repeat_drafter(4), temperature=0.0)
    steps = [list(decoder.stream(prompt, 50)) for prompt, _ in bundled_outputs[:2]]
    assert [joined(text) for text in steps] == [text[:50] for _, text in bundled_outputs[:2]]
    assert sum(map(len, steps)) < 100
    with pytest.raises(InvalidValueError, match=r"length: expected at least 1. Got 0"):
        repeat_drafter(0)


def test_the_lines_that_use_it_run(drafter_names, tmp_path):
    path = tmp_path / "use.py"
    path.write_text(USE, "utf-8")
    assert "token" in runpy.run_path(str(path), init_globals=drafter_names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_everything_that_a_page_names_exists(page):
    text = page.read_text("utf-8")
    for name in set(re.findall(r"`(treeopt\.[\w.]+)`", text)):
        assert pkgutil.resolve_name(name) is not None
    for file in set(re.findall(r"`(tests/[\w./]+)`", text)):
        assert (DOCS.parent / file).is_file()
    for link in re.findall(r"\]\(([\w./-]+\.md)", text):
        assert (page.parent / link).is_file()
