"""TensorRT-LLM: the `speculative_config` of the file that trtllm-serve reads, PyTorch backend.

Checked against the reference pages of 1.3.0rc27 and 1.4.0rc1 and a stored `tensorrt_llm/llmapi/llm_args.py` of 1.3,
whose records refuse unknown fields; that is why no origin is written into the file.

    dynamic_tree_max_topK = top_k
    max_draft_len = depth, or K of a chain
    max_total_draft_tokens = nodes - 1, the root not counted; max_draft_len <= it <= dynamic_tree_max_topK max_draft_len
    NGram: max_draft_len = K, max_matching_ngram_size = most tokens looked up; no draft model
    draft_len_schedule = {largest batch: K, …}; the first has max_draft_len, beyond the last nothing is drafted

Before 1.3 the draft model was named `speculative_model_dir` (later releases still take that), the keys of
`draft_len_schedule` were smallest batches, and no dynamic trees are known.
"""

import yaml

from treeopt.engines.engine import MAIN, Engine, Json, SettingFiles, SettingRequest
from treeopt.engines.settings.common import (
    NO_FIELDS,
    chains_only,
    left_out_schedule,
    speculation_off,
    varying_schedule,
    version_numbers,
)
from treeopt.errors import Warning

TITLE = "TensorRT-LLM"
OLDEST, NEWEST = "1.3", "1.4"
METHODS = ("Draft_Target", "Eagle3", "MTP", "NGram")
WITHOUT_DRAFT = ("MTP", "NGram")
"""Methods that load no draft model."""
TREE_METHODS = ("Eagle3", "MTP")


def limits(request: SettingRequest) -> str | None:
    """Return why a request is refused; None for a chain, and with some methods for a tree within bounds."""
    tree, method = request.tree, _method(request)
    if _before_1_3(request) and method != "Draft_Target":
        return f"decoding_type: expected Draft_Target before 1.3. Got {method}: ask for a chain, or update it."
    if tree.is_chain or method not in TREE_METHODS:
        return chains_only(f"max_draft_len of {method}")(request)
    nodes, most = tree.nodes - 1, tree.top_k * tree.depth
    if tree.depth <= nodes <= most:
        return None
    return (
        f"max_total_draft_tokens: expected from max_draft_len, {tree.depth}, to dynamic_tree_max_topK max_draft_len, {most}, "
        f"fewer than other engines' pools have. Got {nodes}: ask for such a tree."
    )


def render(request: SettingRequest) -> SettingFiles:
    """Return the file; chains with the schedule if it can be expressed."""
    tree, method, old = request.tree, _method(request), _before_1_3(request)
    config: Json = {"decoding_type": method}
    if method not in WITHOUT_DRAFT:
        config["speculative_model_dir" if old else "speculative_model"] = request.draft_model
    config["max_draft_len"] = tree.depth
    if method == "NGram" and request.ngram is not None:
        config["max_matching_ngram_size"] = request.ngram
    warnings: tuple[Warning, ...] = ()
    if tree.is_chain:
        schedule, warnings = _schedule(request, old)
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


def _schedule(request: SettingRequest, old: bool) -> tuple[dict[int, int], tuple[Warning, ...]]:
    """Return the schedule, empty where there is none or it cannot be told, and what the user must know."""
    schedule = {part.last_batch: part.length for part in varying_schedule(request)}
    if not schedule:
        return {}, ()
    if old:
        return {}, left_out_schedule(request, f"{TITLE} before 1.3 reads draft_len_schedule otherwise")
    if next(iter(schedule.values())) != request.tree.depth:
        return {}, left_out_schedule(request, "draft_len_schedule must start with max_draft_len, the longest")
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
    versions=f"{OLDEST} to {NEWEST}",
    checked=(OLDEST, NEWEST),
    needs="a chain, or a dynamic tree of depth D and top-k k with D to kD draft nodes, the root not counted",
    dynamic=True,
    schedules=True,
    default=None,
    limits=limits,
    render=render,
    method_names=METHODS,
    off=speculation_off(NO_FIELDS, "trtllm-serve TARGET --config FILE"),
    methods={"eagle": "Eagle3", "prompt-lookup": "NGram"},
)
