"""Every exporter, over generated settings and edge values, against what the engines demand."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.exporters import published_rules as rules
from tests.engines.exporters.named import render
from tests.support.drawn import examples
from treeopt.engines.exporters.engine import BatchLength, SettingRequest
from treeopt.errors import InfeasibleError
from treeopt.trees.drafter_parameters import DynamicTree, pool_nodes

MODEL = "models/a draft"
CHAIN_READERS = {
    "vllm": rules.vllm,
    "llama-cpp": rules.llama_cpp,
    "mlx-lm": rules.mlx_lm,
    "exllamav3": rules.exllamav3,
}
TREE_READERS = {
    "sglang": rules.sglang,
    "tensorrt-llm": rules.tensorrt_llm,
    "openvino": rules.openvino,
    "eagle": rules.eagle,
}


@st.composite
def dynamic_trees(draw) -> DynamicTree:
    top_k, depth = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    most = 1 + pool_nodes(top_k, depth)
    nodes = draw(st.one_of(st.integers(2, most), st.sampled_from([2, min(depth + 1, most), most])))
    return DynamicTree(top_k=top_k, depth=depth, nodes=nodes)


@st.composite
def chains(draw) -> SettingRequest:
    """Return a chain with its survival and a schedule over batch sizes, from 1 on and without gaps."""
    length = draw(st.integers(1, 20))
    ranges = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(0, length)), min_size=1, max_size=5))
    first, schedule = 1, []
    for width, drafts in [*ranges, (draw(st.integers(1, 9)), length)]:
        schedule.append(BatchLength(first_batch=first, last_batch=first + width - 1, length=drafts))
        first += width
    if draw(st.booleans()):
        reverse = [part.length for part in schedule][::-1]  # the longest first
        schedule = [replace(part, length=drafts) for part, drafts in zip(schedule, reverse, strict=True)]
    survival, reach = [], 1.0
    for share in draw(st.lists(st.floats(0, 1), min_size=length, max_size=length)):
        reach *= share
        survival.append(reach)
    times = draw(st.lists(st.integers(1, 999), min_size=1, max_size=6, unique=True).map(sorted))
    return SettingRequest(
        tree=DynamicTree.chain(length),
        schedule=tuple(schedule),
        survival=tuple(survival) if draw(st.booleans()) else (),
        verify_s={n: 1e-3 + 1e-5 * n for n in times},
        draft_model=MODEL,
    )


def make_tree(tree: DynamicTree) -> SettingRequest:
    return SettingRequest(tree=tree, draft_model=MODEL)


def files(name: str, setting: SettingRequest) -> dict[str, str]:
    return dict(render(name, setting).files)


def lengths(setting: SettingRequest) -> dict[int, int]:
    return {batch: part.length for part in setting.schedule for batch in range(part.first_batch, part.last_batch + 1)}


@pytest.mark.parametrize("name", CHAIN_READERS)
@given(setting=chains())
@settings(max_examples=examples(150), deadline=None)
def test_chain_engine_gets_its_length(name, setting):
    assert CHAIN_READERS[name](files(name, setting)["FILE"]) == setting.tree.depth


def fits(name: str, tree: DynamicTree) -> bool:
    """Return whether an engine can draft a tree, by hand from its rules."""
    k, levels, drafts = tree.top_k, tree.depth, tree.nodes - 1
    if name == "sglang":
        return k > 1 or drafts == levels  # else it changes the number by itself
    if name == "tensorrt-llm":
        return levels <= drafts <= k * levels
    if name == "openvino":
        return levels <= drafts
    return True  # EAGLE: any part of its own pool, and passes after the first may be none


@pytest.mark.parametrize("name", TREE_READERS)
@given(tree=dynamic_trees())
@settings(max_examples=examples(300), deadline=None)
def test_tree_engine_gets_its_three_numbers_or_refuses(name, tree):
    if fits(name, tree):
        expected = rules.Triple(tree.top_k, tree.depth, tree.nodes - 1)
        assert TREE_READERS[name](files(name, make_tree(tree))["FILE"]) == expected
    else:
        with pytest.raises(InfeasibleError):
            render(name, make_tree(tree))


@given(setting=chains())
@settings(max_examples=examples(200), deadline=None)
def test_vllm_reads_the_schedule(setting):
    text = files("vllm", setting)["FILE"]
    actual, meant = rules.vllm_lengths(text), lengths(setting)
    if len(set(meant.values())) > 1:
        assert {batch: actual[batch] for batch in meant} == meant
    else:
        assert "num_speculative_tokens_per_batch_size" not in json.loads(text)


@given(setting=chains())
@settings(max_examples=examples(100), deadline=None)
def test_vllm_can_replay_the_prediction(setting):
    output = files("vllm", setting)
    assert ("FILE.synthetic.json" in output) == bool(setting.survival)
    if setting.survival:
        rules.vllm(output["FILE.synthetic.json"])
        rates = json.loads(output["FILE.synthetic.json"])["synthetic_acceptance_rates"]
        assert rates == pytest.approx(setting.survival, abs=1e-5)


@given(setting=chains())
@settings(max_examples=examples(200), deadline=None)
def test_sglang_reads_the_schedule(setting):
    output, meant = files("sglang", setting), lengths(setting)
    assert ("FILE.adaptive.json" in output) == (len(set(meant.values())) > 1)
    if "FILE.adaptive.json" in output:
        steps = rules.sglang(output["FILE"]).levels
        assert rules.sglang_lengths(output["FILE.adaptive.json"], steps, max(meant)) == meant


@given(setting=chains())
@settings(max_examples=examples(50), deadline=None)
def test_sglang_reads_the_measured_times(setting):
    costs = rules.sglang_costs(files("sglang", setting)["FILE.sps.json"])
    assert costs == pytest.approx(setting.verify_s, rel=1e-5)


@given(setting=chains())
@settings(max_examples=examples(200), deadline=None)
def test_tensorrt_llm_reads_the_schedule(setting):
    output = render("tensorrt-llm", setting)
    text, meant = output.files["FILE"], lengths(setting)
    if "draft_len_schedule" in text:
        assert rules.tensorrt_llm_lengths(text, max(meant)) == meant
    elif len(set(meant.values())) > 1:
        assert meant[1] != setting.tree.depth, "a schedule that begins with the longest draft can be expressed"
        assert any("schedule" in str(warning) for warning in output.warnings)


@given(setting=chains())
@settings(max_examples=examples(100), deadline=None)
def test_llama_cpp_can_replay_the_prediction(setting):
    output = files("llama-cpp", setting)
    assert ("FILE.synth.txt" in output) == bool(setting.survival)
    if setting.survival:
        rates = rules.llama_cpp_rates(output["FILE.synth.txt"], setting.tree.depth)
        assert rates == pytest.approx(setting.survival, abs=1e-4)


@given(setting=chains())
@settings(max_examples=examples(100), deadline=None)
def test_exllamav3_has_rows_for_the_batches_that_draft(setting):
    config = json.loads(files("exllamav3", setting)["FILE"])
    drafting = [part for part in setting.schedule if part.length > 0]
    if drafting:
        batch, length = drafting[-1].last_batch, drafting[-1].length
        assert min(config["num_draft_tokens"], config["draft_max_rows"] // batch - 1) >= length


@given(tree=dynamic_trees())
@settings(max_examples=examples(100), deadline=None)
def test_eagle_takes_the_same_numbers_from_python(tree):
    output = files("eagle", make_tree(tree))
    assert rules.eagle_numbers(**json.loads(output["FILE.kwargs.json"])) == rules.eagle(output["FILE"])


WRONG = {
    "vllm": (rules.vllm, '{"method": "draft_model", "model": "m", "num_speculative_tokens": 0}'),
    "vllm schedule": (
        rules.vllm,
        (
            '{"method": "eagle", "model": "m", "num_speculative_tokens": 3,'
            ' "num_speculative_tokens_per_batch_size": [[1, 4, 3], [4, 8, 1]]}'
        ),
    ),
    "sglang pool": (
        rules.sglang,
        (
            "--speculative-algorithm EAGLE --speculative-num-steps 1 --speculative-eagle-topk 2"
            " --speculative-num-draft-tokens 4"
        ),
    ),
    "tensorrt": (
        rules.tensorrt_llm,
        (
            "speculative_config: {decoding_type: Eagle3, use_dynamic_tree: true, dynamic_tree_max_topK: 2,"
            " max_draft_len: 3, max_total_draft_tokens: 7}"
        ),
    ),
    "openvino": (rules.openvino, '{"num_assistant_tokens": 2, "branching_factor": 2, "tree_depth": 3}'),
    "eagle": (rules.eagle, "--total-token 60 --depth 1 --top-k 4"),
}


@pytest.mark.parametrize("case", WRONG)
def test_rules_refuse_wrong_settings(case):
    """Negative control: settings that an engine refuses do not pass."""
    read, text = WRONG[case]
    with pytest.raises(AssertionError):
        read(text)
