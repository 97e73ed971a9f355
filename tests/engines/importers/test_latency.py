"""Latencies of other programs, against numbers computed by hand and against treeopt's own exports."""

import json

import numpy as np
import pytest

from tests.cli.invented import invented
from tests.engines.exporters.named import engine_named
from tests.engines.importers.samples import CSV, SGLANG_ADDITIVE, SGLANG_SAMPLES, TENSORRT_LLM
from treeopt.engines.exporters.choose import choose_setting
from treeopt.engines.exporters.setting import Source
from treeopt.engines.importers import read_latency, with_imported
from treeopt.errors import FormatError, InfeasibleError, InvalidValueError, TreeoptError
from treeopt.planner import plan
from treeopt.records.acceptance import AcceptanceTable
from treeopt.trees import chain, level_widths


def read(tmp_path, content, **options):
    path = tmp_path / "file"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return read_latency(path, **options)


def refused(tmp_path, content, field, reason, **options):
    with pytest.raises(FormatError, match=reason) as caught:
        read(tmp_path, content, **options)
    assert caught.value.field == field
    assert len(str(caught.value)) < len(str(tmp_path)) + 400
    assert "\n" not in str(caught.value)


class TestCsv:
    def test_rows_of_one_token_count_are_samples(self, tmp_path):
        (latency,) = read(tmp_path, CSV)
        assert (latency.context_tokens, latency.batch_size, latency.source) == (None, 1, "file (CSV)")
        assert latency.verify.tokens.tolist() == [1, 4]
        np.testing.assert_allclose(latency.verify.timings[0].samples_s, [0.010, 0.012])
        np.testing.assert_allclose(latency.verify.medians_s, [0.011, 0.016])
        np.testing.assert_allclose(latency.draft.medians_s, [0.002, 0.003])
        np.testing.assert_allclose(latency.overhead.samples_s, [0.0005])

    @pytest.mark.parametrize(
        ("unit", "one"), [("seconds", "0.01"), ("s", "1e-2"), ("ms", "10"), ("Milliseconds", " 10 "), ("us", "10000")]
    )
    def test_units(self, tmp_path, unit, one):
        (latency,) = read(tmp_path, f"\ufeff{unit},tokens\r\n{one},1\r\n")
        assert latency.verify.medians_s.tolist() == pytest.approx([0.01])

    @pytest.mark.parametrize(
        "content",
        [
            "tokens;ms\n1;10,5\n8;11,2\n",
            "tokens\tms\n1\t10.5\n8\t11,2\n",
            "tokens,ms\r\n1.0,10.5\r\n8.0,11.2\r\n",
            ",tokens,ms\n0,1,10.5\n1,8,11.2\n",
            '"","tokens","ms"\n"1",1,10.5\n"2",8,11.2\n',
            '"tokens" "ms"\n'.replace(" ", ",") + '"1",1,10.5\n"2",8,11.2\n',
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
            "tokens,ms\n1,10.5,\n8,11.2,,\n",
            "tokens,ms\n1,10.5\ntokens,ms\n8,11.2\n",
            'tokens,ms\n1,"10,5"\n8,"11,2"\n',
            "tokens,ms\r1,10.5\r8,11.2\r",
            "numTokens,stepTimeMs\n1,10.5\n8,11.2\n",
            "Num Tokens,time per step (ms),GB/s,steps/s\n1,10.5,7,95\n8,11.2,6,89\n",
            "tokens,latency_ms_mean,latency_ms_std,mem_gb\n1,10.5,1,3.1\n8,11.2,1,3.2\n",
            "tokens;ms;version\n1;10,50;0.9\n8;11,2;0.9\n",
        ],
        ids=[
            "semicolons",
            "tabs",
            "floats",
            "pandas",
            "R",
            "write.table",
            "reread",
            "Excel",
            "names",
            "spread",
            "ns",
            "speed",
            "micro",
            "write.table with spaces",
            "numpy",
            "numpy with commas",
            "Excel with sep",
            "trailing",
            "put together",
            "quoted decimal commas",
            "old Mac",
            "camel case",
            "per step",
            "aggregated",
            "both marks",
        ],
    )
    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    def test_dialects(self, tmp_path, content, encoding):
        (tmp_path / "file").write_bytes(content.encode(encoding))
        (latency,) = read_latency(tmp_path / "file")
        assert latency.verify.tokens.tolist() == [1, 8]
        assert latency.verify.medians_s.tolist() == pytest.approx([0.0105, 0.0112])

    def test_micro_sign_in_windows_encoding(self, tmp_path):
        (tmp_path / "file").write_bytes("tokens;Latency [µs]\n1;10,5\n8;11,2\n".encode("cp1252"))
        (latency,) = read_latency(tmp_path / "file")
        assert latency.verify.medians_s.tolist() == pytest.approx([10.5e-6, 11.2e-6])

    def test_three_decimals_are_read_if_the_decimal_mark_is_known(self, tmp_path):
        (latency,) = read(tmp_path, "tokens;us\n1;10,512\n8;11,203\n")
        assert latency.verify.medians_s.tolist() == pytest.approx([10.512e-6, 11.203e-6])
        (latency,) = read(tmp_path, "tokens\tus\n1\t10,512\n8\t11,2\n")
        assert latency.verify.medians_s.tolist() == pytest.approx([10.512e-6, 11.2e-6])
        (latency,) = read(tmp_path, "tokens,us\n1.000,10.512\n8.000,11.203\n")
        assert latency.verify.medians_s.tolist() == pytest.approx([10.512e-6, 11.203e-6])

    @pytest.mark.parametrize("name", ["batch", "Batch Size", "bs", "num_seqs"])
    @pytest.mark.parametrize("context", ["ctx", "context (tokens)", "kvLen", "past-len"])
    def test_condition_columns_have_aliases(self, tmp_path, name, context):
        """A column of one value is no less a condition."""
        (latency,) = read(tmp_path, f"{context},{name},tokens,ms\n512,4,1,10\n512,4,8,11\n")
        assert (latency.context_tokens, latency.batch_size) == (512, 4)

    def test_batch_tokens_are_divided_by_the_batch_size(self, tmp_path):
        four, one = read(tmp_path, "batch_tokens,batch,ms\n4,4,10\n32,4,11\n1,1,9\n")
        assert four.verify.tokens.tolist() == [1, 8]
        assert one.verify.tokens.tolist() == [1]
        refused(tmp_path, "batch_tokens,batch,ms\n4,4,10\n6,4,11\n", "line 3", "a multiple of the batch of 4. Got 6")

    def test_unnamed_last_column_is_refused(self, tmp_path):
        """Shifted by one, its values would be times."""
        refused(tmp_path, "tokens,ms\n1,10,3\n2,11,4\n", "line 2", "expected 2 values, one per name. Got 3")

    @pytest.mark.parametrize(
        ("column", "values", "accepted"),
        [
            ("threads", "4 8 4 8", False),
            ("threads", "4 4 8 8", True),
            ("gpu_id", "0 1 0 1", False),
            ("note", "a a b b", False),
            ("power_w", "71.5 72.5 73.5 74.5", True),
            ("run_id", "1 2 1 2", True),
        ],
    )
    def test_settings_must_be_constant_and_results_may_vary(self, tmp_path, column, values, accepted):
        rows = zip((1, 1, 8, 8), (10, 12, 14, 16), values.split(), strict=True)
        text = f"tokens,ms,{column}\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
        if accepted:
            assert read(tmp_path, text)[0].verify.medians_s.tolist() == pytest.approx([0.011, 0.015])
        else:
            refused(tmp_path, text, "line 1", f"one value in the column '{column}'.*remove the column")

    def test_settings_of_a_single_point_must_be_constant(self, tmp_path):
        refused(tmp_path, "tokens,ms,threads\n1,1,4\n1,2,8\n", "line 1", "one value in the column 'threads'")

    def test_zero_drafting_time_is_refused_with_advice(self, tmp_path):
        refused(tmp_path, "tokens,ms\n1,0\n", "line 2", "such as 1 us", default_pass="draft")

    def test_every_context_and_batch_is_a_condition(self, tmp_path):
        latency = read(tmp_path, 'context,batch,tokens,"seconds"\n512,4,1,0.1\n256,1,1,0.2\n512,4,2,0.3\n,,1,0.4\n')
        assert [(each.context_tokens, each.batch_size) for each in latency] == [(512, 4), (256, 1), (None, 1)]
        assert latency[0].verify.medians_s.tolist() == [0.1, 0.3]

    def test_rows_without_a_pass_use_the_default_pass(self, tmp_path):
        (latency,) = read(tmp_path, "tokens,seconds\n1,0.1\n", default_pass="draft")
        assert latency.verify is None
        assert latency.draft.medians_s.tolist() == [0.1]
        with pytest.raises(InvalidValueError, match="default_pass"):
            read(tmp_path, CSV, default_pass="target")

    @pytest.mark.parametrize(
        ("content", "field", "reason"),
        [
            ("", "content", "Got an empty file"),
            ("tokens,seconds\n# nothing\n", "content", "at least one line of numbers"),
            ("1,0.1\n2,0.2\n", "line 1", "a line of names: tokens, a time .* Got '1, 0.1'"),
            ("tokens,speed\n1,0.1\n", "line 1", "Got 'tokens, speed'"),
            ("tokens,tokens_per_s\n1,0.1\n", "line 1", "a time such as ms"),
            ("tokens\n1\n", "line 1", "a time .* Got 'tokens'"),
            ("tokens,tokens,ms\n1,1,1\n", "line 1", "'tokens' twice"),
            ("tokens,n,ms\n1,1,1\n", "line 1", "one column of tokens. Got tokens, n"),
            ("tokens,ms,gpu\n1,1,A\n2,2,B\n", "line 1", "one value in the column 'gpu'. Got 'A', 'B'"),
            ("tokens;ms\n1;1.234,5\n", "line 2", "Got '1.234,5': write it with a decimal point"),
            ("tokens;ms\n1;10,5\n1.000;11,5\n", "line 3", "Got '1.000': write it .* without thousands separators"),
            ("tokens\tus\n1\t1,234\n8\t2,345\n", "line 2", "Got '1,234': write it .* without thousands separators"),
            ("tokens,steps/s\n1,0.1\n", "line 1", "a time such as ms"),
            ("tokens,latency\n1,0.1\n", "line 1", "a unit in the name of the times. Got 'latency': add _s, _ms"),
            ("tokens,ms_per_token\n1,0.1\n", "line 1", "a time such as ms"),
            ("tokens,mean_ms\n1,NA\n", "line 2", "Got 'NA': replace it or remove the line"),
            ("tokens,ms,us\n1,1,1\n", "line 1", "one column of times. Got ms, us"),
            ("tokens,seconds\n\n1,0.1,3\n", "line 3", "expected 2 values, one per name. Got 3"),
            ("tokens,seconds\n1.5,0.1\n", "line 2", "tokens: expected a whole number of at least 1. Got '1.5'"),
            ("tokens,seconds\n1_0,0.1\n", "line 2", "whole number"),
            ("tokens,seconds\n0,0.1\n", "line 2", "whole number"),
            (f"tokens,seconds\n{'9' * 5000},0.1\n", "line 2", "whole number"),
            ("tokens,seconds\n1,0\n", "line 2", "a time above 0"),
            ("tokens,seconds\n1,-1\n", "line 2", "a time above 0"),
            ("tokens,seconds\n1,nan\n", "line 2", "Got 'nan'"),
            ("tokens,seconds\n1,1e400\n", "line 2", "Got '1e400'"),
            ("tokens,seconds\n1,fast\n", "line 2", "Got 'fast'"),
            ("tokens,seconds\n1,1_0\n", "line 2", "Got '1_0'"),
            ("tokens,us\n1,1e-6\n", "tokens", "expected 1e-09 to 1e.06. Got 1e-12 at 1 tokens: is it another unit"),
            (
                "tokens,seconds,pass\n1,0.1,target\n",
                "line 2",
                "pass: expected verify, draft, overhead, block or nothing",
            ),
            ("tokens,seconds,batch\n1,0.1,0\n", "line 2", "batch: expected a whole number of at least 1"),
            ("tokens,seconds,context\n1,0.1,-1\n", "line 2", "context: expected a whole number of at least 0"),
            ("tokens,seconds,pass\n1,-1,overhead\n", "line 2", "a time of at least 0"),
            ("tokens,s,batch\n" + "".join(f"1,1,{b}\n" for b in range(1, 1003)), "line 1002", "at most 1000 pairs"),
            ('tokens,seconds\n1,"0.1\n', "line 2", "values separated by ','"),
            ("tokens,seconds\n4,0.1\n8,0.2\n", "tokens", "verify: .*from 1 token, plain decoding's pass.* first at 4"),
            ("tokens,seconds,pass\n1,0.1,\n2,0.2,draft\n", "tokens", "draft: .*a level of one node.* first at 2"),
        ],
    )
    def test_what_is_refused(self, tmp_path, content, field, reason):
        refused(tmp_path, content, field, reason)


