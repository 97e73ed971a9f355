"""Source distribution and wheel: their content, tests in the source distribution, and types.

They are built in a copy of the repository, without a network, with the installed setuptools.
"""

import email.message
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

solution = treeopt.solve(treeopt.AcceptanceTable([0.7, 0.2]), max_nodes=8, max_depth=3)
reveal_type(solution.tokens(8, 3))
reveal_type(treeopt.trees.load("tree.json"))
reveal_type(treeopt.plan(treeopt.Profile.load("profile.yaml")).choice.speedup.value)
reveal_type(treeopt.__version__)
treeopt.solve([0.7])
"""


def run(command: Sequence[str | Path], folder: Path, code: int = 0) -> str:
    """Return what a process prints that knows nothing of the folder these tests are in, and ends with a code."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def built(kind: str, folder: Path, out: Path) -> Path:
    """Return the distribution that setuptools builds of a folder, as a front end has it done."""
    code = f"from setuptools import build_meta; print('\\n' + build_meta.build_{kind}({str(out)!r}))"
    return out / run([sys.executable, "-c", code], folder).split()[-1]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="77", reason="what builds the distributions is not installed")
    folder = tmp_path_factory.mktemp("distribution") / "copy"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=LEFT_OUT)
    return folder


@pytest.fixture(scope="module")
def sdist(copied: Path) -> Path:
    return built("sdist", copied, copied.parent)


@pytest.fixture(scope="module")
def unpacked(sdist: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(sdist.parent / "unpacked", filter="data")
    (folder,) = (sdist.parent / "unpacked").iterdir()
    return folder


@pytest.fixture(scope="module")
def wheel(copied: Path) -> Path:
    return built("wheel", copied, copied.parent)


def metadata(text: str) -> email.message.Message:
    return email.parser.Parser().parsestr(text)


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
        lying = {
            path.relative_to(copied).as_posix()
            for path in copied.rglob("*")
            if path.is_file() and not path.is_symlink() and "egg-info" not in str(path)
        }
        weights = {name for name in lying if name.startswith("examples/smollm2/") and not name.endswith("README.md")}
        made = {"PKG-INFO", "setup.cfg"}
        assert {name for name in files if "egg-info" not in name} - made == lying - weights - {"build"}

    def test_sdist_contains_test_data(self, unpacked):
        assert [name for name in NEEDED if not (unpacked / name).exists()] == []
        assert os.access(unpacked / ".ci" / "run", os.X_OK)
        assert {link: os.readlink(unpacked / link) for link in LINKS} == LINKS

    def test_sdist_tests_pass(self, unpacked):
        """Those of packages, layers and links; what its other tests need is there, since all files are."""
        tests = ["tests/trees/test_shapes.py", "tests/test_packaging.py", "tests/test_layers.py"]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
        assert " passed" in run(command, unpacked)

    def test_wheel_of_sdist_equals_wheel_of_checkout(self, unpacked, wheel):
        again = built("wheel", unpacked, unpacked.parent)
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
            found = metadata(archive.read(name).decode("utf-8"))
        assert found["Author"]
        assert found["Maintainer"]
        assert found["License-Expression"] == "Apache-2.0"
        assert found["Description-Content-Type"] == "text/markdown"
        assert "Typing :: Typed" in found.get_all("Classifier")
        assert "speculative decoding" in found["Keywords"].split(",")
        urls = dict(line.split(", ") for line in found.get_all("Project-URL"))
        assert list(urls) == ["Repository", "Documentation", "Changelog", "Issues"]
        text = found.get_payload()
        assert f"]({urls['Repository']}/raw/HEAD/docs/images/tree-64.svg)" in text
        targets = re.findall(r"\]\(([^)]*)\)", text)
        assert len(targets) > 10
        assert [target for target in targets if not target.startswith("https://")] == []


@pytest.mark.slow
@pytest.mark.process
def test_types_are_seen_in_an_editable_install(copied, tmp_path):
    """A fresh environment that has all packages of this one, and treeopt installed as `pip install -e .` does it."""
    pytest.importorskip("pip", reason="what installs packages is not installed")
    pytest.importorskip("mypy", reason="mypy is not installed")
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run([python, "-c", where], tmp_path).strip())
    (packages / "parent.pth").write_text(run([sys.executable, "-c", where], tmp_path))
    install = ["-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "--ignore-installed", "-e"]
    run([python, *install, copied], tmp_path)
    found = run([python, "-c", "import treeopt.cli; print(treeopt.__file__, treeopt.cli.__file__)"], tmp_path).split()
    assert found == [str(copied / "treeopt" / "__init__.py"), str(copied / "treeopt" / "cli" / "__init__.py")]
    (tmp_path / "mine.py").write_text(USER)
    checked = run([python, "-m", "mypy", "--strict", "mine.py"], tmp_path, code=1)
    assert re.findall(r'Revealed type is "(.*)"', checked) == [
        "float",
        "treeopt.trees.token_tree.TokenTree",
        "float",
        "str",
    ]
    assert 'Argument 1 to "solve" has incompatible type "list[float]"; expected "AcceptanceTable"' in checked


class Distribution:
    """Stands for that of setuptools, which importing would change this process for good."""

    def __init__(self, package_dir: dict[str, str]) -> None:
        self.package_dir, self.ran = package_dir, []

    def run_command(self, command: str) -> None:
        self.ran.append((command, self.package_dir))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """setup.py, of which nothing is run."""
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

    def test_readme_links_exist(self, script):
        text = (ROOT / "README.md").read_text("utf-8")
        targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        assert len(targets) > 10
        assert [target for target in targets if not (ROOT / target).is_file()] == []
        whole = script.with_whole_links(text)
        assert whole.count(f"]({script.REPOSITORY}/") == len(targets)
        assert re.findall(r"\]\((?!https://)[^)]*\)", whole) == []

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
