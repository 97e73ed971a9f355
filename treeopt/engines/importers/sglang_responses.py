"""Acceptance of single requests in SGLang's responses: `meta_info`, which its server adds to every one.

    spec_accept_histogram, spec_correct_drafts_histogram: place j counts the steps that accepted j draft tokens
    spec_verify_ct: steps
    spec_accept_length: completion_tokens / steps
    completion_tokens: tokens of the answer; the first comes out of the prompt's pass, the last step may be cut off

`meta_info` stands in the response, in one of its choices, or alone. With trees, lengths are those of the best path.
"""

from typing import Any

from treeopt.engines.importers.content import JsonObject, check_equal, read_counts
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.engines.importers.step_counts import StepCounts, pooled
from treeopt.files.fields import Fields

META = "meta_info"
HISTOGRAMS = ("spec_accept_histogram", "spec_correct_drafts_histogram")
STEPS, TOKENS, MEAN = "spec_verify_ct", "completion_tokens", "spec_accept_length"
KIND = "SGLang responses; of a tree's best paths if it drafted trees"


def is_sglang_responses(file: ForeignFile) -> bool:
    """Return whether one of the objects has `meta_info`, or is one with a histogram."""
    return any(_meta(each) is not None for each in file.objects)


def read_sglang_responses(file: ForeignFile) -> Measurements:
    """Return the acceptance of all requests together; those without a histogram are left out."""
    metas = [meta for each in file.objects if (meta := _meta(each)) is not None]
    counted = [meta for meta in metas if any(meta.fields.get(name) for name in HISTOGRAMS)]
    if not counted:
        raise file.error(
            META, f"expected {HISTOGRAMS[0]} of at least one request. Got none: does the server draft? Update SGLang."
        )
    histograms = [_histogram(file, meta) for meta in counted]
    depth = max(max(each, default=0) for each in histograms)
    counts = [StepCounts.of_lengths(each, max(depth, 1)) for each in histograms if each]
    total = Fields(file.path, {}).build(META, pooled, counts)
    acceptance = ImportedAcceptance(
        table=total.table,
        kind=KIND,
        prompts=len(counts),
        positions=sum(sum(each.values()) for each in histograms),
        texts=total.texts,
    )
    return Measurements(acceptance=acceptance)


def _meta(response: JsonObject) -> JsonObject | None:
    """Return the `meta_info` of a response, None where it has none."""
    choices = response.fields.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    meta: Any = response.fields.get(META, first.get(META))
    if meta is None and response.fields.keys() & {*HISTOGRAMS}:
        meta = response.fields
    return JsonObject(response.place, meta) if isinstance(meta, dict) else None


def _histogram(file: ForeignFile, meta: JsonObject) -> dict[int, int]:
    """Return the steps by accepted draft tokens, zeros left out; raises FormatError where totals contradict them."""
    name = next(each for each in HISTOGRAMS if meta.fields.get(each))
    fields = meta.read(file.path)
    histogram = read_counts(fields, name, meta.fields[name])
    if not histogram:
        return histogram
    steps, accepted = sum(histogram.values()), sum(length * count for length, count in histogram.items())
    if meta.fields.get(STEPS) is not None and (stated := fields.integer(STEPS, least=0)) != steps:
        raise fields.error(name, f"expected {stated} steps, as {STEPS} has. Got {steps}: one is wrong, save it again.")
    if meta.fields.get(TOKENS) is not None:
        stated = fields.integer(TOKENS, least=0)
        if accepted > stated + max(histogram, default=0):  # the last step may be cut off
            raise fields.error(
                TOKENS,
                f"expected at least about the {accepted} accepted tokens. Got {stated}: one is wrong, save it again.",
            )
    if meta.fields.get(MEAN) is not None:
        expected, within = 1 + accepted / steps, 0.01 + (2 + max(histogram)) / steps  # first token, cut at the end
        why = f"1 + accepted tokens / steps of {name}"
        check_equal(fields, MEAN, expected=expected, got=fields.number(MEAN), within=within, why=why)
    return histogram
