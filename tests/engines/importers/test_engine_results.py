"""Logs and results of engines: what they are read as, against counts made by hand or by a simulated engine."""

import json

import numpy as np
import pytest

from tests.engines.importers.samples import META, SPECDEC, TRTLLM, VLLM_BENCH
from treeopt.engines.importers import read_acceptance, read_latency
from treeopt.engines.importers.mean_acceptance import geometric
from treeopt.errors import FormatError
from treeopt.trees import chain

QUARTERS = np.array([[0.75], [2 / 3], [0.5]])


def read(tmp_path, content):
    path = tmp_path / "file"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return read_acceptance(path, temperature=0.0, rule="sequoia")


def refused(tmp_path, content, field, reason):
    with pytest.raises(FormatError, match=reason) as caught:
        read(tmp_path, content)
    assert caught.value.field == field


def vllm_line(accepted_by_draft, length):
    """Return the line that vLLM writes of drafts, each of which accepted so many of `length` tokens."""
    accepted = np.array(accepted_by_draft)
    rates = ", ".join(f"{np.mean(accepted > place):.3f}" for place in range(length))
    return (
        f"INFO 01-01 00:00:10 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {1 + accepted.mean():.2f}, "
        f"Accepted: {accepted.sum()} tokens, Drafted: {length * len(accepted)} tokens, "
        f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {accepted.mean() / length:.1%}\n"
    )


class TestVllmBench:
    def test_counts(self, tmp_path):
        result = read(tmp_path, VLLM_BENCH)
        assert result.table.p == pytest.approx(QUARTERS)
        assert result.table.counts.tolist() == [40, 30, 20]
        assert result.positions == 40

    def test_shorter_drafts_are_named(self, tmp_path):
        assert "shorter drafts" in read(tmp_path, VLLM_BENCH | {"spec_decode_draft_tokens": 100}).imported[0].source

    def test_what_contradicts_itself_is_refused(self, tmp_path):
        rates = "spec_decode_per_position_acceptance_rates"
        refused(tmp_path, VLLM_BENCH | {"spec_decode_accepted_tokens": 90}, rates, "expected 90")
        refused(tmp_path, VLLM_BENCH | {"spec_decode_num_drafts": 0}, "spec_decode_num_drafts", "at least 1")
        refused(
            tmp_path,
            {key: each for key, each in VLLM_BENCH.items() if key != rates},
            "content",
            "give it to --sweep|Got JSON",
        )


class TestVllmLog:
    def test_all_lines_count_by_their_drafts(self, tmp_path):
        """Three drafts that were all accepted, at the end, change little of 4,900 before them."""
        rng = np.random.default_rng(5)
        parts = [rng.binomial(1, 0.9, 1400), rng.binomial(1, 0.6, 3500), np.ones(3, int)]
        log = "starting\n" + "".join(vllm_line(part, 1) for part in parts)
        result = read(tmp_path, log)
        assert result.positions == 4903
        assert result.table.p[0, 0] == pytest.approx(np.concatenate(parts).mean(), abs=1e-3)
        assert len(result.texts.reached) == 3, "intervals differ, so they are kept apart for the error"

    def test_positions_against_the_drafts_themselves(self, tmp_path):
        rng = np.random.default_rng(6)
        drafts = [np.minimum(rng.geometric(0.4, 500) - 1, 4) for _ in range(6)]
        result = read(tmp_path, "".join(vllm_line(part, 4) for part in drafts))
        every = np.concatenate(drafts)
        wanted = [np.mean(every[every >= place] > place) for place in range(4)]
        assert result.table.p[:, 0] == pytest.approx(wanted, abs=2e-3)

    def test_lines_without_drafts_are_passed_over(self, tmp_path):
        nothing = "Accepted: 0 tokens, Drafted: 0 tokens, Per-position acceptance rate: 0.000\n"
        assert read(tmp_path, nothing + vllm_line([1, 0, 1, 1], 1)).positions == 4

    def test_lines_without_counts_are_averaged(self, tmp_path):
        lines = [f"Per-position acceptance rate: {rates}\n" for rates in ("0.5", "0.8, 0.4", "0.6, 0.2")]
        result = read(tmp_path, "".join(lines))
        assert result.table.expected_tokens(chain(2)) == pytest.approx(1 + 0.7 + 0.3)
        assert result.table.counts is None
        assert "without counts" in result.imported[0].source


