"""EAGLE, the authors' repository: flags of its evaluation scripts, keyword arguments of EaModel.from_pretrained.

Checked against `eagle/model/cnets.py` of commit 148042c (Li et al., 2024 and 2025).

    top_k = top_k
    depth = depth - 1: the passes of the draft after its first, which may be none
    total_token = nodes, the root counted; total_token - 1 <= top_k + depth top_k²
"""

from treeopt.engines.engine import Engine, EngineFile, Json, SettingFiles, SettingRequest
from treeopt.engines.settings.common import (
    NO_FLAGS,
    Checked,
    flag_line,
    json_text,
    one_length,
    refuse_method,
    speculation_off,
    with_flags,
)
from treeopt.errors import Warning
from treeopt.trees.dynamic_tree import DynamicTree, pool_nodes

TITLE = "EAGLE"


def emit(asked: SettingRequest) -> SettingFiles:
    """Return the flags, and the same as keyword arguments."""
    refuse_method(asked, TITLE)
    tree = asked.tree
    arguments: Json = {"total_token": tree.nodes, "depth": tree.depth - 1, "top_k": tree.top_k}
    text = flag_line((f"--{name.replace('_', '-')}", value) for name, value in arguments.items())
    keywords = json_text(arguments)
    check(text)
    check_keywords(keywords)
    models = flag_line([("--ea-model-path", asked.draft_model)]).strip()
    return SettingFiles(
        files=(EngineFile(name="", text=text), EngineFile(name="FILE.kwargs.json", text=keywords)),
        usage=with_flags(
            f"python -m eagle.evaluation.gen_ea_answer_llama3chat --base-model-path TARGET {models}", text
        ),
        warnings=(*_version(asked), *one_length(asked, TITLE)),
    )


def check(text: str) -> None:
    """Raise InfeasibleError for flags with which the draft cannot be drawn up."""
    flags = Checked.from_flags(TITLE, text)
    _check(Checked(TITLE, {flag.removeprefix("--").replace("-", "_"): value for flag, value in flags.fields.items()}))


def check_keywords(text: str) -> None:
    """Raise InfeasibleError for keyword arguments with which the draft cannot be drawn up."""
    _check(Checked.from_json(TITLE, text))


def _check(checked: Checked) -> None:
    total, depth, top_k = checked.whole("total_token", 2), checked.whole("depth", 0), checked.whole("top_k")
    most = 1 + pool_nodes(top_k, depth + 1)
    expected = f"at most {most}, the root and top_k + depth top_k²"
    checked.require(total <= most, "total_token", expected, "ask for fewer nodes")


def _version(asked: SettingRequest) -> tuple[Warning, ...]:
    if asked.engine_version is None:
        return ()
    return (Warning(f"EAGLE {asked.engine_version} was not checked.", "Compare the flags with its scripts."),)


ENGINE = Engine(
    name="eagle",
    title=TITLE,
    versions="commit 148042c",
    needs="top-k, depth and nodes within the pool, root counted",
    dynamic=True,
    default=DynamicTree(top_k=10, depth=8, nodes=60),
    emit=emit,
    takes=("draft_model", "engine_version"),
    off=speculation_off(NO_FLAGS, "model.naivegenerate(input_ids) in place of model.eagenerate(input_ids)"),
    methods={"eagle": None},
)
