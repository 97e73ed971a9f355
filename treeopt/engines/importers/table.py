"""All importers of measurements, one row each; a file goes to the first row that it matches."""

from treeopt.engines.importers.acceptance_answers import is_answers, read_answers
from treeopt.engines.importers.acceptance_metrics import is_metrics, read_metrics
from treeopt.engines.importers.acceptance_requests import is_requests, read_requests
from treeopt.engines.importers.acceptance_vllm import is_vllm_log, read_vllm_log
from treeopt.engines.importers.importer import ACCEPTANCE, DRAFT_TIMES, SWEEP, TIMES, Importer
from treeopt.engines.importers.latency_batched_bench import is_batched_bench, read_batched_bench
from treeopt.engines.importers.latency_csv import is_csv, read_csv
from treeopt.engines.importers.latency_tables import (
    is_sglang_additive,
    is_sglang_samples,
    is_tensorrt_llm,
    read_sglang_additive,
    read_sglang_samples,
    read_tensorrt_llm,
)
from treeopt.engines.importers.llama_bench import is_llama_bench, read_llama_bench
from treeopt.engines.importers.llama_server_log import is_llama_server_log, read_llama_server_log
from treeopt.engines.importers.mean_acceptance import (
    is_mean_only,
    is_sglang_log,
    is_sglang_metrics,
    is_trtllm_report,
    read_mean_only,
    read_sglang_log,
    read_sglang_metrics,
    read_trtllm_report,
)
from treeopt.engines.importers.plain_acceptance import is_plain_acceptance, read_plain_acceptance
from treeopt.engines.importers.sglang_responses import is_sglang_responses, read_sglang_responses
from treeopt.engines.importers.specdec_bench import is_specdec_bench, read_specdec_bench
from treeopt.engines.importers.speculation_profile import is_speculation_profile, read_speculation_profile
from treeopt.engines.importers.sweep_rows import is_sweep, read_sweep
from treeopt.engines.importers.torch_vector import is_torch_vector, read_torch_vector
from treeopt.engines.importers.vllm_bench import is_vllm_bench, read_vllm_bench

