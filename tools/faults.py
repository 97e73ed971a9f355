"""Plant the faults of tests/faults one by one and see that the tests find each.

    python tools/faults.py [--only NAME …] [--jobs 2] [--quick] [--list]

A test that never failed may be a test that cannot fail.  So small faults that a plausible edit could make are kept as
patches; each is planted in a scratch copy of the working tree, and the tests that it names are run there.  First the
control: without any fault all of these tests must pass, or else a failure would tell nothing.  What they do not find the
fast tests are asked for, and then the slow ones.  A fault that nobody finds is a test that is missing.

The table goes to standard output, a bar to standard error.  Exit code 1 where a fault was not found or does not apply.
"""

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fault_caches import compiled_files
from fault_copy import NOTHING_COLLECTED, PASSED, TIMED_OUT, WorkingCopy, files_of
from fault_files import Fault, FaultError, read_faults
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("tests") / "faults"
INTERRUPTED = 130


class Suite(NamedTuple):
    """Some of the tests, asked in turn for what those before did not find."""

    arguments: tuple[str, ...]
    """Of pytest; empty for the tests that a fault names."""
    limit_s: float
    remark: str
    """What is said of a fault that only these find."""


OWN_TESTS = "--ignore=tests/tools/test_faults.py"
"""A patch does not apply where it is planted, which is no finding."""
SUITES = (
    Suite((), 900.0, ""),
    Suite(("-m", "not slow", OWN_TESTS), 7200.0, "its own tests did not find it, fast ones did: name those"),
    Suite(("-m", "slow", OWN_TESTS), 7200.0, "only slow tests find it: add a fast one"),
)
CONTROL_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a fault was found, and by what."""

    fault: Fault
    found: bool
    by: tuple[str, ...]
    """The first tests that failed."""
    remark: str
    """What is special about it, empty where the tests that it names failed."""
    cpu_s: float


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT, python: str = sys.executable) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Plant faults one by one and see that the tests find each.")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="faults to plant; by default all")
    parser.add_argument("--jobs", type=int, default=2, help="faults tried at the same time, each on one core")
    parser.add_argument("--quick", action="store_true", help="do not ask the whole suite for what is not found")
    parser.add_argument("--list", action="store_true", help="only print what the faults are")
    given = parser.parse_args(arguments)
    try:
        faults = read_faults(root / FOLDER, given.only)
        if given.list:
            print("\n".join(f"{fault.name}: {fault.sentence}" for fault in faults))
            return 0
        with TemporaryDirectory(prefix="faults-") as folder:
            copies = make_copies(root, Path(folder), python, min(max(1, given.jobs), len(faults)))
            return _planted(faults, copies, whole_suite=not given.quick)
    except FaultError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted. The copies are removed.", file=sys.stderr)
        return INTERRUPTED


def make_copies(root: Path, folder: Path, python: str, count: int) -> list[WorkingCopy]:
    """Return so many copies of a working tree, made in a folder."""
    files = files_of(root)
    dependencies = compiled_files(root, [name for name in files if name.endswith(".py")])
    return [WorkingCopy(root, files, folder / str(number), python, dependencies) for number in range(count)]


def _planted(faults: Sequence[Fault], copies: Sequence[WorkingCopy], *, whole_suite: bool) -> int:
    """Run the control, plant every fault, print the table and return the exit code."""
    free: SimpleQueue[WorkingCopy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def try_one(fault: Fault) -> Verdict | FaultError:
        copy = free.get()
        try:
            return verdict_of(fault, copy, whole_suite=whole_suite)
        except FaultError as error:
            return error
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        try:
            control_s = sum(pool.map(_control, copies, _shared_out(faults, len(copies))))
            return _table(faults, pool.map(try_one, faults), control_s)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.stop()
            raise


def _shared_out(faults: Sequence[Fault], count: int) -> list[list[str]]:
    """Return the tests of all faults, each once, shared out among so many copies."""
    tests = list(dict.fromkeys(test for fault in faults for test in fault.tests))
    return [tests[number::count] for number in range(count)]


def _control(copy: WorkingCopy, tests: Sequence[str]) -> float:
    """Run some tests without any fault and return the CPU seconds; raises FaultError unless all pass."""
    if not tests:
        return 0.0
    run = copy.pytest(tests, cache=copy.warm, limit_s=CONTROL_LIMIT_S)
    if run.code != PASSED:
        raise FaultError(f"{run.tail}\ncontrol: expected all tests to pass without a fault. Mend them first.")
    return run.cpu_s


def verdict_of(fault: Fault, copy: WorkingCopy, *, whole_suite: bool) -> Verdict:
    """Plant a fault and return what the tests say; raises FaultError where it does not apply, or tests cannot run."""
    cpu_s = 0.0
    for suite in SUITES if whole_suite else SUITES[:1]:
        tests = suite.arguments or fault.tests
        with copy.planted(fault) as cache:
            run = copy.pytest(tests, cache=cache, limit_s=suite.limit_s)
        cpu_s += run.cpu_s
        if run.code == PASSED or (run.code == NOTHING_COLLECTED and suite.arguments):
            continue
        if run.code == TIMED_OUT:
            remark = f"the tests did not end within {suite.limit_s:.0f} s"
        elif run.tests_failed:
            remark = suite.remark
        else:
            remark = f"the tests cannot be run with it: pytest ended with {run.code}"
        if run.code != TIMED_OUT and remark:  # the control has not shown that this comes of the fault
            again = run.failed if run.tests_failed else ("--collect-only", *tests)
            if copy.pytest(again, cache=copy.warm, limit_s=suite.limit_s).code != PASSED:
                raise FaultError(f"{fault.name}: {remark}; and without the fault it is the same. Mend that first.")
        return Verdict(fault=fault, found=True, by=run.failed, remark=remark, cpu_s=cpu_s)
    return Verdict(fault=fault, found=False, by=(), remark="add a test that fails with it", cpu_s=cpu_s)


def _table(faults: Sequence[Fault], results: Iterator[Verdict | FaultError], control_s: float) -> int:
    """Print every verdict as soon as it is there, and what they come to; return the exit code."""
    print(f"control: the tests of all faults pass without one, {control_s:.0f} CPU s")
    planted = found = 0
    total_s = control_s
    with tqdm(results, total=len(faults), desc="faults    ", unit="fault", disable=None) as bar:
        for result in bar:
            if isinstance(result, FaultError):
                tqdm.write(f"\n{result}", file=sys.stdout)
                continue
            planted, found, total_s = planted + 1, found + result.found, total_s + result.cpu_s
            tqdm.write(_row(result), file=sys.stdout)
    print(f"\n{total_s:.0f} CPU s in all\nplanted {planted}, found {found}")
    return 0 if found == len(faults) else 1


def _row(verdict: Verdict) -> str:
    """Return one fault as a few lines."""
    lines = [
        f"\n{verdict.fault.name:<44}{'found' if verdict.found else 'NOT FOUND':<10}{verdict.cpu_s:>8.1f} CPU s",
        verdict.fault.sentence,
        *(f"by {node}" for node in verdict.by),
        *([f"({verdict.remark})"] if verdict.remark else []),
    ]
    return "\n    ".join(lines)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended like by Ctrl-C: nothing is left behind
    sys.exit(main())
