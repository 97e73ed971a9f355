"""Hugging Face transformers: what assisted generation reads from the assistant's generation_config.

Checked against 5.23.0.  Chains only; a folder beside them, FILE.hf, hands it treeopt's own decoder and tree:

    num_assistant_tokens = K, the root not counted
    assistant_confidence_threshold = 0: no chain is cut short (0.4 by default)

Prompt lookup has no assistant; its fields go to `generate` itself:

    prompt_lookup_num_tokens = K, the root not counted
    max_matching_ngram_size = most tokens looked up (2 by default)
"""

from treeopt.engines.engine import Engine, EngineFile, SettingFiles, SettingRequest
from treeopt.engines.settings.common import (
    NO_FIELDS,
    Checked,
    chain_length,
    chosen_method,
    json_text,
    one_length,
    speculation_off,
    unchecked_version,
)
from treeopt.engines.settings.custom_generate import custom_generate_files
from treeopt.trees.dynamic_tree import DynamicTree

TITLE = "transformers"
VERSION = "5.23.0"
LENGTH, SCHEDULE = "num_assistant_tokens", "num_assistant_tokens_schedule"
FOLDER = "FILE.hf"
"""Beside the file `FILE`: transformers fixes what lies in a folder of decoding code, so each export has one of its own."""
THRESHOLD = "assistant_confidence_threshold"
LOOKUP, NGRAM = "prompt_lookup_num_tokens", "max_matching_ngram_size"
METHODS = ("assistant", "prompt_lookup")
"""treeopt's names: transformers know methods by their fields."""


def emit(asked: SettingRequest) -> SettingFiles:
    """Return the fields, to be set beside those that the assistant already has."""
    if chosen_method(asked, TITLE, "assistant", METHODS) == "prompt_lookup":
        return _prompt_lookup(asked)
    text = json_text({LENGTH: chain_length(asked, TITLE, LENGTH), SCHEDULE: "constant", THRESHOLD: 0.0})
    check(text)
    usage = 'assistant.generation_config.update(**json.load(open("FILE"))); target.generate(**inputs, assistant_model=assistant)'
    own = () if asked.static_tree is None else custom_generate_files(asked.static_tree, asked.rule)
    if own:
        usage += f'; with the tree: target.generate(**inputs, assistant_model=assistant, custom_generate="{FOLDER}", '
        usage += "trust_remote_code=True)"
    return SettingFiles(
        files=(
            EngineFile(name="", text=text),
            *(EngineFile(name=f"{FOLDER}/{each.name}", text=each.text) for each in own),
        ),
        usage=usage,
        warnings=(*unchecked_version(asked, TITLE, VERSION, VERSION), *one_length(asked, TITLE)),
    )


def _prompt_lookup(asked: SettingRequest) -> SettingFiles:
    """Return the fields of drafts looked up in the text."""
    ngram = {} if asked.ngram is None else {NGRAM: asked.ngram}
    text = json_text({LOOKUP: chain_length(asked, TITLE, LOOKUP)} | ngram)
    check(text)
    return SettingFiles(
        files=(EngineFile(name="", text=text),),
        usage='target.generate(**inputs, **json.load(open("FILE")))',
        warnings=(*unchecked_version(asked, TITLE, VERSION, VERSION), *one_length(asked, TITLE)),
    )


def check(text: str) -> None:
    """Raise InfeasibleError for fields under which the length is not always the same."""
    checked = Checked.from_json(TITLE, text)
    if LOOKUP in checked.fields:
        checked.whole(LOOKUP)
        if NGRAM in checked.fields:
            checked.whole(NGRAM)
        return
    checked.whole(LENGTH)
    checked.require(checked.fields.get(SCHEDULE) == "constant", SCHEDULE, "constant, for a fixed length", "set it")
    checked.require(checked.fields.get(THRESHOLD) == 0, THRESHOLD, "0, for a fixed length", "set it")


ENGINE = Engine(
    name="hf",
    title=TITLE,
    versions=VERSION,
    needs="a chain of at least 1 draft token, the root not counted; beside it any tree, for treeopt's own decoder",
    dynamic=False,
    default=DynamicTree.chain(20),
    emit=emit,
    takes=("method", "engine_version"),
    off=speculation_off(NO_FIELDS, "target.generate(**inputs), without assistant_model"),
    static=True,
    methods={"prompt-lookup": "prompt_lookup"},
)
