"""llama.cpp: flags of llama-server.

Checked against `tools/server/README.md` of commit 00dc805, where --draft-max, --draft-n and --draft-min are gone.
It drafts chains:

    --spec-draft-n-max = K, the root not counted
    --spec-draft-p-min = 0: no chain is cut short
    --spec-synth-rates = probabilities that a step accepts at least 1, 2, … draft tokens
"""

from treeopt.engines.exporters.common import (
    NO_FLAGS,
    RATE_DECIMALS,
    flag_line,
    round_rates,
    with_flags,
)
from treeopt.engines.exporters.engine import MAIN, Engine, SettingFiles, SettingRequest
from treeopt.trees.drafter_parameters import DynamicTree

METHODS = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
TYPE, LENGTH, MIN_LENGTH, MIN_PROBABILITY = (
    "--spec-type",
    "--spec-draft-n-max",
    "--spec-draft-n-min",
    "--spec-draft-p-min",
)


def render(request: SettingRequest) -> SettingFiles:
    method = request.method or METHODS[0]
    flags = flag_line(
        [
            (TYPE, method),
            (LENGTH, request.tree.depth),
            (MIN_LENGTH, 0),
            (MIN_PROBABILITY, "0.00"),
            ("-md", request.draft_model),
        ]
    )
    files, usage = {MAIN: flags}, with_flags("llama-server -m TARGET", flags)
    if request.survival:
        rates = ",".join(f"{rate:.{RATE_DECIMALS}f}" for rate in round_rates(request.survival))
        files["FILE.synth.txt"] = flag_line([("--spec-synth-rates", rates)])
        usage += "; to replay the predicted acceptance add the flag in FILE.synth.txt"
    return SettingFiles(files=files, usage=usage)


ENGINE = Engine(
    name="llama-cpp",
    title="llama.cpp",
    checked=("commit 00dc805",),
    default=DynamicTree.chain(3),
    render=render,
    method_names=METHODS,
    off=SettingFiles(files={MAIN: NO_FLAGS}, usage="llama-server -m TARGET $(cat FILE)"),
    methods={"eagle": "draft-eagle3", "dflash": "draft-dflash", "dspark": "draft-dspark"},
)
