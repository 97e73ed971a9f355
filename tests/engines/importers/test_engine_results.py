"""Acceptance in logs, results and responses of engines, against counts made by hand or by a simulated engine."""

import json

import numpy as np
import pytest

from tests.engines.importers.samples import (
    ACCEPTANCE_FILES,
    ANSWER,
    COMPLETION,
    ITERATION,
    LLAMA_CPP_METRICS,
    META,
    METRICS,
    REQUEST,
    SERVER_INFO,
    SPECDEC,
    SUMMARY,
    TRTLLM,
    VLLM_BENCH,
    VLLM_BENCH_PRINTED,
    aiperf,
    batched,
    changed,
    json_lines,
    response,
)
from tests.engines.importers.test_acceptance import count_by_step
from treeopt.engines.importers import read_latency
from treeopt.trees import chain

QUARTERS = np.array([[0.75], [2 / 3], [0.5]])
RATES = "spec_decode_per_position_acceptance_rates"


def vllm_line(accepted_by_draft, length):
    """Return vLLM's log line of drafts of `length` tokens."""
    accepted = np.array(accepted_by_draft)
    rates = ", ".join(f"{np.mean(accepted > position):.3f}" for position in range(length))
    return (
        f"INFO 01-01 00:00:10 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {1 + accepted.mean():.2f}, "
        f"Accepted: {accepted.sum()} tokens, Drafted: {length * len(accepted)} tokens, "
        f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {accepted.mean() / length:.1%}\n"
    )


@pytest.mark.parametrize("name", ["engine.log", "llama-server.log", "llama-slots.log", "sglang.log"])
@pytest.mark.parametrize("field", ["log", "message", "msg", "MESSAGE", "textPayload", "line"])
def test_logs_of_containers_are_unwrapped(read_table, name, field):
    text = ACCEPTANCE_FILES[name]
    wrapped = json_lines({field: line, "stream": "stdout"} for line in text.splitlines(keepends=True))
    assert read_table(wrapped).table.p.tolist() == read_table(text).table.p.tolist()


class TestVllmBench:
    def test_runs_are_pooled(self, read_table):
        for runs in (1, 2):
            result = read_table(json_lines([VLLM_BENCH] * runs))
            assert result.table.p == pytest.approx(QUARTERS)
            assert result.table.counts.tolist() == [40 * runs, 30 * runs, 20 * runs]
            assert result.positions == 40 * runs
        assert read_table(2 * json.dumps(VLLM_BENCH)).positions == 80  # two files without a line end, concatenated

    @pytest.mark.parametrize("drafts", [..., None])
    def test_result_with_rates_only_has_no_counts(self, read_table, drafts):
        run = VLLM_BENCH | {"max_concurrency": 1}
        result = read_table(changed(run, "spec_decode_num_drafts", to=drafts))
        assert result.table.p == pytest.approx(QUARTERS)
        assert result.table.counts is None

    def test_shorter_drafts_are_named(self, read_table):
        assert "shorter drafts" in read_table(VLLM_BENCH | {"spec_decode_draft_tokens": 100}).imported[0].source

    def test_contradictions_are_refused(self, refuse_table):
        refuse_table(VLLM_BENCH | {"spec_decode_accepted_tokens": 90}, RATES, "expected 90")
        refuse_table(VLLM_BENCH | {"spec_decode_num_drafts": 0}, "spec_decode_num_drafts", "at least 1")
        refuse_table(changed(VLLM_BENCH, RATES, to=...), "content", "give it to --sweep|Got JSON")
        models = [VLLM_BENCH | {"model_id": name} for name in "ab"]
        refuse_table(json_lines(models), "model_id", "the results of one model. Got 2")

    def test_printed_result_is_read_like_the_saved_one(self, read_table):
        saved = {
            "spec_decode_num_drafts": 6393,
            "spec_decode_draft_tokens": 19179,
            RATES: [0.8342, 0.7291, 0.6407],
        }
        result = read_table(f"Starting main benchmark run...\n{VLLM_BENCH_PRINTED}")
        assert result.table == read_table(saved).table
        assert result.positions == 6393

    def test_printed_results_without_acceptance_of_one_run_are_refused(self, refuse_table):
        plain, _, _ = VLLM_BENCH_PRINTED.partition("---------------Speculative")
        refuse_table(plain, "content", "Got none: keep one that drafted")
        refuse_table(2 * VLLM_BENCH_PRINTED, "content", "Got 2: keep one")
        refuse_table(VLLM_BENCH_PRINTED.replace("14090", "14190"), RATES, "expected 14190")