IMPORTERS: tuple[Importer, ...] = (
    Importer(
        name="acceptance-vector",
        title="Sequoia's acceptance vector (torch file)",
        contains=(ACCEPTANCE,),
        needs="one row of numbers: acceptance by rank, the same at every depth",
        matches=is_torch_vector,
        read=read_torch_vector,
    ),
    Importer(
        name="metrics",
        title="/metrics of vLLM or llama.cpp, or an answer of Prometheus' /api/v1/query",
        contains=(ACCEPTANCE,),
        needs="spec_decode_num_drafts and spec_decode_num_accepted_tokens_per_pos, of one moment and one model",
        matches=is_metrics,
        read=read_metrics,
    ),
    Importer(
        name="vllm-log",
        title="vLLM's log",
        contains=(ACCEPTANCE,),
        needs="lines with Drafted and Per-position acceptance rate; all lines count",
        matches=is_vllm_log,
        read=read_vllm_log,
    ),
    Importer(
        name="llama-server-log",
        title="llama-server's log",
        contains=(ACCEPTANCE, DRAFT_TIMES),
        needs="lines with draft acceptance, or with statistics of drafts (-lv 4), which have seconds of drafting too",
        matches=is_llama_server_log,
        read=read_llama_server_log,
    ),
    Importer(
        name="sglang-log",
        title="SGLang's log",
        contains=(ACCEPTANCE,),
        needs="lines with accept len, and accept rate or server_args; positions are taken for equal",
        matches=is_sglang_log,
        read=read_sglang_log,
    ),
    Importer(
        name="sglang-metrics",
        title="/metrics of SGLang",
        contains=(ACCEPTANCE,),
        needs="spec_accept_length and spec_accept_rate; positions are taken for equal",
        matches=is_sglang_metrics,
        read=read_sglang_metrics,
    ),
    Importer(
        name="vllm-bench",
        title="result of vllm bench serve --save-result",
        contains=(ACCEPTANCE, SWEEP),
        needs="spec_decode_per_position_acceptance_rates, and spec_decode_num_drafts for the errors",
        matches=is_vllm_bench,
        read=read_vllm_bench,
    ),
    Importer(
        name="sglang-responses",
        title="responses of SGLang (JSON Lines)",
        contains=(ACCEPTANCE,),
        needs="meta_info with spec_accept_histogram",
        matches=is_sglang_responses,
        read=read_sglang_responses,
    ),
    Importer(
        name="specdec-bench",
        title="acceptance_rate.json of Model-Optimizer's specdec_bench",
        contains=(ACCEPTANCE,),
        needs="Acceptance_Length_Histogram",
        matches=is_specdec_bench,
        read=read_specdec_bench,
    ),
    Importer(
        name="trtllm-bench",
        title="report of trtllm-bench",
        contains=(ACCEPTANCE,),
        needs="decoding_stats; positions are taken for equal",
        matches=is_trtllm_report,
        read=read_trtllm_report,
    ),
    Importer(
        name="speculation-profile",
        title="speculation_profile.json of Model-Optimizer",
        contains=(ACCEPTANCE,),
        needs="schema 1.0",
        matches=is_speculation_profile,
        read=read_speculation_profile,
    ),
    Importer(
        name="spec-bench",
        title="answers of Spec-Bench (JSON Lines)",
        contains=(ACCEPTANCE,),
        needs="accept_lengths of a speculative run",
        matches=is_answers,
        read=read_answers,
    ),
    Importer(
        name="requests",
        title="responses of vLLM, or records of AIPerf",
        contains=(ACCEPTANCE,),
        needs="metrics.speculative_decoding or spec_decode_acceptance of at least one request",
        matches=is_requests,
        read=read_requests,
    ),
    Importer(
        name="llama-bench",
        title="llama-bench (its table, or -o json, jsonl or csv)",
        contains=(TIMES, DRAFT_TIMES),
        needs="n_prompt, n_gen and avg_ns; run with -p 1,2,4,8,16,32",
        matches=is_llama_bench,
        read=read_llama_bench,
    ),
    Importer(
        name="llama-batched-bench",
        title="llama-batched-bench (JSON Lines or its table)",
        contains=(TIMES, DRAFT_TIMES),
        needs="lines with pl, pp, tg and t_tg",
        matches=is_batched_bench,
        read=read_batched_bench,
    ),
    Importer(
        name="sglang-samples",
        title="SGLang's cost table of steps per second",
        contains=(TIMES,),
        needs="sample_batch_tokens and sample_steps_per_sec",
        matches=is_sglang_samples,
        read=read_sglang_samples,
    ),
    Importer(
        name="sglang-additive",
        title="SGLang's additive cost table",
        contains=(TIMES,),
        needs="bias_seconds, bs_probes, alpha_seconds, m_probes and theta_seconds",
        matches=is_sglang_additive,
        read=read_sglang_additive,
    ),
    Importer(
        name="tensorrt-llm",
        title="TensorRT-LLM's cost table",
        contains=(TIMES,),
        needs="token_counts, step_time_ms, fixed_overhead_ms, batch_sizes and batch_overhead_ms",
        matches=is_tensorrt_llm,
        read=read_tensorrt_llm,
    ),
    Importer(
        name="mean-acceptance",
        title="results with a mean accept_length only, such as SGLang's bench_serving",
        contains=(),
        needs="refused: neither positions nor the draft length are known",
        matches=is_mean_only,
        read=read_mean_only,
    ),
    Importer(
        name="sweep",
        title="speed by draft length (CSV, JSON, JSON Lines)",
        contains=(SWEEP,),
        needs="a draft length, accept length and step time or tokens per second in each row; plain decoding is length 0",
        matches=is_sweep,
        read=read_sweep,
    ),
    Importer(
        name="acceptance",
        title="rates, counts or a table (JSON)",
        contains=(ACCEPTANCE,),
        needs="a list of rates per position, or an object with conditional, p, synthetic_acceptance_rates, or num_drafts "
        "and accepted_per_pos",
        matches=is_plain_acceptance,
        read=read_plain_acceptance,
    ),
    Importer(
        name="csv",
        title="curves as CSV",
        contains=(TIMES, DRAFT_TIMES),
        needs="a line of names with tokens and a time such as ms or latency_us; context, batch and pass if need be",
        matches=is_csv,
        read=read_csv,
    ),
)
"""Specific kinds first, because a file goes to the first that it matches."""
