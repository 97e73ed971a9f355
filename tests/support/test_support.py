"""Forked tests, and the package that is tested."""

from pathlib import Path

import pytest

import treeopt
from tests.support.forked import forks, in_fork
from tests.support.origin import misplaced


@forks
@pytest.mark.parametrize("outcome", [AssertionError("wrong"), pytest.fail.Exception("wrong"), SystemExit(3)], ids=repr)
def test_a_failure_in_a_fork_is_found(outcome):
    """Negative control."""

    @in_fork
    def fails():
        raise outcome

    with pytest.raises(AssertionError, match="the fork ended with exit code"):
        fails()


def test_another_treeopt_than_the_one_to_be_tested_is_found(tmp_path):
    assert misplaced(Path(treeopt.__file__).parent) is None
    found = misplaced(tmp_path)
    assert found is not None
    assert found.startswith(f"treeopt: expected in {tmp_path}. Got ")