class TestEngineTables:
    def test_steps_per_second(self, tmp_path):
        (latency,) = read(tmp_path, SGLANG_SAMPLES)
        assert (latency.context_tokens, latency.batch_size) == (None, 1)
        assert latency.source == "file (SGLang cost table)"
        assert latency.verify.tokens.tolist() == [1, 8, 64]
        assert latency.verify.medians_s.tolist() == pytest.approx([0.01, 0.0125, 0.02])
        assert latency.draft is latency.overhead is None

    @pytest.mark.parametrize("table", [SGLANG_ADDITIVE, TENSORRT_LLM], ids=["sglang", "tensorrt-llm"])
    def test_every_probed_batch_size_is_a_condition(self, tmp_path, table):
        """step(batch 1, n) = 1 + 0.2 + pass(n) ms and step(batch 4, n) = 1 + 0.8 + pass(4 n) ms."""
        one, four = read(tmp_path, table)
        assert (one.batch_size, four.batch_size) == (1, 4)
        assert one.verify.tokens.tolist() == [1, 4, 16]
        assert one.verify.medians_s.tolist() == pytest.approx([0.0112, 0.0142, 0.0262])
        assert four.verify.tokens.tolist() == [1, 4]
        assert four.verify.medians_s.tolist() == pytest.approx([0.0148, 0.0268])

    def test_token_counts_are_rounded_both_ways_to_multiples_of_the_batch(self, tmp_path):
        table = SGLANG_ADDITIVE | {"bs_probes": [3], "alpha_seconds": [0.0]}
        (latency,) = read(tmp_path, table)
        assert latency.verify.tokens.tolist() == [1, 2, 5]
        between = [0.01 + 0.003 * 2 / 3, 0.013 + 0.012 * 2 / 12, 0.013 + 0.012 * 11 / 12]
        assert latency.verify.medians_s.tolist() == pytest.approx([0.001 + each for each in between])

    def test_table_with_bias_is_additive(self, tmp_path):
        (latency, _) = read(tmp_path, SGLANG_ADDITIVE | {"remark": "any"})
        assert latency.verify.max_tokens == 16

    @pytest.mark.parametrize("batch", [1, 2])
    def test_sglang_export_can_be_imported(self, tmp_path, batch):
        from tests.cli.invented import invented

        profile = invented(conditions=[(256, batch)])
        output = choose_setting(engine_named("sglang"), Source(profile=profile)).output
        text = output.files["FILE.sps.json"]
        if batch == 2:  # tokens of the batch, from 2 on
            refused(tmp_path, text, "sample_batch_tokens", "from 1 token.* first at 2: time 1 token too")
            return
        (latency,) = read(tmp_path, text)
        wanted = profile.latencies[0].verify
        assert latency.verify.tokens.tolist() == wanted.tokens.tolist()
        np.testing.assert_allclose(latency.verify.medians_s, wanted.medians_s, rtol=1e-5)

    @pytest.mark.parametrize(
        ("content", "field", "reason"),
        [
            ("{", "content", r"expected JSON .* Is it complete\?"),
            ("[1, 2]", "content", "rates, counts or a table .JSON., which contains none: give it to --acceptance"),
            ({"tokens": [1]}, "content", "Got JSON with the keys tokens"),
            ('{"bias_seconds": 1, "bias_seconds": 2}', "content", "appears twice"),
            ("[" * 100_000, "content", "expected JSON"),
            (SGLANG_SAMPLES | {"sample_batch_tokens": [1, 8, 8]}, "sample_batch_tokens", "rising counts"),
            (
                SGLANG_SAMPLES | {"sample_batch_tokens": [1, 8]},
                "sample_steps_per_sec",
                "expected 2, one per count. Got 3",
            ),
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
            ({"token_counts": [1], "cost_tables": {}}, "fixed_overhead_ms", "is missing"),
            (
                TENSORRT_LLM
                | {"token_counts": list(range(1, 1001)), "step_time_ms": [1.0] * 1000}
                | {"batch_sizes": list(range(1, 1001)), "batch_overhead_ms": [1.0] * 1000},
                "token_counts",
                "at most 100000 times",
            ),
        ],
    )
    def test_what_is_refused(self, tmp_path, content, field, reason):
        refused(tmp_path, content, field, reason)

    def test_cost_table_has_no_drafting_times(self, tmp_path):
        refused(
            tmp_path,
            SGLANG_SAMPLES,
            "content",
            "expected times of draft passes. Got those of verify",
            default_pass="draft",
        )


