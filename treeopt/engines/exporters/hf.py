"""Hugging Face transformers: the fields of an assistant's generation_config, and a folder for `custom_generate`.

Checked against 5.23.0 and 5.24.0.  Assisted generation drafts chains:

    num_assistant_tokens = K, the root not counted
    assistant_confidence_threshold = 0: no chain is cut short (0.4 by default)

Prompt lookup has no assistant; its fields are arguments of `generate`:

    prompt_lookup_num_tokens = K, the root not counted
    max_matching_ngram_size = longest n-gram (2 by default)

The folder FILE.hf runs treeopt's own decoder with any tree.
"""

import json
import textwrap

from treeopt.engines.exporters.common import NO_FIELDS, json_text
from treeopt.engines.exporters.engine import MAIN, Engine, SettingFiles, SettingRequest
from treeopt.records.rules import LOSSY_RULES, check_rule
from treeopt.trees import TokenTree
from treeopt.trees.drafter_parameters import DynamicTree
from treeopt.version import __version__

FOLDER = "FILE.hf"
"""A folder of its own for each export, because transformers fixes the names of the files in it."""
CODE = "custom_generate/generate.py"
"""Path below FOLDER of the function that transformers calls."""
LENGTH, LOOKUP, NGRAM = "num_assistant_tokens", "prompt_lookup_num_tokens", "max_matching_ngram_size"
METHODS = ("assistant", "prompt_lookup")
"""treeopt's names, because transformers has none."""

TEMPLATE = '''\
"""Decodes with a speculation tree of {nodes} node{plural} and depth {depth}; written by treeopt {version}.

    model.generate(**inputs, custom_generate=FOLDER, trust_remote_code=True, assistant_model=draft)

FOLDER is the one that holds custom_generate/generate.py. The tree stands in this file because transformers runs a copy
of it, which lies in another folder.
"""

from treeopt.runtime.decoding import hf_generate
from treeopt.trees import TokenTree

TREE = TokenTree(
{parents}
)


def generate(model, **arguments):
    """Return what transformers would return; when it samples, of {distribution} distribution."""
    return hf_generate.generate(model, tree=TREE, rule="{rule}", lossy={lossy}, **arguments)
'''


def render(request: SettingRequest) -> SettingFiles:
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
        files[f"{FOLDER}/{CODE}"] = custom_generate_code(request.static_tree, request.rule)
        usage += f'; with the tree: target.generate(**inputs, assistant_model=assistant, custom_generate="{FOLDER}", '
        usage += "trust_remote_code=True)"
    return SettingFiles(files=files, usage=usage)


def custom_generate_code(tree: TokenTree, rule: str) -> str:
    """Return the code of `custom_generate` that runs treeopt's decoder; a lossy rule is allowed by naming it here.

    Raises InvalidValueError for an unknown rule.
    """
    lossy = rule in LOSSY_RULES
    check_rule(rule, lossy=lossy)
    return TEMPLATE.format(
        nodes=tree.nodes,
        plural="s" * (tree.nodes > 1),
        depth=tree.max_depth,
        version=__version__,
        parents=textwrap.indent(textwrap.fill(json.dumps(tree.parents.tolist()), 112), "    "),
        distribution="another" if lossy else "the same",
        rule=rule,
        lossy=lossy,
    )


ENGINE = Engine(
    name="hf",
    title="transformers",
    checked=("5.23.0", "5.24.0"),
    needs="a chain of at least 1 draft token, the root not counted; also any tree, with treeopt's own decoder",
    default=DynamicTree.chain(20),
    render=render,
    method_names=METHODS,
    takes=("method", "engine_version"),
    off=SettingFiles(files={MAIN: NO_FIELDS}, usage="target.generate(**inputs), without assistant_model"),
    static=True,
    methods={"prompt-lookup": "prompt_lookup"},
)
