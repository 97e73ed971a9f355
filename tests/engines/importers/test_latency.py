"""Latencies of other programs, against numbers computed by hand and against treeopt's own exports."""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from tests.cli.invented import invented
from tests.engines.exporters.named import engine_named
from tests.engines.importers.samples import (
    BATCHED_BENCH,
    CSV,
    SGLANG_ADDITIVE,
    SGLANG_SAMPLES,
    TENSORRT_LLM,
    json_lines,
)
from treeopt.engines.exporters.choose import choose_setting
from treeopt.engines.exporters.setting import Source
from treeopt.engines.importers import read_latency, step_latencies
from treeopt.errors import FormatError, InfeasibleError, TreeoptError
from treeopt.planner import plan
from treeopt.records.acceptance import AcceptanceTable
from treeopt.trees import chain, level_widths


class TestCsv:
    def test_rows_of_one_token_count_are_samples(self, read_times):
        (latency,) = read_times(CSV)
        assert (latency.context_tokens, latency.batch_size, latency.source) == (None, 1, "file (CSV)")
        assert latency.verify.tokens.tolist() == [1, 4]
        np.testing.assert_allclose(latency.verify.timings[0].samples_s, [0.010, 0.012])
        np.testing.assert_allclose(latency.verify.medians_s, [0.011, 0.016])
        np.testing.assert_allclose(latency.draft.medians_s, [0.002, 0.003])
        np.testing.assert_allclose(latency.overhead.samples_s, [0.0005])

    @pytest.mark.parametrize(
        "content",
        [
            "tokens;ms\n1;10,5\n8;11,2\n",
            "tokens\tms\n1\t10.5\n8\t11,2\n",
            "tokens,ms\r\n1.0,10.5\r\n8.0,11.2\r\n",
            "\ufeffMilliseconds,tokens\r\n 10.5 ,1\r\n1.12e1,8\r\n",
            "tokens,latency (sec)\n1,1.05e-2\n8,0.0112\n",
            ",tokens,ms\n0,1,10.5\n1,8,11.2\n",
            '"","tokens","ms"\n"1",1,10.5\n"2",8,11.2\n',
            '"tokens","ms"\n"1",1,10.5\n"2",8,11.2\n',
            "Unnamed: 0,tokens,ms\n0,1,10.5\n1,8,11.2\n",
            "tokens;ms;;\n1;10,5;;\n8;11,2;;\n",
            "n_tokens,latency_us,model\n1,10500,m\n8,11200,m\n",
            "num_tokens,Time (ms),std_ms,run\n1,10.5,0.1,1\n8,11.2,0.2,2\n",
            "tokens,mean_ns,p99_ns\n1,1.05e7,2e7\n8,1.12e7,2e7\n",
            "Tokens,Latency [ms],tokens_per_s\n1,10.5,95\n8,11.2,714\n",
            "tokens,µs\n1,10500\n8,11200\n",
            '"tokens" "ms"\n"1" 1 10.5\n"2" 8 11.2\n',
            "# tokens ms\n1.000e+00 1.050e+01\n8.000e+00 1.120e+01\n",
            "# one GPU\n# tokens,ms\n1,10.5\n8,11.2\n",
            "sep=;\ntokens;ms\n1;10,5\n;\n8;11,2\n;;\n",
            gzip.compress(b"tokens,ms\n1,10.5\n8,11.2\n", mtime=0),
            "tokens,ms\n1,10.5,\n8,11.2,,\n",
            "tokens,ms\n1,10.5\ntokens,ms\n8,11.2\n",
            'tokens,ms\n1,"10,5"\n8,"11,2"\n',
            "tokens,ms\r1,10.5\r8,11.2\r",
            "numTokens,stepTimeMs\n1,10.5\n8,11.2\n",
            "Num Tokens,time per step (ms),GB/s,steps/s\n1,10.5,7,95\n8,11.2,6,89\n",
            "tokens,latency_ms_mean,latency_ms_std,mem_gb\n1,10.5,1,3.1\n8,11.2,1,3.2\n",
            "tokens;ms;version\n1;10,50;0.9\n8;11,2;0.9\n",
            "| tokens | ms |\n|---:|:---|\n| 1 | 10.5 |\n| 8 | 11.2 |\n",
            "+--------+------+\n| tokens | ms   |\n+--------+------+\n| 1      | 10.5 |\n| 8      | 11.2 |\n+--------+------+\n",
            "tokens|ms\n1|10.5\n8|11.2\n",
            "|tokens|ms|\n|-|-|\n|1|10.5|\n|8|11.2|\n",
            "tokens,ms_p50,stderr_ms,iqr_ms\n1,10.5,0.1,0.2\n8,11.2,0.3,0.2\n",
            '[{"tokens": 1, "ms": 10.5, "note": null}, {"tokens": 8, "ms": "11.2", "samples": [1]}]',
            '{"numTokens": 1, "latencyMs": 10.5}\n\n{"numTokens": 8, "latencyMs": 11.2}\n',
        ],
    )
    def test_dialects(self, read_times, content):
        (latency,) = read_times(content)
        assert latency.verify.tokens.tolist() == [1, 8]
        assert latency.verify.medians_s.tolist() == pytest.approx([0.0105, 0.0112])

    @pytest.mark.parametrize(
        ("content", "times_us"),
        [
            ("tokens;Latency [µs]\n1;10,5\n8;11,2\n".encode("cp1252"), [10.5, 11.2]),
            ("tokens;us\n1;10,512\n8;11,203\n", [10.512, 11.203]),
            ("tokens\tus\n1\t10,512\n8\t11,2\n", [10.512, 11.2]),
            ("tokens,us\n1.000,10.512\n8.000,11.203\n", [10.512, 11.203]),
        ],
    )
    def test_three_decimals_are_read_if_the_decimal_mark_is_known(self, read_times, content, times_us):
        (latency,) = read_times(content)
        assert (1e6 * latency.verify.medians_s).tolist() == pytest.approx(times_us)

    @pytest.mark.parametrize(
        ("context", "batch"),
        [("ctx", "batch"), ("context (tokens)", "Batch Size"), ("kvLen", "bs"), ("past-len", "num_seqs")],
    )
    def test_operating_point_columns_have_aliases(self, read_times, context, batch):
        (latency,) = read_times(f"{context},{batch},tokens,ms\n512,4,1,10\n512,4,8,11\n")
        assert (latency.context_tokens, latency.batch_size) == (512, 4)

    def test_batch_tokens_are_divided_by_the_batch_size(self, read_times, refuse_times):
        four, one = read_times("batch_tokens,batch,ms\n4,4,10\n32,4,11\n1,1,9\n")
        assert four.verify.tokens.tolist() == [1, 8]
        assert one.verify.tokens.tolist() == [1]
        refuse_times("batch_tokens,batch,ms\n4,4,10\n6,4,11\n", "line 3", "a multiple of the batch of 4. Got 6")

    @pytest.mark.parametrize(
        ("column", "values", "accepted"),
        [
            ("threads", "4 8 4 8", False),
            ("threads", "4 4 8 8", True),
            ("gpu_id", "0 1 0 1", False),
            ("note", "a b a b", False),
            ("note", "a a b b", True),
            ("model", "a a b b", False),
            ("power_w", "71.5 72.5 73.5 74.5", True),
            ("run_id", "1 2 1 2", True),
        ],
    )
    def test_settings_must_be_constant_and_results_may_vary(self, read_times, refuse_times, column, values, accepted):
        rows = zip((1, 1, 8, 8), (10, 12, 14, 16), values.split(), strict=True)
        text = f"tokens,ms,{column}\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
        if accepted:
            assert read_times(text)[0].verify.medians_s.tolist() == pytest.approx([0.011, 0.015])
        else:
            refuse_times(text, "line 1", f"one value in the column '{column}'.*remove the column")

    def test_settings_of_a_single_point_must_be_constant(self, refuse_times):
        refuse_times("tokens,ms,threads\n1,1,4\n1,2,8\n", "line 1", "one value in the column 'threads'")

    def test_results_of_several_points_may_be_equal(self, read_times):
        (latency,) = read_times("tokens,ms,mem_gb\n1,1,3.1\n2,2,3.1\n4,3,3.2\n")
        assert latency.verify.tokens.tolist() == [1, 2, 4]

    def test_each_context_and_batch_size_has_its_curve(self, read_times):
        latencies = read_times('context,batch,tokens,"seconds"\n512,4,1,0.1\n256,1,1,0.2\n512,4,2,0.3\n,,1,0.4\n')
        points = [(latency.context_tokens, latency.batch_size) for latency in latencies]
        assert points == [(512, 4), (256, 1), (None, 1)]
        assert latencies[0].verify.medians_s.tolist() == [0.1, 0.3]

    @pytest.mark.parametrize("name", ["pass", "kind", "Phase"])
    def test_rows_name_their_pass(self, read_times, refuse_times, name):
        text = f"tokens,{name},ms\n1,verify,10\n4,verify,14\n1,draft,2\n2,draft,3\n"
        (latency,) = read_times(text)
        assert (latency.verify.tokens.tolist(), latency.draft.tokens.tolist()) == ([1, 4], [1, 2])
        assert read_times(text, drafts=True)[0].draft == latency.draft
        (latency,) = read_times(f"tokens,{name},ms\n1,verify,10\n2,draft,3\n1,draft,2\n")
        assert latency.verify.tokens.tolist() == [1]
        refuse_times(f"{text}1,prefill,10\n", "line 6", f"^.*{name.lower()}: expected verify, draft.* Got 'prefill'")

    def test_a_kind_that_names_no_pass_is_a_setting(self, read_times):
        assert read_times("tokens,kind,ms\n1,decode,10\n4,decode,14\n")[0].verify.tokens.tolist() == [1, 4]

    def test_rows_without_a_pass_are_of_the_wanted_pass(self, read_times, refuse_times):
        (latency,) = read_times("tokens,seconds\n1,0.1\n", drafts=True)
        assert latency.verify is None
        assert latency.draft.medians_s.tolist() == [0.1]
        refuse_times("tokens,ms\n1,0\n", "line 2", "such as 1 us", drafts=True)

    @pytest.mark.parametrize(
        ("content", "field", "reason"),
        [
            ("", "content", "Got an empty file"),
            (b"tokens,\x81", "content", "bytes that are no text"),
            ("tokens,seconds\n# nothing\n", "content", "at least one line of numbers"),
            ("1,0.1\n2,0.2\n", "line 1", "a line of names: tokens, a time .* Got '1, 0.1'"),
            ("tokens,tokens_per_s\n1,0.1\n", "line 1", "a time such as ms"),
            ("tokens,ms_per_token\n1,0.1\n", "line 1", "a time such as ms"),
            ("tokens\n1\n", "line 1", "a time .* Got 'tokens'"),
            ("tokens,tokens,ms\n1,1,1\n", "line 1", "'tokens' twice"),
            ("tokens,n,ms\n1,1,1\n", "line 1", "one column of tokens. Got tokens, n"),
            ("tokens,ms,gpu\n1,1,A\n2,2,B\n", "line 1", "one value in the column 'gpu'. Got 'A', 'B'"),
            ("tokens;ms\n1;1.234,5\n", "line 2", "Got '1.234,5': write it with a decimal point"),
            ("tokens;ms\n1;10,5\n1.000;11,5\n", "line 3", "Got '1.000': write it .* without thousands separators"),
            ("tokens\tus\n1\t1,234\n8\t2,345\n", "line 2", "Got '1,234': write it .* without thousands separators"),
            ("tokens,latency\n1,0.1\n", "line 1", "a unit in the name of the times. Got 'latency': add _s, _ms"),
            ("tokens,mean_ms\n1,NA\n", "line 2", "Got 'NA': replace it or remove the line"),
            ("tokens,ms,us\n1,1,1\n", "line 1", "one column of times. Got ms, us"),
            (
                "tokens,iterations,total_ms\n1,100,980\n2,100,990\n",
                "line 1",
                "the time of one pass. Got 'total_ms' and",
            ),
            ("tokens,elapsed_s,n_runs\n1,0.98,100\n2,0.99,100\n", "line 1", "the time of one pass. Got 'elapsed_s'"),
            ("tokens,ms\n\n1,10,3\n2,11,4\n", "line 3", "expected 2 values, one per name. Got 3"),
            ("tokens,seconds\n1.5,0.1\n", "line 2", "tokens: expected a whole number of at least 1. Got '1.5'"),
            ("tokens,seconds\n1_0,0.1\n", "line 2", "whole number"),
            (f"tokens,seconds\n{'9' * 5000},0.1\n", "line 2", "whole number"),
            ("tokens,seconds\n1,0\n", "line 2", "a time above 0"),
            ("tokens,seconds\n1,nan\n", "line 2", "Got 'nan'"),
            ("tokens,seconds\n1,1e400\n", "line 2", "Got '1e400'"),
            ("tokens,us\n1,1e-6\n", "tokens", "expected 1e-09 to 1e.06. Got 1e-12 at 1 tokens: is it another unit"),
            ("tokens,seconds,pass\n1,0.1,target\n", "line 2", "pass: expected verify, draft, overhead, block or noth"),
            ("tokens,seconds,batch\n1,0.1,0\n", "line 2", "batch: expected a whole number of at least 1"),
            ("tokens,seconds,context\n1,0.1,-1\n", "line 2", "context: expected a whole number of at least 0"),
            ("tokens,seconds,pass\n1,-1,overhead\n", "line 2", "a time of at least 0"),
            ("tokens,ms\n" + 100_001 * "1,10\n", "content", "a table of at most 100000 lines. Got 100003: keep fewer"),
            ("tokens,s,batch\n" + "".join(f"1,1,{b}\n" for b in range(1, 1003)), "line 1002", "at most 1000 pairs"),
            ('tokens,seconds\n1,"0.1\n', "line 2", "values separated by ','"),
            ("tokens,seconds\n4,0.1\n8,0.2\n", "tokens", "verify: .*from 1 token, plain decoding's pass.* first at 4"),
            ("tokens,seconds,pass\n1,0.1,\n2,0.2,draft\n", "tokens", "draft: .*a level of one node.* first at 2"),
        ],
    )
    def test_contradictions_are_refused(self, refuse_times, content, field, reason):
        refuse_times(content, field, reason)


