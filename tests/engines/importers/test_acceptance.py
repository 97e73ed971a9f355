"""Acceptance from rates, counts and vectors, against what they mean for a chain."""

import io
import json
import pickle
import sys
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.importers.samples import METRICS
from tests.support.drawn import examples
from treeopt.engines.importers import read_acceptance
from treeopt.engines.importers.acceptance_tables import (
    MAX_GROUPS,
    StepCounts,
    acceptance_from_counts,
    acceptance_from_mean,
    acceptance_from_rates,
    acceptance_from_vector,
    pool_steps,
)
from treeopt.errors import TreeoptError
from treeopt.records.sampling import Sampling
from treeopt.trees import chain

SEQUOIA = Path(__file__).resolve().parents[4] / "shared" / "data" / "sequoia"
shared = pytest.mark.skipif(not SEQUOIA.is_dir(), reason="Sequoia's published files are not here")


class TestRates:
    @settings(deadline=None, derandomize=True, max_examples=examples(50))
    @given(st.lists(st.floats(1e-9, 1), min_size=1, max_size=12))
    def test_chain_yields_one_token_plus_the_sum_of_rates(self, rates):
        rates = sorted(rates, reverse=True)
        table = acceptance_from_rates(rates, "rates").table
        for length in range(1, len(rates) + 1):
            assert table.expected_tokens(chain(length)) == pytest.approx(1 + sum(rates[:length]))

    def test_plain_list_contains_rates_per_position(self, read_table):
        result = read_table([0.8, 0.4, 0.1], sampling=Sampling(0.6))
        assert result.table.p == pytest.approx(np.array([[0.8], [0.5], [0.25]]))
        assert (result.rule, result.sampling) == ("sequoia", Sampling(0.6))
        assert result.prompts is result.positions is result.table.counts is result.table.standard_error is None
        assert [(part.what, part.source) for part in result.imported] == [("acceptance", "file (rates per position)")]

    def test_positions_never_reached_are_left_out(self, read_table):
        assert read_table([0.8, 0.0, 0.0, 0.0]).table.p.tolist() == [[0.8], [0.0]]

    def test_conditional_rates_and_tables(self, read_table):
        assert read_table({"conditional": [0.5, 0.7]}).table.p.tolist() == [[0.5], [0.7]]
        assert read_table({"conditional": [[0.5, 0.1]]}).table.p.tolist() == [[0.5, 0.1]]
        assert read_table([[0.5, 0.1], [0.6, 0.2]]).table.p.tolist() == [[0.5, 0.1], [0.6, 0.2]]
        assert read_table({"p": [0.5, 0.1]}).table.position_invariant

    @pytest.mark.parametrize(
        ("content", "field", "reason"),
        [
            ({"acceptance_rates": [0.8, 0.6]}, "acceptance_rates", "Rename it to synthetic_acceptance_rates"),
            ({"synthetic_acceptance_rates": [[0.8]]}, "synthetic_acceptance_rates", "Got a list of lists"),
            ([80, 60, 50], "content", "Got 80 at position 0: divide percentages by 100"),
            ({"conditional": [80, 60]}, "conditional", "Got 80 at position 0: divide percentages by 100"),
            ([0.8, -0.1], "content", r"Got -0.1 at position 1\. Is it another file"),
            ([0.5, 0.6], "content", "never to rise"),
            ("[0.8, 0.4", "content", "expected JSON"),
            ("[0.8, 0.4] [0.2]", "content", "expected JSON"),
            ("0.8, 0.4", "content", "expected acceptance in one of the formats .* Got text that begins with '0.8,'"),
        ],
    )
    def test_other_rates_are_refused_with_advice(self, refuse_table, content, field, reason):
        refuse_table(content, field, reason)

    @pytest.mark.parametrize("start", ["[2025-11-20 10:00:00,123]", "[2025-11-20T10:00:00Z INFO]", "[INFO]"])
    def test_unknown_log_in_brackets_is_no_broken_json(self, refuse_table, start):
        text = f"{start} request 1\n{start} done\n"
        refuse_table(
            text, "content", "acceptance in one of the formats of treeopt import --list.* Got text that begins"
        )

    def test_files_that_would_fill_the_memory_are_refused_before_they_are_parsed(self, refuse_table):
        refuse_table([0.5] * 100_001, "content", "at most 100000 numbers or lists. Got 100001")
        refuse_table([[0.5]] * 100_001, "content", "at most 100000 numbers or lists. Got 100001")
        refuse_table(f"[{'[],' * 2_000_000}[]]", "content", "at most 2000000 lists and objects. Got 2000002")

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    def test_byte_order_marks_select_the_encoding(self, read_table, encoding):
        assert read_table("[0.8,\r\n 0.4]".encode(encoding)).table.p.tolist() == [[0.8], [0.5]]

    def test_indented_json_is_not_read_as_json_lines(self, read_table):
        """The first line ends with a key, as jq and editors write it."""
        counts = '{"metrics":\n{"speculative_decoding": {"acceptance_histogram": [10, 10, 10, 10]}}}\n'
        assert read_table(counts).positions == 40


