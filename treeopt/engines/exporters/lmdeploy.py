"""LMDeploy: flags of lmdeploy serve api_server.

Checked against `lmdeploy/cli/utils.py` of 0.18.0.  It drafts chains, with no method for a separate language model.
Without --speculative-algorithm it does not speculate, whatever the other flags are.  LMDeploy itself refuses a DFlash
block, K + 1 tokens, above the head's `block_size`; its main branch runs DFlash on CUDA without prefix caching only.

    --speculative-num-draft-tokens = K, the root not counted
"""

from treeopt.engines.exporters.common import NO_FLAGS, flag_line, with_flags
from treeopt.engines.exporters.engine import MAIN, Engine, SettingFiles, SettingRequest
from treeopt.errors import Warning
from treeopt.trees.drafter_parameters import DynamicTree

METHODS = ("eagle", "eagle3", "deepseek_mtp", "hy3_mtp", "qwen3_5_mtp", "dflash")
LENGTH, METHOD, DRAFT = "--speculative-num-draft-tokens", "--speculative-algorithm", "--speculative-draft-model"
NO_METHOD = Warning(
    f"LMDeploy does not speculate without {METHOD}, and has none for a separate draft model.",
    f"Name {', '.join(METHODS[:-1])} or {METHODS[-1]} as the method.",
)


def render(request: SettingRequest) -> SettingFiles:
    drafter = [] if request.method is None else [(METHOD, request.method), (DRAFT, request.draft_model)]
    text = flag_line([(LENGTH, request.tree.depth), *drafter])
    return SettingFiles(
        files={MAIN: text},
        usage=with_flags("lmdeploy serve api_server TARGET", text),
        warnings=() if drafter else (NO_METHOD,),
    )


ENGINE = Engine(
    name="lmdeploy",
    title="LMDeploy",
    checked=("0.18.0",),
    default=DynamicTree.chain(1),
    render=render,
    method_names=METHODS,
    off=SettingFiles(files={MAIN: NO_FLAGS}, usage="lmdeploy serve api_server TARGET $(cat FILE)"),
    methods={"eagle": "eagle3", "dflash": "dflash"},
)
