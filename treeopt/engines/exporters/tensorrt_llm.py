"""TensorRT-LLM: the `speculative_config` of the file that trtllm-serve reads, PyTorch backend.

Checked against the reference pages of 1.3.0rc27 and 1.4.0rc1 and `tensorrt_llm/llmapi/llm_args.py` of 1.3, which refuses
unknown fields.

    dynamic_tree_max_topK = top_k
    max_draft_len = depth, or K of a chain
    max_total_draft_tokens = nodes - 1, the root not counted; max_draft_len <= it <= dynamic_tree_max_topK max_draft_len
    NGram: max_draft_len = K, max_matching_ngram_size = longest n-gram; no draft model
    DFlash, DSpark: max_draft_len = K; mask_token_id and target_layer_ids are read from the head's config.json
    draft_len_schedule = {largest batch: K, …}; the first K is max_draft_len, above the last batch nothing is drafted

Before 1.3 the draft model was `speculative_model_dir` (which later releases still accept), the keys of
`draft_len_schedule` were smallest batches, and there were no dynamic trees.
"""

import yaml

from treeopt.engines.exporters.common import (
    NO_FIELDS,
    varying_schedule,
    version_numbers,
    warn_schedule_omitted,
)
from treeopt.engines.exporters.engine import MAIN, Engine, Json, SettingFiles, SettingRequest
from treeopt.errors import Warning

TITLE = "TensorRT-LLM"
NEWEST = "1.4"
METHODS = ("Draft_Target", "Eagle3", "MTP", "DFlash", "DSpark", "NGram")
WITHOUT_DRAFT = ("MTP", "NGram")
"""Methods without a draft model."""


def limits(request: SettingRequest) -> str | None:
    tree, method = request.tree, _method(request)
    if _before_1_3(request) and method != "Draft_Target":
        return f"decoding_type: expected Draft_Target before 1.3. Got {method}: ask for a chain, or update it."
    drafts, max_drafts = tree.nodes - 1, tree.top_k * tree.depth
    if tree.depth <= drafts <= max_drafts:
        return None
    return (
        f"max_total_draft_tokens: expected from max_draft_len, {tree.depth}, to dynamic_tree_max_topK max_draft_len, {max_drafts}, "
        f"fewer than other engines' pools have. Got {drafts}: ask for such a tree."
    )


def render(request: SettingRequest) -> SettingFiles:
    tree, method, old = request.tree, _method(request), _before_1_3(request)
    config: Json = {"decoding_type": method}
    if method not in WITHOUT_DRAFT:
        config["speculative_model_dir" if old else "speculative_model"] = request.draft_model
    config["max_draft_len"] = tree.depth
    if method == "NGram" and request.ngram is not None:
        config["max_matching_ngram_size"] = request.ngram
    warnings: tuple[Warning, ...] = ()
    if tree.is_chain:
        schedule, warnings = _render_schedule(request, old)
        if schedule:
            config["draft_len_schedule"] = schedule
    else:
        config |= {
            "use_dynamic_tree": True,
            "dynamic_tree_max_topK": tree.top_k,
            "max_total_draft_tokens": tree.nodes - 1,
        }
    return SettingFiles(
        files={MAIN: yaml.safe_dump({"speculative_config": config}, sort_keys=False)},
        usage=f"trtllm-serve TARGET {'--extra_llm_api_options' if old else '--config'} FILE",
        warnings=warnings,
    )


def _method(request: SettingRequest) -> str:
    return request.method or ("Draft_Target" if request.tree.is_chain else "Eagle3")


def _before_1_3(request: SettingRequest) -> bool:
    return version_numbers(request.engine_version or NEWEST) < (1, 3, 0)


def _render_schedule(request: SettingRequest, old: bool) -> tuple[dict[int, int], tuple[Warning, ...]]:
    """Return the schedule, empty if there is none or the version cannot express it, and its warnings."""
    schedule = {part.last_batch: part.length for part in varying_schedule(request)}
    if not schedule:
        return {}, ()
    if old:
        return {}, warn_schedule_omitted(request, f"{TITLE} before 1.3 reads draft_len_schedule otherwise")
    if next(iter(schedule.values())) != request.tree.depth:
        return {}, warn_schedule_omitted(request, "draft_len_schedule must start with max_draft_len, the longest")
    warnings = []
    if version_numbers(request.engine_version or NEWEST) < (1, 4, 0):
        warnings.append(
            Warning(
                "some release candidates of 1.3 do not read the keys of draft_len_schedule as largest batches, or not for "
                "all decoding types.",
                "Use 1.4, or compare the field's description.",
            )
        )
    largest = max(schedule)
    if schedule[largest]:
        warnings.append(
            Warning(f"above batch size {largest} nothing is drafted.", "Measure larger ones if you serve them.")
        )
    return schedule, tuple(warnings)


ENGINE = Engine(
    name="tensorrt-llm",
    title=TITLE,
    checked=("1.3", NEWEST),
    needs="a chain, or a dynamic tree of depth D and top-k k with D to kD draft nodes, the root not counted",
    dynamic=True,
    schedules=True,
    default=None,
    limits=limits,
    render=render,
    method_names=METHODS,
    chain_methods=("Draft_Target", "DFlash", "DSpark", "NGram"),
    off=SettingFiles(files={MAIN: NO_FIELDS}, usage="trtllm-serve TARGET --config FILE"),
    methods={"eagle": "Eagle3", "dflash": "DFlash", "dspark": "DSpark", "prompt-lookup": "NGram"},
)