class TestCostTables:
    def test_steps_per_second(self, read_times, refuse_times):
        (latency,) = read_times(SGLANG_SAMPLES)
        assert (latency.context_tokens, latency.batch_size) == (None, 1)
        assert latency.source == "file (SGLang cost table)"
        assert latency.verify.tokens.tolist() == [1, 8, 64]
        assert latency.verify.medians_s.tolist() == pytest.approx([0.01, 0.0125, 0.02])
        assert latency.draft is latency.overhead is None
        refuse_times(SGLANG_SAMPLES, "content", "of draft passes. Got those of verify", drafts=True)

    @pytest.mark.parametrize("table", [SGLANG_ADDITIVE | {"remark": "any"}, TENSORRT_LLM], ids=["sglang", "tensorrt"])
    def test_each_probed_batch_size_has_its_curve(self, read_times, table):
        """step(batch 1, n) = 1 + 0.2 + pass(n) ms and step(batch 4, n) = 1 + 0.8 + pass(4 n) ms."""
        one, four = read_times(table)
        assert (one.batch_size, four.batch_size) == (1, 4)
        assert one.verify.tokens.tolist() == [1, 4, 16]
        assert one.verify.medians_s.tolist() == pytest.approx([0.0112, 0.0142, 0.0262])
        assert four.verify.tokens.tolist() == [1, 4]
        assert four.verify.medians_s.tolist() == pytest.approx([0.0148, 0.0268])

    def test_token_counts_are_rounded_both_ways_to_multiples_of_the_batch(self, read_times):
        (latency,) = read_times(SGLANG_ADDITIVE | {"bs_probes": [3], "alpha_seconds": [0.0]})
        assert latency.verify.tokens.tolist() == [1, 2, 5]
        passes_s = [0.01 + 0.003 * 2 / 3, 0.013 + 0.012 * 2 / 12, 0.013 + 0.012 * 11 / 12]
        assert latency.verify.medians_s.tolist() == pytest.approx([0.001 + pass_s for pass_s in passes_s])

    @pytest.mark.parametrize("batch", [1, 2])
    def test_sglang_export_can_be_imported(self, read_times, refuse_times, batch):
        profile = invented(conditions=[(256, batch)])
        text = choose_setting(engine_named("sglang"), Source(profile=profile)).output.files["FILE.sps.json"]
        if batch == 2:  # tokens of the batch, from 2 on
            refuse_times(text, "sample_batch_tokens", "from 1 token.* first at 2: time 1 token too")
            return
        (latency,) = read_times(text)
        assert latency.verify.tokens.tolist() == profile.latencies[0].verify.tokens.tolist()
        np.testing.assert_allclose(latency.verify.medians_s, profile.latencies[0].verify.medians_s, rtol=1e-5)

    @pytest.mark.parametrize(
        ("content", "field", "reason"),
        [
            ("{", "content", r"expected JSON .* Is it complete\?"),
            ("[1, 2]", "content", "rates, counts or a table .JSON., which contains none: give it to --acceptance"),
            ({"tokens": [1], "ms": [10.0]}, "content", "Got JSON with the keys tokens, ms"),
            ('{"bias_seconds": 1, "bias_seconds": 2}', "line 1", "appears twice"),
            ("[" * 100_000, "content", "expected JSON"),
            (SGLANG_SAMPLES | {"sample_batch_tokens": [1, 8, 8]}, "sample_batch_tokens", "rising counts"),
            (SGLANG_SAMPLES | {"sample_batch_tokens": [1, 8]}, "sample_steps_per_sec", "2, one per count. Got 3"),
            (SGLANG_SAMPLES | {"sample_batch_tokens": [2, 8, 64]}, "sample_batch_tokens", "the first at 2"),
            (SGLANG_SAMPLES | {"sample_batch_tokens": [1, 8, 64.5]}, "sample_batch_tokens", "whole numbers"),
            (SGLANG_SAMPLES | {"sample_steps_per_sec": [1, 0, 2]}, "sample_steps_per_sec", "above 0"),
            (SGLANG_SAMPLES | {"sample_steps_per_sec": [1, 1e-320, 2]}, "sample_batch_tokens", "another unit"),
            (SGLANG_SAMPLES | {"sample_steps_per_sec": [1, float("nan"), 2]}, "sample_steps_per_sec", "finite"),
            (SGLANG_SAMPLES | {"sample_batch_tokens": [], "sample_steps_per_sec": []}, "sample_batch_tokens", "rising"),
            (SGLANG_ADDITIVE | {"bias_seconds": -1.0}, "m_probes", "expected 1e-09 to 1e.06. Got -0.98"),
            (SGLANG_ADDITIVE | {"m_probes": [2, 4, 16]}, "m_probes", "expected 1 tokens .* batch of 1. Got 2 to 16"),
            (SGLANG_ADDITIVE | {"bs_probes": [1, 32]}, "m_probes", "expected 32 tokens .* Got 1 to 16"),
            (SGLANG_ADDITIVE | {"theta_seconds": [1e308, -1e308, 1e308]}, "m_probes", "seconds: expected"),
            ({"bias_seconds": 1}, "bs_probes", "is missing"),
            (TENSORRT_LLM | {"fixed_overhead_ms": "1"}, "fixed_overhead_ms", "expected a number"),
            (
                TENSORRT_LLM
                | {"token_counts": list(range(1, 1001)), "step_time_ms": [1.0] * 1000}
                | {"batch_sizes": list(range(1, 1001)), "batch_overhead_ms": [1.0] * 1000},
                "token_counts",
                "at most 100000 times",
            ),
        ],
    )
    def test_contradictions_are_refused(self, refuse_times, content, field, reason):
        refuse_times(content, field, reason)