class TestVllmLog:
    def test_lines_are_weighted_by_their_drafts(self, read_table):
        """Three drafts that were all accepted, at the end, change little of 4,900 before them."""
        rng = np.random.default_rng(5)
        parts = [rng.binomial(1, 0.9, 1400), rng.binomial(1, 0.6, 3500), np.ones(3, int)]
        result = read_table("starting\n" + "".join(vllm_line(part, 1) for part in parts))
        assert result.positions == 4903
        assert result.table.p[0, 0] == pytest.approx(np.concatenate(parts).mean(), abs=1e-3)
        assert len(result.sequences.reached) == 3  # the error counts differences between intervals

    def test_positions_match_the_drafts(self, read_table):
        rng = np.random.default_rng(6)
        intervals = [np.minimum(rng.geometric(0.4, 500) - 1, 4) for _ in range(6)]
        result = read_table("".join(vllm_line(accepted, 4) for accepted in intervals))
        accepted = np.concatenate(intervals)
        expected = [np.mean(accepted[accepted >= position] > position) for position in range(4)]
        assert result.table.p[:, 0] == pytest.approx(expected, abs=2e-3)

    def test_lines_that_a_terminal_broke_are_refused(self, refuse_table):
        line = "Mean acceptance length: 2.72, Accepted: 517 tokens, Drafted: 900 tokens, Per-position acceptance rate: 0.800,"
        refuse_table(f"{line}\n 0.600, 0.323\n", "line 1", "a rate after the last comma")

    def test_older_means_lack_the_targets_own_token(self, read_table):
        line = "Mean acceptance length: 1.72, Accepted: 517 tokens, Drafted: 900 tokens, "
        result = read_table(line + "Per-position acceptance rate: 0.800, 0.600, 0.323\n")
        assert result.table.expected_tokens(chain(3)) == pytest.approx(2.723, abs=1e-3)

    def test_shorter_drafts_of_a_schedule_count(self, read_table):
        """1,000 drafts of one token and 1,000 of three."""
        head = "Mean acceptance length: {}, Accepted: {} tokens, Drafted: {} tokens, "
        short = head.format(1.8, 800, 1000) + "Per-position acceptance rate: 0.800, 0.000, 0.000\n"
        full = head.format(2.8, 1800, 3000) + "Per-position acceptance rate: 0.800, 0.600, 0.400\n"
        result = read_table(short + full)
        assert result.positions == 2000
        assert result.table.p[:, 0] == pytest.approx([0.8, 600 / 1600, 400 / 600])
        assert "shorter drafts" in result.imported[0].source
        assert "shorter drafts" not in read_table(full).imported[0].source

    def test_lines_without_drafts_are_skipped(self, read_table):
        nothing = "Accepted: 0 tokens, Drafted: 0 tokens, Per-position acceptance rate: 0.000\n"
        assert read_table(nothing + vllm_line([1, 0, 1, 1], 1)).positions == 4

    def test_lines_without_counts_are_averaged(self, read_table):
        lines = [f"Per-position acceptance rate: {rates}\n" for rates in ("0.5", "0.8, 0.4", "0.6, 0.2")]
        result = read_table("".join(lines))
        assert result.table.expected_tokens(chain(2)) == pytest.approx(1 + 0.7 + 0.3)
        assert result.table.counts is None
        assert "without counts" in result.imported[0].source

    @pytest.mark.parametrize("end", [", 0.200", "00, 0.200"])
    def test_lines_that_were_cut_off_are_refused(self, refuse_table, end):
        line = vllm_line([0, 0, 1, 1, 2, 2, 3, 3, 3, 3], 3)
        whole = "0.800, 0.600, 0.400"
        assert whole in line
        cut = line[: line.index(whole) + len(whole) - len(end)]
        refuse_table(line + cut, "line 2", "is the line complete")

    def test_percentages_are_refused(self, refuse_table):
        log = "Drafted: 90 tokens, Per-position acceptance rate: 75.0, 50.0, 25.0\n"
        refuse_table(log, "content", "Got 75 at position 0: divide percentages by 100")


