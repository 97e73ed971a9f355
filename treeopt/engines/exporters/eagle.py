"""EAGLE, the authors' repository: flags of its evaluation scripts, and keyword arguments of EaModel.from_pretrained.

Checked against `eagle/model/cnets.py` of commit 148042c (Li et al., 2024 and 2025).

    top_k = top_k
    depth = depth - 1: the draft's passes after its first
    total_token = nodes, the root counted; total_token - 1 <= top_k + depth top_k²
"""

from treeopt.engines.exporters.common import NO_FLAGS, flag_line, json_text, with_flags
from treeopt.engines.exporters.engine import MAIN, Engine, Json, SettingFiles, SettingRequest
from treeopt.trees.drafter_parameters import DynamicTree


def render(request: SettingRequest) -> SettingFiles:
    tree = request.tree
    arguments: Json = {"total_token": tree.nodes, "depth": tree.depth - 1, "top_k": tree.top_k}
    text = flag_line((f"--{name.replace('_', '-')}", value) for name, value in arguments.items())
    models = flag_line([("--ea-model-path", request.draft_model)]).strip()
    return SettingFiles(
        files={MAIN: text, "FILE.kwargs.json": json_text(arguments)},
        usage=with_flags(
            f"python -m eagle.evaluation.gen_ea_answer_llama3chat --base-model-path TARGET {models}", text
        ),
    )


ENGINE = Engine(
    name="eagle",
    title="EAGLE",
    checked=("commit 148042c",),
    needs="a chain, or a dynamic tree of top-k, depth and nodes, root counted",
    dynamic=True,
    default=DynamicTree(top_k=10, depth=8, nodes=60),
    render=render,
    takes=("draft_model", "engine_version"),
    off=SettingFiles(
        files={MAIN: NO_FLAGS}, usage="model.naivegenerate(input_ids) in place of model.eagenerate(input_ids)"
    ),
    methods={"eagle": None},
)
