"""OpenVINO GenAI: fields of a GenerationConfig.

Checked against openvino-genai 2026.4.1: its type stubs, the messages in its library, and its site.

    chain: num_assistant_tokens = K, the root not counted; assistant_confidence_threshold = 0, they exclude each other
    tree: branching_factor = top_k, tree_depth = depth, num_assistant_tokens = nodes - 1, the root not counted
    tree_depth <= num_assistant_tokens <= branching_factor² (tree_depth - 1) + branching_factor
    prompt lookup: num_assistant_tokens = K, max_ngram_size = most tokens looked up
"""

from treeopt.engines.engine import Engine, EngineFile, Json, SettingFiles, SettingRequest
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
from treeopt.errors import Warning
from treeopt.trees.dynamic_tree import DynamicTree, pool_nodes

TITLE = "OpenVINO GenAI"
VERSION = "2026.4.1"
NODES, TOP_K, DEPTH = "num_assistant_tokens", "branching_factor", "tree_depth"
THRESHOLD = "assistant_confidence_threshold"
NGRAM = "max_ngram_size"
METHODS = ("draft_model", "eagle3", "prompt_lookup")
"""treeopt's names: OpenVINO GenAI knows methods by what the pipeline is given."""
DEFAULT_NGRAM = 3
UPDATE = 'generation_config.update_generation_config(**json.load(open("FILE")))'
TREES = Warning(
    "OpenVINO GenAI drafts trees with EAGLE3 drafts and without sampling only.",
    "Set do_sample=False, and on an NPU give the draft model MAX_TREE_DEPTH, MAX_BRANCHING_FACTOR and "
    "MAX_ASSISTANT_TOKENS; for another draft export a chain.",
)


def emit(asked: SettingRequest) -> SettingFiles:
    """Return the fields."""
    method = chosen_method(asked, TITLE, "draft_model", METHODS)
    tree, warnings = asked.tree, unchecked_version(asked, TITLE, VERSION, VERSION)
    fields: Json
    usage = UPDATE
    if method == "prompt_lookup":
        fields = {NODES: chain_length(asked, TITLE, NODES), NGRAM: asked.ngram or DEFAULT_NGRAM}
        warnings += one_length(asked, TITLE)
        usage = f"pipeline = LLMPipeline(TARGET, DEVICE, prompt_lookup=True); {UPDATE}"
    elif tree.is_chain:
        fields = {NODES: chain_length(asked, TITLE, NODES), THRESHOLD: 0.0}
        warnings += one_length(asked, TITLE)
    else:
        fields = {NODES: tree.nodes - 1, TOP_K: tree.top_k, DEPTH: tree.depth}
        warnings += (TREES,)
    text = json_text(fields)
    check(text)
    return SettingFiles(
        files=(EngineFile(name="", text=text),),
        usage=usage,
        warnings=warnings,
    )


def check(text: str) -> None:
    """Raise InfeasibleError for fields that OpenVINO GenAI refuses."""
    checked = Checked.from_json(TITLE, text)
    nodes = checked.whole(NODES)
    if NGRAM in checked.fields:
        checked.whole(NGRAM)
    fixed = checked.fields.get(THRESHOLD, 0.0) == 0
    checked.require(fixed, THRESHOLD, f"0 beside {NODES}", "set it")
    if DEPTH in checked.fields:
        depth, top_k = checked.whole(DEPTH), checked.whole(TOP_K)
        most = pool_nodes(top_k, depth)
        expected = f"from {DEPTH}, {depth}, to {TOP_K}² ({DEPTH} - 1) + {TOP_K}, {most}"
        checked.require(depth <= nodes <= most, NODES, expected, "ask for such a tree")


ENGINE = Engine(
    name="openvino",
    title=TITLE,
    versions=VERSION,
    needs="a chain, or top-k, depth and at least as many draft nodes as the depth, the root not counted",
    dynamic=True,
    default=DynamicTree.chain(5),
    emit=emit,
    takes=("method", "engine_version"),
    off=speculation_off(
        NO_FIELDS,
        'generation_config.update_generation_config(**json.load(open("FILE"))), in a pipeline without draft_model',
    ),
    methods={"eagle": "eagle3", "prompt-lookup": "prompt_lookup"},
)
