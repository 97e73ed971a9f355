import pytest

from tests.support.forked import forks, in_fork


@forks
@pytest.mark.parametrize("outcome", [AssertionError("wrong"), pytest.fail.Exception("wrong"), SystemExit(3)], ids=repr)
def test_a_failure_in_a_fork_is_found(outcome):
    """Negative control."""

    @in_fork
    def fails():
        raise outcome

    with pytest.raises(AssertionError, match="the fork ended with exit code"):
        fails()
