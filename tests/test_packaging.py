"""The installed package: all packages, light imports, pinned dependencies."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.source
ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]


def packages_below(name: str, folder: Path) -> set[str]:
    """Return the package in a folder and those below it, links not followed."""
    found = {name} if (folder / "__init__.py").is_file() else set()
    for inner in folder.iterdir():
        if inner.is_dir() and not inner.is_symlink():
            found |= packages_below(f"{name}.{inner.name}", inner)
    return found


def test_every_package_is_listed():
    found = [packages_below(name, ROOT / folder) for name, folder in SETUPTOOLS["package-dir"].items()]
    assert sorted(set().union(*found)) == sorted(SETUPTOOLS["packages"])
    assert sum(map(len, found)) == len(SETUPTOOLS["packages"]), "a package is listed twice"


def test_every_folder_of_modules_is_a_package():
    folders = {ROOT / folder for folder in SETUPTOOLS["package-dir"].values()}
    modules = [path for folder in folders for path in folder.rglob("*.py") if not has_link(path)]
    assert [path for path in modules if not (path.parent / "__init__.py").is_file()] == []


def has_link(path: Path) -> bool:
    return any((ROOT / above).is_symlink() for above in path.relative_to(ROOT).parents if above.name)


@pytest.mark.parametrize("name", [name for name in SETUPTOOLS["package-dir"] if "." in name])
def test_links_make_the_source_tree_look_like_the_package(name):
    link = ROOT / name.replace(".", "/")
    if not link.is_symlink():
        pytest.skip(f"{link.relative_to(ROOT)} is no link: this checkout was made without links")
    assert link.resolve() == (ROOT / SETUPTOOLS["package-dir"][name]).resolve()
    assert not Path(os.readlink(link)).is_absolute()


def test_mypy_settings_name_existing_modules():
    named = [name for override in PROJECT["tool"]["mypy"]["overrides"] for name in override["module"]]
    ours = [ROOT / name.replace(".", "/") for name in named if name.split(".")[0] == "treeopt"]
    assert [str(path) for path in ours if not (path.is_dir() or path.with_suffix(".py").is_file())] == []


def test_package_data_exists():
    missing = [
        f"{package}: {pattern}"
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        if "*" not in pattern and not (ROOT / package.replace(".", "/") / pattern).is_file()
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (
            "import treeopt",
            ["numpy", "importlib.metadata", "torch", "numba", "matplotlib", "scipy", "yaml", "transformers", "click"],
        ),
        (
            f"import treeopt; treeopt.trees.load({str(ROOT / 'tests/data/tree-full.json')!r})",
            ["torch", "numba", "matplotlib", "scipy", "transformers"],
        ),
        ("import treeopt.planner", ["torch", "numba", "matplotlib", "scipy", "transformers"]),
        ("import treeopt; treeopt.solve(treeopt.AcceptanceTable([0.7, 0.2]), 64)", ["torch", "numba", "scipy"]),
    ],
)
def test_imports_are_light(code, absent):
    """In a fresh interpreter, because this one has long imported everything."""
    script = f"{code}; import sys; print(*sorted(set(sys.modules) & set({absent!r})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements() -> set[str]:
    project = PROJECT["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), PROJECT["build-system"]["requires"]]
    names = {normal(re.match(r"[A-Za-z0-9._-]+", line)[0]) for lines in lists for line in lines}
    return names - {"treeopt", "setuptools"}


class TestConstraints:
    @pytest.fixture
    def lines(self):
        path = ROOT / "constraints.txt"
        if not path.is_file():
            pytest.skip("constraints.txt is not there")
        lines = [line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
        return [line for line in lines if line]

    def test_every_line_pins_one_version(self, lines):
        assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!]*", line)] == []

    def test_nothing_is_pinned_twice(self, lines):
        names = [normal(line.partition("==")[0]) for line in lines]
        assert len(names) == len(set(names))

    def test_every_dependency_is_pinned(self, lines):
        assert sorted(requirements() - {normal(line.partition("==")[0]) for line in lines}) == []