class TestCounts:
    def test_metrics_are_summed_over_engines(self, read_table):
        result = read_table(METRICS)
        assert read_table(METRICS.replace("_total", "")).table.p.tolist() == result.table.p.tolist()
        assert result.positions == 100
        assert result.table.p == pytest.approx(np.array([[0.8], [0.5], [0.5]]))
        assert result.table.counts.tolist() == [100, 80, 40]
        assert result.imported[0].source == "file (vLLM metrics)"

    @pytest.mark.parametrize("drafts", [100, 100.0])
    def test_json_counts_match_metrics(self, read_table, drafts):
        counts, metrics = read_table({"num_drafts": drafts, "accepted_per_pos": [80, 40, 20]}), read_table(METRICS)
        assert counts.table.p.tolist() == metrics.table.p.tolist()
        assert counts.table.standard_error.tolist() == metrics.table.standard_error.tolist()

    def test_standard_errors_match_repeated_sampling(self):
        rng = np.random.default_rng(3)
        drafts, p = 400, [0.8, 0.5]
        reached = [np.full(4000, drafts)]
        for rate in p:
            reached.append(rng.binomial(reached[-1], rate))
        sampled = np.stack([after / before for before, after in pairwise(reached)])
        table = acceptance_from_counts(drafts, [320.0, 160.0], "counts").table
        assert sampled.std(axis=1).tolist() == pytest.approx(table.standard_error[:, 0].tolist(), rel=0.05)

    @pytest.mark.parametrize(
        ("content", "field", "reason"),
        [
            ({"num_drafts": 100, "accepted_per_pos": [101]}, "accepted_per_pos", "at most 100 of a position.* Got 101"),
            ({"num_drafts": 100, "accepted_per_pos": [50, 60]}, "accepted_per_pos", "never to rise"),
            ({"num_drafts": 100, "accepted_per_pos": [0.8, 0.4]}, "accepted_per_pos", "rates go below the key synth"),
            ({"num_drafts": 100, "accepted_per_pos": []}, "accepted_per_pos", "at least one"),
            ({"num_drafts": 0, "accepted_per_pos": [1]}, "num_drafts", "at least 1"),
            ({"num_drafts": 2**62, "accepted_per_pos": [1]}, "accepted_per_pos", "at most 1e.15"),
            ({"accepted_per_pos": [1]}, "num_drafts", "is missing"),
            (METRICS.replace("} 48.0", "} many"), "line 8", "a value of Prometheus .*'many'"),
            (METRICS.replace("} 48.0", "} -1"), "line 8", "expected a count from 0"),
            (METRICS.replace('position="0"', 'position="x"'), "line 8", "position: expected a whole number"),
            (METRICS.replace('position="1"', 'position="7"'), "content", "every position from 0 on"),
            (
                METRICS.replace('engine="1",model_name="m"', 'engine="1",model_name="n"'),
                "model_name",
                "one model. Got 2",
            ),
            ("# HELP vllm:a\nvllm:a 1\n", "content", "Got text that begins with 'vllm:a'"),
            ("vllm:spec_decode_num_drafts_total 0.0\n", "content", "has it drafted yet"),
        ],
    )
    def test_contradictions_are_refused(self, refuse_table, content, field, reason):
        refuse_table(content, field, reason)