LLAMA_BENCH = [
    {"model_type": "m", "n_ubatch": 512, "n_batch": 2048}
    | {"n_prompt": prompt, "n_gen": generated, "n_depth": depth, "avg_ns": average, "samples_ns": samples}
    for prompt, generated, depth, average, samples in (
        (0, 64, 0, 640_000_000, [640_000_000, 704_000_000]),
        (8, 0, 0, 11_000_000, [11_000_000]),
        (1024, 0, 0, 90_000_000, [90_000_000]),
        (16, 64, 0, 90_000_000, [90_000_000]),
        (1, 0, 512, 12_000_000, None),
    )
]
LLAMA_BENCH_TABLE = """ggml_cuda_init: latency 1 CUDA devices:
| model | size | backend | threads | test | t/s |
| --- | ---: | --- | ---: | ---: | ---: |
| llama 1B Q4_0 | 606.54 MiB | CPU | 8 | pp8 | 800.00 ± 0.10 |
| llama 1B Q4_0 | 606.54 MiB | CPU | 8 | pp1024 | 8000.00 ± 0.10 |
| llama 1B Q4_0 | 606.54 MiB | CPU | 8 | tg32 | 125.00 ± 0.10 |
| llama 1B Q4_0 | 606.54 MiB | CPU | 8 | pp16+tg32 | 5.00 ± 0.10 |
| llama 1B Q4_0 | 606.54 MiB | CPU | 8 | pp1 @ d512 | 100.00 ± 0.10 |

build: abc (123)
"""


