"""Acceptance from rates, counts and vectors, against what they mean for a chain."""

import io
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.engines.importers.samples import METRICS
from tests.support.drawn import examples
from treeopt.engines.importers import read_acceptance
from treeopt.engines.importers.acceptance_tables import acceptance_from_vector, table_from_counts, table_from_rates
from treeopt.errors import FormatError, InvalidValueError, TreeoptError
from treeopt.trees import chain

SEQUOIA = Path(__file__).resolve().parents[4] / "shared" / "data" / "sequoia"
shared = pytest.mark.skipif(not SEQUOIA.is_dir(), reason="Sequoia's published files are not here")


def read(tmp_path, content, **options):
    path = tmp_path / "file"
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(content)
    return read_acceptance(path, temperature=0.6, rule="sequoia", **options)


def refused(tmp_path, content, field, reason, **options):
    with pytest.raises(FormatError, match=reason) as caught:
        read(tmp_path, content, **options)
    assert caught.value.field == field
    assert len(str(caught.value)) < len(str(tmp_path)) + 500
    assert "\n" not in str(caught.value)


class TestRates:
    @settings(deadline=None, derandomize=True, max_examples=examples(100))
    @given(st.lists(st.floats(1e-9, 1), min_size=1, max_size=12))
    def test_chain_yields_one_token_plus_the_sum_of_rates(self, rates):
        rates = sorted(rates, reverse=True)
        table = table_from_rates(rates)
        for length in range(1, len(rates) + 1):
            assert table.expected_tokens(chain(length)) == pytest.approx(1 + sum(rates[:length]))

    def test_plain_list_contains_rates_per_position(self, tmp_path):
        result = read(tmp_path, [0.8, 0.4, 0.1])
        assert result.table.p == pytest.approx(np.array([[0.8], [0.5], [0.25]]))
        assert (result.rule, result.temperature, result.top_p) == ("sequoia", 0.6, 1.0)
        assert result.prompts is result.positions is result.table.counts is result.table.standard_error is None
        assert [(each.what, each.source) for each in result.imported] == [("acceptance", "file (rates per position)")]

    def test_positions_never_reached_are_left_out(self, tmp_path):
        assert read(tmp_path, [0.8, 0.0, 0.0, 0.0]).table.p.tolist() == [[0.8], [0.0]]

    def test_conditional_rates_and_tables(self, tmp_path):
        assert read(tmp_path, {"conditional": [0.5, 0.7]}).table.p.tolist() == [[0.5], [0.7]]
        assert read(tmp_path, {"conditional": [[0.5, 0.1]]}).table.p.tolist() == [[0.5, 0.1]]
        assert read(tmp_path, [[0.5, 0.1], [0.6, 0.2]]).table.p.tolist() == [[0.5, 0.1], [0.6, 0.2]]
        assert read(tmp_path, {"p": [0.5, 0.1]}).table.position_invariant


class TestEncodings:
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    def test_byte_order_marks_select_the_encoding(self, tmp_path, encoding):
        assert read(tmp_path, "[0.8,\r\n 0.4]".encode(encoding)).table.p.tolist() == [[0.8], [0.5]]

    def test_indented_json_is_not_read_as_json_lines(self, tmp_path):
        """As `jq` and editors lay it out: the first line ends with a key."""
        counts = (
            '{"metrics":\n{"speculative_decoding": {"num_spec_tokens": 3, "acceptance_histogram": [10, 10, 10, 10]}}}\n'
        )
        assert read(tmp_path, counts).positions == 40


class TestCounts:
    @pytest.mark.parametrize("ending", ["_total", ""])
    def test_metrics_are_summed_over_engines(self, tmp_path, ending):
        result = read(tmp_path, METRICS.replace("_total", ending))
        assert result.positions == 100
        assert result.table.p == pytest.approx(np.array([[0.8], [0.5], [0.5]]))
        assert result.table.counts.tolist() == [100, 80, 40]
        wanted = [stats.beta(k + 0.5, n - k + 0.5).std() for k, n in ((80, 100), (40, 80), (20, 40))]
        assert result.table.standard_error[:, 0].tolist() == pytest.approx(wanted)
        assert result.imported[0].source == "file (vLLM metrics)"

    def test_json_counts_match_metrics(self, tmp_path):
        counts = read(tmp_path, {"num_drafts": 100, "accepted_per_pos": [80, 40, 20]})
        metrics = read(tmp_path, METRICS)
        assert counts.table.p.tolist() == metrics.table.p.tolist()
        assert counts.table.standard_error.tolist() == metrics.table.standard_error.tolist()

    def test_standard_errors_match_repeated_sampling(self):
        rng = np.random.default_rng(3)
        drafts, p = 400, [0.8, 0.5]
        reached = [np.full(4000, drafts)]
        for chance in p:
            reached.append(rng.binomial(reached[-1], chance))
        drawn = np.stack([after / before for before, after in pairwise(reached)])
        table = table_from_counts(drafts, [320.0, 160.0])
        assert drawn.std(axis=1).tolist() == pytest.approx(table.standard_error[:, 0].tolist(), rel=0.05)

    @pytest.mark.parametrize(
        ("content", "field", "reason"),
        [
            ({"synthetic_acceptance_rates": [[0.8]]}, "synthetic_acceptance_rates", "Got a list of lists"),
            ({"num_drafts": 100, "accepted_per_pos": [101]}, "accepted_per_pos", "shares from 0 to 1 of all drafts"),
            ({"num_drafts": 100, "accepted_per_pos": [50, 60]}, "accepted_per_pos", "never to rise"),
            ({"num_drafts": 100, "accepted_per_pos": []}, "accepted_per_pos", "at least one"),
            ({"num_drafts": 0, "accepted_per_pos": [1]}, "num_drafts", "at least 1"),
            ({"num_drafts": 2**62, "accepted_per_pos": [1]}, "accepted_per_pos", "at most 1e.15"),
            ({"accepted_per_pos": [1]}, "num_drafts", "is missing"),
            (METRICS.replace("} 48.0", "} many"), "line 8", "expected a counter of Prometheus.* 'many'"),
            (METRICS.replace("} 48.0", "} -1"), "line 8", "expected a count from 0"),
            (METRICS.replace('position="0"', 'position="x"'), "line 8", "position: expected a whole number"),
            (METRICS.replace('position="1"', 'position="7"'), "content", "every position from 0 on"),
            (
                METRICS.replace('engine="1",model_name="m"', 'engine="1",model_name="n"'),
                "model_name",
                "one model. Got 2",
            ),
            ("vllm:spec_decode_num_drafts_total 0.0\n", "content", "has it drafted yet"),
        ],
    )
    def test_what_is_refused(self, tmp_path, content, field, reason):
        refused(tmp_path, content, field, reason)