LLAMA_BENCH = [
    {
        "model_type": "m",
        "n_ubatch": 512,
        "n_batch": 2048,
        "n_prompt": p,
        "n_gen": g,
        "n_depth": d,
        "avg_ns": ns,
        "samples_ns": s,
    }
    for p, g, d, ns, s in (
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
    def test_markdown_table(self, tmp_path):
        """n_ubatch is 512 where the table does not name it; other lines are its log."""
        text = LLAMA_BENCH_TABLE
        empty, deep = read(tmp_path, text)
        assert (empty.context_tokens, deep.context_tokens) == (0, 512)
        assert empty.verify.tokens.tolist() == [1, 8]
        assert empty.verify.medians_s.tolist() == pytest.approx([0.008, 0.010])
        assert deep.verify.medians_s.tolist() == pytest.approx([0.010])
        refused(tmp_path, text.replace("800.00", "fast"), "line 4", "t/s: expected numbers")
        refused(tmp_path, text.replace("800.00", "0.00"), "line 4", "a number above 0")
        refused(tmp_path, text.replace("CPU | 8 | pp8", "CPU | 4 | pp8"), "line 5.threads", "one value in all rows")

    def test_draft_model(self, tmp_path):
        empty, _ = read(tmp_path, LLAMA_BENCH, default_pass="draft")
        assert empty.verify is None
        assert empty.draft.tokens.tolist() == [1, 8]

    def test_rows_may_lack_settings(self, tmp_path):
        fewer = [{key: row[key] for key in row if key != "model_type"} for row in LLAMA_BENCH[1:]]
        assert read(tmp_path, [LLAMA_BENCH[0], *fewer])[0].verify.tokens.tolist() == [1, 8]

    @pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
    def test_prompts_and_single_tokens(self, tmp_path, form):
        """Prompts beyond a pass and mixed runs are left out; 64 tokens one by one are 64 passes."""
        rows = LLAMA_BENCH
        if form == "csv":
            names = [name for name in rows[0] if name != "samples_ns"]
            lines = [
                ",".join(f'"{name}"' for name in names),
                *(",".join(f'"{row[name]}"' for name in names) for row in rows),
            ]
        text = {
            "json": lambda: json.dumps(rows),
            "jsonl": lambda: "\n".join(map(json.dumps, rows)),
            "csv": lambda: "\n".join(lines),
        }
        empty, deep = read(tmp_path, text[form]())
        assert (empty.context_tokens, deep.context_tokens) == (0, 512)
        assert empty.verify.tokens.tolist() == [1, 8]
        wanted = [0.010] if form == "csv" else [0.010, 0.011]
        assert empty.verify.timings[0].samples_s.tolist() == pytest.approx(wanted)
        assert deep.verify.medians_s.tolist() == pytest.approx([0.012])

    def test_what_is_refused(self, tmp_path):
        refused(
            tmp_path, [*LLAMA_BENCH, LLAMA_BENCH[1] | {"model_type": "other"}], "[5].model_type", "one value in all"
        )
        refused(
            tmp_path,
            [*LLAMA_BENCH, LLAMA_BENCH[1] | {"no_kv_offload": True}, LLAMA_BENCH[1] | {"no_kv_offload": False}],
            "[6].no_kv_offload",
            "one value in all",
        )
        refused(tmp_path, [LLAMA_BENCH[2]], "n_prompt", "run llama-bench with -p 1,2")
        refused(tmp_path, [LLAMA_BENCH[1]], "n_prompt", "time 1 token too")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(TreeoptError, match="no such file"):
        read_latency(tmp_path / "none.csv")
    (tmp_path / "large").write_bytes(b"#" * 32_000_001)
    with pytest.raises(TreeoptError, match="larger than 32000000 bytes"):
        read_latency(tmp_path / "large")
    (tmp_path / "bytes").write_bytes(b"tokens,\xff")
    with pytest.raises(TreeoptError, match="bytes that are no text"):
        read_latency(tmp_path / "bytes")


class TestBlocks:
    """Times of drafters whose one pass drafts all levels."""

    def imported(self, tmp_path, text):
        (tmp_path / "block.csv").write_text(text)
        (latency,) = read_latency(tmp_path / "block.csv")
        return latency

    @pytest.mark.parametrize(
        "text",
        [
            "tokens,ms,pass\n1,10,\n8,12,\n4,2,block\n8,3,block\n,0.5,overhead\n",
            "tokens,verify_ms,block_ms,overhead_ms\n1,10,,0.5\n8,12,3,\n4,,2,\n",
            "tokens;block_s;verify_s;overhead_s\n1;;0.01;0.0005\n8;0.003;0.012;\n4;0.002;;\n",
        ],
    )
    def test_rows_and_columns(self, tmp_path, text):
        latency = self.imported(tmp_path, text)
        assert latency.per_block
        assert latency.verify.seconds(np.array([1, 8])) == pytest.approx([0.01, 0.012])
        assert latency.draft.tokens.tolist() == [1, 4, 8]
        assert latency.draft.medians_s == pytest.approx([0.002, 0.002, 0.003])
        assert latency.overhead.median_s == pytest.approx(0.0005)

    def test_single_column_named_after_a_part(self, tmp_path):
        latency = self.imported(tmp_path, "tokens,verify_ms\n1,10\n8,12\n")
        assert (latency.draft, latency.per_block) == (None, False)
        (tmp_path / "verify.csv").write_text("tokens,verify_ms\n1,10\n8,12\n")
        with pytest.raises(FormatError, match=r"expected times of draft passes\. Got those of verify"):
            read_latency(tmp_path / "verify.csv", default_pass="draft")

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("tokens,verify_ms,draft_ms,block_ms\n1,10,1,2\n", "expected times of draft or of block passes. Got both"),
            ("tokens,verify_ms,draft_ms,pass\n1,10,1,\n", "expected one column of times. Got"),
            ("tokens,verify_ms,step_ms\n1,10,1\n", "expected one column of times. Got"),
            ("tokens,verify_ms,block_ms\n1,10,0\n", "expected a time above 0"),
        ],
    )
    def test_contradictions_are_refused(self, tmp_path, text, reason):
        with pytest.raises(FormatError, match=reason):
            self.imported(tmp_path, text)

    def test_plan_adds_one_pass_and_is_no_deeper_than_measured(self, tmp_path):
        """Steps against a sum by hand: the pass of as many levels as the tree has, whatever their width."""
        verify = {n: 10 + 0.1 * n for n in range(1, 33)}
        block = {1: 2.0, 3: 3.0}
        rows = [f"{n},{ms}," for n, ms in verify.items()] + [f"{n},{ms},block" for n, ms in block.items()]
        latency = self.imported(tmp_path, "tokens,ms,pass\n" + "\n".join(rows) + "\n,0.5,overhead\n")
        profile = with_imported(invented(tables=[AcceptanceTable([[0.9, 0.05]] * 6)]), latencies=[latency])
        found_plan = plan(profile, max_nodes=16)
        tree = found_plan.choice.tree
        assert tree.max_depth == 3
        for each in (tree, level_widths([2, 4]), chain(1), chain(2)):
            expected_ms = verify[each.nodes] + {1: 2.0, 2: 2.5, 3: 3.0}[each.max_depth] + 0.5
            assert found_plan.model.step_s(each) == pytest.approx(expected_ms / 1e3)
        with pytest.raises(InfeasibleError, match="levels: times were measured for 1 to 3"):
            found_plan.model.step_s(chain(4))
