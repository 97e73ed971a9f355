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

from treeopt.engines.engine import Engine, EngineFile, Json, SettingFiles, SettingRequest
from treeopt.engines.settings.common import (
    NO_FIELDS,
    Checked,
    asked_version,
    chain_length,
    chosen_method,
    left_out_schedule,
    speculation_off,
    unchecked_version,
    varying_schedule,
)
from treeopt.errors import InfeasibleError, Warning

TITLE = "TensorRT-LLM"
OLDEST, NEWEST = "1.3", "1.4"
METHODS = ("Draft_Target", "Eagle3", "MTP", "NGram")
WITHOUT_DRAFT = ("MTP", "NGram")
"""Methods that load no draft model."""
NGRAM = "max_matching_ngram_size"
TREE_METHODS = ("Eagle3", "MTP")
TREE_FIELDS = ("use_dynamic_tree", "dynamic_tree_max_topK", "max_total_draft_tokens")
MODEL_FIELDS = ("speculative_model", "speculative_model_dir")
FIELDS = ("decoding_type", *MODEL_FIELDS, "max_draft_len", *TREE_FIELDS, "draft_len_schedule", NGRAM)


def emit(asked: SettingRequest) -> SettingFiles:
    """Return the file; chains with the schedule where it can be told."""
    tree = asked.tree
    method = chosen_method(asked, TITLE, "Draft_Target" if tree.is_chain else "Eagle3", METHODS)
    old = asked_version(asked, NEWEST) < (1, 3, 0)
    config: Json = {"decoding_type": method}
    if method not in WITHOUT_DRAFT:
        config["speculative_model_dir" if old else "speculative_model"] = asked.draft_model
    config["max_draft_len"] = tree.depth
    if method == "NGram" and asked.ngram is not None:
        config[NGRAM] = asked.ngram
    warnings = unchecked_version(asked, TITLE, OLDEST, NEWEST)
    if old and method != "Draft_Target":
        raise InfeasibleError(
            f"{TITLE}: decoding_type: expected Draft_Target before 1.3. Got {method}: ask for a chain, or update it."
        )
    if tree.is_chain:
        schedule, more = _schedule(asked, old)
        warnings += more
        if schedule:
            config["draft_len_schedule"] = schedule
    else:
        if method not in TREE_METHODS:
            chain_length(asked, TITLE, f"max_draft_len of {method}")
        config |= dict(zip(TREE_FIELDS, (True, tree.top_k, tree.nodes - 1), strict=True))
    text = yaml.safe_dump({"speculative_config": config}, sort_keys=False)
    check(text)
    return SettingFiles(
        files=(EngineFile(name="", text=text),),
        usage=f"trtllm-serve TARGET {'--extra_llm_api_options' if old else '--config'} FILE",
        warnings=warnings,
    )


def check(text: str) -> None:
    """Raise InfeasibleError for a file that TensorRT-LLM 1.3 and 1.4 refuse."""
    content = yaml.safe_load(text)
    config = content.get("speculative_config") if isinstance(content, dict) else None
    checked = Checked(TITLE, config if isinstance(config, dict) else {})
    checked.require(bool(checked.fields), "speculative_config", "fields", "write them below it", content)
    for field in checked.fields:
        checked.require(field in FIELDS, str(field), "no such field", "remove it")
    method = checked.one_of("decoding_type", METHODS)
    named = method in WITHOUT_DRAFT or any(checked.fields.get(field) for field in MODEL_FIELDS)
    checked.require(named, "speculative_model", "the draft model", "name it")
    length = checked.whole("max_draft_len")
    if NGRAM in checked.fields:
        checked.require(method == "NGram", NGRAM, "no such field", "remove it")
        checked.whole(NGRAM)
    if "use_dynamic_tree" in checked.fields:
        checked.require(method in TREE_METHODS, "decoding_type", " or ".join(TREE_METHODS) + " for trees", "name one")
        top_k, nodes = checked.whole("dynamic_tree_max_topK"), checked.whole("max_total_draft_tokens")
        expected = (
            f"from max_draft_len, {length}, to dynamic_tree_max_topK max_draft_len, {top_k * length}, "
            "fewer than other engines' pools have"
        )
        checked.require(length <= nodes <= top_k * length, "max_total_draft_tokens", expected, "ask for such a tree")
    if "draft_len_schedule" in checked.fields:
        _check_schedule(checked, checked.fields["draft_len_schedule"], length)


def _schedule(asked: SettingRequest, old: bool) -> tuple[dict[int, int], tuple[Warning, ...]]:
    """Return the schedule, empty where there is none or it cannot be told, and what the user must know."""
    schedule = {part.last_batch: part.length for part in varying_schedule(asked)}
    if not schedule:
        return {}, ()
    if old:
        return {}, left_out_schedule(asked, f"{TITLE} before 1.3 reads draft_len_schedule otherwise")
    if next(iter(schedule.values())) != asked.tree.depth:
        return {}, left_out_schedule(asked, "draft_len_schedule must start with max_draft_len, the longest")
    warnings = []
    if asked_version(asked, NEWEST) < (1, 4, 0):
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


def _check_schedule(checked: Checked, schedule: object, longest: int) -> None:
    field = "draft_len_schedule"
    good = isinstance(schedule, dict) and schedule and all(type(batch) is int and batch >= 1 for batch in schedule)
    checked.require(bool(good), field, "batch sizes from 1 as keys", "leave it out")
    assert isinstance(schedule, dict)
    lengths = all(type(length) is int and 0 <= length <= longest for length in schedule.values())
    checked.require(lengths, field, f"lengths from 0 to max_draft_len, {longest}", "shorten them")
    first = min(schedule)
    checked.require(schedule[first] == longest, field, f"max_draft_len, {longest}, at {first}", "leave it out")


ENGINE = Engine(
    name="tensorrt-llm",
    title=TITLE,
    versions=f"{OLDEST} to {NEWEST}",
    needs="a chain, or a dynamic tree of depth D and top-k k with D to kD draft nodes, the root not counted",
    dynamic=True,
    default=None,
    emit=emit,
    off=speculation_off(NO_FIELDS, "trtllm-serve TARGET --config FILE"),
    methods={"eagle": "Eagle3", "prompt-lookup": "NGram"},
)
