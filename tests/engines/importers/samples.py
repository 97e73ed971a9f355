"""Files as other programs write them, small enough to check by hand."""

import json

CSV = "# one H200\ntokens,ms,pass,batch\n1,10,,\n1,12,verify,1\n4,16,,\n1,2,draft,\n4,3,draft,\n,0.5,overhead,\n"
SGLANG_SAMPLES = {
    "sample_batch_tokens": [1, 8, 64],
    "sample_steps_per_sec": [100.0, 80.0, 50.0],
    "max_batch_tokens": 64,
}
SGLANG_ADDITIVE = {
    "bias_seconds": 0.001,
    "bs_probes": [1, 4],
    "alpha_seconds": [0.0002, 0.0008],
    "m_probes": [1, 4, 16],
    "theta_seconds": [0.01, 0.013, 0.025],
}
TENSORRT_LLM = {
    "token_counts": [1, 4, 16],
    "step_time_ms": [10.0, 13.0, 25.0],
    "fixed_overhead_ms": 1.0,
    "batch_sizes": [1, 4],
    "batch_overhead_ms": [0.2, 0.8],
    "minimum_predicted_gain": 0.01,
}
METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 60.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 40.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 180.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 84.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 48.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 24.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 32.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="1"} 16.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="2"} 8.0
"""
VLLM_BENCH = {
    "backend": "vllm",
    "label": None,
    "mean_tpot_ms": 8.0,
    "spec_decode_acceptance_length": 2.5,
    "spec_decode_num_drafts": 40,
    "spec_decode_draft_tokens": 120,
    "spec_decode_accepted_tokens": 60,
    "spec_decode_per_position_acceptance_rates": [0.75, 0.5, 0.25],
}
VLLM_BENCH_PRINTED = """
============ Serving Benchmark Result ============
Successful requests:                     20
Maximum request concurrency:             4
Output token throughput (tok/s):         331.02
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          12.65
Median TPOT (ms):                        11.90
---------------Speculative Decoding---------------
Acceptance rate (%):                     73.47
Acceptance length:                       3.20
Drafts:                                  6393
Draft tokens:                            19179
Accepted tokens:                         14090
Per-position acceptance (%):
  Position 0:                            83.42
  Position 1:                            72.91
  Position 2:                            64.07
