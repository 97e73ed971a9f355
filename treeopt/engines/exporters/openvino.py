"""OpenVINO GenAI: fields of a GenerationConfig.

Checked against openvino-genai 2026.4.1: its type stubs, the messages in its library, and its site.

    chain: num_assistant_tokens = K, the root not counted; assistant_confidence_threshold = 0, which excludes trees
    tree: branching_factor = top_k, tree_depth = depth, num_assistant_tokens = nodes - 1, the root not counted
    tree_depth <= num_assistant_tokens <= branching_factor² (tree_depth - 1) + branching_factor
    prompt lookup: num_assistant_tokens = K, max_ngram_size = longest n-gram
"""

from treeopt.engines.exporters.common import NO_FIELDS, json_text
from treeopt.engines.exporters.engine import MAIN, Engine, Json, SettingFiles, SettingRequest
from treeopt.errors import Warning
from treeopt.trees.drafter_parameters import DynamicTree, pool_nodes

NODES, TOP_K, DEPTH = "num_assistant_tokens", "branching_factor", "tree_depth"
METHODS = ("draft_model", "eagle3", "prompt_lookup")
"""treeopt's names: OpenVINO GenAI has none, but distinguishes pipelines."""
DEFAULT_NGRAM = 3
UPDATE = 'generation_config.update_generation_config(**json.load(open("FILE")))'
TREES = Warning(
    "OpenVINO GenAI drafts trees with EAGLE3 drafts and without sampling only.",
    "Set do_sample=False, and on an NPU give the draft model MAX_TREE_DEPTH, MAX_BRANCHING_FACTOR and "
    "MAX_ASSISTANT_TOKENS; for another draft export a chain.",
)


def limits(request: SettingRequest) -> str | None:
    tree = request.tree
    if tree.nodes > tree.depth:
        return None
    expected = f"from {DEPTH}, {tree.depth}, to {TOP_K}² ({DEPTH} - 1) + {TOP_K}, {pool_nodes(tree.top_k, tree.depth)}"
    return f"{NODES}: expected {expected}. Got {tree.nodes - 1}: ask for such a tree."


def render(request: SettingRequest) -> SettingFiles:
    tree, usage = request.tree, UPDATE
    fields: Json = {NODES: tree.nodes - 1}
    if request.method == "prompt_lookup":
        fields["max_ngram_size"] = request.ngram or DEFAULT_NGRAM
        usage = f'pipeline = LLMPipeline("TARGET", DEVICE, prompt_lookup=True); {UPDATE}'
    elif tree.is_chain:
        fields["assistant_confidence_threshold"] = 0.0
    else:
        fields |= {TOP_K: tree.top_k, DEPTH: tree.depth}
    return SettingFiles(files={MAIN: json_text(fields)}, usage=usage, warnings=() if tree.is_chain else (TREES,))


ENGINE = Engine(
    name="openvino",
    title="OpenVINO GenAI",
    checked=("2026.4.1",),
    needs="a chain, or a dynamic tree of top-k, depth and nodes, the root not counted",
    dynamic=True,
    default=DynamicTree.chain(5),
    limits=limits,
    render=render,
    method_names=METHODS,
    chain_methods=("prompt_lookup",),
    takes=("method", "engine_version"),
    off=SettingFiles(
        files={MAIN: NO_FIELDS},
        usage='generation_config.update_generation_config(**json.load(open("FILE"))), in a pipeline without draft_model',
    ),
    methods={"eagle": "eagle3", "prompt-lookup": "prompt_lookup"},
)