class TestVectors:
    def torch_bytes(self, content):
        import torch

        file = io.BytesIO()
        torch.save(torch.tensor(content) if isinstance(content, list) else content, file)
        return file.getvalue()

    def test_last_entry_is_dropped_if_entries_sum_to_1(self, tmp_path):
        result = read(tmp_path, self.torch_bytes([0.0, 0.6, 0.2, 0.1, 0.1]))
        assert result.table.p == pytest.approx(np.array([0.6, 0.2, 0.1]))
        assert result.table.position_invariant
        assert result.imported[0].source == "file (acceptance vector; last entry, nothing accepted, left out)"

    def test_all_entries_are_ranks_if_they_sum_to_less(self, tmp_path):
        result = read(tmp_path, self.torch_bytes([0.0, 0.6, 0.2, 0.1]))
        assert result.table.p == pytest.approx(np.array([0.6, 0.2, 0.1]))
        assert result.imported[0].source == "file (acceptance vector)"

    def test_ambiguous_last_entry_is_kept_with_a_remark(self, tmp_path):
        result = read(tmp_path, [0.6, 0.2, 0.1, 0.099], kind="ranks")
        assert result.table.p.tolist() == [0.6, 0.2, 0.1, 0.099]
        assert "last entry kept as a rank, may be nothing accepted" in result.imported[0].source

    def test_kind_selects_ranks_or_positions(self, tmp_path):
        assert read(tmp_path, [0.5, 0.25], kind="ranks").table.p.tolist() == [0.5, 0.25]
        assert read(tmp_path, [0.5, 0.25], kind="positions").table.p.tolist() == [[0.5], [0.5]]
        assert acceptance_from_vector([0.0, 0.5, 0.25]).table.p.tolist() == [0.5, 0.25]
        with pytest.raises(InvalidValueError, match="kind: expected one of auto, positions, ranks"):
            read(tmp_path, [0.5], kind="depths")

    @pytest.mark.source
    @shared
    def test_sequoias_shipped_vector(self):
        result = read_acceptance(SEQUOIA / "acceptance-rate-vector.pt", temperature=0.6, rule="sequoia")
        published = json.loads((SEQUOIA / "acceptance.json").read_bytes())["shipped_vector"]
        assert result.table.p.tolist() == pytest.approx(published["p"], abs=1e-8)
        assert 1 - result.table.p.sum() == pytest.approx(published["none_accepted"], abs=1e-6)

    @pytest.mark.source
    @shared
    def test_the_vector_of_the_paper(self, tmp_path):
        published = json.loads((SEQUOIA / "acceptance.json").read_bytes())
        assert read(tmp_path, published["paper_vector"]).table.p.tolist() == published["paper_vector"]["p"]
        assert (
            read(tmp_path, published["paper_vector"]["p"], kind="ranks").table.p.tolist()
            == published["paper_vector"]["p"]
        )
        refused(tmp_path, published, "content", r"several tables \(shipped_vector, paper_vector\)")

    @pytest.mark.source
    @shared
    def test_growmap_is_refused(self, tmp_path):
        refused(tmp_path, (SEQUOIA / "8-chain.pt").read_bytes(), "content", "Is it an acceptance vector")

    def test_what_is_refused(self, tmp_path):
        import pickle

        refused(tmp_path, self.torch_bytes([[0.5]]), "content", "expected one row of finite numbers")
        refused(tmp_path, self.torch_bytes([float("nan")]), "content", "expected one row of finite numbers")
        refused(tmp_path, self.torch_bytes([0.0, 0.9, 0.3]), "content", "sums to 1.2")
        refused(tmp_path, self.torch_bytes("text"), "content", "Is it an acceptance vector")
        refused(tmp_path, pickle.dumps([0.5]), "content", "bare pickle")
        refused(tmp_path, self.torch_bytes([0.5])[:-40], "content", "torch file")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(TreeoptError, match="no such file"):
        read_acceptance(tmp_path / "none", temperature=0.0, rule="sequoia")
    (tmp_path / "large").write_bytes(b"[" + b" " * 32_000_000 + b"0.5]")
    with pytest.raises(TreeoptError, match="larger than 32000000 bytes"):
        read_acceptance(tmp_path / "large", temperature=0.0, rule="sequoia")