==================================================
"""
SPECDEC = {
    "Request_AL": {"0": {"0": 2.5}},
    "Average_AL": 2.5,
    "Acceptance_Length_Histogram": {"1": 10, "2": 10, "3": 10, "4": 10},
    "Joint_Acceptance_Rate": {"1": 1.0, "2": 0.75, "3": 0.5, "4": 0.25},
}
META = {"completion_tokens": 100, "spec_verify_ct": 40, "spec_accept_histogram": [10, 10, 10, 10]}
TRTLLM = {
    "engine": {},
    "decoding_stats": {
        "acceptance_length_percentiles": {"average": 1.75},
        "draft_acceptance_rate_percentiles": {"average": 0.375},
    },
}
ITERATION = {
    "iter": 5,
    "iterLatencyMS": 12.5,
    "specDecodingStats": {
        "numDraftTokens": 6,
        "numAcceptedTokens": 3,
        "numRequestsWithDraftTokens": 2,
        "acceptanceLength": 2.5,
    },
}
SERVER_INFO = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "internal_states": [{"avg_spec_accept_length": 2.25}, {"avg_spec_accept_length": 2.75}],
}
COMPLETION = {
    "content": "a",
    "model": "m",
    "stop": True,
    "timings": {"predicted_n": 101, "predicted_ms": 250.0, "draft_n": 120, "draft_n_accepted": 60},
}
LLAMA_SERVER_LOG = (
    "0.06 I statistics     draft-simple: #calls(b,g,a) =    1    100    100, #gen drafts =    100, #acc drafts = 75, "
    "#gen tokens =    300, #acc tokens =   150, #acc rate/pos = (0.750, 0.500, 0.250), dur(b,g,a) = 0.005, 300.0, 0.1 ms\n"
)
LOG = """INFO 11-20 10:00:00 SpecDecoding metrics: Mean acceptance length: 2.0, Per-position acceptance rate: 0.9, 0.1
INFO 11-20 10:00:10 Per-position acceptance rate: 0.710, 0.520, 0.380, Avg Draft acceptance rate: 53.7%
INFO 11-20 10:00:20 Engine 000: Per-position acceptance rate: nan
INFO 11-20 10:00:30 stopped
"""
LLAMA_CPP_METRICS = """# HELP llamacpp:spec_decode_num_drafts_total Speculative: Total speculative decoding verification steps
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 100
llamacpp:spec_decode_num_draft_tokens_total 250
llamacpp:spec_decode_num_accepted_tokens_total 140
llamacpp:n_busy_slots_per_decode 1.5
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 80
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 40
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 20
"""
SPECULATION_PROFILE = {
    "schema_version": "1.0",
    "measured": True,
    "method": "eagle3",
    "draft_checkpoint": None,
    "num_speculative_tokens": 3,
    "max_supported_k": 3,
    "verification_method": "longest_prefix",
    "conditional_accept_rates": [0.6, 0.5, 0.0],
    "marginal_accept_rates": [0.6, 0.3, 0.0],
    "mean_accept_length": 1.9,
    "mean_accept_length_per_request": 2.2,
    "accept_length_model": "chain_analytic",
    "accept_length_by_k": {"3": 1.9},
    "acceptance_length_histogram": {"1": 40, "2": 30, "3": 30},
    "per_category": None,
    "validation": {"mean_consistency": {"passed": True}},
}
REQUEST = {
    "mean_acceptance_length": 3.25,
    "draft_acceptance_rate": 0.5625,
    "acceptance_histogram": [1, 1, 2, 3, 1],
    "num_accepted_draft_tokens": 18,
    "num_draft_tokens": 32,
    "num_spec_steps": 8,
    "num_spec_tokens": 4,
    "per_step_accepted": [2, 3, 1, 4, 2, 0, 3, 3],
    "per_step_drafted": [4, 4, 4, 4, 4, 4, 4, 4],
}
SUMMARY = {
    "mean_acceptance_length": 1.2325581395348837,
    "draft_acceptance_rate": 0.07751937984496124,
    "acceptance_histogram": [39, 1, 0, 3],
    "num_spec_steps": 43,
    "num_accepted_draft_tokens": 10,
    "num_draft_tokens": 129,
    "num_spec_tokens": 3,
}
ANSWER = {
    "question_id": 81,
    "category": "writing",
    "model_id": "vicuna-7b",
    "choices": [
        {
            "index": 0,
            "turns": ["a", "b"],
            "decoding_steps": [2, 2],
            "new_tokens": [4, 4],
            "wall_time": [0.5, 0.25],
            "accept_lengths": [3, 1, 2, 2],
        }
    ],
}
BATCHED_BENCH = [
    {"n_kv_max": 4096, "n_batch": 2048, "is_pp_shared": 0, "pp": 128, "tg": 100, "pl": pl}
    | {
        "n_kv": pl * 228,
        "t_pp": 0.1,
        "speed_pp": pl * 1280.0,
        "t_tg": t_tg,
        "speed_tg": pl * 100 / t_tg,
        "t": 0.1 + t_tg,
    }
    for pl, t_tg in ((1, 1.0), (2, 1.1), (8, 1.6))
]


def json_lines(objects) -> str:
    """Return objects as JSON Lines."""
    return "".join(json.dumps(content) + "\n" for content in objects)


def changed(content, *path, to):
    """Return a copy with one value changed, or left out if it is `...`."""
    name, *names = path
    if names:
        to = changed(content[name], *names, to=to)
    if isinstance(content, list):
        return [*content[:name], to, *content[name + 1 :]]
    return {key: value for key, value in (content | {name: to}).items() if value is not ...}


def aiperf(request):
    """Return a record of AIPerf, whose histogram is an object without zeros."""
    histogram = {str(length): count for length, count in enumerate(request["acceptance_histogram"]) if count}
    acceptance = {"engine": "vllm", **request, "acceptance_histogram": histogram, "completion_tokens": 60}
    return {"metadata": {"session_num": 0}, "metrics": {}, "spec_decode_acceptance": acceptance, "error": None}


def response(request):
    """Return a response of vLLM."""
    return {
        "id": "chatcmpl-1",
        "model": "m",
        "choices": [{"message": {}}],
        "metrics": {"speculative_decoding": request},
    }


def batched(content):
    """Return a line of the output of vllm run-batch."""
    return {"id": "vllm-1", "custom_id": "1", "response": {"status_code": 200, "body": content}, "error": None}


LATENCY_FILES = {
    "curve.csv": CSV,
    "samples.json": json.dumps(SGLANG_SAMPLES),
    "additive.json": json.dumps(SGLANG_ADDITIVE),
    "costs.json": json.dumps(TENSORRT_LLM),
    "bench.jsonl": json_lines(BATCHED_BENCH),
    "llama-bench.json": json.dumps(
        [{"n_prompt": n, "n_gen": 0, "n_depth": 0, "avg_ns": 9_000_000, "samples_ns": [9_000_000]} for n in (1, 8)]
    ),
    "llama-bench.md": "| model | test | t/s |\n| --- | ---: | ---: |\n| m | tg32 | 100.00 ± 0.10 |\n| m | pp8 | 700.00 ± 0.10 |\n",
    "llama-bench.csv": '"n_prompt","n_gen","n_depth","avg_ns"\n"1","0","0","9000000"\n"8","0","0","9500000"\n',
    "batched.md": "log\n|PP|TG|B|N_KV|T_PP s|S_PP t/s|T_TG s|S_TG t/s|T s|S t/s|\n"
    "|512|64|1|576|0.500|1024.00|0.640|100.00|1.140|505.26|\n|512|64|4|2304|2.000|1024.00|0.800|320.00|2.800|822.86|\n",
    "table.txt": '"tokens" "ms"\n"1" 1 10.5\n"2" 8 11.25\n',
    "excel.csv": "tokens;Latency [ms];;\n1;10,5;;\n8;11,2;;\n",
}
ACCEPTANCE_FILES = {
    "rates.json": "[0.71, 0.52, 0.38]",
    "conditional.json": '{"conditional": [0.7, 0.6]}',
    "table.json": "[[0.7, 0.1], [0.6, 0.2]]",
    "row.json": '{"p": [0.7, 0.1], "source": "paper"}',
    "replay.json": '{"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.4]}',
    "counts.json": '{"num_drafts": 100, "accepted_per_pos": [80, 40, 20]}',
    "metrics.txt": METRICS,
    "engine.log": LOG,
    "vllm-bench.json": json.dumps(VLLM_BENCH),
    "sglang.jsonl": "\n".join(json.dumps({"text": "a", "meta_info": META}) for _ in range(3)),
    "specdec.json": json.dumps(SPECDEC),
    "trtllm.json": json.dumps(TRTLLM),
    "llama-server.log": LLAMA_SERVER_LOG,
    "llama-slots.log": "I slot print_timing: id 0 | draft acceptance = 0.5 (150 accepted / 300 generated), mean len = 2.50\n"
    "I slot print_timing:      acc per pos = (0.750, 0.500, 0.250)\n" * 2,
    "sglang-old.log": "Decode batch. #running-req: 3, accept len: 2.47, accept rate: 0.82, gen throughput: 3\n" * 2,
    "vllm-appended.jsonl": json_lines([VLLM_BENCH, VLLM_BENCH]),
    "sglang.log": "Decode batch, #running-req: 3, #token: 9, accept len: 2.5, accept rate: 0.5, gen throughput: 3\n"
    * 3,
    "llama.txt": LLAMA_CPP_METRICS,
    "speculation_profile.json": json.dumps(SPECULATION_PROFILE),
    "profile_export.jsonl": json_lines([aiperf(REQUEST), aiperf(SUMMARY)]),
    "responses.jsonl": json_lines([response(REQUEST), response(SUMMARY)]),
    "answers.jsonl": json_lines([ANSWER, ANSWER]),
    "run-batch.jsonl": json_lines(map(batched, [response(REQUEST), response(SUMMARY)])),
    "completions.jsonl": json_lines([COMPLETION, COMPLETION]),
    "iterations.json": json.dumps([ITERATION, ITERATION]),
    "server_info.json": json.dumps(SERVER_INFO),
}
