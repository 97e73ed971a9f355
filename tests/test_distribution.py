"""Source distribution and wheel: their content, tests in the source distribution, and types.

They are built in a copy of the repository, without a network, with the installed setuptools.
"""

import email.parser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.source
ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
)
NEEDED = {".ci/run", "benchmarks", "docs", "examples", "tests", "tools"}
LINKS = {"treeopt/cli": "../cli", "treeopt/profiler": "../profiler", "treeopt/trees": "../trees"}
USER = """
import treeopt

reveal_type(treeopt.solve(treeopt.AcceptanceTable([0.7, 0.2]), max_nodes=8, max_depth=3).max_nodes)
reveal_type(treeopt.trees.load("tree.json"))
reveal_type(treeopt.plan(treeopt.Profile.load("profile.yaml")).choice.speedup.value)
reveal_type(treeopt.__version__)
treeopt.solve([0.7])
"""


def run(command: Sequence[str | Path], folder: Path, code: int = 0) -> str:
    """Run a command without this checkout in its environment, check its exit code, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def build(kind: str, folder: Path, out: Path) -> Path:
    """Return the distribution that setuptools builds from a folder."""
    code = f"from setuptools import build_meta; print('\\n' + build_meta.build_{kind}({str(out)!r}))"
    return out / run([sys.executable, "-c", code], folder).split()[-1]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="77", reason="setuptools is not installed")
    folder = tmp_path_factory.mktemp("distribution") / "copy"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=LEFT_OUT)
    return folder


@pytest.fixture(scope="module")
def sdist(copied: Path) -> Path:
    return build("sdist", copied, copied.parent)


@pytest.fixture(scope="module")
def unpacked(sdist: Path) -> Path:
    target = sdist.parent / "unpacked"
    target.mkdir()
    run(["tar", "-xf", sdist, "-C", target], target)  # `filter` of `extractall` is missing before Python 3.11.4
    (folder,) = target.iterdir()
    return folder


@pytest.fixture(scope="module")
def wheel(copied: Path) -> Path:
    return build("wheel", copied, copied.parent)


@pytest.mark.slow
@pytest.mark.process
class TestSourceDistribution:
    def test_sdist_contains_every_file_once(self, sdist, copied):
        with tarfile.open(sdist) as archive:
            members = archive.getmembers()
        names = [member.name.partition("/")[2] for member in members]
        assert len(set(names)) == len(names)
        assert {name.partition("/")[2]: target for name, target in LINKS.items()} == {
            member.name.partition("/")[2].removeprefix("treeopt/"): member.linkname
            for member in members
            if member.issym()
        }
        files = {name for name, member in zip(names, members, strict=True) if member.isfile()}
        expected = {
            path.relative_to(copied).as_posix()
            for path in copied.rglob("*")
            if path.is_file() and not path.is_symlink() and "egg-info" not in str(path)
        }
        weights = {name for name in expected if name.startswith("examples/smollm2/") and not name.endswith("README.md")}
        generated = {"PKG-INFO", "setup.cfg"}
        assert {name for name in files if "egg-info" not in name} - generated == expected - weights - {"build"}

    def test_sdist_contains_test_data(self, unpacked):
        assert [name for name in NEEDED if not (unpacked / name).exists()] == []
        assert os.access(unpacked / ".ci" / "run", os.X_OK)
        assert {link: os.readlink(unpacked / link) for link in LINKS} == LINKS

    def test_sdist_tests_pass(self, unpacked):
        tests = ["tests/trees/test_shapes.py", "tests/test_packaging.py", "tests/test_layers.py"]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
        assert " passed" in run(command, unpacked)

    def test_wheel_of_sdist_equals_wheel_of_checkout(self, unpacked, wheel):
        again = build("wheel", unpacked, unpacked.parent)
        with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
            assert sorted(one.namelist()) == sorted(other.namelist())
            assert [name for name in one.namelist() if one.read(name) != other.read(name)] == []


@pytest.mark.slow
@pytest.mark.process
class TestWheel:
    def test_wheel_contains_only_the_packages(self, wheel):
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        assert len(set(names)) == len(names)
        assert {name.partition("/")[0] for name in names} == {"treeopt", f"{wheel.name[:13]}.dist-info"}
        assert {"treeopt/py.typed", "treeopt/cli/main.py", "treeopt/trees/formats/arrays.py"} <= set(names)
        folders = {name.rpartition("/")[0].replace("/", ".") for name in names if name.endswith(".py")}
        assert folders == set(SETTINGS["tool"]["setuptools"]["packages"])

    def test_metadata_is_complete(self, wheel):
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
            fields = email.parser.Parser().parsestr(archive.read(name).decode("utf-8"))
        assert fields["Author"]
        assert fields["Maintainer"]
        assert fields["License-Expression"] == "Apache-2.0"
        assert fields["Description-Content-Type"] == "text/markdown"
        assert "Typing :: Typed" in fields.get_all("Classifier")
        assert "speculative decoding" in fields["Keywords"].split(",")
        urls = dict(line.split(", ") for line in fields.get_all("Project-URL"))
        assert list(urls) == ["Repository", "Documentation", "Changelog", "Issues"]
        text = fields.get_payload()
        assert f"]({urls['Repository']}/raw/HEAD/docs/images/tree-64.svg)" in text
        targets = re.findall(r"\]\(([^)]*)\)", text)
        assert len(targets) > 10
        assert [target for target in targets if not target.startswith("https://")] == []


@pytest.mark.slow
@pytest.mark.process
def test_types_are_seen_in_an_editable_install(copied, tmp_path):
    """In a fresh environment with the packages of this one and an editable install of treeopt."""
    pytest.importorskip("pip", reason="pip is not installed")
    pytest.importorskip("mypy", reason="mypy is not installed")
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run([python, "-c", code], tmp_path).strip())
    (packages / "parent.pth").write_text(run([sys.executable, "-c", code], tmp_path))
    install = ["-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "--ignore-installed", "-e"]
    run([python, *install, copied], tmp_path)
    files = run([python, "-c", "import treeopt.cli; print(treeopt.__file__, treeopt.cli.__file__)"], tmp_path).split()
    assert files == [str(copied / "treeopt" / "__init__.py"), str(copied / "treeopt" / "cli" / "__init__.py")]
    (tmp_path / "mine.py").write_text(USER)
    checked = run([python, "-m", "mypy", "--strict", "mine.py"], tmp_path, code=1)
    assert re.findall(r'Revealed type is "(.*)"', checked) == [
        "int",
        "treeopt.trees.token_tree.TokenTree",
        "float",
        "str",
    ]
    assert 'Argument 1 to "solve" has incompatible type "list[float]"; expected "AcceptanceTable"' in checked


class Distribution:
    """Replaces that of setuptools, which changes the process on import."""

    def __init__(self, package_dir: dict[str, str]) -> None:
        self.package_dir, self.ran = package_dir, []

    def run_command(self, command: str) -> None:
        self.ran.append((command, self.package_dir))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return setup.py as a module, without running setup."""
    for name in ("setuptools", "setuptools.command", "setuptools.command.sdist"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    vars(sys.modules["setuptools"]).update(Distribution=Distribution, setup=None)
    vars(sys.modules["setuptools.command.sdist"]).update(sdist=object)
    specification = importlib.util.spec_from_file_location("treeopt_setup", ROOT / "setup.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class TestSetup:
    def test_repository_links_become_absolute(self, script):
        address = script.REPOSITORY
        assert script.with_whole_links("![a](docs/x.svg) and [b\nc](y.md#part)") == (
            f"![a]({address}/raw/HEAD/docs/x.svg) and [b\nc]({address}/blob/HEAD/y.md#part)"
        )
        for kept in ("[top](#top)", "[out](https://example.org)", "[mail](mailto:a@example.org)"):
            assert script.with_whole_links(kept) == kept

    def test_metadata_links_exist(self, script):
        pages = [page.partition("/HEAD/")[2] for page in script.PAGES.values()]
        assert [page for page in pages if not (ROOT / page).exists()] == []

    def test_symlinks_match_the_packages(self, script):
        assert script.links() == {link: target.removeprefix("../") for link, target in LINKS.items()}

    def test_symlinks_are_for_editable_installs_only(self, script):
        for command, expected in (("bdist_wheel", {"treeopt.cli": "cli"}), ("editable_wheel", {"": "."})):
            distribution = script.LinkedDistribution({"treeopt.cli": "cli"})
            distribution.run_command(command)
            assert distribution.ran == [(command, expected)]


def test_repository_url_is_defined_once():
    folders = ["benchmarks", "cli", "docs", "examples", "profiler", "tools", "trees", "treeopt"]
    paths = [*ROOT.glob("*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    texts = [path for path in paths if path.suffix in {".py", ".toml", ".md", ".in", ".txt", ".json", ".yaml"}]
    named = [path.name for path in texts if "github.com/treeopt/" in path.read_text("utf-8")]
    assert named == ["setup.py"]
