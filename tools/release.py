"""Build a release and try it as users will: `make release`.

sdist and wheel are built, and looked into: one version everywhere, all packages, nothing of this machine.  Then the wheel
goes into a clean environment of every Python that can be found, where the demo runs, and the tests of the source
distribution run in the first of them.  Nothing is uploaded.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = 11, 19
"""Minor versions of Python 3 that are looked for."""
TESTS = (
    "tests/trees tests/files tests/records tests/report tests/solver tests/doctor tests/test_packaging.py "
    "tests/test_floors.py tests/test_names.py tests/test_tabular.py tests/cli/test_light_start.py"
)
"""Of the fast tests of the source distribution those that need no hour."""
NEEDED = (
    "PKG-INFO",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "Makefile",
    "constraints.txt",
    "docs/README.md",
    "tests/conftest.py",
)
UNWANTED = re.compile(r"(^|/)(\.git|\.venv|build|__pycache__|\.[a-z]+_cache|\.hypothesis)(/|$)|\.py[co]$|\.partial$")
MOST_BYTES = 60_000_000
"""Of a distribution; package indexes refuse larger ones from 100 MB on."""


class ReleaseError(Exception):
    """Something that must not be released, in one line."""


def stated_versions(root: Path) -> dict[str, str | None]:
    """Return which version every file that says one says; pyproject.toml is the source of all others."""
    texts = {name: (root / name).read_text("utf-8") for name in ("CITATION.cff", "CHANGELOG.md")}
    cited = re.search(r"^version: (\S+)$", texts["CITATION.cff"], re.MULTILINE)
    changed = re.search(r"^## (\S+)", texts["CHANGELOG.md"], re.MULTILINE)
    return {
        "pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"],
        "CITATION.cff": None if cited is None else cited[1],
        "CHANGELOG.md": None if changed is None else changed[1],
    }


def one_version(root: Path) -> str:
    """Return the version; raises ReleaseError where files say different ones."""
    said = stated_versions(root)
    version = said["pyproject.toml"]
    if version is None or set(said.values()) != {version}:
        listed = ", ".join(f"{name} says {found}" for name, found in said.items())
        raise ReleaseError(f"version: expected one. {listed}: make them agree.")
    return version


def sdist_faults(names: Sequence[str], version: str) -> Iterator[str]:
    """Yield what is wrong with the names of a source distribution's files."""
    top = f"treeopt-{version}"
    if {name.partition("/")[0] for name in names} != {top}:
        yield f"sdist: expected all files below {top}."
    inner = [name.partition("/")[2] for name in names]
    yield from (f"sdist: {name} is missing." for name in NEEDED if name not in inner)
    yield from (f"sdist: {name} does not belong there." for name in inner if UNWANTED.search(name))


def wheel_faults(names: Sequence[str], packages: Iterable[str], version: str) -> Iterator[str]:
    """Yield what is wrong with the names of a wheel's files."""
    if {name.partition("/")[0] for name in names} != {"treeopt", f"treeopt-{version}.dist-info"}:
        yield f"wheel: expected treeopt and treeopt-{version}.dist-info, and nothing else."
    found = {name.rpartition("/")[0].replace("/", ".") for name in names if name.endswith(".py")}
    yield from (f"wheel: the package {name} is missing." for name in sorted(set(packages) - found))
    yield from (f"wheel: {name} is no package of pyproject.toml." for name in sorted(found - set(packages)))
    yield from (f"wheel: {name} does not belong there." for name in names if UNWANTED.search(name))
    yield from (f"wheel: {name} is missing." for name in ("treeopt/py.typed",) if name not in names)