class TestRequests:
    def test_records_and_responses_agree(self, read_table):
        steps = list(zip(REQUEST["per_step_accepted"], REQUEST["per_step_drafted"], strict=True))
        steps += [(taken, 3) for taken, count in enumerate(SUMMARY["acceptance_histogram"]) for _ in range(count)]
        failed = {"metadata": {}, "metrics": {}, "error": {"code": 500}}
        null = aiperf(SUMMARY) | {"spec_decode_acceptance": None}
        for content in (
            [aiperf(REQUEST), failed, null, aiperf(SUMMARY)],
            [response(REQUEST), response(None), response(SUMMARY)],
            [REQUEST, SUMMARY],
            [{"speculative_decoding": REQUEST}, {"speculative_decoding": SUMMARY}],
        ):
            result = read_table(json_lines(content))
            assert result.table.p.ravel().tolist() == pytest.approx(count_by_step(steps))
            assert (result.prompts, result.positions) == (2, 51)
            assert result.sequences is not None
            assert read_table(content).table.p.tolist() == result.table.p.tolist()

    def test_summary_of_aiperf(self, read_table, refuse_table):
        summary = {
            "schema_version": "1.3",
            "pooled_spec_decode_acceptance_histogram": {"0": 10, "1": 10, "2": 20},
            "total_spec_decode_steps": {"unit": "steps", "avg": 40},
            "total_draft_tokens": {"unit": "tokens", "avg": 120},
        }
        result = read_table(summary)
        assert result.table.p[:, 0] == pytest.approx([0.75, 20 / 30, 0])
        assert (result.prompts, result.positions) == (None, 40)
        pooled = "pooled_spec_decode_acceptance_histogram"
        refuse_table(changed(summary, "total_spec_decode_steps", "avg", to=41), pooled, "expected 41 steps")
        refuse_table({pooled: {}}, pooled, "at least one that drafted")

    def test_single_response(self, read_table):
        result = read_table(json.dumps(response(SUMMARY), indent=2))
        assert result.table.counts.tolist() == [43, 4, 3]
        assert result.sequences is None
        assert result.imported[0].source == "file (vLLM request metrics)"

    def test_drafts_of_several_lengths(self, read_table):
        steps = [(2, 4), (1, 1), (0, 3), (1, 2)]
        accepted, drafted = map(list, zip(*steps, strict=True))
        totals = {"num_spec_tokens": 4, "num_draft_tokens": 10}
        detailed = read_table(totals | {"per_step_accepted": accepted, "per_step_drafted": drafted})
        assert detailed.table.p.ravel().tolist() == pytest.approx(count_by_step(steps))
        summary = read_table(totals | {"acceptance_histogram": [1, 2, 1, 0, 0], "num_spec_steps": 4})
        assert summary.table.p.ravel().tolist() == pytest.approx([3 / 4, 1 / 3, 0.0])
        assert summary.imported[0].source.endswith("shorter drafts count as rejected)")

    @pytest.mark.parametrize(
        ("name", "to", "field", "reason"),
        [
            ("num_accepted_draft_tokens", 40, "num_accepted_draft_tokens", "expected 18"),
            ("num_spec_steps", 9, "num_spec_steps", "expected 8"),
            ("num_draft_tokens", 31, "num_draft_tokens", "expected 32"),
            ("mean_acceptance_length", 3.5, "mean_acceptance_length", "expected 3.25"),
            ("mean_acceptance_length", float("nan"), "mean_acceptance_length", "number"),
            ("draft_acceptance_rate", 0.6, "draft_acceptance_rate", "expected 0.5625"),
            ("per_step_drafted", [4] * 7, "per_step_drafted", "expected 8, one per step"),
            ("per_step_drafted", [4, 2, 4, 4, 4, 4, 4, 4], "per_step_accepted[1]", "at most the 2 draft tokens"),
            ("per_step_accepted", [2, 3, 1, 4, 2, 0, 3, -3], "per_step_accepted", "0 to 10000"),
            ("per_step_accepted", [2, 3, 1, 4, 2, 1, 3, 2], "acceptance_histogram", "expected the steps of"),
            ("num_spec_tokens", 3, "num_spec_tokens", "a step of 4"),
            ("completion_tokens", 3, "completion_tokens", "18 that were accepted"),
        ],
    )
    def test_contradictions_are_refused(self, refuse_table, name, to, field, reason):
        record = changed(aiperf(REQUEST), "spec_decode_acceptance", name, to=to)
        refuse_table(json_lines([aiperf(SUMMARY), record]), f"line 2, spec_decode_acceptance.{field}", reason)

    def test_incomplete_and_mixed_files_are_refused(self, refuse_table):
        complete = json_lines([aiperf(SUMMARY)] * 2)
        mixed = [aiperf(SUMMARY), changed(aiperf(SUMMARY), "spec_decode_acceptance", "engine", to="trtllm")]
        totals = changed(SUMMARY, "acceptance_histogram", to=...)
        refuse_table(totals, "acceptance_histogram", "Totals do not contain positions")
        refuse_table(SUMMARY | {"num_draft_tokens": 7}, "num_draft_tokens", "expected 10 to 129")
        refuse_table(complete[:-30], "line 2", "Is it complete")
        refuse_table(complete + "[1]\n", "line 3", "expected a JSON object")
        refuse_table(mixed, "engine", "one engine. Got 2")
        refuse_table([response(None)] * 2, "content", "--per-request-spec-decode-metrics")
        refuse_table([{"a": 1}] * 2, "content", "Got JSON with the keys a")
        refuse_table([{"num_spec_steps": 0, "acceptance_histogram": [0, 0]}], "content", "has it drafted yet")


