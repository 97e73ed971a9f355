"""Tests that fork this process: a fork has all that is loaded here, and what it changes ends with it."""

import functools
import multiprocessing

import pytest

FORK = multiprocessing.get_context("fork")


def forks(test):
    """Mark tests that fork this process, threads of the test runner included."""
    return pytest.mark.process(pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")(test))


def in_fork(test):
    """Run a test in a fork, which prints the traceback of a failure."""

    @forks
    @functools.wraps(test)
    def run(*arguments, **options):
        fork = FORK.Process(target=test, args=arguments, kwargs=options)
        fork.start()
        fork.join()
        assert fork.exitcode == 0, f"the fork ended with exit code {fork.exitcode}"

    return run
