"""What docs/drafters/ says is so: its drafter runs and is lossless, and the functions it names are there."""

import pkgutil
import re
import runpy
from pathlib import Path

import pytest

from tests.support.decoded import joined
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "guides" / "add-a-drafter.md").read_text("utf-8")
PAGES = [
    DOCS / name
    for name in ("guides/add-a-drafter.md", "reference/drafters/lookahead.md", "reference/drafters/prompt-lookup.md")
]
FILE, USE, PLANNED = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def drafter_file(tmp_path_factory):
    """Return the names that the page's one file defines."""
    path = tmp_path_factory.mktemp("page") / "repeat_drafter.py"
    path.write_text(FILE, "utf-8")
    return runpy.run_path(str(path))


@pytest.fixture(scope="module")
def repeat_drafter(drafter_file):
    return drafter_file["RepeatDrafter"]


def test_so_it_is_with_the_bundled_target(bundled_pair, bundled_texts, repeat_drafter):
    decoder = Decoder(bundled_pair.target, repeat_drafter(4), temperature=0.0)
    steps = [list(decoder.stream(prompt, 50)) for prompt, _ in bundled_texts[:2]]
    assert [joined(each) for each in steps] == [text[:50] for _, text in bundled_texts[:2]]
    assert sum(map(len, steps)) < 100


def test_the_lines_that_use_it_run(drafter_file, tmp_path):
    path = tmp_path / "use.py"
    path.write_text(USE, "utf-8")
    assert "token" in runpy.run_path(str(path), init_globals=drafter_file)


def test_the_lines_that_decode_a_tree_file_run(bundled_pair, bundled_texts):
    names: dict = {"pair": bundled_pair}
    exec(PLANNED, names)  # noqa: S102 - from this checkout's own page
    prompt, text = bundled_texts[0]
    assert list(names["decoder"].generate(prompt, 20)) == text[:20]


def test_it_refuses_what_it_cannot_do(repeat_drafter):
    with pytest.raises(InvalidValueError, match=r"length: expected at least 1. Got 0"):
        repeat_drafter(0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_the_pages_name_is_there(page):
    text = page.read_text("utf-8")
    for name in set(re.findall(r"`(treeopt\.[\w.]+)`", text)):
        assert pkgutil.resolve_name(name) is not None
    for file in set(re.findall(r"`(tests/[\w./]+)`", text)):
        assert (DOCS.parent / file).is_file()
    for link in re.findall(r"\]\(([\w./-]+\.md)", text):
        assert (page.parent / link).is_file()
