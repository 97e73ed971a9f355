"""SGLang: per-request metadata in its responses, its log, `/metrics` and `/server_info`.

`meta_info` is in a response, in one of its choices, or alone; requests with `return_spec_tokens_details` have the same
fields in `sglext.spec_tokens_details`. With trees, lengths are those of the best path:

    spec_accept_histogram, spec_correct_drafts_histogram: index j counts the steps that accepted j draft tokens
    spec_verify_ct: steps
    spec_accept_length: completion_tokens / steps
    completion_tokens: the first comes from prefill, the last step may be cut off

The others have a mean number of tokens per step only, so all positions are taken to have the same acceptance.
`/server_info` has the settings, and in `internal_states` the mean of each data-parallel rank since it started.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from treeopt.engines.importers.acceptance_tables import MAX_LENGTH, acceptance_from_mean, pool_lengths
from treeopt.engines.importers.foreign_file import MAX_STEP_TOKENS, NUMBER, ForeignFile, JsonObject, check_equal
from treeopt.engines.importers.importer import ACCEPTANCE, SWEEP, ImportedAcceptance, Importer
from treeopt.engines.importers.sweep import LENGTH, ROOTED, unify_name
from treeopt.engines.importers.table_rows import flatten_settings
from treeopt.engines.prometheus import read_samples
from treeopt.errors import InvalidValueError

META, EXTENSION, DETAILS = "meta_info", "sglext", "spec_tokens_details"
HISTOGRAMS = ("spec_accept_histogram", "spec_correct_drafts_histogram")
STEPS, TOKENS, MEAN = "spec_verify_ct", "completion_tokens", "spec_accept_length"
MEAN_KEYS = ("accept_length", "acc_length", "average_acceptance_length")
"""Of bench_serving and one_batch_server, and of SpecForge."""
LOG_MARK = "accept len: "
_LOG_LINE = re.compile(
    rf"Decode batch.{{0,400}}?#running-req: (\d{{1,6}}).{{0,400}}?accept len: ({NUMBER})(?=,)(?:, accept rate: ({NUMBER})(?=,))?"
)
_LOG_LENGTH, _LOG_TOP_K = (
    re.compile(rf"speculative[_-]{name}[\"']?[=: ]\s?(\d{{1,3}})\b") for name in ("num[_-]steps", "eagle[_-]topk")
)
"""In server_args, or on the command line."""
STATES, STATE_MEAN = "internal_states", "avg_spec_accept_length"
STEPS_OF_DRAFT, TOP_K = "speculative_num_steps", "speculative_eagle_topk"
BEST_PATHS = "of a tree's best paths"
MEAN_GAUGE, RATE_GAUGE, LENGTH_GAUGE = "sglang:spec_accept_length", "sglang:spec_accept_rate", "sglang:spec_num_steps"
_GAUGES = re.compile(rf"^[ \t]{{0,9}}(?:{MEAN_GAUGE}|{RATE_GAUGE}|{LENGTH_GAUGE})[ \t{{]", re.MULTILINE)


def read_responses(file: ForeignFile) -> ImportedAcceptance:
    """Return the acceptance of all requests that have a histogram."""
    metas = [meta for response in file.objects for meta in _find_metas(response)]
    counted = [meta for meta in metas if any(meta.content.get(name) for name in HISTOGRAMS)]
    if not counted:
        raise file.error(
            META, f"expected {HISTOGRAMS[0]} of at least one request. Got none: does the server draft? Update SGLang."
        )
    histograms = [histogram for histogram in map(_read_histogram, counted) if histogram]
    kind = f"SGLang responses; {BEST_PATHS} if it drafted trees"
    return file.build(META, pool_lengths, histograms, kind)


def _find_metas(response: JsonObject) -> list[JsonObject]:
    """Return the metadata of the sequences of a response."""
    content = response.content
    choices, extension = content.get("choices"), content.get(EXTENSION)
    metas: Any = content.get(META)
    if metas is None and isinstance(choices, list):
        metas = [choice[META] for choice in choices if isinstance(choice, dict) and META in choice] or None
    if metas is None and isinstance(extension, dict):
        metas = extension.get(DETAILS)
    if metas is None and content.keys() & {*HISTOGRAMS}:
        metas = content
    listed = metas if isinstance(metas, list) else [metas]
    return [JsonObject(response.path, response.place, meta).inner() for meta in listed if isinstance(meta, dict)]


def _read_histogram(meta: JsonObject) -> dict[int, int]:
    """Return the steps by accepted draft tokens; raises FormatError for totals that contradict them."""
    name = next(name for name in HISTOGRAMS if meta.content.get(name))
    histogram = meta.read_counts(name)
    if not histogram:
        return histogram
    steps, accepted = sum(histogram.values()), sum(length * count for length, count in histogram.items())
    if STEPS in meta and (total := meta.integer(STEPS, least=0)) != steps:
        raise meta.error(name, f"expected {total} steps, as {STEPS} has. Got {steps}: one is wrong, save it again.")
    if TOKENS in meta:
        total = meta.integer(TOKENS, least=0)
        if accepted > total + max(histogram):  # the last step may be cut off
            raise meta.error(
                TOKENS,
                f"expected at least about the {accepted} accepted tokens. Got {total}: one is wrong, save it again.",
            )
    within = 0.01 + (2 + max(histogram)) / steps  # first token, cut at the end
    check_equal(meta, MEAN, 1 + accepted / steps, f"1 + accepted tokens / steps of {name}", within=within)
    return histogram


class _Mean(NamedTuple):
    """A mean number of tokens per step and the acceptance rate next to it, as printed; older versions print no rate."""

    weight: int
    tokens: str
    rate: str


def read_log(file: ForeignFile) -> ImportedAcceptance:
    """Return the mean acceptance of all lines, weighted by their running requests."""
    lines = [_Mean(int(requests), tokens, rate) for requests, tokens, rate in _LOG_LINE.findall(file.log)]
    means = [mean for mean in lines if mean.weight and float(mean.tokens) >= 1]
    if not means:
        raise file.error("content", "expected lines with #running-req and accept len. Got none: is it whole?")
    tokens = sum(mean.weight * float(mean.tokens) for mean in means) / sum(mean.weight for mean in means)
    configured = set(map(int, _LOG_LENGTH.findall(file.log)))
    length = _find_length(file, LOG_MARK.strip(" :"), means, configured)
    kind = f"SGLang log{_describe_trees(set(map(int, _LOG_TOP_K.findall(file.log))))}"
    return acceptance_from_mean(tokens, length, kind)


def _describe_trees(top_k: set[int]) -> str:
    """Return the words for a kind, given the branches of the settings; empty for a chain."""
    return "" if top_k == {1} else f"; {BEST_PATHS}{' if it drafted trees' * (not top_k)}"


def read_server_info(file: ForeignFile) -> ImportedAcceptance:
    """Return the mean acceptance of all ranks since the server started."""
    info = file.objects[0].inner()
    states = [JsonObject(file.path, STATES, state).inner() for state in info.any(STATES)]
    means = [state.number(STATE_MEAN, least=1) for state in states if STATE_MEAN in state]
    if not means:
        raise file.error(STATES, f"expected {STATE_MEAN}. Got none: has the server drafted yet?")
    tokens = sum(means) / len(means)
    length = info.integer(STEPS_OF_DRAFT) if STEPS_OF_DRAFT in info else info.integer(ROOTED[1], least=2) - 1
    if not tokens - 1 <= length <= MAX_LENGTH:
        raise file.error(
            STEPS_OF_DRAFT, f"expected {tokens - 1:.3g} to {MAX_LENGTH} draft tokens. Got {length}: save it again."
        )
    kind = f"SGLang server info{_describe_trees({info.integer(TOP_K)} if TOP_K in info else set())}"
    return acceptance_from_mean(tokens, length, kind)


def read_metrics(file: ForeignFile) -> ImportedAcceptance:
    """Return the mean acceptance of the gauges; raises FormatError for those of several models or ranks."""
    gauges: dict[str, set[float]] = {}
    try:
        for sample in read_samples(file.lines, _GAUGES):
            if not 0 <= sample.value <= MAX_STEP_TOKENS:
                raise file.error(
                    sample.place, f"expected a mean of at least 0. Got {sample.value:g}: save /metrics again."
                )
            gauges.setdefault(sample.name, set()).add(sample.value)
    except InvalidValueError as error:
        raise file.error(error.field or "content", str(error)) from None
    for name in (MEAN_GAUGE, RATE_GAUGE):
        if name not in gauges:
            raise file.error(name, "is missing. Save all of /metrics.")
        if (count := len(gauges[name])) > 1:
            raise file.error(name, f"expected one value. Got {count}: keep the lines of one model and rank.")
    (tokens,), (rate,) = gauges[MEAN_GAUGE], gauges[RATE_GAUGE]
    if tokens < 1:
        raise file.error(
            MEAN_GAUGE, f"expected at least 1, the target's own token. Got {tokens:g}: has it drafted yet?"
        )
    configured = set(map(int, gauges.get(LENGTH_GAUGE, ())))
    length = _find_length(file, MEAN_GAUGE, [_Mean(1, str(tokens), str(rate))], configured)
    return acceptance_from_mean(tokens, length, f"SGLang metrics; {BEST_PATHS} if it drafted trees")


def _find_length(file: ForeignFile, field: str, means: Sequence[_Mean], configured: set[int]) -> int:
    """Return the draft tokens of a step: the configured number, otherwise the one that fits all means and rates.

    A rate is (mean - 1) / length, or mean / (length + 1) in older versions; the newer if both fit.
    Raises FormatError if none or several lengths fit.
    """
    longest = max(float(mean.tokens) for mean in means)
    if len(configured) == 1 and (length := min(configured)) and longest <= length + 1:
        return length
    with_rate = [mean for mean in means if float(mean.rate or 0)]
    for own_token in (1, 0):
        lengths = [
            divisor - (1 - own_token)
            for divisor in range(2 - own_token, MAX_LENGTH + 2 - own_token)
            if with_rate and all(_fits(mean, own_token, divisor) for mean in with_rate)
        ]
        lengths = [length for length in lengths if longest <= length + 1]
        if len(lengths) == 1:
            return lengths[0]
        if lengths:
            break
    raise file.error(
        field,
        "expected a draft length: speculative_num_steps in the log's server_args, or rates that make one with the means. "
        f"Got {len(lengths) or 'none'}: take SGLang's responses with meta_info, which have spec_accept_histogram.",
    )


def _fits(mean: _Mean, own_token: int, divisor: int) -> bool:
    """Return whether rate times divisor is the mean minus the target's own token, within the rounding of both."""
    rounding = _rounding(mean.tokens) + divisor * _rounding(mean.rate)
    return abs(float(mean.rate) * divisor - (float(mean.tokens) - own_token)) < rounding - 1e-9


