"""What mkdocs is told beside mkdocs.yml, as its hook: pages from outside docs/, the API reference, where links lead.

Links on pages are those of the repository, so that they work there too; on the site a link to a page leads to that page,
and one to any other file to the repository.
"""

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Where a page of the repository is on the site, if not where it is in docs/."""
API = ("treeopt", "trees", "planner", "solver", "runtime", "profiler", "engines")
"""Packages whose public names the reference has."""
LINK = re.compile(r"(?P<before>!?\[[^\]]*\]\()(?P<target>[^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def anchor(heading: str, separator: str = "-") -> str:
    """Return what a link to a heading ends in, as GitHub makes it, so that links hold on both.

    >>> anchor("What `bench` prints, and why")
    'what-bench-prints-and-why'
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def site_page(path: str) -> str | None:
    """Return where a file of the repository is on the site, None for one that is not there."""
    if path in MOVED:
        return MOVED[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and (ROOT / path).is_file() else None


def repository_page(page: str) -> str:
    """Return which file of the repository a page of the site is.

    >>> repository_page("examples.md"), repository_page("guides/plan.md")
    ('examples/README.md', 'docs/guides/plan.md')
    """
    return next((path for path, moved in MOVED.items() if moved == page), f"docs/{page}")


def site_links(text: str, page: str, repository: str) -> str:
    """Return a page's text with the links of the site; code is left as it is.

    Args:
        text: Markdown with links that lead to files from the page's place in the repository.
        page: its place on the site.
        repository: address of the repository, for files that the site does not have.
    """
    here = posixpath.dirname(repository_page(page))

    def moved(link: re.Match[str]) -> str:
        target, hash_mark, part = link["target"].partition("#")
        if "://" in target or not target:
            return link[0]
        path = posixpath.normpath(posixpath.join(here, target))
        place = site_page(path)
        kind = "raw" if link["before"].startswith("!") else "blob"
        to = f"{repository}/{kind}/HEAD/{path}" if place is None else _relative(place, page)
        return f"{link['before']}{to}{hash_mark}{part})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


def public_names(package: Path) -> list[str]:
    """Return what a package's `__all__` lists, without importing it."""
    for line in ast.parse((package / "__init__.py").read_text("utf-8")).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(line.value)
            return names
    return []


def reference(name: str) -> str:
    """Return the page of a package: its docstring, and everything that it makes public."""
    package, folder = ("treeopt", "treeopt") if name == "treeopt" else (f"treeopt.{name}", f"treeopt/{name}")
    modules = {path.name for path in (ROOT / "treeopt").iterdir() if path.is_dir()}
    names = [each for each in public_names(ROOT / folder) if not each.startswith("_") and each not in modules]
    names = [each for each in names if not each.isupper()]  # constants say nothing of themselves
    entries = "\n\n".join(f"::: {package}.{each}" for each in names)
    return f"# {package}\n\nWhat `from {package} import …` offers; [how it is used](../python.md).\n\n{entries}\n"


def repository() -> str:
    """Return the address where this is published, which setup.py alone knows."""
    found = re.search(r'^REPOSITORY = "(.+)"$', (ROOT / "setup.py").read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def on_config(config: Any) -> Any:
    """Give headings the anchors that they have in the repository (mkdocs' event)."""
    config["mdx_configs"]["toc"]["slugify"] = anchor
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add what lies outside docs/ and the reference (mkdocs' event)."""
    from mkdocs.structure.files import File

    files.remove(files.get_file_from_path("README.md"))
    for path, page in MOVED.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text("utf-8")))
    for name in API:
        files.append(File.generated(config, f"api/{name}.md", content=reference(name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn the links of a page (mkdocs' event)."""
    del config, files
    source = page.file.src_uri
    return markdown if source.startswith("api/") else site_links(markdown, source, repository())


def _relative(place: str, page: str) -> str:
    return posixpath.relpath(place, posixpath.dirname(page) or ".")
