"""Reports of other programs, in the shapes that their own tests show, against counts made step by step."""

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
from treeopt.engines.importers.step_counts import MAX_GROUPS, StepCounts, pooled
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
    made = copy.deepcopy(content)
    inner = made
    for name in path[:-1]:
        inner = inner[name]
    if to is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return made


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
    def test_steps_of_several_lengths_are_counted_where_they_drafted(self):
        steps = [(0, 1), (1, 1), (1, 4), (3, 4), (2, 2), (0, 0)]
        counts = StepCounts.of_steps(*zip(*steps, strict=True))
        assert pooled([counts]).table.p.ravel().tolist() == pytest.approx(stepwise(steps))

    def test_many_texts_become_groups_with_the_same_table(self):
        texts = [StepCounts.of_lengths({0: 1 + place % 3, 2: place % 5}, 3) for place in range(3 * MAX_GROUPS + 1)]
        many = pooled(texts)
        assert len(many.texts.reached) == MAX_GROUPS
        assert many.texts.reached.sum(axis=0).tolist() == np.sum([each.reached for each in texts], axis=0).tolist()[:3]

    def test_many_short_texts_and_a_long_one_take_no_large_array(self):
        """A row of 2,000 positions for each of 20,000 texts would be 320 MB."""
        texts = [StepCounts.of_lengths({0: 1, 2_000: 1}, 2_000), *20_000 * [StepCounts.of_lengths({0: 1}, 2_000)]]
        tracemalloc.start()
        table = pooled(texts).table
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert table.p.shape == (2_000, 1)
        assert table.p[0, 0] == pytest.approx(1 / 20_002)
        assert most < 100_000_000

    def test_texts_that_differ_err_more_than_steps_that_do_not_know_each_other(self):
        unlike = pooled([StepCounts((100,), (10,)), StepCounts((100,), (90,))] * 4).table
        alike = pooled([StepCounts((800,), (400,))], one_sequence=False).table
        one = pooled([StepCounts((800,), (400,))]).table
        assert unlike.p.tolist() == alike.p.tolist()
        assert unlike.standard_error[0, 0] > 5 * alike.standard_error[0, 0]
        assert one.standard_error[0, 0] > 5 * alike.standard_error[0, 0]


class TestSpeculationProfile:
    def read(self, tmp_path, *change, to=None):
        return read(
            tmp_path, json.dumps(changed(SPECULATION_PROFILE, *change, to=to) if change else SPECULATION_PROFILE)
        )

    def test_the_histogram_counts(self, tmp_path):
        found = self.read(tmp_path)
        assert found.table.p.ravel().tolist() == pytest.approx([0.6, 0.5, 0.0])
        assert found.table.counts.tolist() == [100, 60, 30]
        assert found.positions == 100
        assert found.imported[0].source == "file (speculation profile)"

    def test_every_part_alone_gives_the_same_rates(self, tmp_path):
        keys = ("conditional_accept_rates", "marginal_accept_rates", "acceptance_length_histogram")
        for key in keys:
            content = {"schema_version": "1.0", "num_speculative_tokens": 3, key: SPECULATION_PROFILE[key]}
            table = read(tmp_path, json.dumps(content)).table
            assert table.p.ravel().tolist() == pytest.approx([0.6, 0.5, 0.0])

    def test_rates_of_blocks_say_the_length_they_are_of(self, tmp_path):
        found = self.read(tmp_path, "accept_length_model", to="measured_per_k")
        assert "measured with drafts of 3 tokens" in found.imported[0].source

    def test_what_contradicts_itself_is_refused(self, tmp_path):
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
        made = [(json.dumps(changed(SPECULATION_PROFILE, *path, to=to)), *told) for path, to, *told in cases]
        refused(lambda content: read(tmp_path, content), made)
        withheld = {"schema_version": "1.0", "vectors_unavailable_reason": "block", "conditional_accept_rates": None}
        torn = json.dumps(SPECULATION_PROFILE)[:-40]
        told = [
            (json.dumps(withheld), "conditional_accept_rates", "is missing"),
            (torn, "content", "Is it complete"),
        ]
        refused(lambda content: read(tmp_path, content), told)

    def acceptance(self, table):
        return MeasuredAcceptance(rule="sequoia", temperature=0.6, top_p=1.0, prompts=4, positions=100, table=table)

    def test_what_is_written_is_read_as_the_same_table(self, tmp_path):
        counted = pooled([StepCounts.of_lengths({0: 7, 1: 3, 3: 11}, 4)], one_sequence=False).table
        for table in (AcceptanceTable([[1 / 3], [0.7], [0.0]]), AcceptanceTable([[0.9], [2 / 3]]), counted):
            text = speculation_profile(self.acceptance(table), Pair(target="T", draft="D", dtype="float16"))
            found = read(tmp_path, text).table
            assert found.p.tolist() == table.p.tolist()
            assert (found.counts is None) == (table.counts is None)
            if table.counts is not None:
                assert found.counts.tolist() == table.counts.tolist()
                assert found.standard_error.tolist() == table.standard_error.tolist()

    def test_of_trees_the_first_child_is_written(self):
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
        with pytest.raises(InfeasibleError, match="say it with --depth"):
            speculation_profile(self.acceptance(AcceptanceTable([0.6])), pair)


