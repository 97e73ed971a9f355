"""docs/guides/python.md: examples run, and names exist."""

import doctest
import pkgutil
import re
import shutil
from pathlib import Path

import treeopt

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "guides" / "python.md").read_text("utf-8")
PROFILE = "bundled-2-cores-outcomes.yaml"


def test_examples(tmp_path, monkeypatch):
    shutil.copy(DOCS / "profiles" / PROFILE, tmp_path)
    monkeypatch.chdir(tmp_path)
    source = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    page = doctest.DocTestParser().get_doctest(source, {}, "docs/guides/python.md", "docs/guides/python.md", 0)
    assert len(page.examples) > 12
    told: list[str] = []
    doctest.DocTestRunner().run(page, out=told.append)
    assert told == []


def test_every_public_name_is_documented():
    told = set(re.findall(r"`treeopt\.(\w+)", PAGE))
    assert set(treeopt.__all__) - {"__version__"} <= told
    for name in re.findall(r"`(treeopt\.[\w.]+)`", PAGE):
        assert pkgutil.resolve_name(name) is not None