class TestAnswers:
    def test_lengths_include_the_target_token(self, read_table):
        result = read_table(json_lines([ANSWER, ANSWER]))
        assert result.table.p.ravel().tolist() == pytest.approx(count_by_step([(2, 2), (0, 2), (1, 2), (1, 2)]))
        assert (result.prompts, result.positions) == (2, 8)
        assert "of a tree's best paths" in result.imported[0].source

    @pytest.mark.parametrize(
        ("name", "to", "field", "reason"),
        [
            ("accept_lengths", [3, 0, 2, 2], "accept_lengths", "1 to 10000 tokens a step"),
            ("accept_lengths", ..., "accept_lengths", "is missing"),
            ("accept_lengths", [2] * 20, "accept_lengths", "about new_tokens, 8. Got 40"),
            ("new_tokens", [-4, 12], "accept_lengths", "about new_tokens"),
            ("wall_time", [0.5], "wall_time", "expected 2, one per turn"),
            ("wall_time", [0.5, -1.0], "wall_time", "seconds from 0"),
        ],
    )
    def test_contradictions_are_refused(self, refuse_table, name, to, field, reason):
        answers = json_lines([changed(ANSWER, "choices", 0, name, to=to), ANSWER])
        refuse_table(answers, f"line 1.choices[0].{field}", reason)

    def test_baselines_and_mixed_answers_are_refused(self, refuse_table):
        baseline = changed(ANSWER, "choices", 0, "accept_lengths", to=[1] * 8)
        refuse_table([baseline, baseline], "accept_lengths", "not of a baseline")
        refuse_table([ANSWER, ANSWER | {"model_id": "other"}], "model_id", "one model. Got 2")
        refuse_table(json_lines([ANSWER, ANSWER])[:-9], "line 2", "Is it complete")


class TestMetrics:
    def test_counters_of_llama_cpp(self, read_table):
        result = read_table(LLAMA_CPP_METRICS)
        assert result.table.p.ravel().tolist() == pytest.approx([0.8, 0.5, 0.5])
        assert result.table.counts.tolist() == [100, 80, 40]
        assert result.imported[0].source == "file (llama.cpp metrics; shorter drafts count as rejected)"

    def test_counters_of_vllm_under_ray(self, read_table):
        ray = METRICS.replace("vllm:spec", "ray_vllm_spec").replace("{engine", '{Component="core",ReplicaId="a",engine')
        assert np.array_equal(read_table(ray).table.p, read_table(METRICS).table.p)

    def test_labels_with_commas_braces_and_escapes(self, read_table):
        name = 'a\\"b},{c=\\\\d'
        assert read_table(METRICS.replace('model_name="m"', f'model_name="{name}"')).positions == 100

    def test_totals_without_positions_give_a_mean(self, read_table, refuse_table):
        totals = "".join(line for line in LLAMA_CPP_METRICS.splitlines(True) if "per_pos" not in line)
        result = read_table(totals.replace("250", "200").replace("140", "75"))
        assert result.table.p == pytest.approx(np.array([[0.5], [0.5]]))
        assert "all 2 positions taken for equal" in result.imported[0].source
        refuse_table(totals.replace("250", "1e17"), "content", "for every position from 0 on")

    @pytest.mark.parametrize(
        ("old", "new", "field"),
        [
            ("tokens_total 140", "tokens_total 141", "llamacpp:spec_decode_num_accepted_tokens"),
            ("tokens_total 250", "tokens_total 130", "llamacpp:spec_decode_num_accepted_tokens"),
            ("drafts_total 100", "drafts_total 70", "content"),
            ("drafts_total 100", "drafts_total NaN", "line 3"),
            ("drafts_total 100", "drafts_total", "line 3"),
            ("drafts_total 100", f'drafts_total{{a="{"x" * 4000}"}} 100', "line 3"),
            ('position="2"', 'position="1"', "line 9"),
            ("# HELP", "llamacpp:spec_decode_num_drafts 3\n# HELP", "line 4"),
            ('position="2"} 20\n', 'position="2', "line 9"),
            ("# HELP", METRICS + "# HELP", "content"),
        ],
    )
    def test_contradictions_are_refused(self, refuse_table, old, new, field):
        assert old in LLAMA_CPP_METRICS
        refuse_table(LLAMA_CPP_METRICS.replace(old, new, 1), field, "expected")

    def test_missing_positions_are_refused_unless_the_total_shows_that_they_accepted_nothing(
        self, read_table, refuse_table
    ):
        longer = LLAMA_CPP_METRICS.replace("tokens_total 250", "tokens_total 400")
        assert len(read_table(longer).table.p) == 3
        without_total = "".join(line for line in longer.splitlines(True) if "accepted_tokens_total" not in line)
        refuse_table(without_total, "content", "counters of 4 positions, as many as a step drafts. Got 3")

    def test_gauges_of_several_models_of_sglang_are_refused(self, read_table, refuse_table):
        gauges = 'sglang:spec_accept_length{{model_name="{0}"}} {1}\nsglang:spec_accept_rate{{model_name="{0}"}} 0.5\n'
        assert len(read_table(gauges.format("a", 2.5)).table.p) == 3
        several = gauges.format("a", 2.5) + gauges.format("b", 2.0)
        refuse_table(several, "sglang:spec_accept_length", "one value. Got 2: keep the lines of one model and rank")

    @pytest.mark.parametrize(
        ("mean", "rate", "field", "reason"),
        [
            ("0.0", "0.5", "sglang:spec_accept_length", "has it drafted yet"),
            ("NaN", "0.5", "line 1", "a mean of at least 0. Got nan"),
            ("many", "0.5", "line 1", "Is the line complete"),
        ],
    )
    def test_gauges_of_sglang_are_parsed_like_counters(self, read_table, refuse_table, mean, rate, field, reason):
        gauges = "sglang:spec_accept_length {}\nsglang:spec_accept_rate {}\nsglang:spec_num_steps 3\n"
        assert len(read_table(gauges.format("2.5e0", "5e-1 1700000000000")).table.p) == 3
        refuse_table(gauges.format(mean, rate), field, reason)


