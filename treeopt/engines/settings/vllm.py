"""vLLM: the JSON of --speculative-config.

Checked against `vllm/config/speculative.py` and `vllm/v1/spec_decode/dynamic/utils.py` of 0.33.0.  0.23.0 has no
schedule, and where between the two it and the replay came is not known: they are for 0.33.0 on.

    num_speculative_tokens = K, the root not counted
    num_speculative_tokens_per_batch_size = [[first batch, last batch, K], …], ends included, 0 is plain decoding
    synthetic_acceptance_rates[i] = chance that a step accepts at least i + 1 draft tokens
    ngram: prompt_lookup_max = most tokens looked up, prompt_lookup_min = 1, by default the same as the most
    mtp: no model, the target's checkpoint holds the modules

Gaps and the batch sizes beyond the last inherit the K before them.
"""

from treeopt.engines.engine import Engine, EngineFile, Json, SettingFiles, SettingRequest
from treeopt.engines.settings.common import (
    Checked,
    asked_version,
    chain_length,
    chosen_method,
    json_text,
    left_out_schedule,
    rounded_rates,
    speculation_off,
    unchecked_version,
    varying_schedule,
    version_numbers,
)

TITLE = "vLLM"
OLDEST, NEWEST = "0.23.0", "0.33.0"
SCHEDULE = "num_speculative_tokens_per_batch_size"
WITHOUT_DRAFT = ("ngram", "ngram_gpu", "suffix")
"""Methods that draft from the text itself."""
NGRAM = ("ngram", "ngram_gpu")
OWN_MODULES = "mtp"
"""Drafts with modules of the target's checkpoint."""
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
"""In 0.23.0, gone in 0.33.0."""


def emit(asked: SettingRequest) -> SettingFiles:
    """Return the configuration and, where acceptance is known, one that replays it without looking at any token."""
    length = chain_length(asked, TITLE, "num_speculative_tokens")
    newest = asked_version(asked, NEWEST) >= version_numbers(NEWEST)
    method = chosen_method(asked, TITLE, "draft_model", _methods(newest))
    config: Json = {"method": method}
    if method not in (*WITHOUT_DRAFT, OWN_MODULES):
        config["model"] = asked.draft_model
    config["num_speculative_tokens"] = length
    if method in NGRAM and asked.ngram is not None:
        config |= {"prompt_lookup_max": asked.ngram, "prompt_lookup_min": 1}
    schedule = varying_schedule(asked)
    if schedule and newest:
        config[SCHEDULE] = [[part.first_batch, part.last_batch, part.length] for part in schedule]
    texts = {"": json_text(config)}
    if asked.survival and newest:
        rates = rounded_rates(asked.survival)
        replay = config | {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        texts["FILE.synthetic.json"] = json_text(replay)
    for text in texts.values():
        check(text, asked.engine_version or NEWEST)
    warnings = () if newest else left_out_schedule(asked, f"vLLM before {NEWEST} is not known to change lengths")
    return SettingFiles(
        files=tuple(EngineFile(name=name, text=text) for name, text in texts.items()),
        usage='vllm serve TARGET --speculative-config "$(cat FILE)"',
        warnings=(*unchecked_version(asked, TITLE, OLDEST, NEWEST), *warnings),
    )


def check(text: str, version: str = NEWEST) -> None:
    """Raise InfeasibleError for a configuration that a version of vLLM would refuse, or change without saying so."""
    newest = version_numbers(version) >= version_numbers(NEWEST)
    checked = Checked.from_json(TITLE, text)
    checked.one_of("method", _methods(newest))
    length = checked.whole("num_speculative_tokens")
    if "prompt_lookup_max" in checked.fields:
        most, least = checked.whole("prompt_lookup_max"), checked.whole("prompt_lookup_min")
        checked.require(least <= most, "prompt_lookup_min", f"at most prompt_lookup_max, {most}", "lower it")
    if SCHEDULE in checked.fields:
        checked.require(newest, SCHEDULE, f"no schedule before {NEWEST}", "leave it out")
        _check_schedule(checked, checked.fields[SCHEDULE], length)
    if "synthetic_acceptance_rates" in checked.fields:
        replay = checked.fields.get("rejection_sample_method") == "synthetic"
        checked.require(replay, "rejection_sample_method", "synthetic beside rates", "set it")
        checked.rates("synthetic_acceptance_rates", checked.fields["synthetic_acceptance_rates"], length)


def _check_schedule(checked: Checked, ranges: object, longest: int) -> None:
    listed = isinstance(ranges, list) and bool(ranges)
    checked.require(listed, SCHEDULE, "a list of ranges", "leave the schedule out")
    assert isinstance(ranges, list)
    whole = all(isinstance(part, list) and [type(number) for number in part] == [int, int, int] for part in ranges)
    checked.require(whole, SCHEDULE, "three whole numbers a range", "write [first batch, last batch, length]")
    checked.require(ranges[0][0] == 1, SCHEDULE, "a first range that starts at 1", "start there", ranges[0])
    before = 0
    for first, last, length in ranges:
        checked.require(before < first <= last, SCHEDULE, "rising ranges that do not overlap", "sort them", ranges)
        limits = f"lengths from 0 to num_speculative_tokens, {longest}"
        checked.require(0 <= length <= longest, SCHEDULE, limits, "vLLM would cut longer ones", length)
        before = last


def _methods(newest: bool) -> tuple[str, ...]:
    return METHODS if newest else METHODS + OLD_METHODS


ENGINE = Engine(
    name="vllm",
    title=TITLE,
    versions=f"{NEWEST}; {OLDEST} without schedule and replay",
    needs="a chain of at least 1 draft token, the root not counted",
    dynamic=False,
    default=None,
    emit=emit,
    off=speculation_off("null\n", 'vllm serve TARGET --speculative-config "$(cat FILE)"'),
    methods={"eagle": "eagle3", "prompt-lookup": "ngram"},
)
