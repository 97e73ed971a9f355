"""Every exporter, over generated settings and edge values, against what the engines demand."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.exporters import published_rules as rules
from tests.engines.exporters.named import render
from tests.support.drawn import examples
from treeopt.engines import ENGINES
from treeopt.engines.exporters.engine import BatchLength, SettingRequest
from treeopt.errors import InfeasibleError
from treeopt.trees.drafter_parameters import DynamicTree, pool_nodes

MODEL = "models/a draft"
CHAIN_READERS = {
    "vllm": rules.vllm,
    "hf": rules.hf,
    "llama-cpp": rules.llama_cpp,
    "lmdeploy": rules.lmdeploy,
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
def chains(draw, *, scheduled: bool = True) -> SettingRequest:
    """Return a chain with its survival, and where asked a schedule over batch sizes, from 1 on and without gaps."""
    length = draw(st.integers(1, 20))
    ranges = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(0, length)), min_size=1, max_size=5))
    first, schedule = 1, []
    for width, drafts in [*ranges, (draw(st.integers(1, 9)), length)] if scheduled else []:
        schedule.append(BatchLength(first_batch=first, last_batch=first + width - 1, length=drafts))
        first += width
    if draw(st.booleans()):
        lengths = [each.length for each in schedule][::-1]  # the other way round: the longest first
        schedule = [
            BatchLength(first_batch=each.first_batch, last_batch=each.last_batch, length=drafts)
            for each, drafts in zip(schedule, lengths, strict=True)
        ]
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


def asked_tree(tree: DynamicTree) -> SettingRequest:
    return SettingRequest(tree=tree, draft_model=MODEL)


def files(name: str, asked: SettingRequest) -> dict[str, str]:
    return dict(render(name, asked).files)


def lengths(asked: SettingRequest) -> dict[int, int]:
    return {batch: each.length for each in asked.schedule for batch in range(each.first_batch, each.last_batch + 1)}


def test_every_engine_is_checked():
    assert {engine.name for engine in ENGINES} == {*CHAIN_READERS, *TREE_READERS}
    assert {engine.name for engine in ENGINES if engine.dynamic} == set(TREE_READERS)


@pytest.mark.parametrize("name", CHAIN_READERS)
@given(asked=chains())
@settings(max_examples=examples(150), deadline=None)
def test_a_chain_engine_is_given_its_length(name, asked):
    assert CHAIN_READERS[name](files(name, asked)["FILE"]) == asked.tree.depth


@pytest.mark.parametrize("name", CHAIN_READERS)
@given(tree=dynamic_trees().filter(lambda tree: not tree.is_chain))
@settings(max_examples=examples(30), deadline=None)
def test_a_chain_engine_refuses_trees(name, tree):
    with pytest.raises(InfeasibleError):
        render(name, asked_tree(tree))


def fits(name: str, tree: DynamicTree) -> bool:
    """Return whether an engine can be told to draft a tree, by hand from its rules."""
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
def test_a_tree_engine_is_given_its_three_numbers_or_refuses(name, tree):
    if fits(name, tree):
        expected = rules.Triple(tree.top_k, tree.depth, tree.nodes - 1)
        assert TREE_READERS[name](files(name, asked_tree(tree))["FILE"]) == expected
    else:
        with pytest.raises(InfeasibleError):
            render(name, asked_tree(tree))


@given(asked=chains())
@settings(max_examples=examples(200), deadline=None)
def test_vllm_reads_the_schedule_as_it_was_meant(asked):
    text = files("vllm", asked)["FILE"]
    found, meant = rules.vllm_lengths(text), lengths(asked)
    if len(set(meant.values())) > 1:
        assert {batch: found[batch] for batch in meant} == meant
    else:
        assert "num_speculative_tokens_per_batch_size" not in json.loads(text)


@given(asked=chains())
@settings(max_examples=examples(100), deadline=None)
def test_vllm_can_replay_the_prediction(asked):
    made = files("vllm", asked)
    assert ("FILE.synthetic.json" in made) == bool(asked.survival)
    if asked.survival:
        rules.vllm(made["FILE.synthetic.json"])
        rates = json.loads(made["FILE.synthetic.json"])["synthetic_acceptance_rates"]
        assert rates == pytest.approx(asked.survival, abs=1e-5)


@given(asked=chains())
@settings(max_examples=examples(200), deadline=None)
def test_sglang_reads_the_schedule_as_it_was_meant(asked):
    made, meant = files("sglang", asked), lengths(asked)
    assert ("FILE.adaptive.json" in made) == (len(set(meant.values())) > 1)
    if "FILE.adaptive.json" in made:
        steps = rules.sglang(made["FILE"]).levels
        assert rules.sglang_lengths(made["FILE.adaptive.json"], steps, max(meant)) == meant


@given(asked=chains())
@settings(max_examples=examples(50), deadline=None)
def test_sglang_reads_the_measured_times(asked):
    costs = rules.sglang_costs(files("sglang", asked)["FILE.sps.json"])
    assert costs == pytest.approx(asked.verify_s, rel=1e-5)


@given(asked=chains())
@settings(max_examples=examples(200), deadline=None)
def test_tensorrt_llm_reads_the_schedule_as_it_was_meant(asked):
    made = render("tensorrt-llm", asked)
    text, meant = made.files["FILE"], lengths(asked)
    if "draft_len_schedule" in text:
        assert rules.tensorrt_llm_lengths(text, max(meant)) == meant
    elif len(set(meant.values())) > 1:
        assert meant[1] != asked.tree.depth, "a schedule that begins with the longest draft can be expressed"
        assert any("schedule" in str(warning) for warning in made.warnings)


@given(asked=chains())
@settings(max_examples=examples(100), deadline=None)
def test_llama_cpp_can_replay_the_prediction(asked):
    made = files("llama-cpp", asked)
    assert ("FILE.synth.txt" in made) == bool(asked.survival)
    if asked.survival:
        rates = rules.llama_cpp_rates(made["FILE.synth.txt"], asked.tree.depth)
        assert rates == pytest.approx(asked.survival, abs=1e-4)


@given(asked=chains())
@settings(max_examples=examples(100), deadline=None)
def test_exllamav3_keeps_room_for_the_batches_that_draft(asked):
    config = json.loads(files("exllamav3", asked)["FILE"])
    drafting = [each for each in asked.schedule if each.length > 0]
    if drafting:
        batch, length = drafting[-1].last_batch, drafting[-1].length
        assert min(config["num_draft_tokens"], config["draft_max_rows"] // batch - 1) >= length


@given(tree=dynamic_trees())
@settings(max_examples=examples(100), deadline=None)
def test_eagle_takes_the_same_numbers_from_python(tree):
    made = files("eagle", asked_tree(tree))
    assert rules.eagle_numbers(**json.loads(made["FILE.kwargs.json"])) == rules.eagle(made["FILE"])


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm", "llama-cpp", "mlx-lm"])
def test_the_draft_model_is_named_whatever_its_name(name):
    assert "models/a draft" in " ".join(
        rules.shlex.split(files(name, asked_tree(DynamicTree.chain(3)))["FILE"])
    ) or name in {
        "vllm",
        "tensorrt-llm",
    }


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
def test_the_rules_find_what_is_wrong(case):
    """Negative control: settings that an engine refuses do not pass."""
    read, text = WRONG[case]
    with pytest.raises(AssertionError):
        read(text)