class TestSglang:
    LINE = "[2026-01-01 TP0] Decode batch, #running-req: {}, #full token: 9, accept len: {}, accept rate: {}, gen: 3\n"

    @pytest.mark.parametrize(
        "content",
        [
            {"text": "a", "meta_info": META},
            {"choices": [{"text": "a", "meta_info": META}]},
            META | {"spec_accept_length": 2.5},
            {"meta_info": {**META, "spec_accept_histogram": None, "spec_correct_drafts_histogram": [10, 10, 10, 10]}},
            {"choices": [{"message": {}}], "sglext": {"spec_tokens_details": META}},
        ],
        ids=["native", "choice", "alone", "renamed", "extension"],
    )
    def test_histograms_of_requests(self, read_table, content):
        result = read_table(json_lines([content] * 2))
        assert result.table.p == pytest.approx(QUARTERS)
        assert (result.prompts, result.positions) == (2, 80)

    def test_sequences_of_one_response_are_requests(self, read_table):
        assert read_table({"choices": [], "sglext": {"spec_tokens_details": [META, META]}}).prompts == 2
        assert read_table({"choices": [{"meta_info": META}, {"meta_info": META}]}).prompts == 2

    def test_requests_that_did_not_draft_are_left_out(self, read_table, refuse_table):
        lines = [{"meta_info": {"completion_tokens": 3}}, {"meta_info": META}]
        assert read_table(json_lines(lines)).prompts == 1
        refuse_table(lines[:1], "meta_info", "spec_accept_histogram of at least one request")

    def test_contradictions_are_refused(self, refuse_table, refuse_times):
        refuse_table(META | {"spec_verify_ct": 41}, "spec_accept_histogram", "expected 41 steps")
        refuse_table(META | {"completion_tokens": 50}, "completion_tokens", "at least about the 60")
        refuse_table(META | {"spec_accept_length": 3.5}, "spec_accept_length", "expected 2.5")
        for key in ("accept_length", "acc_length", "average_acceptance_length"):
            refuse_table({"backend": "sglang", key: 2.5}, "content", f"the mean {key} only: take SGLang's responses")
            refuse_times({"backend": "sglang", key: 2.5}, "content", f"expected times. Got results with a mean {key}")
        refuse_table("accept len: 2.5\n", "content", "lines with #running-req and accept len")

    def test_mean_of_the_log_is_weighted_by_running_requests(self, read_table):
        result = read_table(self.LINE.format(1, 1.5, 0.25) + self.LINE.format(3, 2.5, 0.75))
        assert result.table.expected_tokens(chain(2)) == pytest.approx(2.25)
        assert result.table.p[0, 0] == pytest.approx(result.table.p[1, 0])
        assert "taken for equal" in result.imported[0].source

    @pytest.mark.parametrize("draft_tokens", [2, 3, 7])
    @pytest.mark.parametrize("own_token_in_rate", [True, False])
    def test_draft_length_follows_from_either_kind_of_rate(self, read_table, draft_tokens, own_token_in_rate):
        """Older versions count the target's own token as drafted and accepted."""
        rng = np.random.default_rng(draft_tokens)
        means = 1 + rng.uniform(0.2, 0.9, 12) * draft_tokens
        rates = means / (draft_tokens + 1) if own_token_in_rate else (means - 1) / draft_tokens
        lines = [self.LINE.format(1, f"{m:.2f}", f"{r:.2f}") for m, r in zip(means, rates, strict=True)]
        table = read_table("".join(lines)).table
        assert len(table.p) == draft_tokens
        assert table.expected_tokens(chain(draft_tokens)) == pytest.approx(means.mean(), abs=0.005)

    def test_numbers_that_were_cut_off_are_left_out(self, read_table):
        whole = self.LINE.format(1, "2.50", "0.50")
        cut = whole[: whole.index("2.50") + len("2.")]
        assert read_table(whole + cut).table.expected_tokens(chain(3)) == pytest.approx(2.5)

    def test_draft_length_in_server_args_has_priority(self, read_table, refuse_table):
        arguments = "server_args=ServerArgs(model_path='m', speculative_num_steps=3, speculative_eagle_topk=1)\n"
        without_rates = self.LINE.format(1, 2.5, 0).replace(", accept rate: 0", "")
        assert len(read_table(arguments + without_rates).table.p) == 3
        assert len(read_table("--speculative-num-steps 3\n" + without_rates).table.p) == 3
        assert "trees" not in read_table(arguments + without_rates).imported[0].source
        trees = arguments.replace("topk=1", "topk=4")
        assert "log; of a tree's best paths; mean" in read_table(trees + without_rates).imported[0].source
        refuse_table(without_rates, "accept len", "speculative_num_steps")
        changing = "".join(
            self.LINE.format(1, *line) for line in (("2.50", "0.50"), ("1.90", "0.90"), ("2.00", "0.20"))
        )
        refuse_table(changing, "accept len", "take SGLang's responses")

    def test_rates_that_fit_several_draft_lengths_are_refused(self, refuse_table):
        refuse_table(self.LINE.format(1, "3.50", "0.08"), "accept len", "expected a draft length.*Got 4")

    def test_server_info_has_the_mean_of_all_ranks(self, read_table, refuse_table):
        result = read_table(SERVER_INFO)
        assert result.table.expected_tokens(chain(3)) == pytest.approx(2.5)
        assert "trees" not in result.imported[0].source
        assert "best paths" in read_table(SERVER_INFO | {"speculative_eagle_topk": 4}).imported[0].source
        block = SERVER_INFO | {"speculative_num_steps": None, "speculative_num_draft_tokens": 8}
        assert len(read_table(block).table.p) == 7
        refuse_table(SERVER_INFO | {"speculative_num_steps": 1}, "speculative_num_steps", "expected 1.5 to .* Got 1")
        idle = [{"last_gen_throughput": 0.0, "avg_spec_accept_length": None}]
        refuse_table(SERVER_INFO | {"internal_states": idle}, "internal_states", "has the server drafted yet")


