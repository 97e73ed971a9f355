"""`make release`: one version everywhere, and distributions with a fault are found before anything is installed."""

import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.scripts import script

pytestmark = pytest.mark.source
ROOT = Path(__file__).resolve().parents[2]
RELEASE = script(ROOT / "tools/release.py")
PACKAGES = ("treeopt", "treeopt.cli")
WHEEL = ["treeopt/__init__.py", "treeopt/py.typed", "treeopt/cli/__init__.py", "treeopt-1.0.dist-info/METADATA"]
SDIST = [f"treeopt-1.0/{name}" for name in (*RELEASE.NEEDED, "treeopt/__init__.py")]


def test_this_folder_says_one_version() -> None:
    assert set(RELEASE.stated_versions(ROOT)) == {"pyproject.toml", "CITATION.cff", "CHANGELOG.md"}
    assert RELEASE.one_version(ROOT).count(".") == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CITATION.cff", "cff-version: 1.2.0\nversion: 1.1\n"),
        ("CITATION.cff", "cff-version: 1.0\n"),
        ("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n## 1.0\n"),
        ("pyproject.toml", '[project]\nversion = "1.0.1"\n'),
    ],
)
def test_files_that_disagree_are_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.0\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.0\n\n- more\n\n## 0.9\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.0"\n')
    assert RELEASE.one_version(tmp_path) == "1.0"
    (tmp_path / name).write_text(text)
    with pytest.raises(RELEASE.ReleaseError, match=name):
        RELEASE.one_version(tmp_path)


def test_good_distributions_have_no_faults() -> None:
    assert list(RELEASE.wheel_faults(WHEEL, PACKAGES, "1.0")) == []
    assert list(RELEASE.sdist_faults(SDIST, "1.0")) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda names: names.remove("treeopt/cli/__init__.py"), "the package treeopt.cli is missing"),
        (lambda names: names.append("treeopt/more/a.py"), "treeopt.more is no package"),
        (lambda names: names.append("tests/conftest.py"), "and nothing else"),
        (lambda names: names.remove("treeopt/py.typed"), "treeopt/py.typed is missing"),
        (lambda names: names.append("treeopt/__pycache__/a.pyc"), "does not belong"),
        (lambda names: names.append("treeopt/profile.yaml.partial"), "does not belong"),
    ],
)
def test_faults_of_a_wheel(change, fault: str) -> None:
    names = list(WHEEL)
    change(names)
    assert any(fault in each for each in RELEASE.wheel_faults(names, PACKAGES, "1.0"))


@pytest.mark.parametrize("name", RELEASE.NEEDED)
def test_what_a_source_distribution_lacks(name: str) -> None:
    names = [each for each in SDIST if each != f"treeopt-1.0/{name}"]
    assert list(RELEASE.sdist_faults(names, "1.0")) == [f"sdist: {name} is missing."]


@pytest.mark.parametrize(
    "name", [".git/config", "build/lib/a.py", ".venv/ready", ".mypy_cache/a", "a/__pycache__/b.pyc"]
)
def test_what_does_not_belong_in_a_source_distribution(name: str) -> None:
    assert list(RELEASE.sdist_faults([*SDIST, f"treeopt-1.0/{name}"], "1.0")) == [
        f"sdist: {name} does not belong there."
    ]
    assert list(RELEASE.sdist_faults([*SDIST, "treeopt-1.0/tests/tools/build_it.py"], "1.0")) == []


def test_both_files_are_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, sdist = tmp_path / "a.whl", tmp_path / "a.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in WHEEL:
            archive.writestr(name, "Version: 1.1\n" if name.endswith("METADATA") else "")
    with tarfile.open(sdist, "w:gz") as tar:
        for name in SDIST:
            tar.addfile(tarfile.TarInfo(name))
    (tmp_path / "pyproject.toml").write_text(f"[tool.setuptools]\npackages = {list(PACKAGES)}\n")
    monkeypatch.setattr(RELEASE, "ROOT", tmp_path)
    with pytest.raises(RELEASE.ReleaseError, match=r"^wheel: expected version 1.0. Got 1.1.$"):
        RELEASE.check_distributions(sdist, wheel, "1.0")


def test_interpreters_are_found_by_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    here = sys.version_info.minor
    for minor in (here, here + 1):  # the second says that it is what it is not
        folder = tmp_path / f"3.{minor}.0" / "bin"
        folder.mkdir(parents=True)
        os.symlink(sys.executable, folder / f"python3.{minor}")
    assert RELEASE.pythons([tmp_path]) == {f"3.{here}": tmp_path / f"3.{here}.0/bin/python3.{here}"}


def test_a_command_that_fails_ends_the_release(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RELEASE.ReleaseError, match="ended with 3"):
        RELEASE.run(sys.executable, "-c", "import sys; sys.exit(3)")
    assert capfd.readouterr().out.startswith("$ ")
