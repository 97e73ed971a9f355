"""Speculation profiles of Model-Optimizer, read and written."""

import dataclasses
import json

import pytest

from tests.engines.importers.samples import SPECULATION_PROFILE, changed
from treeopt.engines.exporters import speculation_profile
from treeopt.engines.importers.acceptance_tables import StepCounts, pool_steps
from treeopt.errors import InfeasibleError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.machine import Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.sampling import Sampling

CONDITIONAL, MARGINAL = "conditional_accept_rates", "marginal_accept_rates"
HISTOGRAM = "acceptance_length_histogram"
PAIR = Pair(target="T", draft="D", dtype="float16")


def test_histogram_is_preferred(read_table):
    result = read_table(SPECULATION_PROFILE)
    assert result.table.p.ravel().tolist() == pytest.approx([0.6, 0.5, 0.0])
    assert result.table.counts.tolist() == [100, 60, 30]
    assert result.positions == 100
    assert result.imported[0].source == "file (speculation profile)"


@pytest.mark.parametrize("key", [CONDITIONAL, MARGINAL, HISTOGRAM])
def test_each_part_alone_gives_the_same_rates(read_table, key):
    content = {"schema_version": "1.0", "num_speculative_tokens": 3, key: SPECULATION_PROFILE[key]}
    assert read_table(content).table.p.ravel().tolist() == pytest.approx([0.6, 0.5, 0.0])


def test_block_rates_name_their_draft_length(read_table):
    result = read_table(SPECULATION_PROFILE | {"accept_length_model": "measured_per_k"})
    assert "measured with drafts of 3 tokens" in result.imported[0].source


@pytest.mark.parametrize(
    ("path", "to", "field", "reason"),
    [
        (("schema_version",), "99.0", "schema_version", "expected '1.0'. Got '99.0'"),
        (("schema_version",), ..., "schema_version", "is missing"),
        (("measured",), False, "measured", "expected true"),
        (("verification_method",), "block", "verification_method", "longest_prefix"),
        ((CONDITIONAL,), [0.6, 1.5, 0.0], CONDITIONAL, "from 0 to 1"),
        ((CONDITIONAL,), [0.6, float("nan"), 0.0], CONDITIONAL, "finite numbers"),
        ((CONDITIONAL,), [0.6, 0.5], CONDITIONAL, "expected 3 rates"),
        ((CONDITIONAL,), [0.6, 0.3, 0.0], f"{MARGINAL}[1]", "expected 0.18, the product"),
        ((MARGINAL,), [0.6, 0.7, 0.0], f"{MARGINAL}[1]", "never to rise"),
        ((MARGINAL,), [0.5, 0.25, 0.0], f"{MARGINAL}[0]", "expected 0.6"),
        (("mean_accept_length",), 2.2, "mean_accept_length", "expected 1.9, the mean of acceptance_length_hist"),
        (("accept_length_by_k", "3"), 2.5, "accept_length_by_k.3", "expected 1.9"),
        (("accept_length_by_k", "0"), 1.0, "accept_length_by_k.0", "number of draft tokens"),
        (("max_supported_k",), 2, "max_supported_k", "at least the 3"),
        ((HISTOGRAM, "5"), 1, HISTOGRAM, "at most 4 tokens"),
        ((HISTOGRAM, "2"), -30, f"{HISTOGRAM}.2", "at least 0"),
        ((HISTOGRAM, "2"), 29.5, f"{HISTOGRAM}.2", "whole number"),
        ((HISTOGRAM, "two"), 3, HISTOGRAM, "whole numbers as names"),
        ((HISTOGRAM,), {"0": 5}, HISTOGRAM, "at least 1 token"),
        ((HISTOGRAM,), {"1": 60, "2": 30, "3": 10}, f"{MARGINAL}[0]", "expected 0.4"),
    ],
)
def test_contradictions_are_refused(refuse_table, path, to, field, reason):
    refuse_table(changed(SPECULATION_PROFILE, *path, to=to), field, reason)


def test_incomplete_profiles_are_refused(refuse_table):
    withheld = {"schema_version": "1.0", "vectors_unavailable_reason": "block", CONDITIONAL: None}
    refuse_table(withheld, CONDITIONAL, "is missing")
    refuse_table(json.dumps(SPECULATION_PROFILE)[:-40], "content", "Is it complete")


def measured(table, rule="sequoia"):
    return MeasuredAcceptance(rule=rule, sampling=Sampling(0.6), prompts=4, positions=100, table=table)


@pytest.mark.parametrize(
    "table",
    [
        AcceptanceTable([[1 / 3], [0.7], [0.0]]),
        AcceptanceTable([[0.9], [2 / 3]]),
        pool_steps([StepCounts.from_lengths({0: 7, 1: 3, 3: 11}, 4)], "steps", by_request=False).table,
    ],
)
def test_written_table_is_read_back(read_table, table):
    result = read_table(speculation_profile.render(measured(table), PAIR)).table
    assert result.p.tolist() == table.p.tolist()
    assert (result.counts is None) == (table.counts is None)
    if table.counts is not None:
        assert result.counts.tolist() == table.counts.tolist()
        assert result.standard_error.tolist() == table.standard_error.tolist()


def test_first_children_of_trees_are_written():
    acceptance = measured(AcceptanceTable([[0.6, 0.2], [0.5, 0.1]]))
    content = json.loads(speculation_profile.render(acceptance, PAIR))
    assert content[CONDITIONAL] == [0.6, 0.5]
    assert content[MARGINAL] == pytest.approx([0.6, 0.3])
    assert content["mean_accept_length"] == pytest.approx(1.9)
    assert content[HISTOGRAM] is None
    assert json.loads(speculation_profile.render(acceptance, PAIR, max_depth=1))["max_supported_k"] == 1
    with pytest.raises(InfeasibleError, match="measured to depth 2"):
        speculation_profile.render(acceptance, PAIR, max_depth=3)
    with pytest.raises(InfeasibleError, match="Got traversal"):
        speculation_profile.render(dataclasses.replace(acceptance, rule="traversal"), PAIR)
    with pytest.raises(InfeasibleError, match="set it with --depth"):
        speculation_profile.render(measured(AcceptanceTable([0.6])), PAIR)