class TestRequests:
    def test_records_and_responses_say_the_same(self, tmp_path):
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
            found = read(tmp_path, json_lines(content))
            assert found.table.p.ravel().tolist() == pytest.approx(stepwise(steps))
            assert (found.prompts, found.positions) == (2, 51)
            assert found.texts is not None
            assert read(tmp_path, json.dumps(content)).table.p.tolist() == found.table.p.tolist()

    def test_one_response_by_itself(self, tmp_path):
        found = read(tmp_path, json.dumps(response(SUMMARY), indent=2))
        assert found.table.counts.tolist() == [43, 4, 3]
        assert found.texts is None
        assert found.imported[0].source == "file (vLLM request metrics)"

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
        found = read(tmp_path, json.dumps(summary))
        assert found.table.p.ravel().tolist() == pytest.approx([3 / 4, 1 / 3, 0.0])
        assert found.imported[0].source.endswith("shorter drafts count as rejected)")

    def test_what_contradicts_itself_is_refused(self, tmp_path):
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
        made = []
        for name, to, field, reason in cases:
            record = changed(aiperf(REQUEST), "spec_decode_acceptance", name, to=to)
            text = json_lines([aiperf(SUMMARY), record])
            made.append((text, f"line 2, spec_decode_acceptance.{field}", reason))
        refused(lambda content: read(tmp_path, content), made)
        totals = changed(changed(SUMMARY, "acceptance_histogram", to=...), "num_draft_tokens", to=7)
        more = changed(SUMMARY, "num_draft_tokens", to=7)
        good = json_lines([aiperf(SUMMARY)] * 2)
        mixed = [aiperf(SUMMARY), changed(aiperf(SUMMARY), "spec_decode_acceptance", "engine", to="trtllm")]
        told = [
            (json.dumps(totals), "acceptance_histogram", "Totals do not tell positions"),
            (json.dumps(more), "num_draft_tokens", "from 10 accepted"),
            (good[:-30], "line 2", "Is it complete"),
            (good + "[1]\n", "line 3", "expected a JSON object"),
            (json_lines(mixed), "engine", "one engine. Got 2"),
            (json_lines([response(None)] * 2), "content", "--per-request-spec-decode-metrics"),
            (json_lines([{"a": 1}] * 2), "content", "Got JSON with the keys a"),
            (json_lines([{"num_spec_steps": 0, "acceptance_histogram": [0, 0]}]), "content", "has it drafted yet"),
        ]
        refused(lambda content: read(tmp_path, content), told)


class TestAnswers:
    def test_lengths_count_the_targets_own_token(self, tmp_path):
        found = read(tmp_path, json_lines([ANSWER, ANSWER]))
        assert found.table.p.ravel().tolist() == pytest.approx(stepwise([(2, 2), (0, 2), (1, 2), (1, 2)]))
        assert (found.prompts, found.positions) == (2, 8)
        assert "of a tree's best paths" in found.imported[0].source

    def test_what_contradicts_itself_is_refused(self, tmp_path):
        inside = ("choices", 0)
        cases = [
            ("accept_lengths", [3, 0, 2, 2], "line 1.choices[0].accept_lengths", "1 to 10000 tokens a step"),
            ("accept_lengths", ..., "line 1.choices[0].accept_lengths", "is missing"),
            ("accept_lengths", [2] * 20, "line 1.choices[0].accept_lengths", "about new_tokens, 8. Got 40"),
            ("new_tokens", [-4, 12], "line 1.choices[0].accept_lengths", "about new_tokens"),
            ("wall_time", [0.5], "line 1.choices[0].wall_time", "expected 2, one per turn"),
            ("wall_time", [0.5, -1.0], "line 1.choices[0].wall_time", "seconds from 0"),
        ]
        made = [(json_lines([changed(ANSWER, *inside, name, to=to), ANSWER]), *told) for name, to, *told in cases]
        baseline = changed(changed(ANSWER, *inside, "accept_lengths", to=[1] * 8), *inside, "new_tokens", to=[4, 4])
        made.append((json_lines([baseline, baseline]), "accept_lengths", "no baseline"))
        made.append((json_lines([ANSWER, changed(ANSWER, "model_id", to="other")]), "model_id", "one model. Got 2"))
        made.append((json_lines([ANSWER, ANSWER])[:-9], "line 2", "Is it complete"))
        refused(lambda content: read(tmp_path, content), made)


