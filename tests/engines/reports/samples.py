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
LOG = """INFO 11-20 10:00:00 SpecDecoding metrics: Mean acceptance length: 2.1, Per-position acceptance rate: 0.9, 0.1
INFO 11-20 10:00:10 Per-position acceptance rate: 0.710, 0.520, 0.380, Avg Draft acceptance rate: 53.7%
INFO 11-20 10:00:20 Engine 000: Per-position acceptance rate: nan
INFO 11-20 10:00:30 stopped
"""
LATENCY_FILES = {
    "curve.csv": CSV,
    "samples.json": json.dumps(SGLANG_SAMPLES),
    "additive.json": json.dumps(SGLANG_ADDITIVE),
    "costs.json": json.dumps(TENSORRT_LLM),
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
}
