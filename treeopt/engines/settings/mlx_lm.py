"""mlx-lm: flags of mlx_lm.generate and mlx_lm.server.

Checked against 0.32.2.  Chains only:

    --num-draft-tokens = K, the root not counted
"""

from treeopt.engines.engine import Engine, EngineFile, SettingFiles, SettingRequest
from treeopt.engines.settings.common import (
    NO_FLAGS,
    Checked,
    chain_length,
    flag_line,
    one_length,
    refuse_method,
    speculation_off,
    unchecked_version,
    with_flags,
)
from treeopt.trees.dynamic_tree import DynamicTree

TITLE = "mlx-lm"
VERSION = "0.32.2"
LENGTH, DRAFT = "--num-draft-tokens", "--draft-model"


def emit(asked: SettingRequest) -> SettingFiles:
    """Return the flags."""
    refuse_method(asked, TITLE)
    text = flag_line([(DRAFT, asked.draft_model), (LENGTH, chain_length(asked, TITLE, LENGTH))])
    check(text)
    return SettingFiles(
        files=(EngineFile(name="", text=text),),
        usage=with_flags("mlx_lm.server --model TARGET", text),
        warnings=(*unchecked_version(asked, TITLE, VERSION, VERSION), *one_length(asked, TITLE)),
    )


def check(text: str) -> None:
    """Raise InfeasibleError for flags with which mlx-lm does not speculate."""
    checked = Checked.from_flags(TITLE, text)
    checked.whole(LENGTH)
    checked.require(DRAFT in checked.fields, DRAFT, "the draft model", "add it")


ENGINE = Engine(
    name="mlx-lm",
    title=TITLE,
    versions=VERSION,
    needs="a chain of at least 1 draft token, the root not counted",
    dynamic=False,
    default=DynamicTree.chain(3),
    emit=emit,
    takes=("draft_model", "engine_version"),
    off=speculation_off(NO_FLAGS, "mlx_lm.server --model TARGET $(cat FILE)"),
)
