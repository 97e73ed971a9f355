"""SGLang: launch flags, the file of --speculative-adaptive-config, and the cost table of DSPARK.

Checked against `arg_groups/speculative_hook.py`, `speculative/adaptive_spec_params.py` and
`speculative/dspark_components/dspark_sps.py` of 0.5.23.

    --speculative-eagle-topk = top_k
    --speculative-num-steps = depth
    --speculative-num-draft-tokens = nodes, the root counted
    pool: nodes - 1 <= top_k + (depth - 1) top_k², which SGLang does not check at its start
    NGRAM: no draft model; --speculative-num-draft-tokens = K + 1, --speculative-ngram-max-bfs-breadth = 1 for a chain
    adaptive: {smallest batch: {"candidate_steps": [K]}, …}; the largest key up to the batch counts, 0 is plain decoding
"""

from treeopt.engines.engine import Engine, EngineFile, SettingFiles, SettingRequest
from treeopt.engines.settings.common import (
    BENCH_FIRST,
    NO_FLAGS,
    Checked,
    chain_length,
    chosen_method,
    flag_line,
    json_text,
    left_out_schedule,
    speculation_off,
    unchecked_version,
    varying_schedule,
    with_flags,
)
from treeopt.errors import Warning
from treeopt.trees.dynamic_tree import DynamicTree, pool_nodes

TITLE = "SGLang"
VERSION = "0.5.23"
METHODS = ("STANDALONE", "EAGLE", "EAGLE3", "NEXTN", "NGRAM")
ADAPTIVE_METHODS = ("EAGLE", "EAGLE3", "NEXTN")
"""NEXTN is read as EAGLE."""
ALGORITHM, DRAFT = "--speculative-algorithm", "--speculative-draft-model-path"
BREADTH = "--speculative-ngram-max-bfs-breadth"
STEPS, TOP_K, NODES = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"


def emit(asked: SettingRequest) -> SettingFiles:
    """Return the flags; the schedule for chains that have one; the cost table where passes were measured."""
    tree = asked.tree
    method = chosen_method(asked, TITLE, "STANDALONE", METHODS)
    if method == "NGRAM":
        return _ngram(asked)
    draft = [] if method == "NEXTN" else [(DRAFT, asked.draft_model)]
    shape = [(STEPS, tree.depth), (TOP_K, tree.top_k), (NODES, tree.nodes)]
    flags = flag_line([(ALGORITHM, method), *draft, *shape])
    check(flags)
    files, warnings = [EngineFile(name="", text=flags)], [*unchecked_version(asked, TITLE, VERSION, VERSION)]
    usage = with_flags("python -m sglang.launch_server --model-path TARGET", flags)
    if tree.top_k > 1:
        warnings.append(
            Warning(
                "top-k above 1 with a page size above 1 works with the attention backends flashinfer, fa3 and triton only.",
                "Add --page-size 1, or one of these as --attention-backend.",
            )
        )
    schedule = varying_schedule(asked)
    if schedule and tree.depth not in {part.length for part in schedule}:
        warnings += left_out_schedule(asked, f"{STEPS} {tree.depth} must be among the lengths")
    elif schedule:
        slots = {str(part.first_batch): {"candidate_steps": [part.length]} for part in schedule}
        files.append(EngineFile(name="FILE.adaptive.json", text=json_text(slots)))
        check_adaptive(files[-1].text, tree.depth)
        usage += "; with the schedule: --speculative-adaptive --speculative-adaptive-config FILE.adaptive.json"
        if method not in ADAPTIVE_METHODS:
            warnings.append(
                Warning(
                    f"SGLang changes lengths for {', '.join(ADAPTIVE_METHODS)} only and ignores the schedule for {method}.",
                    "Name one of these as the method, or export for the batch size you serve.",
                )
            )
    if asked.verify_times:
        table = {
            "sample_batch_tokens": [time.tokens for time in asked.verify_times],
            "sample_steps_per_sec": [float(f"{1 / time.seconds:.6g}") for time in asked.verify_times],
            "max_batch_tokens": asked.verify_times[-1].tokens,
        }
        files.append(EngineFile(name="FILE.sps.json", text=json_text(table)))
        check_costs(files[-1].text)
        usage += "; for a DSPARK draft: --speculative-dspark-sps-table-path FILE.sps.json"
    return SettingFiles(files=tuple(files), usage=usage, warnings=tuple(warnings))


