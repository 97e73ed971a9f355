"""The pages of the site and their links."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.scripts import script
from tests.test_mentions import anchor

pytestmark = pytest.mark.source
ROOT = Path(__file__).resolve().parents[2]
SITE = script(ROOT / "tools/site_pages.py")
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


def pages(nav: Any) -> list[str]:
    """Return the pages of a navigation in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in pages(item)]


def test_every_page_but_measurements_is_in_the_navigation_once() -> None:
    docs = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    docs = {page for page in docs if not page.startswith("measurements/")}
    generated = {*SITE.MOVED.values(), *(f"api/{name}.md" for name in SITE.API), SITE.COMMANDS}
    assert sorted(pages(CONFIG["nav"])) == sorted(docs | generated)


def test_the_commands_page_lists_commands_and_options() -> None:
    page = SITE.commands_page()
    assert {"## treeopt", "## treeopt profile", "## treeopt bench tree"} <= set(page.splitlines())
    _, _, solve = page.partition("## treeopt solve\n")
    assert "--budget" in solve.partition("\n## ")[0]


@pytest.mark.process
def test_the_commands_page_needs_only_the_packages_of_the_site() -> None:
    installed = (ROOT / "tools/docs_requirements.txt").read_text("utf-8").lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = [
        re.split(r"\W*[<>=~]", name)[0] for name in (*project["dependencies"], *project["optional-dependencies"]["hf"])
    ]
    missing = [name.replace("-", "_") for name in required if f"\n{name.lower()}==" not in installed]
    assert {"torch", "tokenizers", "safetensors"} <= set(missing)
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing})); sys.path.insert(0, 'tools')\n"
        "import site_pages; print(site_pages.commands_page())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "## treeopt bench tree" in done.stdout


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "[a](docs/explanation/solver.md#the-certificate)", "[a](explanation/solver.md#the-certificate)"),
        ("index.md", "[a](docs/README.md)", "[a](contents.md)"),
        ("index.md", "[a](Makefile)", "[a](R/blob/HEAD/Makefile)"),
        ("contents.md", "[a](../examples/README.md#decode)", "[a](examples.md#decode)"),
        ("reference/engines/vllm.md", "[a](../../../examples/decode.py)", "[a](R/blob/HEAD/examples/decode.py)"),
        ("reference/engines/vllm.md", "![a](../../../shot.png)", "![a](R/raw/HEAD/shot.png)"),
        ("reference/engines/vllm.md", "[a](README.md#names)", "[a](README.md#names)"),
        ("explanation/solver.md", "[a](#b) [c](https://d.org/e.md)", "[a](#b) [c](https://d.org/e.md)"),
        ("explanation/solver.md", "x\n```\n[a](../b.md)\n```\n", "x\n```\n[a](../b.md)\n```\n"),
    ],
)
def test_links_lead_to_pages_of_the_site_or_files_of_the_repository(page: str, link: str, expected: str) -> None:
    assert SITE.site_links(link, page, "R") == expected


def test_headings_have_the_anchors_of_the_repository() -> None:
    for heading in ("What `bench` prints, and why", "Before 0.21.0", "top-k, depth", "A_b  c"):
        assert SITE.anchor(heading, "-") == anchor(heading)


def test_the_reference_lists_the_public_names() -> None:
    import treeopt

    listed = {
        line.removeprefix("::: treeopt.") for line in SITE.reference("treeopt").splitlines() if line.startswith(":::")
    }
    modules = {"engines", "planner", "profiler", "runtime", "solver", "trees"}
    assert listed == set(treeopt.__all__) - modules - {"__version__"}
    assert "::: treeopt.planner.requested_plan" in SITE.reference("planner")


def test_the_repository_is_that_of_the_metadata() -> None:
    assert f'REPOSITORY = "{SITE.repository()}"' in (ROOT / "setup.py").read_text("utf-8")
    assert SITE.repository().startswith("https://")
