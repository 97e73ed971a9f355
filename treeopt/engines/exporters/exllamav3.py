"""ExLlamaV3: keyword arguments of its Generator.

Checked against `exllamav3/generator/generator.py` of 1.6.5.  It drafts chains:

    num_draft_tokens = K, the root not counted
    draft_max_rows = B (1 + K_B), with B the largest batch for which drafting pays and K_B its length

In a batch of b it drafts the smaller of K and draft_max_rows // b - 1 tokens, so the chain gets shorter above B.
"""

from treeopt.engines.exporters.common import (
    NO_FIELDS,
    json_text,
    varying_schedule,
    warn_single_length,
)
from treeopt.engines.exporters.engine import MAIN, Engine, Json, SettingFiles, SettingRequest
from treeopt.trees.drafter_parameters import DynamicTree

TITLE = "ExLlamaV3"
LENGTH, ROWS = "num_draft_tokens", "draft_max_rows"


def render(request: SettingRequest) -> SettingFiles:
    length = request.tree.depth
    arguments: Json = {LENGTH: length, "dynamic_draft_tokens": False}
    if drafting := [part for part in request.schedule if part.length > 0]:
        largest = drafting[-1]
        arguments[ROWS] = max(
            1 + length, largest.last_batch * (1 + largest.length)
        )  # one sequence gets the whole chain
    lengths = {part.length for part in varying_schedule(request)} - {0}
    return SettingFiles(
        files={MAIN: json_text(arguments)},
        usage='Generator(model, cache, tokenizer, draft_model=…, draft_cache=…, **json.load(open("FILE")))',
        warnings=warn_single_length(request, TITLE) if len(lengths) > 1 else (),
    )


ENGINE = Engine(
    name="exllamav3",
    title=TITLE,
    checked=("1.6.5",),
    schedules=True,
    default=DynamicTree.chain(4),
    render=render,
    takes=("engine_version",),
    off=SettingFiles(
        files={MAIN: NO_FIELDS},
        usage='Generator(model, cache, tokenizer, **json.load(open("FILE"))), without draft_model',
    ),
)
