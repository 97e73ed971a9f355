"""llama.cpp: flags of llama-server.

Checked against `tools/server/README.md` of commit 00dc805, where --draft-max, --draft-n and --draft-min are gone.
Chains only:

    --spec-draft-n-max = K, the root not counted
    --spec-draft-p-min = 0: no chain is cut short
    --spec-synth-rates = chances that a step accepts at least 1, 2, … draft tokens
"""

from treeopt.engines.engine import MAIN, Engine, SettingFiles, SettingRequest
from treeopt.engines.settings.common import (
    NO_FLAGS,
    RATE_DECIMALS,
    chains_only,
    flag_line,
    rounded_rates,
    speculation_off,
    with_flags,
)
from treeopt.errors import Warning
from treeopt.trees.dynamic_tree import DynamicTree

METHODS = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
TYPE, MOST, LEAST, CUT = "--spec-type", "--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min"


def render(request: SettingRequest) -> SettingFiles:
    """Return the flags and, if acceptance is known, the flag that replays it."""
    method = request.method or METHODS[0]
    flags = flag_line(
        [(TYPE, method), (MOST, request.tree.depth), (LEAST, 0), (CUT, "0.00"), ("-md", request.draft_model)]
    )
    files, usage = {MAIN: flags}, with_flags("llama-server -m TARGET", flags)
    if request.survival:
        rates = ",".join(f"{rate:.{RATE_DECIMALS}f}" for rate in rounded_rates(request.survival))
        files["FILE.synth.txt"] = flag_line([("--spec-synth-rates", rates)])
        usage += "; to replay the predicted acceptance add the flag in FILE.synth.txt"
    return SettingFiles(files=files, usage=usage, warnings=_version(request))


def _version(request: SettingRequest) -> tuple[Warning, ...]:
    if request.engine_version is None:
        return ()
    return (
        Warning(
            f"{request.engine_version} was not checked, and the build that introduced these flags is not known.",
            f"Look for {TYPE} in llama-server --help.",
        ),
    )


ENGINE = Engine(
    name="llama-cpp",
    title="llama.cpp",
    versions="commit 00dc805",
    needs="a chain of at least 1 draft token, the root not counted",
    dynamic=False,
    default=DynamicTree.chain(3),
    limits=chains_only(MOST),
    render=render,
    method_names=METHODS,
    off=speculation_off(NO_FLAGS, "llama-server -m TARGET $(cat FILE)"),
    methods={"eagle": "draft-eagle3", "dflash": "draft-dflash"},
)
