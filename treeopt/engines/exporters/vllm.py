"""vLLM: the JSON of --speculative-config.

Checked against `vllm/config/speculative.py` and `vllm/v1/spec_decode/dynamic/utils.py` of 0.33.0.  0.23.0 has neither
the schedule nor the replay; the versions between were not checked, so both are written from 0.33.0 on.

    num_speculative_tokens = K, the root not counted
    num_speculative_tokens_per_batch_size = [[first batch, last batch, K], …], ends included, 0 is plain decoding
    synthetic_acceptance_rates[i] = probability that a step accepts at least i + 1 draft tokens
    ngram: prompt_lookup_max = longest n-gram, prompt_lookup_min = 1, by default prompt_lookup_max
    mtp: no model, because the target's checkpoint contains the modules
    P-EAGLE: eagle3 with parallel_drafting
    dflash, dspark: every block has K draft tokens, whatever the head was trained with

Batch sizes in gaps and above the last range inherit the K before them.
"""

from treeopt.engines.exporters.common import (
    json_text,
    round_rates,
    unknown_method,
    varying_schedule,
    version_numbers,
    warn_schedule_omitted,
)
from treeopt.engines.exporters.engine import MAIN, Engine, Json, SettingFiles, SettingRequest

TITLE = "vLLM"
NEWEST = "0.33.0"
LENGTH = "num_speculative_tokens"
SCHEDULE = "num_speculative_tokens_per_batch_size"
WITHOUT_DRAFT = ("ngram", "ngram_gpu", "suffix")
"""Methods that look up n-grams of the sequence."""
NGRAM = ("ngram", "ngram_gpu")
MTP = "mtp"
METHODS = (
    "draft_model",
    "eagle",
    "eagle3",
    "mtp",
    "dflash",
    "dspark",
    *WITHOUT_DRAFT,
    "custom_class",
    "extract_hidden_states",
)
OLD_METHODS = ("medusa", "mlp_speculator")
"""In 0.23.0, but no longer in 0.33.0."""


def render(request: SettingRequest) -> SettingFiles:
    newest = version_numbers(request.engine_version or NEWEST) >= version_numbers(NEWEST)
    method = request.method or METHODS[0]
    if newest and method in OLD_METHODS:
        raise unknown_method(TITLE, METHODS, method)
    config: Json = {"method": method}
    if method not in (*WITHOUT_DRAFT, MTP):
        config["model"] = request.draft_model
    config[LENGTH] = request.tree.depth
    if request.parallel_drafting:
        config["parallel_drafting"] = True
    if method in NGRAM and request.ngram is not None:
        config |= {"prompt_lookup_max": request.ngram, "prompt_lookup_min": 1}
    schedule = varying_schedule(request)
    if schedule and newest:
        config[SCHEDULE] = [[part.first_batch, part.last_batch, part.length] for part in schedule]
    files = {MAIN: json_text(config)}
    if request.survival and newest:
        rates = round_rates(request.survival)
        replay = config | {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        files["FILE.synthetic.json"] = json_text(replay)
    return SettingFiles(
        files=files,
        usage='vllm serve TARGET --speculative-config "$(cat FILE)"',
        warnings=()
        if newest
        else warn_schedule_omitted(request, f"vLLM before {NEWEST} is not known to change lengths"),
    )


ENGINE = Engine(
    name="vllm",
    title=TITLE,
    checked=("0.23.0", NEWEST),
    needs=f"a chain of at least 1 draft token, the root not counted; schedule and replay from {NEWEST} on",
    schedules=True,
    length_sets_block=True,
    default=None,
    render=render,
    method_names=METHODS,
    old_method_names=OLD_METHODS,
    off=SettingFiles(files={MAIN: "null\n"}, usage='vllm serve TARGET --speculative-config "$(cat FILE)"'),
    methods={"eagle": "eagle3", "p-eagle": "eagle3", "dflash": "dflash", "dspark": "dspark", "prompt-lookup": "ngram"},
)
