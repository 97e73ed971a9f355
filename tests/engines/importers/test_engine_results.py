"""Acceptance in logs and results of engines, against counts made by hand or by a simulated engine."""

import json

import numpy as np
import pytest

from tests.engines.importers.samples import META, SPECDEC, TRTLLM, VLLM_BENCH
from treeopt.engines.importers import read_acceptance, read_latency
from treeopt.engines.importers.acceptance_tables import acceptance_from_mean
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

    def test_contradictions_are_refused(self, tmp_path):
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
    def test_lines_are_weighted_by_their_drafts(self, tmp_path):
        """Three drafts that were all accepted, at the end, change little of 4,900 before them."""
        rng = np.random.default_rng(5)
        parts = [rng.binomial(1, 0.9, 1400), rng.binomial(1, 0.6, 3500), np.ones(3, int)]
        log = "starting\n" + "".join(vllm_line(part, 1) for part in parts)
        result = read(tmp_path, log)
        assert result.positions == 4903
        assert result.table.p[0, 0] == pytest.approx(np.concatenate(parts).mean(), abs=1e-3)
        assert len(result.texts.reached) == 3, "intervals differ, so they are kept apart for the error"

    def test_positions_match_the_drafts(self, tmp_path):
        rng = np.random.default_rng(6)
        drafts = [np.minimum(rng.geometric(0.4, 500) - 1, 4) for _ in range(6)]
        result = read(tmp_path, "".join(vllm_line(part, 4) for part in drafts))
        every = np.concatenate(drafts)
        wanted = [np.mean(every[every >= place] > place) for place in range(4)]
        assert result.table.p[:, 0] == pytest.approx(wanted, abs=2e-3)

    def test_lines_without_drafts_are_skipped(self, tmp_path):
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

    def test_contradictions_are_refused(self, tmp_path):
        refused(tmp_path, META | {"spec_verify_ct": 41}, "spec_accept_histogram", "expected 41 steps")
        refused(tmp_path, META | {"completion_tokens": 50}, "completion_tokens", "at least about the 60")

    def test_log_contains_only_a_mean(self, tmp_path):
        line = "[2026-01-01] Decode batch, #running-req: {}, #token: 9, accept len: {}, accept rate: {}, gen throughput: 3\n"
        result = read(tmp_path, line.format(1, 1.5, 0.25) + line.format(3, 2.5, 0.75))
        assert result.table.expected_tokens(chain(2)) == pytest.approx(2.25), "a mean over running requests"
        assert result.table.p[0, 0] == pytest.approx(result.table.p[1, 0])
        assert "taken for equal" in result.imported[0].source
        refused(tmp_path, line.format(1, 2.4, 0.9), "accept len", "expected a draft length")

    def test_mean_without_draft_length_is_refused(self, tmp_path):
        refused(tmp_path, {"backend": "sglang", "accept_length": 2.5}, "content", "take SGLang's responses")


class TestLlamaServer:
    LINE = (
        "0.06 I statistics     draft-simple: #calls(b,g,a) =    1    {0}    {0}, #gen drafts =    {0}, #acc drafts = 7, "
        "#gen tokens =    {1}, #acc tokens =   {2}, #mean acc len = 2.50, {3}dur(b,g,a) = 0.005, {4}, 0.1 ms\n"
    )
    RATES = "#acc rate/pos = (0.750, 0.500, 0.250), "

    def test_last_line_includes_earlier_ones(self, tmp_path):
        log = self.LINE.format(40, 120, 60, self.RATES, 90.0) + self.LINE.format(100, 300, 150, self.RATES, 300.0)
        result = read(tmp_path, log)
        assert result.table.p == pytest.approx(QUARTERS)
        assert result.positions == 100
        (draft,) = read_latency(tmp_path / "file", default_pass="draft")
        assert draft.draft.medians_s.tolist() == pytest.approx([1e-3]), "300 ms for 300 tokens"

    def test_restart_begins_new_totals(self, tmp_path):
        log = self.LINE.format(100, 300, 150, self.RATES, 300.0) + self.LINE.format(40, 120, 60, self.RATES, 90.0)
        assert read(tmp_path, log).positions == 140

    def test_mean_is_used_without_rates(self, tmp_path):
        result = read(tmp_path, self.LINE.format(100, 200, 75, "", 200.0))
        assert result.table.expected_tokens(chain(2)) == pytest.approx(1.75)
        assert "taken for equal" in result.imported[0].source

    def test_log_has_no_verification_times(self, tmp_path):
        (tmp_path / "file").write_text(self.LINE.format(100, 300, 150, self.RATES, 300.0))
        with pytest.raises(FormatError, match="give it to --acceptance or --draft-latency"):
            read_latency(tmp_path / "file")


