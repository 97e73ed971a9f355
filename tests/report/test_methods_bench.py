"""The table of all methods."""

from treeopt.records.bench_file import MethodsBench
from treeopt.records.results import NotRun
from treeopt.report.methods_bench import methods_table


def test_methods_none_of_which_ran_are_a_table_too():
    rows = [NotRun(method="medusa", temperature=temperature, reason="no heads") for temperature in (0.0, 0.6)]
    assert methods_table(MethodsBench.of(rows)).count("medusa        not run: no heads") == 2
