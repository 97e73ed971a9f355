"""What pyproject.toml cannot say of the distribution: everything else stands there.

- README's links lead into this repository; on a package index they have to be whole.
- An editable install finds packages through the links in treeopt/, by a plain path: type checkers follow no finder.
- The links themselves belong into a source distribution, as links, or its tests could not run.
"""

import os
import re
import tomllib
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.sdist import sdist

REPOSITORY = "https://github.com/treeopt/treeopt"
"""Where this is published; the only place that names it."""
PAGES = {"Repository": "", "Documentation": "/blob/HEAD/docs/README.md", "Changelog": "/blob/HEAD/CHANGELOG.md"}
LINK = re.compile(r"(?P<picture>!?)\[(?P<label>[^\]]*)\]\((?![a-z]+:|#)(?P<target>[^)]+)\)")
ROOT = Path(__file__).parent


def with_whole_links(text: str) -> str:
    """Return Markdown whose links into the repository lead there from anywhere, pictures to the file itself."""

    def whole(link: re.Match[str]) -> str:
        place = f"{REPOSITORY}/{'raw' if link['picture'] else 'blob'}/HEAD/{link['target']}"
        return f"{link['picture']}[{link['label']}]({place})"

    return LINK.sub(whole, text)


def links() -> dict[str, str]:
    """Return where the folders of packages that lie elsewhere are linked to, below this folder."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    return {name.replace(".", "/"): folder for name, folder in settings["package-dir"].items() if "." in name}


class LinkedDistribution(Distribution):
    """A distribution that, to be edited, is taken to lie as the links make it look."""

    def run_command(self, command: str) -> None:
        """Run a command of setuptools."""
        if command == "editable_wheel" and all((ROOT / link).is_dir() for link in links()):
            self.package_dir = {"": "."}
        super().run_command(command)


class SourceDistribution(sdist):
    """A source distribution that has the links too."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Lay out what will be packed."""
        super().make_release_tree(base_dir, files)
        for link, folder in links().items():
            os.symlink(os.path.relpath(folder, Path(link).parent), Path(base_dir, link))


if __name__ == "__main__":
    setup(
        distclass=LinkedDistribution,
        cmdclass={"sdist": SourceDistribution},
        long_description=with_whole_links((ROOT / "README.md").read_text("utf-8")),
        long_description_content_type="text/markdown",
        project_urls={name: REPOSITORY + page for name, page in PAGES.items()} | {"Issues": f"{REPOSITORY}/issues"},
    )