class TestLlamaServer:
    STATISTICS = (
        "0.06 I statistics     draft-simple: #calls(b,g,a) =    1    {0}    {0}, #gen drafts =    {0}, #acc drafts = 7, "
        "#gen tokens =    {1}, #acc tokens =   {2}, #mean acc len = 2.50, {3}dur(b,g,a) = 0.005, {4}, 0.1 ms\n"
    )
    RATES = "#acc rate/pos = (0.750, 0.500, 0.250), "
    EARLY, LATE = STATISTICS.format(40, 120, 60, RATES, 90.0), STATISTICS.format(100, 300, 150, RATES, 300.0)
    SLOT = "0.34 I slot print_timing: id  3 | task 0 | draft acceptance = 0.5 (  {} accepted /   {} generated), {}\n"
    SLOT_RATES = "mean acceptance length = 2.50, acceptance rate per position = (0.750, 0.500, 0.250)"

    def test_last_line_includes_earlier_ones(self, write, read_table):
        result = read_table(self.EARLY + self.LATE)
        assert result.table.p == pytest.approx(QUARTERS)
        assert result.positions == 100
        (draft,) = read_latency(write(self.EARLY + self.LATE), drafts=True)
        assert draft.draft.medians_s.tolist() == pytest.approx([1e-3])  # 300 ms for 300 tokens

    def test_missing_rates_are_refused(self, refuse_table):
        refuse_table(
            self.STATISTICS.format(100, 300, 150, "#acc rate/pos = (0.75), ", 300.0), "#acc rate/pos", "about 1.5"
        )

    def test_restart_begins_new_totals(self, read_table):
        assert read_table(self.LATE + self.EARLY).positions == 140

    def test_mean_is_used_without_rates(self, read_table):
        result = read_table(self.STATISTICS.format(100, 200, 75, "", 200.0))
        assert result.table.expected_tokens(chain(2)) == pytest.approx(1.75)
        assert "taken for equal" in result.imported[0].source

    def test_log_has_no_verification_times(self, refuse_times):
        refuse_times(self.LATE, "content", "give it to --acceptance or --draft-latency")
        slots = self.SLOT.format(150, 300, "mean len =  2.50")
        refuse_times(slots, "content", r"expected times of draft passes\. Got none", drafts=True)

    def test_requests_match_their_steps(self, read_table):
        rng = np.random.default_rng(7)
        requests = [np.minimum(rng.geometric(0.4, steps) - 1, 3) for steps in (200, 90, 150)]
        one_line = two_lines = ""
        for accepted in requests:
            rates = ", ".join(f"{np.mean(accepted > position):.3f}" for position in range(3))
            counts, mean = (accepted.sum(), 3 * len(accepted)), f"{1 + accepted.mean():.2f}"
            text = f"mean acceptance length = {mean}, acceptance rate per position = ({rates})"
            one_line += self.SLOT.format(*counts, text)
            two_lines += self.SLOT.format(*counts, f"mean len = {mean}")
            two_lines += f"0.35 T slot print_timing:      acc per pos = ({rates})\n"
        accepted = np.concatenate(requests)
        expected = [np.mean(accepted[accepted >= position] > position) for position in range(3)]
        for log in (one_line, two_lines):
            result = read_table(log)
            assert result.table.p[:, 0] == pytest.approx(expected, abs=2e-3)
            assert (result.prompts, result.positions) == (3, 440)
            assert len(result.sequences.reached) == 3

    def test_requests_without_rates_have_a_mean(self, read_table, refuse_table):
        """A request without accepted tokens counts too."""
        log = self.SLOT.format(150, 300, "mean len =  2.50") + self.SLOT.format(0, 30, "mean len =  1.00")
        result = read_table(log)
        assert result.table.expected_tokens(chain(3)) == pytest.approx(1 + 150 / 110)
        assert "all 3 positions taken for equal" in result.imported[0].source
        refuse_table(self.SLOT.format(150, 300, ""), "draft acceptance", "take the server's /metrics")

    def test_steps_of_older_logs_are_the_tokens_that_were_not_drafted(self, read_table):
        """Two requests of 40 and 10 steps; the first token of each comes from prefill."""
        log = "".join(
            f"prompt eval time =      12.00 ms /    {99 + accepted} tokens (    1.00 ms per token)\n"
            f"       eval time =    1234.00 ms /   {1 + steps + accepted} tokens (   12.34 ms per token)\n"
            f"slot print_timing: id 0 | draft acceptance rate = 0.5 ( {accepted} accepted / {3 * steps} generated)\n"
            for steps, accepted in ((40, 60), (10, 0))
        )
        result = read_table(log)
        assert result.table.expected_tokens(chain(3)) == pytest.approx(1 + 60 / 50)
        assert (result.prompts, result.positions) == (2, 50)

    @pytest.mark.parametrize(("rate", "reason"), [("1.750", "Got 1.75 at position 0"), ("0.300", "expected a prob")])
    def test_rates_above_1_or_rising_are_refused(self, refuse_table, rate, reason):
        slot = self.SLOT.format(150, 300, self.SLOT_RATES.replace("0.750", rate))
        refuse_table(slot, "acceptance rate per position", reason)

    def test_requests_are_not_added_to_the_statistics(self, write, read_table):
        log = self.SLOT.format(150, 300, self.SLOT_RATES) + self.LATE
        assert read_table(log).positions == 100
        (draft,) = read_latency(write(log), drafts=True)
        assert draft.draft.medians_s.tolist() == pytest.approx([1e-3])

    def test_statistics_separate_drafting_methods(self, read_table):
        """Rates of requests are those of both methods together."""
        slot = self.SLOT.format(170, 327, self.SLOT_RATES.replace("0.750", "0.900"))
        lookup = self.STATISTICS.format(9, 27, 20, "", 1.0).replace("draft-simple", "ngram-mod")
        result = read_table(slot + lookup + self.LATE)
        assert result.table.p == pytest.approx(QUARTERS)
        assert "draft-simple" in result.imported[0].source


