"""LMDeploy: flags of lmdeploy serve api_server.

Checked against `lmdeploy/cli/utils.py` of 0.18.0.  Chains only, and none of its methods drafts with a separate language
model.  Without --speculative-algorithm it does not speculate, whatever the other flags say.  What a checkpoint allows
(the block size of a dflash draft) is not checked.

    --speculative-num-draft-tokens = K, the root not counted
"""

from treeopt.engines.engine import MAIN, Engine, SettingFiles, SettingRequest
from treeopt.engines.settings.common import NO_FLAGS, chains_only, flag_line, speculation_off, with_flags
from treeopt.errors import Warning
from treeopt.trees.dynamic_tree import DynamicTree

VERSION = "0.18.0"
METHODS = ("eagle", "eagle3", "deepseek_mtp", "hy3_mtp", "qwen3_5_mtp", "dflash")
LENGTH, METHOD, DRAFT = "--speculative-num-draft-tokens", "--speculative-algorithm", "--speculative-draft-model"
NO_METHOD = Warning(
    f"LMDeploy does not speculate without {METHOD}, and has none for a separate draft model.",
    f"Name {', '.join(METHODS[:-1])} or {METHODS[-1]} as the method.",
)


def render(request: SettingRequest) -> SettingFiles:
    """Return the flags; the draft model goes with a method only."""
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
    versions=VERSION,
    checked=(VERSION, VERSION),
    needs="a chain of at least 1 draft token, the root not counted",
    dynamic=False,
    default=DynamicTree.chain(1),
    limits=chains_only(LENGTH),
    render=render,
    method_names=METHODS,
    off=speculation_off(NO_FLAGS, "lmdeploy serve api_server TARGET $(cat FILE)"),
    methods={"eagle": "eagle3"},
)