class TestMetrics:
    def test_llama_cpp_counts_under_its_own_name(self, tmp_path):
        found = read(tmp_path, LLAMA_CPP_METRICS)
        assert found.table.p.ravel().tolist() == pytest.approx([0.8, 0.5, 0.5])
        assert found.table.counts.tolist() == [100, 80, 40]
        assert found.imported[0].source == "file (llama.cpp metrics; shorter drafts count as rejected)"

    def test_labels_with_commas_braces_and_escapes(self, tmp_path):
        name = 'a\\"b},{c=\\\\d'
        assert read(tmp_path, METRICS.replace('model_name="m"', f'model_name="{name}"')).positions == 100

    def test_what_contradicts_itself_is_refused(self, tmp_path):
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

    def test_log_lines_around_it(self, tmp_path):
        text = f"main: n_kv_max = 4096\n\n{json_lines(BATCHED_BENCH)}\nllama_perf_context_print: load time = 3 ms\n"
        (found,) = read_latency(written(tmp_path, text))
        assert found.verify.tokens.tolist() == [1, 2, 8]

    def test_the_table_that_it_prints(self, tmp_path):
        names = "|    PP |  TG |  B |  N_KV |  T_PP s | S_PP t/s |  T_TG s | S_TG t/s |   T s |  S t/s |"
        rows = (
            "|   512 |  64 |  1 |   576 |   0.500 |  1024.00 |   0.640 |   100.00 | 1.140 | 505.26 |",
            "|   512 |  64 |  4 |  2304 |   2.000 |  1024.00 |   0.800 |   320.00 | 2.800 | 822.86 |",
        )
        (found,) = read_latency(
            written(tmp_path, "\n".join(["llama_context: n_seq = 4", names, "|---|" * 5, *rows, ""]))
        )
        assert (found.context_tokens, found.verify.tokens.tolist()) == (544, [1, 4])
        assert found.verify.medians_s.tolist() == pytest.approx([0.010, 0.0125])
        with pytest.raises(FormatError, match=r"line 3: expected 10 values. Got 6: is it torn"):
            read_latency(written(tmp_path, f"{names}\n{rows[0]}\n{rows[1][:55]}"))
        with pytest.raises(FormatError, match="rows under the names"):
            read_latency(written(tmp_path, f"{names}\n"))
        with pytest.raises(FormatError, match="line 2: t_tg: expected a number"):
            read_latency(written(tmp_path, f"{names}\n{rows[0].replace('0.640', '0.6.0')}\n"))

    def test_a_shared_prompt_and_one_line(self, tmp_path):
        shared = changed(BATCHED_BENCH[1], "n_kv", to=128 + 200)
        read_latency(written(tmp_path, json_lines([BATCHED_BENCH[0], shared])))
        (found,) = read_latency(written(tmp_path, json.dumps(BATCHED_BENCH[0])))
        assert found.verify.medians_s.tolist() == [0.01]
        (found,) = read_latency(written(tmp_path, json.dumps(BATCHED_BENCH)))
        assert found.verify.tokens.tolist() == [1, 2, 8]

    def test_a_draft_model_is_timed_the_same_way(self, tmp_path):
        (draft,) = read_latency(written(tmp_path, json_lines(BATCHED_BENCH)), default_pass="draft")
        assert draft.verify is None
        assert draft.draft.medians_s.tolist() == pytest.approx([0.010, 0.011, 0.016])
        assert "level" in draft.source

    def test_what_contradicts_itself_is_refused(self, tmp_path):
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
        made = [
            (json_lines([BATCHED_BENCH[0], changed(BATCHED_BENCH[1], *path, to=to)]), *told)
            for path, to, *told in cases
        ]
        made += [
            (json_lines(BATCHED_BENCH[1:]), "pl", "time 1 token too"),
            (json_lines(BATCHED_BENCH)[:-20], "line 3", "Is it complete"),
        ]
        refused(lambda content: read_latency(written(tmp_path, content)), made)
        with pytest.raises(FormatError, match="expected times of overhead passes"):
            read_latency(written(tmp_path, json_lines(BATCHED_BENCH)), default_pass="overhead")
        with pytest.raises(TreeoptError, match="larger than"):
            read_latency(written(tmp_path, json_lines(BATCHED_BENCH) * 100_000))
