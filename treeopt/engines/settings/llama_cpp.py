"""llama.cpp: flags of llama-server.

Checked against `tools/server/README.md` of commit 00dc805, where --draft-max, --draft-n and --draft-min are gone.
Chains only:

    --spec-draft-n-max = K, the root not counted
    --spec-draft-p-min = 0: no chain is cut short
    --spec-synth-rates = chances that a step accepts at least 1, 2, … draft tokens
"""

from treeopt.engines.engine import Engine, EngineFile, SettingFiles, SettingRequest
from treeopt.engines.settings.common import (
    NO_FLAGS,
    RATE_DECIMALS,
    Checked,
    chain_length,
    chosen_method,
    flag_line,
    one_length,
    rounded_rates,
    speculation_off,
    with_flags,
)
from treeopt.errors import Warning
from treeopt.trees.dynamic_tree import DynamicTree

TITLE = "llama.cpp"
METHODS = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
TYPE, MOST, LEAST, CUT = "--spec-type", "--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min"
RATES = "--spec-synth-rates"


def emit(asked: SettingRequest) -> SettingFiles:
    """Return the flags and, where acceptance is known, the flag that replays it."""
    length = chain_length(asked, TITLE, MOST)
    method = chosen_method(asked, TITLE, METHODS[0], METHODS)
    flags = flag_line([(TYPE, method), (MOST, length), (LEAST, 0), (CUT, "0.00"), ("-md", asked.draft_model)])
    check(flags)
    files, usage = [EngineFile(name="", text=flags)], with_flags("llama-server -m TARGET", flags)
    if asked.survival:
        rates = ",".join(f"{rate:.{RATE_DECIMALS}f}" for rate in rounded_rates(asked.survival))
        files.append(EngineFile(name="FILE.synth.txt", text=flag_line([(RATES, rates)])))
        check_rates(files[-1].text, length)
        usage += "; to replay the predicted acceptance add the flag in FILE.synth.txt"
    return SettingFiles(files=tuple(files), usage=usage, warnings=(*_version(asked), *one_length(asked, TITLE)))


def check(text: str) -> None:
    """Raise InfeasibleError for flags that llama-server refuses, or under which chains are cut short."""
    checked = Checked.from_flags(TITLE, text)
    checked.one_of(TYPE, METHODS)
    most, least = checked.whole(MOST), checked.whole(LEAST, 0)
    checked.require(least <= most, LEAST, f"at most {MOST}, {most}", "lower it")
    checked.require(checked.fields.get(CUT) == "0.00", CUT, "0.00, for a fixed length", "set it")
    checked.require("-md" in checked.fields, "-md", "the draft model", "add it")


def check_rates(text: str, length: int) -> None:
    """Raise InfeasibleError for rates that cannot be those of a chain of so many draft tokens."""
    checked = Checked.from_flags(TITLE, text)
    checked.require(RATES in checked.fields, RATES, "rates", "add them")
    checked.rates(RATES, [float(rate) for rate in str(checked.fields[RATES]).split(",")], length)


def _version(asked: SettingRequest) -> tuple[Warning, ...]:
    if asked.engine_version is None:
        return ()
    return (
        Warning(
            f"{asked.engine_version} was not checked, and the build that introduced these flags is not known.",
            f"Look for {TYPE} in llama-server --help.",
        ),
    )


ENGINE = Engine(
    name="llama-cpp",
    title=TITLE,
    versions="commit 00dc805",
    needs="a chain of at least 1 draft token, the root not counted",
    dynamic=False,
    default=DynamicTree.chain(3),
    emit=emit,
    off=speculation_off(NO_FLAGS, "llama-server -m TARGET $(cat FILE)"),
    methods={"eagle": "draft-eagle3"},
)