def torch_bytes(content):
    import torch

    file = io.BytesIO()
    torch.save(torch.tensor(content) if isinstance(content, list) else content, file)
    return file.getvalue()


class TestVectors:
    @pytest.mark.parametrize(
        ("entries", "ranks", "remark"),
        [
            ([0.0, 0.6, 0.2, 0.1, 0.1], [0.6, 0.2, 0.1], "; last entry, nothing accepted, left out"),
            ([0.0, 0.6, 0.2, 0.1], [0.6, 0.2, 0.1], ""),
            ([0.6, 0.2, 0.1, 0.099], [0.6, 0.2, 0.1, 0.099], "; last entry kept as a rank, may be nothing accepted"),
        ],
    )
    def test_last_entry_is_a_rank_unless_all_sum_to_1(self, read_table, entries, ranks, remark):
        for result in (read_table(torch_bytes(entries)), read_table(entries, ranks=True)):
            assert result.table.position_invariant
            assert result.table.p == pytest.approx(np.array(ranks))
            assert result.imported[0].source == f"file (acceptance vector{remark})"

    def test_plain_list_contains_positions_or_ranks(self, read_table):
        assert read_table([0.5, 0.25], ranks=True).table.p.tolist() == [0.5, 0.25]
        assert read_table([0.5, 0.25]).table.p.tolist() == [[0.5], [0.5]]
        assert acceptance_from_vector([0.0, 0.5, 0.25]).table.p.tolist() == [0.5, 0.25]

    @pytest.mark.source
    @shared
    def test_published_vectors_of_sequoia(self, read_table, refuse_table):
        shipped = read_acceptance(SEQUOIA / "acceptance-rate-vector.pt", sampling=Sampling(0.6), rule="sequoia").table.p
        published = json.loads((SEQUOIA / "acceptance.json").read_bytes())
        assert shipped.tolist() == pytest.approx(published["shipped_vector"]["p"], abs=1e-8)
        assert 1 - shipped.sum() == pytest.approx(published["shipped_vector"]["none_accepted"], abs=1e-6)
        paper = published["paper_vector"]
        assert read_table(paper).table.p.tolist() == read_table(paper["p"], ranks=True).table.p.tolist() == paper["p"]
        refuse_table(published, "content", r"several tables \(shipped_vector, paper_vector\)")
        refuse_table((SEQUOIA / "8-chain.pt").read_bytes(), "content", "Is it an acceptance vector")

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
    @pytest.mark.parametrize("zipped", [True, False])
    def test_vectors_of_any_dtype_are_read_without_torch(self, read_table, monkeypatch, dtype, zipped):
        import torch

        file = io.BytesIO()
        vector = torch.tensor([[0.0, 0.5, 0.25], [0.0, 0.75, 0.125]], dtype=getattr(torch, dtype))[1]
        torch.save(vector, file, _use_new_zipfile_serialization=zipped)
        monkeypatch.setitem(sys.modules, "torch", None)
        assert read_table(file.getvalue()).table.p.tolist() == [0.75, 0.125]

    def test_lists_of_numbers_are_vectors_too(self, read_table, refuse_table):
        assert read_table(torch_bytes((0.0, 0.5, 0.25))).table.p.tolist() == [0.5, 0.25]
        refuse_table(torch_bytes(("0.5", "0.25")), "content", "Is it an acceptance vector")
        refuse_table(torch_bytes((0.5, (0.25,))), "content", "Is it an acceptance vector")

    def test_other_torch_files_are_refused(self, refuse_table):
        refuse_table(torch_bytes([[0.5]]), "content", "expected one row of finite numbers")
        refuse_table(torch_bytes([float("nan")]), "content", "expected one row of finite numbers")
        refuse_table(torch_bytes([0.0, 0.9, 0.3]), "content", "sums to 1.2")
        refuse_table(torch_bytes("text"), "content", "Is it an acceptance vector")
        refuse_table(pickle.dumps([0.5]), "content", "bare pickle")
        refuse_table(torch_bytes([0.5])[:-40], "content", "torch file")