class TestLlamaBench:
    @pytest.mark.parametrize(("sign", "encoding"), [("±", "utf-8"), ("±", "cp1252"), ("+-", "utf-8")])
    def test_markdown_table(self, read_times, refuse_times, sign, encoding):
        """n_ubatch is 512 without its column; other lines are the program's log."""
        text = LLAMA_BENCH_TABLE.replace("±", sign)
        empty, deep = read_times(text.encode(encoding))
        assert (empty.context_tokens, deep.context_tokens) == (0, 512)
        assert empty.verify.tokens.tolist() == [1, 8]
        assert empty.verify.medians_s.tolist() == pytest.approx([0.008, 0.010])
        assert deep.verify.medians_s.tolist() == pytest.approx([0.010])
        refuse_times(text.replace("800.00", "fast"), "line 4", "t/s: expected numbers")
        refuse_times(text.replace(f"800.00 {sign} 0.10", ""), "line 4", "t/s: expected numbers")
        refuse_times(text.replace("800.00", "0.00"), "line 4", "a number above 0")
        refuse_times(text.replace("CPU | 8 | pp8", "CPU | 4 | pp8"), "line 5.threads", "one value in all rows")

    @pytest.mark.parametrize("form", ["json", "jsonl", "csv", "json below a log", "results"])
    def test_prompts_and_single_tokens(self, read_times, form):
        """Prompts beyond a pass and mixed runs are left out; 64 tokens one by one are 64 passes."""
        rows = [{key: row[key] for key in row if form != "csv" or key != "samples_ns"} for row in LLAMA_BENCH]
        text = json_lines(rows) if form == "jsonl" else json.dumps(rows)
        if form == "json below a log":
            text = f"ggml_cuda_init: found 1 CUDA devices:\n{json.dumps(rows, indent=2)}\n"
        if form == "results":
            text = json.dumps({"results": rows})
        if form == "csv":
            text = "".join(
                ",".join(f'"{value}"' for value in line) + "\n" for line in (rows[0], *map(dict.values, rows))
            )
        empty, deep = read_times(text)
        assert (empty.context_tokens, deep.context_tokens) == (0, 512)
        assert empty.verify.tokens.tolist() == [1, 8]
        samples_s = [0.010] if form == "csv" else [0.010, 0.011]
        assert empty.verify.timings[0].samples_s.tolist() == pytest.approx(samples_s)
        assert deep.verify.medians_s.tolist() == pytest.approx([0.012])

    def test_draft_model(self, read_times):
        empty, _ = read_times(LLAMA_BENCH, drafts=True)
        assert empty.verify is None
        assert empty.draft.tokens.tolist() == [1, 8]

    def test_contradictions_are_refused(self, refuse_times):
        row = LLAMA_BENCH[1]
        refuse_times([*LLAMA_BENCH, row | {"model_type": "other"}], "[5].model_type", "one value in all")
        others = [row | {"no_kv_offload": True}, row | {"no_kv_offload": False}]
        refuse_times([*LLAMA_BENCH, *others], "[6].no_kv_offload", "one value in all")
        refuse_times([LLAMA_BENCH[2]], "n_prompt", "run llama-bench with -p 1,2")
        refuse_times([row], "n_prompt", "time 1 token too")