def _ngram(asked: SettingRequest) -> SettingFiles:
    """Return the flags of drafts looked up in the text."""
    length = chain_length(asked, TITLE, NODES)
    flags = flag_line([(ALGORITHM, "NGRAM"), (NODES, length + 1), (BREADTH, 1)])
    check(flags)
    warnings = [*unchecked_version(asked, TITLE, VERSION, VERSION)]
    if asked.ngram is not None:
        warnings.append(
            Warning(
                f"SGLang chooses the number of tokens that it looks up; {asked.ngram} were planned.",
                BENCH_FIRST,
            )
        )
    return SettingFiles(
        files=(EngineFile(name="", text=flags),),
        usage=with_flags("python -m sglang.launch_server --model-path TARGET", flags),
        warnings=(*warnings, *left_out_schedule(asked, "SGLang changes no lengths for NGRAM")),
    )


def check(text: str) -> None:
    """Raise InfeasibleError for flags that SGLang refuses, changes, or fails on while it drafts."""
    checked = Checked.from_flags(TITLE, text)
    method = checked.one_of(ALGORITHM, METHODS)
    if method == "NGRAM":
        checked.whole(NODES, 2)
        checked.whole(BREADTH)
        checked.require(DRAFT not in checked.fields, DRAFT, "none for NGRAM", "leave it out")
        return
    if method != "NEXTN":
        checked.require(DRAFT in checked.fields, DRAFT, "the draft model", "add it")
    steps, top_k, nodes = checked.whole(STEPS), checked.whole(TOP_K), checked.whole(NODES, 2)
    chained = top_k > 1 or nodes == steps + 1
    checked.require(chained, NODES, f"{STEPS} + 1 = {steps + 1} for {TOP_K} 1", "ask for a whole chain")
    most = 1 + pool_nodes(top_k, steps)
    expected = f"at most {most}, the root and {TOP_K} + ({STEPS} - 1) {TOP_K}²"
    checked.require(nodes <= most, NODES, expected, "ask for fewer nodes")


def check_adaptive(text: str, steps: int) -> None:
    """Raise InfeasibleError for a schedule that SGLang refuses beside `steps` as --speculative-num-steps."""
    checked = Checked.from_json(TITLE, text)
    slots = {int(key): slot for key, slot in checked.fields.items() if key.isdecimal()}
    field = "speculative-adaptive-config"
    checked.require(1 in slots, field, "batch sizes as keys, the first of them 1", "start there", sorted(slots))
    candidates: set[int] = set()
    for batch, slot in slots.items():
        listed = slot.get("candidate_steps") if isinstance(slot, dict) else None
        good = isinstance(listed, list) and listed and all(type(step) is int and step >= 0 for step in listed)
        checked.require(bool(good), f"{field} {batch}", "candidate_steps of whole numbers from 0", "list them", slot)
        candidates.update(listed or ())
    checked.require(steps in candidates, STEPS, f"one of the candidate_steps {sorted(candidates)}", "add it", steps)


def check_costs(text: str) -> None:
    """Raise InfeasibleError for a cost table that SGLang refuses, or reads as one of the other kind."""
    checked = Checked.from_json(TITLE, text)
    tokens, rates = (checked.fields.get(name, []) for name in ("sample_batch_tokens", "sample_steps_per_sec"))
    rising = bool(tokens) and tokens == sorted(set(tokens)) and tokens[0] >= 1
    checked.require(rising, "sample_batch_tokens", "rising numbers from 1", "measure each number of tokens once")
    checked.require(len(rates) == len(tokens), "sample_steps_per_sec", f"{len(tokens)} numbers", "give one for each")
    checked.require(all(rate > 0 for rate in rates), "sample_steps_per_sec", "numbers above 0", "measure again")
    most = checked.whole("max_batch_tokens")
    checked.require(most >= tokens[-1], "max_batch_tokens", f"at least {tokens[-1]}", "raise it")
    checked.require("bias_seconds" not in text, "bias_seconds", "no such text", "remove it", "it")


ENGINE = Engine(
    name="sglang",
    title=TITLE,
    versions=VERSION,
    needs="top-k, depth and nodes within the pool, root counted; with top-k 1 a whole chain",
    dynamic=True,
    default=DynamicTree(top_k=1, depth=3, nodes=4),
    emit=emit,
    off=speculation_off(NO_FLAGS, "python -m sglang.launch_server --model-path TARGET $(cat FILE)"),
    methods={"eagle": "EAGLE3", "eagle2": "STANDALONE", "prompt-lookup": "NGRAM"},
)
