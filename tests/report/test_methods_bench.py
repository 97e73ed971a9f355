"""Table of `treeopt bench methods`."""

from treeopt.records.bench_file import MethodsBench
from treeopt.records.results import NotRun
from treeopt.report.bench_text import methods_table


def test_methods_table_without_a_method_that_ran():
    rows = [NotRun(method="medusa", temperature=temperature, reason="no heads") for temperature in (0.0, 0.6)]
    assert methods_table(MethodsBench.of(rows)).count("medusa        not run: no heads") == 2
