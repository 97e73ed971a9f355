"""Reports of other programs, as their own tests show them, against counts made step by step."""

import copy
import dataclasses
import json
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from tests.engines.importers.samples import (
    ANSWER,
    BATCHED_BENCH,
    LLAMA_CPP_METRICS,
    METRICS,
    REQUEST,
    SPECULATION_PROFILE,
    SUMMARY,
    aiperf,
    json_lines,
    response,
)
from treeopt.engines.importers import read_acceptance, read_latency
from treeopt.engines.importers.acceptance_formats import speculation_profile
from treeopt.engines.importers.acceptance_tables import MAX_GROUPS, StepCounts, pool_steps
from treeopt.errors import FormatError, InfeasibleError, TreeoptError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.machine import Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance


def written(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(tmp_path, content):
    return read_acceptance(written(tmp_path, content), temperature=0.0, rule="sequoia")


def changed(content, *path, to):
    """Return a copy with one value changed, or left out where it is `...`."""
    copied = copy.deepcopy(content)
    inner = copied
    for name in path[:-1]:
        inner = inner[name]
    if to is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return copied


def refused(read_it, cases):
    """Check that every content is refused in one line, with its field and reason."""
    for content, field, reason in cases:
        with pytest.raises(FormatError, match=reason) as caught:
            read_it(content)
        assert caught.value.field == field, (content, str(caught.value))
        assert "\n" not in str(caught.value)
        assert len(caught.value.reason) < 400


def stepwise(requests):
    """Return acceptance by position, counted step by step from what was accepted and drafted."""
    reached, accepted = Counter(), Counter()
    for taken, tried in requests:
        for place in range(tried):
            reached[place] += taken >= place
            accepted[place] += taken > place
    return [accepted[place] / reached[place] for place in range(len(reached)) if reached[place]]


class TestStepCounts:
    def test_steps_count_only_at_drafted_positions(self):
        steps = [(0, 1), (1, 1), (1, 4), (3, 4), (2, 2), (0, 0)]
        counts = StepCounts.from_steps(*zip(*steps, strict=True))
        assert pool_steps([counts], "steps").table.p.ravel().tolist() == pytest.approx(stepwise(steps))

    def test_many_requests_are_grouped(self):
        texts = [StepCounts.from_lengths({0: 1 + place % 3, 2: place % 5}, 3) for place in range(3 * MAX_GROUPS + 1)]
        many = pool_steps(texts, "steps")
        assert len(many.texts.reached) == MAX_GROUPS
        assert many.texts.reached.sum(axis=0).tolist() == np.sum([each.reached for each in texts], axis=0).tolist()[:3]

    def test_many_short_requests_and_a_long_one_need_little_memory(self):
        """A row of 2,000 positions for each of 20,000 texts would be 320 MB."""
        texts = [StepCounts.from_lengths({0: 1, 2_000: 1}, 2_000), *20_000 * [StepCounts.from_lengths({0: 1}, 2_000)]]
        tracemalloc.start()
        table = pool_steps(texts, "steps").table
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert table.p.shape == (2_000, 1)
        assert table.p[0, 0] == pytest.approx(1 / 20_002)
        assert most < 100_000_000

    def test_differing_requests_have_larger_errors_than_independent_steps(self):
        unlike = pool_steps([StepCounts((100,), (10,)), StepCounts((100,), (90,))] * 4, "steps").table
        alike = pool_steps([StepCounts((800,), (400,))], "steps", one_sequence=False).table
        one = pool_steps([StepCounts((800,), (400,))], "steps").table
        assert unlike.p.tolist() == alike.p.tolist()
        assert unlike.standard_error[0, 0] > 5 * alike.standard_error[0, 0]
        assert one.standard_error[0, 0] > 5 * alike.standard_error[0, 0]


class TestSpeculationProfile:
    def read(self, tmp_path, *change, to=None):
        return read(
            tmp_path, json.dumps(changed(SPECULATION_PROFILE, *change, to=to) if change else SPECULATION_PROFILE)
        )

    def test_histogram_is_preferred(self, tmp_path):
        result = self.read(tmp_path)
        assert result.table.p.ravel().tolist() == pytest.approx([0.6, 0.5, 0.0])
        assert result.table.counts.tolist() == [100, 60, 30]
        assert result.positions == 100
        assert result.imported[0].source == "file (speculation profile)"

    def test_each_part_alone_gives_the_same_rates(self, tmp_path):
        keys = ("conditional_accept_rates", "marginal_accept_rates", "acceptance_length_histogram")
        for key in keys:
            content = {"schema_version": "1.0", "num_speculative_tokens": 3, key: SPECULATION_PROFILE[key]}
            table = read(tmp_path, json.dumps(content)).table
            assert table.p.ravel().tolist() == pytest.approx([0.6, 0.5, 0.0])

    def test_block_rates_name_their_draft_length(self, tmp_path):
        result = self.read(tmp_path, "accept_length_model", to="measured_per_k")
        assert "measured with drafts of 3 tokens" in result.imported[0].source

    def test_contradictions_are_refused(self, tmp_path):
        cases = [
            (("schema_version",), "99.0", "schema_version", "expected '1.0'. Got '99.0'"),
            (("schema_version",), ..., "schema_version", "is missing"),
            (("measured",), False, "measured", "expected true"),
            (("verification_method",), "block", "verification_method", "longest_prefix"),
            (("conditional_accept_rates",), [0.6, 1.5, 0.0], "conditional_accept_rates", "from 0 to 1"),
            (("conditional_accept_rates",), [0.6, -0.1, 0.0], "conditional_accept_rates", "from 0 to 1"),
            (("conditional_accept_rates",), [0.6, float("nan"), 0.0], "conditional_accept_rates", "finite numbers"),
            (("conditional_accept_rates",), [0.6, 0.5], "conditional_accept_rates", "expected 3 rates"),
            (("conditional_accept_rates",), [0.6, 0.3, 0.0], "marginal_accept_rates[1]", "expected 0.18, the product"),
            (("marginal_accept_rates",), [0.6, 0.7, 0.0], "marginal_accept_rates[1]", "never to rise"),
            (("marginal_accept_rates",), [0.5, 0.25, 0.0], "marginal_accept_rates[0]", "expected 0.6"),
            (("mean_accept_length",), 2.2, "mean_accept_length", "expected 1.9, the mean of acceptance_length_hist"),
            (("accept_length_by_k", "3"), 2.5, "accept_length_by_k.3", "expected 1.9"),
            (("accept_length_by_k", "0"), 1.0, "accept_length_by_k.0", "number of draft tokens"),
            (("max_supported_k",), 2, "max_supported_k", "at least the 3"),
            (("acceptance_length_histogram", "5"), 1, "acceptance_length_histogram", "at most 4 tokens"),
            (("acceptance_length_histogram", "2"), -30, "acceptance_length_histogram.2", "at least 0"),
            (("acceptance_length_histogram", "2"), 29.5, "acceptance_length_histogram.2", "whole number"),
            (("acceptance_length_histogram", "two"), 3, "acceptance_length_histogram", "whole numbers as names"),
            (("acceptance_length_histogram",), {"0": 5}, "acceptance_length_histogram", "at least 1 token"),
            (("acceptance_length_histogram",), {"1": 60, "2": 30, "3": 10}, "marginal_accept_rates[0]", "expected 0.4"),
        ]
        refusals = [
            (json.dumps(changed(SPECULATION_PROFILE, *path, to=to)), *expected) for path, to, *expected in cases
        ]
        refused(lambda content: read(tmp_path, content), refusals)
        withheld = {"schema_version": "1.0", "vectors_unavailable_reason": "block", "conditional_accept_rates": None}
        torn = json.dumps(SPECULATION_PROFILE)[:-40]
        other_refusals = [
            (json.dumps(withheld), "conditional_accept_rates", "is missing"),
            (torn, "content", "Is it complete"),
        ]
        refused(lambda content: read(tmp_path, content), other_refusals)

    def acceptance(self, table):
        return MeasuredAcceptance(rule="sequoia", temperature=0.6, top_p=1.0, prompts=4, positions=100, table=table)

    def test_written_table_is_read_back(self, tmp_path):
        counted = pool_steps([StepCounts.from_lengths({0: 7, 1: 3, 3: 11}, 4)], "steps", one_sequence=False).table
        for table in (AcceptanceTable([[1 / 3], [0.7], [0.0]]), AcceptanceTable([[0.9], [2 / 3]]), counted):
            text = speculation_profile(self.acceptance(table), Pair(target="T", draft="D", dtype="float16"))
            result = read(tmp_path, text).table
            assert result.p.tolist() == table.p.tolist()
            assert (result.counts is None) == (table.counts is None)
            if table.counts is not None:
                assert result.counts.tolist() == table.counts.tolist()
                assert result.standard_error.tolist() == table.standard_error.tolist()

    def test_first_children_of_trees_are_written(self):
        table = AcceptanceTable([[0.6, 0.2], [0.5, 0.1]])
        pair = Pair(target="T", draft="D", dtype="float16")
        content = json.loads(speculation_profile(self.acceptance(table), pair))
        assert content["conditional_accept_rates"] == [0.6, 0.5]
        assert content["marginal_accept_rates"] == pytest.approx([0.6, 0.3])
        assert content["mean_accept_length"] == pytest.approx(1.9)
        assert content["acceptance_length_histogram"] is None
        assert json.loads(speculation_profile(self.acceptance(table), pair, max_depth=1))["max_supported_k"] == 1
        with pytest.raises(InfeasibleError, match="measured to depth 2"):
            speculation_profile(self.acceptance(table), pair, max_depth=3)
        with pytest.raises(InfeasibleError, match="Got traversal"):
            speculation_profile(dataclasses.replace(self.acceptance(table), rule="traversal"), pair)
        with pytest.raises(InfeasibleError, match="set it with --depth"):
            speculation_profile(self.acceptance(AcceptanceTable([0.6])), pair)


class TestRequests:
    def test_records_and_responses_agree(self, tmp_path):
        steps = list(zip(REQUEST["per_step_accepted"], REQUEST["per_step_drafted"], strict=True))
        steps += [(taken, 3) for taken, count in enumerate(SUMMARY["acceptance_histogram"]) for _ in range(count)]
        other = {"metadata": {}, "metrics": {}, "error": {"code": 500}}
        null = changed(aiperf(SUMMARY), "spec_decode_acceptance", to=None)
        for content in (
            [aiperf(REQUEST), other, null, aiperf(SUMMARY)],
            [response(REQUEST), response(None), response(SUMMARY)],
            [REQUEST, SUMMARY],
            [{"speculative_decoding": REQUEST}, {"speculative_decoding": SUMMARY}],
        ):
            result = read(tmp_path, json_lines(content))
            assert result.table.p.ravel().tolist() == pytest.approx(stepwise(steps))
            assert (result.prompts, result.positions) == (2, 51)
            assert result.texts is not None
            assert read(tmp_path, json.dumps(content)).table.p.tolist() == result.table.p.tolist()

    def test_single_response(self, tmp_path):
        result = read(tmp_path, json.dumps(response(SUMMARY), indent=2))
        assert result.table.counts.tolist() == [43, 4, 3]
        assert result.texts is None
        assert result.imported[0].source == "file (vLLM request metrics)"

    def test_drafts_of_several_lengths(self, tmp_path):
        steps = [(2, 4), (1, 1), (0, 3), (1, 2)]
        accepted, drafted = ([step[place] for step in steps] for place in (0, 1))
        detailed = {
            "per_step_accepted": accepted,
            "per_step_drafted": drafted,
            "num_spec_tokens": 4,
            "num_draft_tokens": 10,
        }
        assert read(tmp_path, json.dumps(detailed)).table.p.ravel().tolist() == pytest.approx(stepwise(steps))
        summary = {
            "acceptance_histogram": [1, 2, 1, 0, 0],
            "num_spec_steps": 4,
            "num_spec_tokens": 4,
            "num_draft_tokens": 10,
        }
        result = read(tmp_path, json.dumps(summary))
        assert result.table.p.ravel().tolist() == pytest.approx([3 / 4, 1 / 3, 0.0])
        assert result.imported[0].source.endswith("shorter drafts count as rejected)")

    def test_contradictions_are_refused(self, tmp_path):
        cases = [
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
        ]
        refusals = []
        for name, to, field, reason in cases:
            record = changed(aiperf(REQUEST), "spec_decode_acceptance", name, to=to)
            text = json_lines([aiperf(SUMMARY), record])
            refusals.append((text, f"line 2, spec_decode_acceptance.{field}", reason))
        refused(lambda content: read(tmp_path, content), refusals)
        totals = changed(changed(SUMMARY, "acceptance_histogram", to=...), "num_draft_tokens", to=7)
        more = changed(SUMMARY, "num_draft_tokens", to=7)
        good = json_lines([aiperf(SUMMARY)] * 2)
        mixed = [aiperf(SUMMARY), changed(aiperf(SUMMARY), "spec_decode_acceptance", "engine", to="trtllm")]
        other_refusals = [
            (json.dumps(totals), "acceptance_histogram", "Totals do not contain positions"),
            (json.dumps(more), "num_draft_tokens", "from 10 accepted"),
            (good[:-30], "line 2", "Is it complete"),
            (good + "[1]\n", "line 3", "expected a JSON object"),
            (json_lines(mixed), "engine", "one engine. Got 2"),
            (json_lines([response(None)] * 2), "content", "--per-request-spec-decode-metrics"),
            (json_lines([{"a": 1}] * 2), "content", "Got JSON with the keys a"),
            (json_lines([{"num_spec_steps": 0, "acceptance_histogram": [0, 0]}]), "content", "has it drafted yet"),
        ]
        refused(lambda content: read(tmp_path, content), other_refusals)


class TestAnswers:
    def test_lengths_include_the_target_token(self, tmp_path):
        result = read(tmp_path, json_lines([ANSWER, ANSWER]))
        assert result.table.p.ravel().tolist() == pytest.approx(stepwise([(2, 2), (0, 2), (1, 2), (1, 2)]))
        assert (result.prompts, result.positions) == (2, 8)
        assert "of a tree's best paths" in result.imported[0].source

    def test_contradictions_are_refused(self, tmp_path):
        inside = ("choices", 0)
        cases = [
            ("accept_lengths", [3, 0, 2, 2], "line 1.choices[0].accept_lengths", "1 to 10000 tokens a step"),
            ("accept_lengths", ..., "line 1.choices[0].accept_lengths", "is missing"),
            ("accept_lengths", [2] * 20, "line 1.choices[0].accept_lengths", "about new_tokens, 8. Got 40"),
            ("new_tokens", [-4, 12], "line 1.choices[0].accept_lengths", "about new_tokens"),
            ("wall_time", [0.5], "line 1.choices[0].wall_time", "expected 2, one per turn"),
            ("wall_time", [0.5, -1.0], "line 1.choices[0].wall_time", "seconds from 0"),
        ]
        refusals = [
            (json_lines([changed(ANSWER, *inside, name, to=to), ANSWER]), *expected) for name, to, *expected in cases
        ]
        baseline = changed(changed(ANSWER, *inside, "accept_lengths", to=[1] * 8), *inside, "new_tokens", to=[4, 4])
        refusals.append((json_lines([baseline, baseline]), "accept_lengths", "not of a baseline"))
        refusals.append((json_lines([ANSWER, changed(ANSWER, "model_id", to="other")]), "model_id", "one model. Got 2"))
        refusals.append((json_lines([ANSWER, ANSWER])[:-9], "line 2", "Is it complete"))
        refused(lambda content: read(tmp_path, content), refusals)


class TestMetrics:
    def test_llama_cpp_counters(self, tmp_path):
        result = read(tmp_path, LLAMA_CPP_METRICS)
        assert result.table.p.ravel().tolist() == pytest.approx([0.8, 0.5, 0.5])
        assert result.table.counts.tolist() == [100, 80, 40]
        assert result.imported[0].source == "file (llama.cpp metrics; shorter drafts count as rejected)"

    def test_labels_with_commas_braces_and_escapes(self, tmp_path):
        name = 'a\\"b},{c=\\\\d'
        assert read(tmp_path, METRICS.replace('model_name="m"', f'model_name="{name}"')).positions == 100

    def test_contradictions_are_refused(self, tmp_path):
        lines = LLAMA_CPP_METRICS.splitlines()
        cases = [
            (
                LLAMA_CPP_METRICS.replace("tokens_total 140", "tokens_total 141"),
                "llamacpp:spec_decode_num_accepted_tokens",
            ),
            (
                LLAMA_CPP_METRICS.replace("tokens_total 250", "tokens_total 130"),
                "llamacpp:spec_decode_num_accepted_tokens",
            ),
            (LLAMA_CPP_METRICS.replace("drafts_total 100", "drafts_total 70"), "content"),
            (LLAMA_CPP_METRICS.replace('"1"} 40', '"1"} 90').replace("total 140", "total 190"), "content"),
            (LLAMA_CPP_METRICS.replace("drafts_total 100", "drafts_total NaN"), "line 3"),
            (LLAMA_CPP_METRICS.replace("drafts_total 100", "drafts_total -1"), "line 3"),
            (LLAMA_CPP_METRICS.replace("drafts_total 100", "drafts_total"), "line 3"),
            (LLAMA_CPP_METRICS.replace('position="2"', 'position="1"'), "line 9"),
            ("\n".join([*lines, lines[2]]), "line 10"),
            ("\n".join([*lines[:-1], lines[-1][:-5]]), "line 9"),
            (LLAMA_CPP_METRICS + METRICS, "content"),
        ]
        refused(lambda content: read(tmp_path, content), [(*case, "expected") for case in cases])


class TestBatchedBench:
    def test_a_pass_against_its_tokens(self, tmp_path):
        again = changed(changed(BATCHED_BENCH[0], "t_tg", to=1.2), "speed_tg", to=100 / 1.2)
        deep = [changed(changed(each, "pp", to=1024), "n_kv", to=...) for each in BATCHED_BENCH[:2]]
        first, second = read_latency(written(tmp_path, json_lines([*BATCHED_BENCH[::-1], again, *deep])))
        assert (first.context_tokens, first.batch_size, second.context_tokens) == (178, 1, 1074)
        assert first.verify.tokens.tolist() == [1, 2, 8]
        assert first.verify.medians_s.tolist() == pytest.approx([0.011, 0.011, 0.016])
        assert second.verify.tokens.tolist() == [1, 2]
        assert (first.draft, first.overhead) == (None, None)
        assert first.source == "file (llama-batched-bench, sequences taken for nodes)"

    def test_log_lines_are_skipped(self, tmp_path):
        text = f"main: n_kv_max = 4096\n\n{json_lines(BATCHED_BENCH)}\nllama_perf_context_print: load time = 3 ms\n"
        (result,) = read_latency(written(tmp_path, text))
        assert result.verify.tokens.tolist() == [1, 2, 8]

    def test_markdown_table(self, tmp_path):
        names = "|    PP |  TG |  B |  N_KV |  T_PP s | S_PP t/s |  T_TG s | S_TG t/s |   T s |  S t/s |"
        rows = (
            "|   512 |  64 |  1 |   576 |   0.500 |  1024.00 |   0.640 |   100.00 | 1.140 | 505.26 |",
            "|   512 |  64 |  4 |  2304 |   2.000 |  1024.00 |   0.800 |   320.00 | 2.800 | 822.86 |",
        )
        (result,) = read_latency(
            written(tmp_path, "\n".join(["llama_context: n_seq = 4", names, "|---|" * 5, *rows, ""]))
        )
        assert (result.context_tokens, result.verify.tokens.tolist()) == (544, [1, 4])
        assert result.verify.medians_s.tolist() == pytest.approx([0.010, 0.0125])
        with pytest.raises(FormatError, match=r"line 3: expected 10 values. Got 6: is the file complete"):
            read_latency(written(tmp_path, f"{names}\n{rows[0]}\n{rows[1][:55]}"))
        with pytest.raises(FormatError, match="rows under the names"):
            read_latency(written(tmp_path, f"{names}\n"))
        with pytest.raises(FormatError, match="line 2: t_tg: expected a number"):
            read_latency(written(tmp_path, f"{names}\n{rows[0].replace('0.640', '0.6.0')}\n"))

    def test_shared_prompt_and_single_line(self, tmp_path):
        shared = changed(BATCHED_BENCH[1], "n_kv", to=128 + 200)
        read_latency(written(tmp_path, json_lines([BATCHED_BENCH[0], shared])))
        (result,) = read_latency(written(tmp_path, json.dumps(BATCHED_BENCH[0])))
        assert result.verify.medians_s.tolist() == [0.01]
        (result,) = read_latency(written(tmp_path, json.dumps(BATCHED_BENCH)))
        assert result.verify.tokens.tolist() == [1, 2, 8]

    def test_draft_model(self, tmp_path):
        (draft,) = read_latency(written(tmp_path, json_lines(BATCHED_BENCH)), default_pass="draft")
        assert draft.verify is None
        assert draft.draft.medians_s.tolist() == pytest.approx([0.010, 0.011, 0.016])
        assert "level" in draft.source

    def test_contradictions_are_refused(self, tmp_path):
        cases = [
            (("n_kv",), 500, "line 2.n_kv", "expected 456, or 328"),
            (("speed_tg",), 100.0, "line 2.speed_tg", "pl tg / t_tg"),
            (("t_tg",), float("nan"), "line 2.t_tg", "expected a number"),
            (("t_tg",), -1.0, "line 2.t_tg", "at least 0"),
            (("t_tg",), 0.0, "pl", "expected 1e-09"),
            (("tg",), 0, "line 2.tg", "whole number"),
            (("pl",), 1.5, "line 2.pl", "whole number"),
            (("pp",), ..., "line 2.pp", "is missing"),
            (("t_tg",), ..., "line 2", "lines of llama-batched-bench"),
        ]
        refusals = [
            (json_lines([BATCHED_BENCH[0], changed(BATCHED_BENCH[1], *path, to=to)]), *expected)
            for path, to, *expected in cases
        ]
        refusals += [
            (json_lines(BATCHED_BENCH[1:]), "pl", "time 1 token too"),
            (json_lines(BATCHED_BENCH)[:-20], "line 3", "Is it complete"),
        ]
        refused(lambda content: read_latency(written(tmp_path, content)), refusals)
        with pytest.raises(FormatError, match="expected times of overhead passes"):
            read_latency(written(tmp_path, json_lines(BATCHED_BENCH)), default_pass="overhead")
        with pytest.raises(TreeoptError, match="larger than"):
            read_latency(written(tmp_path, json_lines(BATCHED_BENCH) * 100_000))