def check_distributions(sdist: Path, wheel: Path, version: str) -> None:
    """Raise ReleaseError with a line for everything wrong with the two files."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
    with tarfile.open(sdist) as archive:
        faults = list(sdist_faults(archive.getnames(), version))
    with zipfile.ZipFile(wheel) as archive_of_wheel:
        names = archive_of_wheel.namelist()
        faults += wheel_faults(names, packages, version)
        told = Parser().parsestr(archive_of_wheel.read(f"treeopt-{version}.dist-info/METADATA").decode("utf-8"))
    if told["Version"] != version:
        faults.append(f"wheel: expected version {version}. Got {told['Version']}.")
    faults += [
        f"{path.name}: {path.stat().st_size} bytes." for path in (sdist, wheel) if path.stat().st_size > MOST_BYTES
    ]
    if faults:
        raise ReleaseError("\n".join(faults))


def pythons(folders: Iterable[Path]) -> dict[str, Path]:
    """Return an interpreter for every version of Python from 3.11 on that is on the path or below some folders."""
    found: dict[str, Path] = {}
    for minor in range(OLDEST, NEWEST + 1):
        name = f"python3.{minor}"
        installed = [path for folder in folders for path in sorted(folder.glob(f"3.{minor}.*/bin/{name}"))]
        on_path = [Path(place) for place in (shutil.which(name),) if place is not None]
        for path in (*on_path, *installed):
            if works(path, minor):
                found[f"3.{minor}"] = path
                break
    return found


def works(python: Path, minor: int) -> bool:
    """Return whether an interpreter is of a version, and can make environments."""
    code = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, {minor}))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def run(*command: str | Path, folder: Path = ROOT, quiet: bool = False) -> str:
    """Return what a command prints, which is shown too unless it is to be quiet; raises ReleaseError where it fails."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")}
    print("$", *(str(each) for each in command), flush=True)
    out = subprocess.PIPE if quiet else None
    done = subprocess.run(command, cwd=folder, env=env, stdout=out, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{command[0]}: ended with {done.returncode}. Its last lines say why.")
    return done.stdout or ""


def build(out: Path) -> tuple[Path, Path]:
    """Return a source distribution, and the wheel that is built of it alone."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    run(
        sys.executable, "-m", "build", "--outdir", out, ROOT, folder=out, quiet=True
    )  # ROOT has a folder build, no module
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    return sdist, wheel


def try_wheel(python: Path, wheel: Path, folder: Path, version: str) -> Path:
    """Install the wheel in a clean environment, run the demo there, and return its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder / "venv")
    inside = folder / "venv/bin/python"
    run(inside, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    if (said := run(folder / "venv/bin/treeopt", "--version", folder=folder, quiet=True).split()[-1]) != version:
        raise ReleaseError(f"treeopt --version: expected {version}. Got {said}.")
    run(folder / "venv/bin/treeopt", "doctor", folder=folder)
    run("make", "--no-print-directory", "demo-in", f"BIN={folder / 'venv/bin'}", f"DEMO={folder / 'demo'}")
    return inside


def run_sdist_tests(python: Path, sdist: Path, folder: Path, tests: Sequence[str]) -> None:
    """Run tests of the source distribution, on its own sources."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    run(python, "-m", "pip", "install", "--quiet", "--constraint", unpacked / "constraints.txt", f"{unpacked}[hf,test]")
    run(python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests, folder=unpacked)


def main() -> None:
    """Build, look, install, run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/release", help="folder for everything that is made")
    parser.add_argument("--tests", default=TESTS, help="tests of the source distribution; 'tests' is all of them")
    parser.add_argument("--only", default="", help="Python versions to try, with commas between; by default all found")
    asked = parser.parse_args()
    out: Path = asked.out.resolve()
    try:
        version = one_version(ROOT)
        sdist, wheel = build(out / "dist")
        check_distributions(sdist, wheel, version)
        found = pythons([Path.home() / ".pyenv/versions"])
        wanted = {name: path for name, path in found.items() if not asked.only or name in asked.only.split(",")}
        if not wanted:
            raise ReleaseError(f"--only: expected some of {', '.join(found)}. Got {asked.only}.")
        inside = [try_wheel(path, wheel, out / name, version) for name, path in wanted.items()]
        run_sdist_tests(inside[0], sdist, out / "sdist", asked.tests.split())
    except ReleaseError as error:
        sys.exit(f"release: {error}")
    print(f"treeopt {version} is ready: {sdist} and {wheel}, tried on Python {', '.join(wanted)}.")


if __name__ == "__main__":
    main()