class TestBatchedBench:
    def test_a_pass_against_its_tokens(self, read_times):
        again = BATCHED_BENCH[0] | {"t_tg": 1.2, "speed_tg": 100 / 1.2}
        deep = [row | {"pp": 1024, "n_kv": None} for row in BATCHED_BENCH[:2]]
        first, second = read_times(json_lines([*BATCHED_BENCH[::-1], again, *deep]))
        assert (first.context_tokens, first.batch_size, second.context_tokens) == (178, 1, 1074)
        assert first.verify.tokens.tolist() == [1, 2, 8]
        assert first.verify.medians_s.tolist() == pytest.approx([0.011, 0.011, 0.016])
        assert second.verify.tokens.tolist() == [1, 2]
        assert (first.draft, first.overhead) == (None, None)
        assert first.source == "file (llama-batched-bench, sequences taken for nodes)"

    def test_list_log_and_shared_prompt_are_read(self, read_times):
        shared = BATCHED_BENCH[1] | {"n_kv": 128 + 200}
        log = f"main: n_kv_max = 4096\n\n{json_lines(BATCHED_BENCH)}\nllama_perf_context_print: load time = 3 ms\n"
        for content, tokens in (
            (json_lines([BATCHED_BENCH[0], shared]), [1, 2]),
            (BATCHED_BENCH[0], [1]),
            (BATCHED_BENCH, [1, 2, 8]),
            (log, [1, 2, 8]),
        ):
            assert read_times(content)[0].verify.tokens.tolist() == tokens

    def test_markdown_table(self, read_times, refuse_times):
        names = "|    PP |  TG |  B |  N_KV |  T_PP s | S_PP t/s |  T_TG s | S_TG t/s |   T s |  S t/s |"
        rows = (
            "|   512 |  64 |  1 |   576 |   0.500 |  1024.00 |   0.640 |   100.00 | 1.140 | 505.26 |",
            "|   512 |  64 |  4 |  2304 |   2.000 |  1024.00 |   0.800 |   320.00 | 2.800 | 822.86 |",
        )
        (latency,) = read_times("\n".join(["llama_context: n_seq = 4", names, "|---|" * 5, *rows, ""]))
        assert (latency.context_tokens, latency.verify.tokens.tolist()) == (544, [1, 4])
        assert latency.verify.medians_s.tolist() == pytest.approx([0.010, 0.0125])
        refuse_times(f"{names}\n{rows[0]}\n{rows[1][:55]}", "line 3", "10 values, one per name. Got 7")
        refuse_times(f"{names}\n", "content", "numbers under the names. Got none")
        refuse_times(f"{names}\n{rows[0].replace('0.640', '0.6.0')}\n", "line 2", "t_tg: expected a number")

    def test_draft_model(self, read_times):
        (draft,) = read_times(BATCHED_BENCH, drafts=True)
        assert draft.verify is None
        assert draft.draft.medians_s.tolist() == pytest.approx([0.010, 0.011, 0.016])
        assert "level" in draft.source

    @pytest.mark.parametrize(
        ("changes", "field", "reason"),
        [
            ({"n_kv": 500}, "line 2.n_kv", "expected 456, or 328"),
            ({"speed_tg": 100.0}, "line 2.speed_tg", "pl tg / t_tg"),
            ({"t_tg": float("nan")}, "line 2.t_tg", "expected a number"),
            ({"t_tg": -1.0}, "line 2.t_tg", "at least 0"),
            ({"t_tg": 0.0}, "pl", "expected 1e-09"),
            ({"tg": 0}, "line 2.tg", "whole number"),
            ({"n_batch": 512}, "line 2.n_batch", "one value in all rows. Got 2048 and 512"),
            ({"pl": 1.5}, "line 2.pl", "whole number"),
            ({"pp": None}, "line 2.pp", "is missing"),
        ],
    )
    def test_contradictions_are_refused(self, refuse_times, changes, field, reason):
        refuse_times(json_lines([BATCHED_BENCH[0], BATCHED_BENCH[1] | changes]), field, reason)

    def test_separate_sequences_are_refused(self, refuse_times):
        log = "llama_batched_bench: n_kv_max = 4096, is_tg_separate = 1, n_threads = 8\n" + json_lines(BATCHED_BENCH)
        for content in (log, json_lines(row | {"is_tg_separate": 1} for row in BATCHED_BENCH)):
            refuse_times(content, "is_tg_separate", "run it without -tgs")

    def test_incomplete_files_are_refused(self, read_times, refuse_times):
        refuse_times(json_lines([BATCHED_BENCH[0], {"pl": 2, "pp": 3}]), "line 2", "lines of llama-batched-bench")
        refuse_times(json_lines(BATCHED_BENCH[1:]), "pl", "time 1 token too")
        refuse_times(json_lines(BATCHED_BENCH)[:-20], "line 3", "Is it complete")
        with pytest.raises(TreeoptError, match="larger than 32000000 bytes"):
            read_times(b"#" * 32_000_001)


