"""What all tests share: one thread each, Hypothesis profiles, and the bundled pair loaded once."""

import os

# before numpy, torch and numba are imported: two workers with two threads each are slower than one
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"
# commands take the threads of their profile; where other workers run, threads that spin take 30 times as long
os.environ["OMP_WAIT_POLICY"] = "passive"

import gc
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.drawn import load_profile
from tests.support.origin import misplaced

load_profile()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--treeopt-in", type=Path, metavar="FOLDER", help="fail where another treeopt would be tested")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--treeopt-in")
    if folder is not None and (reason := misplaced(folder)):
        raise pytest.UsageError(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the examples in docstrings, which are collected from the source."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.add_marker("source")


def freeze_what_stays() -> None:
    """Take what stays, such as modules, out of the collector's sight: going through it takes 0.2 s every time."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    freeze_what_stays()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Restore one thread of torch after commands that set those of a profile, which slow down all later tests."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    if nextitem is not None and nextitem.path != item.path:
        freeze_what_stays()


@pytest.fixture(scope="session")
def bundled_pair():
    """Return the bundled pair, which tests must leave as it is."""
    from treeopt.runtime.models.pair import load_pair

    return load_pair(threads=1)


@pytest.fixture(scope="session")
def bundled_outputs(bundled_pair) -> list[tuple[list[int], list[int]]]:
    """Return three prompts, and the 60 tokens that plain decoding of the bundled target gives after each."""
    from treeopt.runtime import Decoder
    from treeopt.texts.prompts import bench_prompts, load_prompts
    from treeopt.trees import chain

    plain = Decoder(bundled_pair.target, None, chain(0), temperature=0.0)
    prompts = [bundled_pair.tokenizer.encode(text) for text in bench_prompts(load_prompts())[:3]]
    return [(prompt, list(plain.generate(prompt, 60))) for prompt in prompts]