class TestSglang:
    @pytest.mark.parametrize(
        "response",
        [
            {"text": "a", "meta_info": META},
            {"choices": [{"text": "a", "meta_info": META}]},
            META,
            {"meta_info": {**META, "spec_accept_histogram": None, "spec_correct_drafts_histogram": [10, 10, 10, 10]}},
        ],
        ids=["native", "choice", "alone", "renamed"],
    )
    def test_histograms_of_requests(self, tmp_path, response):
        result = read(tmp_path, "\n".join(json.dumps(response) for _ in range(2)))
        assert result.table.p == pytest.approx(QUARTERS)
        assert (result.prompts, result.positions) == (2, 80)

    def test_requests_that_did_not_draft_are_left_out(self, tmp_path):
        lines = [{"meta_info": {"completion_tokens": 3}}, {"meta_info": META}]
        assert read(tmp_path, "\n".join(map(json.dumps, lines))).prompts == 1
        refused(tmp_path, lines[:1], "meta_info", "spec_accept_histogram of at least one request")

    def test_what_contradicts_itself_is_refused(self, tmp_path):
        refused(tmp_path, META | {"spec_verify_ct": 41}, "spec_accept_histogram", "expected 41 steps")
        refused(tmp_path, META | {"completion_tokens": 50}, "completion_tokens", "at least about the 60")

    def test_a_log_has_the_mean_only(self, tmp_path):
        line = "[2026-01-01] Decode batch, #running-req: {}, #token: 9, accept len: {}, accept rate: {}, gen throughput: 3\n"
        result = read(tmp_path, line.format(1, 1.5, 0.25) + line.format(3, 2.5, 0.75))
        assert result.table.expected_tokens(chain(2)) == pytest.approx(2.25), "a mean over running requests"
        assert result.table.p[0, 0] == pytest.approx(result.table.p[1, 0])
        assert "taken for equal" in result.imported[0].source
        refused(tmp_path, line.format(1, 2.4, 0.9), "accept len", "whole draft length")

    def test_a_mean_without_a_length_is_refused(self, tmp_path):
        refused(tmp_path, {"backend": "sglang", "accept_length": 2.5}, "content", "take SGLang's responses")


class TestLlamaServer:
    LINE = (
        "0.06 I statistics     draft-simple: #calls(b,g,a) =    1    {0}    {0}, #gen drafts =    {0}, #acc drafts = 7, "
        "#gen tokens =    {1}, #acc tokens =   {2}, #mean acc len = 2.50, {3}dur(b,g,a) = 0.005, {4}, 0.1 ms\n"
    )
    RATES = "#acc rate/pos = (0.750, 0.500, 0.250), "

    def test_the_last_line_holds_all_before_it(self, tmp_path):
        log = self.LINE.format(40, 120, 60, self.RATES, 90.0) + self.LINE.format(100, 300, 150, self.RATES, 300.0)
        result = read(tmp_path, log)
        assert result.table.p == pytest.approx(QUARTERS)
        assert result.positions == 100
        (draft,) = read_latency(tmp_path / "file", default_pass="draft")
        assert draft.draft.medians_s.tolist() == pytest.approx([1e-3]), "300 ms for 300 tokens"

    def test_a_restart_counts_anew(self, tmp_path):
        log = self.LINE.format(100, 300, 150, self.RATES, 300.0) + self.LINE.format(40, 120, 60, self.RATES, 90.0)
        assert read(tmp_path, log).positions == 140

    def test_without_rates_the_mean_is_taken(self, tmp_path):
        result = read(tmp_path, self.LINE.format(100, 200, 75, "", 200.0))
        assert result.table.expected_tokens(chain(2)) == pytest.approx(1.75)
        assert "taken for equal" in result.imported[0].source

    def test_verification_is_not_in_it(self, tmp_path):
        (tmp_path / "file").write_text(self.LINE.format(100, 300, 150, self.RATES, 300.0))
        with pytest.raises(FormatError, match="give it to --acceptance or --draft-latency"):
            read_latency(tmp_path / "file")


class TestSpecdecBench:
    def test_counts(self, tmp_path):
        result = read(tmp_path, SPECDEC)
        assert result.table.p == pytest.approx(QUARTERS)
        assert result.positions == 40

    def test_what_contradicts_itself_is_refused(self, tmp_path):
        refused(tmp_path, SPECDEC | {"Average_AL": 3.0}, "Average_AL", "expected 2.5")
        refused(
            tmp_path,
            SPECDEC | {"Acceptance_Length_Histogram": {"0": 4, "1": 3}},
            "Acceptance_Length_Histogram",
            "1 token or more",
        )


class TestMeans:
    @pytest.mark.parametrize(("mean", "length"), [(1.0, 3), (1.3, 1), (2.5, 3), (4.0, 3), (7.9, 8)])
    def test_the_chain_comes_to_its_mean(self, mean, length):
        table = geometric(mean, length)
        assert len(table.p) == length
        assert table.expected_tokens(chain(length)) == pytest.approx(mean, abs=1e-9)

    def test_trtllm_bench(self, tmp_path):
        assert read(tmp_path, TRTLLM).table.p == pytest.approx(np.array([[0.5], [0.5]]))
        refused(tmp_path, {"decoding_stats": {}}, "decoding_stats.acceptance_length_percentiles", "missing")


@pytest.mark.parametrize(
    ("content", "field", "reason"),
    [
        ({"acceptance_rates": [0.8, 0.6]}, "acceptance_rates", "Rename it to synthetic_acceptance_rates"),
        ([80, 60, 50], "content", "Got 80 at position 0: divide percentages by 100"),
        ([0.8, -0.1], "content", "Got -0.1 at position 1"),
    ],
)
def test_rates_in_another_form_are_refused_with_what_to_do(tmp_path, content, field, reason):
    refused(tmp_path, content, field, reason)
