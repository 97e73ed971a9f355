"""A copy of the working tree in which one fault after the other is planted, tested and taken out again."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fault_caches import seeded_cache
from fault_files import Fault, FaultError

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
ARGUMENTS = ("-q", "--maxfail=3", "-p", "no:cacheprovider", "--hypothesis-seed=0")
"""Three failures tell enough; without the seed a fault may be found by luck."""
PASSED, TESTS_FAILED, NOTHING_COLLECTED = 0, 1, 5
TIMED_OUT = -1000
"""Stands for an exit code; those of killed processes are negative too, but not so far."""
SHOWN = 3
"""Node ids told of a run."""
TAIL = 2000
"""Characters of a run's end that are kept."""
PAUSE_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run of pytest came to."""

    code: int
    """Exit code of pytest, `TIMED_OUT` where it did not end."""
    failed: tuple[str, ...]
    """Node ids of the first failures."""
    cpu_s: float
    tail: str
    """The end of what was printed."""

    @property
    def tests_failed(self) -> bool:
        """Whether tests ran and failed; errors of collection name a file and no test."""
        return self.code == TESTS_FAILED and any("::" in node for node in self.failed)


class StoppedError(Exception):
    """The user has ended all runs."""


def files_of(root: Path) -> list[str]:
    """Return the files of a working tree, tracked and untracked, not ignored ones and not those that are gone.

    Raises FaultError where git does not know it.
    """
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FaultError(f"{root}: expected a git checkout ({done.stderr.strip()[:200]}). Clone the repository.")
    return [name for name in dict.fromkeys(done.stdout.split("\0")) if name and os.path.lexists(root / name)]


def copy_files(root: Path, files: Sequence[str], folder: Path) -> None:
    """Copy some files of a root into a folder; links stay links, and times of change stay as they are."""
    for name in files:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target, follow_symlinks=False)


class WorkingCopy:
    """One worker's copy of the working tree.

    Args:
        root: the working tree.
        files: its files, from `files_of`.
        folder: where the copy is made; caches and temporary files lie beside it.
        python: the interpreter that runs pytest.
        dependencies: from `compiled_files`.
    """

    def __init__(
        self, root: Path, files: Sequence[str], folder: Path, python: str, dependencies: Mapping[str, frozenset[str]]
    ) -> None:
        self._tree, self._folder, self._python = folder / "tree", folder, python
        self._dependencies = dependencies
        self._stopped = False
        copy_files(root, files, self._tree)

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[Path]:
        """Apply a fault's patch and yield the folder of compiled functions to use with it; take it out again.

        Files come back with the time of change that they had, so that what numba compiled of them stays good.
        Raises FaultError where the patch does not apply.
        """
        cache, before = self._folder / "changed-numba", self._folder / "before"
        copy_files(self._tree, [file for file in fault.files if (self._tree / file).exists()], before)
        try:
            apply_patch(fault.patch, self._tree)
            changed = seeded_cache(self.warm, cache, self._dependencies, fault.files)
            yield cache if changed else self.warm
        finally:
            copy_files(before, [file for file in fault.files if (before / file).exists()], self._tree)
            for folder in (cache, before):
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def warm(self) -> Path:
        """The folder of functions compiled of the code as it is."""
        return self._folder / "numba"

    def pytest(self, arguments: Sequence[str], *, cache: Path, limit_s: float) -> Run:
        """Run pytest in the copy, on one thread, with nothing kept from one run to the next but compiled functions."""
        scratch = self._folder / "scratch"
        scratch.mkdir()
        command = [self._python, "-m", "pytest", *ARGUMENTS, f"--basetemp={scratch / 'tmp'}", *arguments]
        try:
            with (scratch / "output").open("w+b") as output:
                process = subprocess.Popen(
                    command,
                    cwd=self._tree,
                    env=self._environment(cache, scratch),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                code, cpu_s = self._ended(process, limit_s)
                output.seek(0)
                text = output.read().decode("utf-8", errors="replace")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return Run(code=code, failed=tuple(FAILED.findall(text)[:SHOWN]), cpu_s=cpu_s, tail=text[-TAIL:])

    def stop(self) -> None:
        """End what runs now and refuse to run anything more."""
        self._stopped = True

    def _ended(self, process: "subprocess.Popen[bytes]", limit_s: float) -> tuple[int, float]:
        """Wait for a process; return its exit code, and the CPU seconds of it and of those that it waited for."""
        until_s, killed = time.monotonic() + limit_s, False
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            if not killed and (self._stopped or time.monotonic() > until_s):
                killed = True
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so it is still ours
            time.sleep(PAUSE_S)
        _, status, usage = ended
        process.returncode = os.waitstatus_to_exitcode(status)
        if self._stopped:
            raise StoppedError
        return TIMED_OUT if killed else process.returncode, usage.ru_utime + usage.ru_stime

    def _environment(self, cache: Path, scratch: Path) -> dict[str, str]:
        return (
            os.environ
            | dict.fromkeys(THREADS, "1")
            | {
                "PYTHONPATH": str(self._tree),
                "PYTHONDONTWRITEBYTECODE": "1",  # compiled modules are good for a second: a stale one would hide a fault
                "NUMBA_CACHE_DIR": str(cache),
                "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
            }
        )


def apply_patch(patch: Path, folder: Path, *, check_only: bool = False) -> None:
    """Apply a patch to the files of a folder, or look only whether that would succeed; raises FaultError."""
    command = ["git", "apply", *(["--check"] if check_only else []), str(patch)]
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}  # as in no repository
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[:1]
        raise FaultError(f"{patch.stem}: does not apply ({' '.join(reason)}). Make the fault anew in today's code.")
