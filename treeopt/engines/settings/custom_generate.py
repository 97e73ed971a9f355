"""A tree for `model.generate(custom_generate=FOLDER)` of Hugging Face transformers."""

import json
import textwrap

from treeopt.records.rules import LOSSY_RULES, check_rule
from treeopt.trees import TokenTree
from treeopt.version import __version__

NAME = "custom_generate/generate.py"
"""Where transformers looks for the function, below a model's folder or any other."""

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
    """Return what transformers would return; {promise}."""
    return hf_generate.generate(model, tree=TREE, rule="{rule}", lossy={lossy}, **arguments)
'''


def custom_generate_files(tree: TokenTree, rule: str) -> dict[str, str]:
    """Return the files of a folder that transformers decodes with, given as `custom_generate=FOLDER`.

    A lossy rule is allowed by naming it here.

    Raises InvalidValueError for an unknown rule.
    """
    lossy = rule in LOSSY_RULES
    check_rule(rule, lossy=lossy)
    text = TEMPLATE.format(
        nodes=tree.nodes,
        plural="s" * (tree.nodes > 1),
        depth=tree.max_depth,
        version=__version__,
        parents=textwrap.indent(textwrap.fill(json.dumps(tree.parents.tolist()), 112), "    "),
        promise="when it samples, of another distribution" if lossy else "when it samples, of the same distribution",
        rule=rule,
        lossy=lossy,
    )
    return {NAME: text}