def _rounding(number: str) -> float:
    decimals = len(number.partition(".")[2])
    return 0.5 * float(10.0**-decimals)


def is_mean_only(file: ForeignFile) -> bool:
    """Return whether objects have a mean acceptance but no draft length, such as those of SGLang's bench_serving."""
    settings = [flatten_settings(result.content) for result in file.objects]
    keys = {key for fields in settings for key, value in fields.items() if value is not None}
    return not keys.isdisjoint(MEAN_KEYS) and set(map(unify_name, keys)).isdisjoint((*LENGTH, *ROOTED))


def refuse_mean_only(file: ForeignFile) -> NoReturn:
    place, key = next((result.place, key) for result in file.objects for key in MEAN_KEYS if key in result.content)
    if file.part == SWEEP:
        raise file.error(
            place or "content",
            f"expected the draft length of each result, such as {LENGTH[1]}. Got none: add it, or update SGLang, whose "
            "results contain it in server_info.",
        )
    if file.part != ACCEPTANCE:
        raise file.error(
            place or "content", f"expected {file.part}. Got results with a mean {key}, which contain none."
        )
    raise file.error(
        place or "content",
        f"expected acceptance by position. Got the mean {key} only: take SGLang's responses with meta_info, which have "
        "spec_accept_histogram, or probe the server with treeopt probe openai.",
    )


