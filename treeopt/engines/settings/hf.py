"""Hugging Face transformers: what assisted generation reads from the assistant's generation_config.

Checked against 5.23.0.  Chains only; a folder beside them, FILE.hf, hands it treeopt's own decoder and tree:

    num_assistant_tokens = K, the root not counted
    assistant_confidence_threshold = 0: no chain is cut short (0.4 by default)

Prompt lookup has no assistant; its fields go to `generate` itself:

    prompt_lookup_num_tokens = K, the root not counted
    max_matching_ngram_size = most tokens looked up (2 by default)
"""

from treeopt.engines.engine import MAIN, Engine, SettingFiles, SettingRequest
from treeopt.engines.settings.common import NO_FIELDS, chains_only, json_text, speculation_off
from treeopt.engines.settings.custom_generate import custom_generate_files
from treeopt.trees.dynamic_tree import DynamicTree

VERSION = "5.23.0"
FOLDER = "FILE.hf"
"""Beside the file `FILE`: transformers fixes what lies in a folder of decoding code, so each export has one of its own."""
LENGTH, LOOKUP, NGRAM = "num_assistant_tokens", "prompt_lookup_num_tokens", "max_matching_ngram_size"
METHODS = ("assistant", "prompt_lookup")
"""treeopt's names: transformers know methods by their fields."""


def limits(request: SettingRequest) -> str | None:
    """Return why a request is refused; None for any chain."""
    return chains_only(LOOKUP if request.method == "prompt_lookup" else LENGTH)(request)


def render(request: SettingRequest) -> SettingFiles:
    """Return the fields, to be set beside those that the assistant already has."""
    length = request.tree.depth
    if request.method == "prompt_lookup":
        ngram = {} if request.ngram is None else {NGRAM: request.ngram}
        return SettingFiles(
            files={MAIN: json_text({LOOKUP: length} | ngram)},
            usage='target.generate(**inputs, **json.load(open("FILE")))',
        )
    fields = {LENGTH: length, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
    files = {MAIN: json_text(fields)}
    usage = 'assistant.generation_config.update(**json.load(open("FILE"))); target.generate(**inputs, assistant_model=assistant)'
    if request.static_tree is not None:
        own = custom_generate_files(request.static_tree, request.rule)
        files |= {f"{FOLDER}/{name}": text for name, text in own.items()}
        usage += f'; with the tree: target.generate(**inputs, assistant_model=assistant, custom_generate="{FOLDER}", '
        usage += "trust_remote_code=True)"
    return SettingFiles(files=files, usage=usage)


ENGINE = Engine(
    name="hf",
    title="transformers",
    versions=VERSION,
    checked=(VERSION, VERSION),
    needs="a chain of at least 1 draft token, the root not counted; beside it any tree, for treeopt's own decoder",
    dynamic=False,
    default=DynamicTree.chain(20),
    limits=limits,
    render=render,
    method_names=METHODS,
    takes=("method", "engine_version"),
    off=speculation_off(NO_FIELDS, "target.generate(**inputs), without assistant_model"),
    static=True,
    methods={"prompt-lookup": "prompt_lookup"},
)
