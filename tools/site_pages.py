"""The hook of mkdocs: adds pages from outside docs/, the reference of commands and of the API, and adapts links.

Links on pages are those of the repository, so that they work there too. On the site, a link to a page leads to that page,
and a link to any other file leads to the repository.
"""

import ast
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

ROOT = Path(__file__).resolve().parent.parent
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages of the site whose place differs from their place in docs/, by their path in the repository."""
COMMANDS = "reference/commands.md"
API = ("treeopt", "trees", "planner", "solver", "runtime", "profiler", "engines")
"""Packages with a page in the API reference."""
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
    """Return the page of a package: its public names."""
    package, folder = ("treeopt", "treeopt") if name == "treeopt" else (f"treeopt.{name}", f"treeopt/{name}")
    modules = {path.name for path in (ROOT / "treeopt").iterdir() if path.is_dir()}
    names = [name for name in public_names(ROOT / folder) if not name.startswith("_") and name not in modules]
    names = [name for name in names if not name.isupper()]  # constants have no docstring to show
    entries = "\n\n".join(f"::: {package}.{name}" for name in names)
    return f"# {package}\n\nThe public names of `{package}`; [the guide](../guides/python.md) shows their use.\n\n{entries}\n"


def commands_page() -> str:
    """Return the page of all commands: the help of each."""
    sys.path.insert(0, str(ROOT))  # the site is built without treeopt installed
    from treeopt.cli.main import main

    sections = [f"## {path}\n\n```text\n{text}\n```\n" for path, text in command_helps(main, "treeopt")]
    return "\n".join(["# Commands and options\n", *sections])


def command_helps(
    command: "click.Command", name: str, parent: "click.Context | None" = None
) -> Iterator[tuple[str, str]]:
    """Yield the name and the help of a command, then those of its subcommands."""
    import click

    context = click.Context(command, parent=parent, info_name=name, max_content_width=78, terminal_width=78)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for subcommand_name in command.list_commands(context):
            subcommand = command.get_command(context, subcommand_name)
            if subcommand is not None:
                yield from command_helps(subcommand, subcommand_name, context)


def repository() -> str:
    """Return the address of the repository, which setup.py defines."""
    address = re.search(r'^REPOSITORY = "(.+)"$', (ROOT / "setup.py").read_text("utf-8"), re.MULTILINE)
    assert address is not None
    return address[1]


def on_config(config: Any) -> Any:
    """Give headings the anchors that they have in the repository (mkdocs event)."""
    config["mdx_configs"]["toc"]["slugify"] = anchor
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside docs/ and the references (mkdocs event)."""
    from mkdocs.structure.files import File

    files.remove(files.get_file_from_path("README.md"))
    for path, page in MOVED.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text("utf-8")))
    files.append(File.generated(config, COMMANDS, content=commands_page()))
    for name in API:
        files.append(File.generated(config, f"api/{name}.md", content=reference(name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Adapt the links of a page (mkdocs event)."""
    del config, files
    source = page.file.src_uri
    return markdown if source.startswith("api/") or source == COMMANDS else site_links(markdown, source, repository())


def _relative(place: str, page: str) -> str:
    return posixpath.relpath(place, posixpath.dirname(page) or ".")
