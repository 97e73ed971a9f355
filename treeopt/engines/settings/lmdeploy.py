"""LMDeploy: flags of lmdeploy serve api_server.

Checked against `lmdeploy/cli/utils.py` of 0.18.0.  Chains only, and none of its methods drafts with a separate language
model.  Without --speculative-algorithm it does not speculate, whatever the other flags say.  What a checkpoint allows
(the block size of a dflash draft) is not checked.

    --speculative-num-draft-tokens = K, the root not counted
"""

from treeopt.engines.engine import Engine, EngineFile, SettingFiles, SettingRequest
from treeopt.engines.settings.common import (
    NO_FLAGS,
    Checked,
    chain_length,
    chosen_method,
    flag_line,
    one_length,
    speculation_off,
    unchecked_version,
    with_flags,
)
from treeopt.errors import Warning
from treeopt.trees.dynamic_tree import DynamicTree

TITLE = "LMDeploy"
VERSION = "0.18.0"
METHODS = ("eagle", "eagle3", "deepseek_mtp", "hy3_mtp", "qwen3_5_mtp", "dflash")
LENGTH, METHOD, DRAFT = "--speculative-num-draft-tokens", "--speculative-algorithm", "--speculative-draft-model"


def emit(asked: SettingRequest) -> SettingFiles:
    """Return the flags; the draft model goes with a method only."""
    flags: list[tuple[str, object]] = [(LENGTH, chain_length(asked, TITLE, LENGTH))]
    warnings = [*unchecked_version(asked, TITLE, VERSION, VERSION), *one_length(asked, TITLE)]
    if asked.method is None:
        warnings.append(
            Warning(
                f"LMDeploy does not speculate without {METHOD}, and has none for a separate draft model.",
                f"Name {', '.join(METHODS[:-1])} or {METHODS[-1]} as the method.",
            )
        )
    else:
        flags += [(METHOD, chosen_method(asked, TITLE, asked.method, METHODS)), (DRAFT, asked.draft_model)]
    text = flag_line(flags)
    check(text)
    return SettingFiles(
        files=(EngineFile(name="", text=text),),
        usage=with_flags("lmdeploy serve api_server TARGET", text),
        warnings=tuple(warnings),
    )


def check(text: str) -> None:
    """Raise InfeasibleError for flags that LMDeploy refuses or ignores."""
    checked = Checked.from_flags(TITLE, text)
    checked.whole(LENGTH)
    if METHOD in checked.fields:
        checked.one_of(METHOD, METHODS)
    else:
        checked.require(DRAFT not in checked.fields, DRAFT, f"none without {METHOD}", f"add {METHOD}")


ENGINE = Engine(
    name="lmdeploy",
    title=TITLE,
    versions=VERSION,
    needs="a chain of at least 1 draft token, the root not counted",
    dynamic=False,
    default=DynamicTree.chain(1),
    emit=emit,
    off=speculation_off(NO_FLAGS, "lmdeploy serve api_server TARGET $(cat FILE)"),
    methods={"eagle": "eagle3"},
)