class TestBlocks:
    """Times of drafters whose one pass drafts all levels."""

    @pytest.mark.parametrize(
        "text",
        [
            "tokens,ms,pass\n1,10,\n8,12,\n4,2,block\n8,3,block\n,0.5,overhead\n",
            "tokens,verify_ms,block_ms,overhead_ms\n1,10,,0.5\n8,12,3,\n4,,2,\n",
            "tokens;block_s;verify_s;overhead_s\n1;;0.01;0.0005\n8;0.003;0.012;\n4;0.002;;\n",
        ],
    )
    def test_rows_and_columns(self, read_times, text):
        (latency,) = read_times(text)
        assert latency.per_block
        assert latency.verify.seconds(np.array([1, 8])) == pytest.approx([0.01, 0.012])
        assert latency.draft.tokens.tolist() == [1, 4, 8]
        assert latency.draft.medians_s == pytest.approx([0.002, 0.002, 0.003])
        assert latency.overhead.median_s == pytest.approx(0.0005)

    def test_single_column_named_after_a_part(self, read_times, refuse_times):
        text = "tokens,verify_ms\n1,10\n8,12\n"
        (latency,) = read_times(text)
        assert (latency.draft, latency.per_block) == (None, False)
        refuse_times(text, "content", r"times of draft passes\. Got those of verify", drafts=True)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("tokens,verify_ms,draft_ms,block_ms\n1,10,1,2\n", "expected times of draft or of block passes. Got both"),
            ("tokens,verify_ms,draft_ms,pass\n1,10,1,\n", "expected one column of times. Got"),
            ("tokens,verify_ms,step_ms\n1,10,1\n", "expected one column of times. Got"),
            ("tokens,verify_ms,block_ms\n1,10,0\n", "expected a time above 0"),
        ],
    )
    def test_contradictions_are_refused(self, read_times, text, reason):
        with pytest.raises(FormatError, match=reason):
            read_times(text)

    def test_plan_adds_one_pass_and_is_no_deeper_than_measured(self, read_times):
        """Steps against a sum by hand: the pass of as many levels as the tree has, whatever their width."""
        verify = {n: 10 + 0.1 * n for n in range(1, 33)}
        block = {1: 2.0, 3: 3.0}
        rows = [f"{n},{ms}," for n, ms in verify.items()] + [f"{n},{ms},block" for n, ms in block.items()]
        latencies = read_times("tokens,ms,pass\n" + "\n".join(rows) + "\n,0.5,overhead\n")
        profile = invented(tables=[AcceptanceTable([[0.9, 0.05]] * 6)])
        profile = dataclasses.replace(profile, latencies=step_latencies(latencies, context_tokens=256))
        block_plan = plan(profile, max_nodes=16)
        assert block_plan.choice.tree.max_depth == 3
        for tree in (block_plan.choice.tree, level_widths([2, 4]), chain(1), chain(2)):
            expected_ms = verify[tree.nodes] + {1: 2.0, 2: 2.5, 3: 3.0}[tree.max_depth] + 0.5
            assert block_plan.model.step_s(tree) == pytest.approx(expected_ms / 1e3)
        with pytest.raises(InfeasibleError, match="levels: times were measured for 1 to 3"):
            block_plan.model.step_s(chain(4))


def test_missing_file_is_named(tmp_path):
    with pytest.raises(TreeoptError, match="no such file"):
        read_latency(tmp_path / "none.csv")
