"""docs/guides/python.md."""

import doctest
import pkgutil
import re
import shutil
from pathlib import Path

import treeopt

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "guides" / "python.md").read_text("utf-8")
PROFILE = "bundled-2-cores-outcomes.yaml"


def test_examples_give_the_shown_results(tmp_path, monkeypatch):
    shutil.copy(DOCS / "profiles" / PROFILE, tmp_path)
    monkeypatch.chdir(tmp_path)
    source = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    page = doctest.DocTestParser().get_doctest(source, {}, "docs/guides/python.md", "docs/guides/python.md", 0)
    assert len(page.examples) > 12
    failures: list[str] = []
    doctest.DocTestRunner().run(page, out=failures.append)
    assert failures == []


def test_every_public_name_is_documented():
    documented = set(re.findall(r"`treeopt\.(\w+)", PAGE))
    assert set(treeopt.__all__) - {"__version__"} <= documented
    for name in re.findall(r"`(treeopt\.[\w.]+)`", PAGE):
        assert pkgutil.resolve_name(name) is not None