class TestLlamaServerResponses:
    @pytest.mark.parametrize("write_file", [json.dumps, json_lines], ids=["list", "lines"])
    def test_responses_that_drafted_are_pooled(self, read_table, write_file):
        """100 tokens after prefill, 60 of which were drafted, come from 40 steps of 3 draft tokens."""
        plain = changed(changed(COMPLETION, "timings", "draft_n", to=...), "timings", "draft_n_accepted", to=...)
        result = read_table(write_file([COMPLETION, plain, COMPLETION]))
        assert result.table.expected_tokens(chain(3)) == pytest.approx(2.5)
        assert (result.prompts, result.positions, len(result.table.p)) == (2, 80, 3)
        assert "mean only" in result.imported[0].source

    @pytest.mark.parametrize("name", ["draft_n_verif_steps", "draft_rounds"])
    def test_counted_steps_have_priority(self, read_table, name):
        """Matches after the end of the text count as accepted, so that these may exceed the tokens."""
        timings = {"predicted_n": 20, "draft_n": 120, "draft_n_accepted": 60, name: 30}
        assert read_table({"timings": timings}).table.expected_tokens(chain(4)) == pytest.approx(3)

    def test_other_responses_are_refused(self, refuse_table):
        refuse_table(changed(COMPLETION, "timings", "draft_n", to=...), "timings", "does the server draft")
        refuse_table(
            changed(COMPLETION, "timings", "draft_n_accepted", to=200), "timings.predicted_n", "more than the 200"
        )
        refuse_table(changed(COMPLETION, "timings", "draft_n", to=50), "timings", "no more accepted than drafted")
        refuse_table([COMPLETION, COMPLETION | {"model": "other"}], "model", "one model. Got 2")
        for chunk in ({"stop": False}, {"object": "chat.completion.chunk"}):
            refuse_table(json_lines([COMPLETION, COMPLETION | chunk]), "line 2", "request without stream")


