"""ExLlamaV3: keyword arguments of its Generator.

Checked against `exllamav3/generator/generator.py` of 1.6.5.  Chains only:

    num_draft_tokens = K, the root not counted
    draft_max_rows = B (1 + K_B), with B the largest batch for which drafting pays and K_B its length

In a batch of b it drafts the smaller of K and draft_max_rows // b - 1 tokens, so beyond B the chain gets shorter.
"""

from treeopt.engines.engine import Engine, EngineFile, Json, SettingFiles, SettingRequest
from treeopt.engines.settings.common import (
    NO_FIELDS,
    Checked,
    chain_length,
    json_text,
    one_length,
    refuse_method,
    speculation_off,
    unchecked_version,
    varying_schedule,
)
from treeopt.trees.dynamic_tree import DynamicTree

TITLE = "ExLlamaV3"
VERSION = "1.6.5"
LENGTH, ADAPTS, ROWS = "num_draft_tokens", "dynamic_draft_tokens", "draft_max_rows"


def emit(asked: SettingRequest) -> SettingFiles:
    """Return the arguments."""
    refuse_method(asked, TITLE)
    arguments: Json = {LENGTH: chain_length(asked, TITLE, LENGTH), ADAPTS: False}
    warnings = unchecked_version(asked, TITLE, VERSION, VERSION)
    if pays := [part for part in asked.schedule if part.length > 0]:
        arguments[ROWS] = max(1 + arguments[LENGTH], pays[-1].last_batch * (1 + pays[-1].length))
    if len({part.length for part in varying_schedule(asked)} - {0}) > 1:
        warnings += one_length(asked, TITLE)
    text = json_text(arguments)
    check(text)
    return SettingFiles(
        files=(EngineFile(name="", text=text),),
        usage='Generator(model, cache, tokenizer, draft_model=…, draft_cache=…, **json.load(open("FILE")))',
        warnings=warnings,
    )


def check(text: str) -> None:
    """Raise InfeasibleError for arguments with which one sequence never gets the whole chain."""
    checked = Checked.from_json(TITLE, text)
    length = checked.whole(LENGTH)
    checked.require(checked.fields.get(ADAPTS) is False, ADAPTS, "false, for a fixed length", "set it")
    if ROWS in checked.fields:
        rows = checked.whole(ROWS)
        checked.require(rows > length, ROWS, f"at least 1 + {LENGTH} = {1 + length}", "raise it")


ENGINE = Engine(
    name="exllamav3",
    title=TITLE,
    versions=VERSION,
    needs="a chain of at least 1 draft token, the root not counted",
    dynamic=False,
    default=DynamicTree.chain(4),
    emit=emit,
    takes=("engine_version",),
    off=speculation_off(
        NO_FIELDS, 'Generator(model, cache, tokenizer, **json.load(open("FILE"))), without draft_model'
    ),
)