def count_by_step(steps):
    """Return acceptance by position, counted step by step from accepted and drafted tokens."""
    reached, accepted = Counter(), Counter()
    for taken, tried in steps:
        for position in range(tried):
            reached[position] += taken >= position
            accepted[position] += taken > position
    return [accepted[position] / reached[position] for position in range(len(reached)) if reached[position]]


class TestStepCounts:
    def test_steps_count_only_at_drafted_positions(self):
        steps = [(0, 1), (1, 1), (1, 4), (3, 4), (2, 2), (0, 0)]
        counts = StepCounts.from_steps(*zip(*steps, strict=True))
        assert pool_steps([counts], "steps").table.p.ravel().tolist() == pytest.approx(count_by_step(steps))

    def test_many_requests_are_grouped(self):
        requests = [StepCounts.from_lengths({0: 1 + index % 3, 2: index % 5}, 3) for index in range(3 * MAX_GROUPS + 1)]
        sums = pool_steps(requests, "steps").sequences.reached
        assert len(sums) == MAX_GROUPS
        assert sums.sum(axis=0).tolist() == np.sum([request.reached for request in requests], axis=0).tolist()[:3]

    def test_long_request_among_many_short_ones_needs_little_memory(self):
        """A row of 2,000 positions for each of 5,000 requests would need 80 MB."""
        short = 5_000 * [StepCounts.from_lengths({0: 1}, 2_000)]
        tracemalloc.start()
        table = pool_steps([StepCounts.from_lengths({0: 1, 2_000: 1}, 2_000), *short], "steps").table
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert table.p.shape == (2_000, 1)
        assert table.p[0, 0] == pytest.approx(1 / 5_002)
        assert peak_bytes < 40_000_000

    def test_differing_requests_have_larger_errors_than_independent_steps(self):
        differing = pool_steps([StepCounts((100,), (10,)), StepCounts((100,), (90,))] * 4, "steps").table
        independent = pool_steps([StepCounts((800,), (400,))], "steps", by_request=False).table
        single = pool_steps([StepCounts((800,), (400,))], "steps").table
        assert differing.p.tolist() == independent.p.tolist()
        assert differing.standard_error[0, 0] > 5 * independent.standard_error[0, 0]
        assert single.standard_error[0, 0] > 5 * independent.standard_error[0, 0]


@pytest.mark.parametrize(("mean", "length"), [(1.0, 3), (1.3, 1), (4.0, 3), (7.9, 8)])
def test_chain_of_equal_rates_has_the_given_mean(mean, length):
    table = acceptance_from_mean(mean, length, "log").table
    assert len(table.p) == length
    assert table.expected_tokens(chain(length)) == pytest.approx(mean, abs=1e-9)


def test_files_that_cannot_be_read(tmp_path, read_table):
    with pytest.raises(TreeoptError, match="no such file"):
        read_acceptance(tmp_path / "none", sampling=Sampling(), rule="sequoia")
    with pytest.raises(TreeoptError, match="larger than 32000000 bytes"):
        read_table(b"[" + b" " * 32_000_000 + b"0.5]")
