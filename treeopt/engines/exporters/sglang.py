"""SGLang: launch flags, the file of --speculative-adaptive-config, and the cost table of DSPARK.

Checked against `arg_groups/speculative_hook.py`, `speculative/adaptive_spec_params.py` and
`speculative/dspark_components/dspark_sps.py` of 0.5.23.

    --speculative-eagle-topk = top_k
    --speculative-num-steps = depth
    --speculative-num-draft-tokens = nodes, the root counted
    pool: nodes - 1 <= top_k + (depth - 1) top_k², which SGLang does not check when it starts
    DFLASH: --speculative-dflash-block-size = K + 1, the root counted; a chain
    DSPARK: --speculative-dspark-block-size = K, the root not counted; a chain
    NGRAM: no draft model; --speculative-num-draft-tokens = K + 1, --speculative-ngram-max-bfs-breadth = 1 for a chain
    adaptive: {smallest batch: {"candidate_steps": [K]}, …}; the largest key up to the batch size applies, 0 is plain decoding
"""

from treeopt.engines.exporters.common import (
    BENCH_FIRST,
    NO_FLAGS,
    flag_line,
    json_text,
    varying_schedule,
    warn_schedule_omitted,
    with_flags,
)
from treeopt.engines.exporters.engine import MAIN, Engine, SettingFiles, SettingRequest
from treeopt.errors import Warning
from treeopt.trees.drafter_parameters import DynamicTree

METHODS = ("STANDALONE", "EAGLE", "EAGLE3", "NEXTN", "DFLASH", "DSPARK", "NGRAM")
ADAPTIVE_METHODS = ("EAGLE", "EAGLE3", "NEXTN")
"""SGLang treats NEXTN as EAGLE."""
ALGORITHM, DRAFT = "--speculative-algorithm", "--speculative-draft-model-path"
STEPS, TOP_K, NODES = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"
BLOCKS = {"DFLASH": "--speculative-dflash-block-size", "DSPARK": "--speculative-dspark-block-size"}
"""Flags of the methods that draft a block in one pass."""
COSTS_USAGE = "; for a DSPARK draft: --speculative-dspark-sps-table-path FILE.sps.json"
LAUNCH = "python -m sglang.launch_server --model-path TARGET"
BACKENDS = Warning(
    "top-k above 1 with a page size above 1 works with the attention backends flashinfer, fa3 and triton only.",
    "Add --page-size 1, or one of these as --attention-backend.",
)


def limits(request: SettingRequest) -> str | None:
    tree = request.tree
    if tree.top_k > 1 or tree.is_chain:
        return None
    return f"{NODES}: expected {STEPS} + 1 = {tree.depth + 1} for {TOP_K} 1. Got {tree.nodes}: ask for a whole chain."


def render(request: SettingRequest) -> SettingFiles:
    if request.method == "NGRAM":
        return _render_ngram(request)
    if request.method in BLOCKS:
        return _render_block(request, request.method)
    tree, method = request.tree, request.method or METHODS[0]
    draft = [] if method == "NEXTN" else [(DRAFT, request.draft_model)]
    flags = flag_line([(ALGORITHM, method), *draft, (STEPS, tree.depth), (TOP_K, tree.top_k), (NODES, tree.nodes)])
    files, usage = {MAIN: flags}, with_flags(LAUNCH, flags)
    warnings = [BACKENDS] if tree.top_k > 1 else []
    schedule = varying_schedule(request)
    if schedule and tree.depth not in {part.length for part in schedule}:
        warnings += warn_schedule_omitted(request, f"{STEPS} {tree.depth} must be among the lengths")
    elif schedule:
        slots = {str(part.first_batch): {"candidate_steps": [part.length]} for part in schedule}
        files["FILE.adaptive.json"] = json_text(slots)
        usage += "; with the schedule: --speculative-adaptive --speculative-adaptive-config FILE.adaptive.json"
        if method not in ADAPTIVE_METHODS:
            warnings.append(
                Warning(
                    f"SGLang changes lengths for {', '.join(ADAPTIVE_METHODS)} only and ignores the schedule for {method}.",
                    "Name one of these as the method, or export for the batch size you serve.",
                )
            )
    costs = _render_costs(request)
    return SettingFiles(files=files | costs, usage=usage + COSTS_USAGE * bool(costs), warnings=tuple(warnings))


def _render_block(request: SettingRequest, method: str) -> SettingFiles:
    """Return the flags of a method that drafts a block in one pass; only DFLASH counts the root."""
    block = request.tree.nodes if method == "DFLASH" else request.tree.depth
    flags = flag_line([(ALGORITHM, method), (DRAFT, request.draft_model), (BLOCKS[method], block)])
    costs = _render_costs(request) if method == "DSPARK" else {}
    return SettingFiles(
        files={MAIN: flags} | costs,
        usage=with_flags(LAUNCH, flags) + COSTS_USAGE * bool(costs),
        warnings=warn_schedule_omitted(request, f"SGLang changes no lengths for {method}"),
    )


def _render_costs(request: SettingRequest) -> dict[str, str]:
    """Return the cost table from which DSPARK chooses how many tokens to verify; empty without measured passes."""
    if not request.verify_s:
        return {}
    table = {
        "sample_batch_tokens": list(request.verify_s),
        "sample_steps_per_sec": [float(f"{1 / seconds:.6g}") for seconds in request.verify_s.values()],
        "max_batch_tokens": max(request.verify_s),
    }
    return {"FILE.sps.json": json_text(table)}


def _render_ngram(request: SettingRequest) -> SettingFiles:
    breadth = ("--speculative-ngram-max-bfs-breadth", 1)
    flags = flag_line([(ALGORITHM, "NGRAM"), (NODES, request.tree.nodes), breadth])
    problem = f"SGLang chooses the number of tokens that it looks up; {request.ngram} were planned."
    length = () if request.ngram is None else (Warning(problem, BENCH_FIRST),)
    return SettingFiles(
        files={MAIN: flags},
        usage=with_flags(LAUNCH, flags),
        warnings=(*length, *warn_schedule_omitted(request, "SGLang changes no lengths for NGRAM")),
    )


ENGINE = Engine(
    name="sglang",
    title="SGLang",
    checked=("0.5.23",),
    needs="a chain, or a dynamic tree of top-k, depth and nodes, root counted",
    dynamic=True,
    schedules=True,
    length_sets_block=True,
    default=DynamicTree(top_k=1, depth=3, nodes=4),
    limits=limits,
    render=render,
    method_names=METHODS,
    chain_methods=(*BLOCKS, "NGRAM"),
    off=SettingFiles(files={MAIN: NO_FLAGS}, usage=f"{LAUNCH} $(cat FILE)"),
    methods={
        "eagle": "EAGLE3",
        "dflash": "DFLASH",
        "dspark": "DSPARK",
        "eagle2": "STANDALONE",
        "prompt-lookup": "NGRAM",
    },
)