LOG = Importer(
    name="sglang-log",
    title="SGLang's log",
    needs="lines with accept len, and accept rate or server_args; all positions count as equal",
    matches=lambda file: LOG_MARK in file.log,
    read=read_log,
)
METRICS = Importer(
    name="sglang-metrics",
    title="/metrics of SGLang",
    needs="spec_accept_length and spec_accept_rate; all positions count as equal",
    matches=lambda file: _GAUGES.search(file.text) is not None,
    read=read_metrics,
)
SERVER_INFO = Importer(
    name="sglang-server-info",
    title="/server_info of SGLang",
    needs="internal_states with avg_spec_accept_length, and speculative_num_steps; all positions count as equal",
    matches=lambda file: file.has_key(STATES) and isinstance(file.json[STATES], list),
    read=read_server_info,
)
RESPONSES = Importer(
    name="sglang-responses",
    title="responses of SGLang (JSON Lines)",
    needs="meta_info with spec_accept_histogram",
    matches=lambda file: any(_find_metas(response) for response in file.objects),
    read=read_responses,
)
MEAN_ONLY = Importer(
    name="mean-acceptance",
    title="results with a mean accept_length only, such as SGLang's bench_serving",
    contains=(),
    needs="refused: neither positions nor the draft length are known",
    matches=is_mean_only,
    read=refuse_mean_only,
)