class TestSpecdecBench:
    def test_histogram_is_read(self, read_table, refuse_table):
        result = read_table(SPECDEC)
        assert result.table.p == pytest.approx(QUARTERS)
        assert result.positions == 40
        refuse_table(SPECDEC | {"Average_AL": 3.0}, "Average_AL", "expected 2.5")
        histogram = "Acceptance_Length_Histogram"
        refuse_table(SPECDEC | {histogram: {"0": 4, "1": 3}}, histogram, "1 token or more")

    def test_rates_must_match_the_histogram(self, read_table, refuse_table):
        """All three omit a length that no step had."""
        content = {
            "Acceptance_Length_Histogram": {"1": 10, "3": 20, "4": 10},
            "Joint_Acceptance_Rate": {"1": 1.0, "3": 0.75, "4": 0.25},
            "Conditional_Acceptance_Rate": {"1": 1.0, "3": 0.75, "4": 1 / 3},
        }
        assert read_table(content).table.p == pytest.approx(np.array([[0.75], [1.0], [1 / 3]]))
        for name in ("Joint_Acceptance_Rate", "Conditional_Acceptance_Rate"):
            refuse_table(changed(content, name, "4", to=0.6), f"{name}.4", "Acceptance_Length_Histogram")


def test_report_of_trtllm_bench(read_table, refuse_table):
    assert read_table(TRTLLM).table.p == pytest.approx(np.array([[0.5], [0.5]]))
    refuse_table({"decoding_stats": {}}, "decoding_stats.acceptance_length_percentiles", "missing")


def test_iterations_of_tensorrt_llm_are_summed(read_table, refuse_table):
    """Iterations without drafting have no statistics, and those of other ranks repeat the first's."""
    idle = {"iter": 1, "iterLatencyMS": 3.0}
    result = read_table([idle, ITERATION, ITERATION, ITERATION | {"attentionDpRank": 1}])
    assert result.table.expected_tokens(chain(3)) == pytest.approx(2.5)
    assert (result.positions, len(result.table.p)) == (4, 3)
    refuse_table([idle], "specDecodingStats", "Set enable_iter_perf_stats")
    wrong = changed(ITERATION, "specDecodingStats", "acceptanceLength", to=2.0)
    refuse_table([wrong], "[0], specDecodingStats.acceptanceLength", "expected 2.5")


def test_responses_of_a_batch_are_read_like_others(read_table, refuse_table):
    responses = [response(REQUEST), response(SUMMARY)]
    failed = {"id": "vllm-2", "custom_id": "2", "response": None, "error": "too long"}
    table = read_table(json_lines([*map(batched, responses), failed])).table
    assert np.array_equal(table.p, read_table(json_lines(responses)).table.p)
    plain = {"choices": [], "usage": {"completion_tokens": 5}}
    for lines in (plain, [plain, plain], json_lines([batched(plain), failed])):
        refuse_table(lines, "content", "start vLLM with --per-request-spec-decode-metrics detailed")
