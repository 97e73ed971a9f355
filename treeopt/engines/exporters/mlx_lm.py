"""mlx-lm: flags of mlx_lm.generate and mlx_lm.server.

Checked against 0.32.2.  It drafts chains:

    --num-draft-tokens = K, the root not counted
"""

from treeopt.engines.exporters.common import NO_FLAGS, flag_line, with_flags
from treeopt.engines.exporters.engine import MAIN, Engine, SettingFiles, SettingRequest
from treeopt.trees.drafter_parameters import DynamicTree

LENGTH = "--num-draft-tokens"


def render(request: SettingRequest) -> SettingFiles:
    text = flag_line([("--draft-model", request.draft_model), (LENGTH, request.tree.depth)])
    return SettingFiles(files={MAIN: text}, usage=with_flags("mlx_lm.server --model TARGET", text))


ENGINE = Engine(
    name="mlx-lm",
    title="mlx-lm",
    checked=("0.32.2",),
    default=DynamicTree.chain(3),
    render=render,
    takes=("draft_model", "engine_version"),
    off=SettingFiles(files={MAIN: NO_FLAGS}, usage="mlx_lm.server --model TARGET $(cat FILE)"),
)
