"""EAGLE, the authors' repository: flags of its evaluation scripts, keyword arguments of EaModel.from_pretrained.

Checked against `eagle/model/cnets.py` of commit 148042c (Li et al., 2024 and 2025).

    top_k = top_k
    depth = depth - 1: the passes of the draft after its first, which may be none
    total_token = nodes, the root counted; total_token - 1 <= top_k + depth top_k²
"""

from treeopt.engines.engine import MAIN, Engine, Json, SettingFiles, SettingRequest
from treeopt.engines.settings.common import NO_FLAGS, flag_line, json_text, speculation_off, unlimited, with_flags
from treeopt.errors import Warning
from treeopt.trees.dynamic_tree import DynamicTree


def render(request: SettingRequest) -> SettingFiles:
    """Return the flags, and the same as keyword arguments."""
    tree = request.tree
    arguments: Json = {"total_token": tree.nodes, "depth": tree.depth - 1, "top_k": tree.top_k}
    text = flag_line((f"--{name.replace('_', '-')}", value) for name, value in arguments.items())
    models = flag_line([("--ea-model-path", request.draft_model)]).strip()
    return SettingFiles(
        files={MAIN: text, "FILE.kwargs.json": json_text(arguments)},
        usage=with_flags(
            f"python -m eagle.evaluation.gen_ea_answer_llama3chat --base-model-path TARGET {models}", text
        ),
        warnings=_version(request),
    )


def _version(request: SettingRequest) -> tuple[Warning, ...]:
    if request.engine_version is None:
        return ()
    return (Warning(f"EAGLE {request.engine_version} was not checked.", "Compare the flags with its scripts."),)


ENGINE = Engine(
    name="eagle",
    title="EAGLE",
    versions="commit 148042c",
    needs="top-k, depth and nodes within the pool, root counted",
    dynamic=True,
    default=DynamicTree(top_k=10, depth=8, nodes=60),
    limits=unlimited,
    render=render,
    takes=("draft_model", "engine_version"),
    off=speculation_off(NO_FLAGS, "model.naivegenerate(input_ids) in place of model.eagenerate(input_ids)"),
    methods={"eagle": None},
)