class TestSpecdecBench:
    def test_counts(self, tmp_path):
        result = read(tmp_path, SPECDEC)
        assert result.table.p == pytest.approx(QUARTERS)
        assert result.positions == 40

    def test_contradictions_are_refused(self, tmp_path):
        refused(tmp_path, SPECDEC | {"Average_AL": 3.0}, "Average_AL", "expected 2.5")
        refused(
            tmp_path,
            SPECDEC | {"Acceptance_Length_Histogram": {"0": 4, "1": 3}},
            "Acceptance_Length_Histogram",
            "1 token or more",
        )


class TestMeans:
    @pytest.mark.parametrize(("mean", "length"), [(1.0, 3), (1.3, 1), (2.5, 3), (4.0, 3), (7.9, 8)])
    def test_chain_has_the_given_mean(self, mean, length):
        table = acceptance_from_mean(mean, length, "log").table
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
def test_other_rates_are_refused_with_advice(tmp_path, content, field, reason):
    refused(tmp_path, content, field, reason)


class TestOtherVersions:
    """What engines of other versions, or started with other options, write in place of the above."""

    SGLANG = "[2026-01-01 TP0] Decode batch, #running-req: 1, #full token: 9, accept len: {}, accept rate: {}, cuda graph: True\n"
    SLOT = "0.34 I slot print_timing: id  3 | task 0 | draft acceptance = 0.5 (  {} accepted /   {} generated), {}\n"

    @pytest.mark.parametrize("drafted_tokens", [2, 3, 7])
    @pytest.mark.parametrize("own_token_in_rate", [True, False])
    def test_sglang_draft_length_follows_from_either_kind_of_rate(self, tmp_path, drafted_tokens, own_token_in_rate):
        """Older versions count the target's own token as drafted and accepted."""
        rng = np.random.default_rng(drafted_tokens)
        means = 1 + rng.uniform(0.2, 0.9, 12) * drafted_tokens
        rates = means / (drafted_tokens + 1) if own_token_in_rate else (means - 1) / drafted_tokens
        log = "".join(self.SGLANG.format(f"{m:.2f}", f"{r:.2f}") for m, r in zip(means, rates, strict=True))
        table = read(tmp_path, log).table
        assert len(table.p) == drafted_tokens
        assert table.expected_tokens(chain(drafted_tokens)) == pytest.approx(means.mean(), abs=0.005)

    def test_sglang_draft_length_in_server_args_has_priority(self, tmp_path):
        arguments = "server_args=ServerArgs(model_path='m', speculative_num_steps=3, speculative_eagle_topk=1)\n"
        without_rates = self.SGLANG.format(2.5, 0).replace(", accept rate: 0", "")
        assert len(read(tmp_path, arguments + without_rates).table.p) == 3
        refused(tmp_path, without_rates, "accept len", "speculative_num_steps")

    def test_sglang_log_with_changing_draft_lengths_is_refused(self, tmp_path):
        log = (
            self.SGLANG.format("2.50", "0.50") + self.SGLANG.format("1.90", "0.90") + self.SGLANG.format("2.00", "0.20")
        )
        refused(tmp_path, log, "accept len", "take SGLang's responses")

    def test_llama_server_requests_match_their_steps(self, tmp_path):
        rng = np.random.default_rng(7)
        requests = [np.minimum(rng.geometric(0.4, steps) - 1, 3) for steps in (200, 90, 150)]
        rates = [", ".join(f"{np.mean(each > place):.3f}" for place in range(3)) for each in requests]
        lines = [
            self.SLOT.format(each.sum(), 3 * len(each), f"mean acceptance length = {1 + each.mean():.2f}{{}}")
            for each in requests
        ]
        one_line = "".join(
            line.format(f", acceptance rate per position = ({rate})") for line, rate in zip(lines, rates, strict=True)
        )
        two_lines = "".join(
            line.format("") + f"0.35 T slot print_timing:      acc per pos = ({rate})\n"
            for line, rate in zip(lines, rates, strict=True)
        ).replace("mean acceptance length", "mean len")
        every = np.concatenate(requests)
        wanted = [np.mean(every[every >= place] > place) for place in range(3)]
        for log in (one_line, two_lines):
            result = read(tmp_path, log)
            assert result.table.p[:, 0] == pytest.approx(wanted, abs=2e-3)
            assert (result.prompts, result.positions) == (3, 440)
            assert len(result.texts.reached) == 3

    def test_llama_server_requests_without_rates_have_a_mean(self, tmp_path):
        """As at the default verbosity; a request of which nothing was accepted counts too."""
        log = self.SLOT.format(150, 300, "mean len =  2.50") + self.SLOT.format(0, 30, "mean len =  1.00")
        result = read(tmp_path, log)
        assert result.table.expected_tokens(chain(3)) == pytest.approx(1 + 150 / 110)
        assert "all 3 positions taken for equal" in result.imported[0].source
        refused(tmp_path, self.SLOT.format(150, 300, ""), "draft acceptance", "take the server's /metrics")

    def test_llama_server_requests_are_not_added_to_its_statistics(self, tmp_path):
        rates = "mean acceptance length = 2.50, acceptance rate per position = (0.750, 0.500, 0.250)"
        statistics = TestLlamaServer.LINE.format(100, 300, 150, TestLlamaServer.RATES, 300.0)
        assert read(tmp_path, self.SLOT.format(150, 300, rates) + statistics).positions == 100
        (draft,) = read_latency(tmp_path / "file", default_pass="draft")
        assert draft.draft.medians_s.tolist() == pytest.approx([1e-3])

    def test_llama_server_requests_have_no_times(self, tmp_path):
        (tmp_path / "file").write_text(self.SLOT.format(150, 300, "mean len =  2.50"))
        with pytest.raises(FormatError, match=r"expected times of draft passes\. Got none"):
            read_latency(tmp_path / "file", default_pass="draft")

    def test_llama_server_statistics_separate_drafting_methods(self, tmp_path):
        """A slot's rates are of both ways together."""
        rates = "mean acceptance length = 2.50, acceptance rate per position = (0.900, 0.500, 0.250)"
        statistics = TestLlamaServer.LINE.format(100, 300, 150, TestLlamaServer.RATES, 300.0)
        lookup = TestLlamaServer.LINE.format(9, 27, 20, "", 1.0).replace("draft-simple", "ngram-mod")
        result = read(tmp_path, self.SLOT.format(170, 327, rates) + lookup + statistics)
        assert result.table.p == pytest.approx(QUARTERS)
        assert "draft-simple" in result.imported[0].source

    def test_appended_vllm_runs_are_pooled(self, tmp_path):
        result = read(tmp_path, json.dumps(VLLM_BENCH) + "\n" + json.dumps(VLLM_BENCH) + "\n")
        assert result.table.p == pytest.approx(QUARTERS)
        assert result.positions == 80
        assert len(result.texts.reached) == 2

    def test_results_with_rates_only(self, tmp_path):
        result = read(tmp_path, {"duration": 3.5, "spec_decode_per_position_acceptance_rates": [0.75, 0.5, 0.25]})
        assert result.table.p == pytest.approx(QUARTERS)
        assert result.table.counts is None

    def test_specdec_bench_rates_must_match_its_histogram(self, tmp_path):
        """A length that no step had is left out of all three."""
        lengths = {"1": 10, "3": 20, "4": 10}
        joint, conditional = {"1": 1.0, "3": 0.75, "4": 0.25}, {"1": 1.0, "3": 0.75, "4": 1 / 3}
        content = {
            "Acceptance_Length_Histogram": lengths,
            "Joint_Acceptance_Rate": joint,
            "Conditional_Acceptance_Rate": conditional,
        }
        assert read(tmp_path, content).table.p == pytest.approx(np.array([[0.75], [1.0], [1 / 3]]))
        for name, rates in (("Joint_Acceptance_Rate", joint), ("Conditional_Acceptance_Rate", conditional)):
            refused(tmp_path, content | {name: rates | {"4": 0.6}}, f"{name}.4", "Acceptance_Length_Histogram")

    def test_sglang_mean_must_match_its_histogram(self, tmp_path):
        assert read(tmp_path, META | {"spec_accept_length": 2.5}).positions == 40
        refused(tmp_path, META | {"spec_accept_length": 3.5}, "spec_accept_length", "expected 2.5")
