"""Exports of tree files that name a drafter."""

import json
from dataclasses import replace

import pytest

from tests.engines.exporters.named import engine_named
from treeopt.engines import ENGINES
from treeopt.engines.exporters.choose import choose_setting
from treeopt.engines.exporters.setting import Source
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.trees import Provenance, TreeFile, chain, k_ary
from treeopt.trees.drafter_setting import DRAFTERS, drafter_setting

LOOKUP = drafter_setting("prompt-lookup", ngram=3, length=6)
HEAD = drafter_setting("eagle", source="heads/e3")
BLOCK = drafter_setting("dflash", source="heads/block")
MARKOV = drafter_setting("dspark", source="heads/markov")
PARALLEL = drafter_setting("p-eagle", source="heads/parallel")
DYNAMIC = {"top_k": 4, "depth": 4, "nodes": 16}
OF_THE_DRAFT, OF_A_HEAD = drafter_setting("eagle2", **DYNAMIC), drafter_setting("eagle2", source="heads/e3", **DYNAMIC)


def vllm(method, model, **fields):
    return {"method": method, "model": model, "num_speculative_tokens": 4} | fields


def sglang(method, **flags):
    flags = {"algorithm": method, **flags}
    return " ".join(f"--speculative-{name.replace('_', '-')} {value}" for name, value in flags.items()) + "\n"


def sglang_tree(method, model, top_k, nodes):
    return sglang(method, draft_model_path=model, num_steps=4, eagle_topk=top_k, num_draft_tokens=nodes)


def tensorrt(method, **fields):
    lines = {"decoding_type": method, **fields}
    return "speculative_config:\n" + "".join(f"  {name}: {value}\n" for name, value in lines.items())


def llama(method, model):
    limits = "--spec-draft-n-max 4 --spec-draft-n-min 0 --spec-draft-p-min 0.00"
    return f"--spec-type {method} {limits} -md {model}\n"


def lmdeploy(method, model):
    return f"--speculative-num-draft-tokens 4 --speculative-algorithm {method} --speculative-draft-model {model}\n"


EXPECTED = {
    ("vllm", LOOKUP): {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
    ("vllm", HEAD): vllm("eagle3", "heads/e3"),
    ("vllm", OF_A_HEAD): vllm("eagle3", "heads/e3"),
    ("vllm", BLOCK): vllm("dflash", "heads/block"),
    ("vllm", MARKOV): vllm("dspark", "heads/markov"),
    ("vllm", PARALLEL): vllm("eagle3", "heads/parallel", parallel_drafting=True),
    ("sglang", LOOKUP): sglang("NGRAM", num_draft_tokens=7, ngram_max_bfs_breadth=1),
    ("sglang", HEAD): sglang_tree("EAGLE3", "heads/e3", 1, 5),
    ("sglang", OF_A_HEAD): sglang_tree("EAGLE3", "heads/e3", 4, 16),
    ("sglang", OF_THE_DRAFT): sglang_tree("STANDALONE", "DRAFT", 4, 16),
    ("sglang", BLOCK): sglang("DFLASH", draft_model_path="heads/block", dflash_block_size=5),
    ("sglang", MARKOV): sglang("DSPARK", draft_model_path="heads/markov", dspark_block_size=4),
    ("tensorrt-llm", LOOKUP): tensorrt("NGram", max_draft_len=6, max_matching_ngram_size=3),
    ("tensorrt-llm", HEAD): tensorrt("Eagle3", speculative_model="heads/e3", max_draft_len=4),
    ("tensorrt-llm", OF_A_HEAD): tensorrt(
        "Eagle3",
        speculative_model="heads/e3",
        max_draft_len=4,
        use_dynamic_tree="true",
        dynamic_tree_max_topK=4,
        max_total_draft_tokens=15,
    ),
    ("tensorrt-llm", BLOCK): tensorrt("DFlash", speculative_model="heads/block", max_draft_len=4),
    ("tensorrt-llm", MARKOV): tensorrt("DSpark", speculative_model="heads/markov", max_draft_len=4),
    ("hf", LOOKUP): {"prompt_lookup_num_tokens": 6, "max_matching_ngram_size": 3},
    ("openvino", LOOKUP): {"num_assistant_tokens": 6, "max_ngram_size": 3},
    ("openvino", HEAD): {"num_assistant_tokens": 4, "assistant_confidence_threshold": 0.0},
    ("openvino", OF_A_HEAD): {"num_assistant_tokens": 15, "branching_factor": 4, "tree_depth": 4},
    ("llama-cpp", HEAD): llama("draft-eagle3", "heads/e3"),
    ("llama-cpp", OF_A_HEAD): llama("draft-eagle3", "heads/e3"),
    ("llama-cpp", BLOCK): llama("draft-dflash", "heads/block"),
    ("llama-cpp", MARKOV): llama("draft-dspark", "heads/markov"),
    ("lmdeploy", HEAD): lmdeploy("eagle3", "heads/e3"),
    ("lmdeploy", OF_A_HEAD): lmdeploy("eagle3", "heads/e3"),
    ("lmdeploy", BLOCK): lmdeploy("dflash", "heads/block"),
    ("eagle", HEAD): "--total-token 5 --depth 3 --top-k 1\n",
    ("eagle", OF_A_HEAD): "--total-token 16 --depth 3 --top-k 4\n",
}
"""By the engines' own documents; all other pairs are refused."""
OTHERS = (
    drafter_setting("medusa"),
    drafter_setting("ddtree", budget=8),
    drafter_setting("redrafter", width=2, length=3),
    drafter_setting("specexec", budget=8, branching=4, batch=4, max_passes=4),
    drafter_setting("lookahead", window=2, ngram=3, candidates=2),
)


def choose(name, drafter, *, tree=None, provenance=None, **source):
    file = TreeFile(tree=tree or chain(4), drafter=drafter, provenance=provenance)
    return choose_setting(engine_named(name), Source(tree_file=file, **source))


def test_drafters_are_written_for_engines_that_have_them():
    drafters = (LOOKUP, HEAD, BLOCK, MARKOV, PARALLEL, OF_THE_DRAFT, OF_A_HEAD, *OTHERS)
    assert {drafter.name for drafter in drafters} == {*DRAFTERS} - {"model"}
    for engine in ENGINES:
        for drafter in drafters:
            expected = EXPECTED.get((engine.name, drafter))
            if expected is None:
                with pytest.raises(InfeasibleError, match=rf"Got {drafter.name}: run it with treeopt run"):
                    choose(engine.name, drafter)
                continue
            setting = choose(engine.name, drafter)
            text = setting.output.files["FILE"]
            assert (json.loads(text) if isinstance(expected, dict) else text) == expected, (engine.name, drafter)
            assert setting.predictions == {}


@pytest.mark.parametrize(("engine", "instead"), [("vllm", "treeopt solve --drafter dflash"), ("hf", "another engine")])
def test_ddtree_is_pointed_to_the_chain_of_its_head(engine, instead):
    with pytest.raises(InfeasibleError, match=rf"Got ddtree: .*{instead}"):
        choose(engine, drafter_setting("ddtree", budget=8))


def test_method_of_another_kind_of_drafter_is_refused():
    for name, method in (("vllm", "eagle3"), ("sglang", "STANDALONE"), ("hf", "assistant"), ("openvino", "eagle3")):
        with pytest.raises(InvalidValueError, match=r"method: expected .* for prompt-lookup\. Got .*: leave it out"):
            choose(name, LOOKUP, method=method)
    with pytest.raises(InvalidValueError, match=r"expected eagle3 for eagle\. Got 'ngram'"):
        choose("vllm", HEAD, method="ngram")
    assert '"method": "eagle"' in choose("vllm", HEAD, method="eagle").output.files["FILE"]


def test_replaced_tree_is_warned_of():
    for setting, problem in (
        (
            choose("vllm", HEAD, tree=k_ary(2, 3)),
            "vLLM loads no static tree: it gets a chain as long as the tree of 15 nodes is deep",
        ),
        (choose("vllm", OF_A_HEAD), "vLLM drafts chains only: it gets the depth of the dynamic tree of 16 nodes"),
        (choose("sglang", LOOKUP), "SGLang chooses the number of tokens that it looks up"),
    ):
        (warning,) = setting.warnings
        assert problem in warning.problem
        assert warning.action == "Bench it before you serve."
    assert '"num_speculative_tokens": 3' in choose("vllm", HEAD, tree=k_ary(2, 3)).output.files["FILE"]


def test_other_layers_than_the_configuration_are_warned_of():
    for name, head in (("vllm", HEAD), ("sglang", OF_A_HEAD)):
        assert "hidden-state layers" not in " ".join(map(str, choose(name, head).warnings))
        warnings = map(str, choose(name, replace(head, layers=(2, 6, 9))).warnings)
        (warning,) = [warning for warning in warnings if "hidden-state layers 2,6,9" in warning]
        assert warning.endswith(". Name them in that file before you serve.")


def test_root_alone_turns_speculation_off():
    setting = choose("vllm", HEAD, tree=chain(0))
    assert (setting.request, setting.output) == (None, engine_named("vllm").off)
    assert "vLLM is set to decode plainly" in str(setting.warnings[0])


def test_prediction_of_the_tree_file_is_noted():
    setting = choose("vllm", HEAD, provenance=Provenance(speedup=1.25, target="models/big"))
    assert setting.notes == ("Predicted in treeopt's decoder: 1.25x plain decoding.",)
    assert setting.target_model == "models/big"
    assert choose("vllm", HEAD, provenance=Provenance()).notes == ()


def test_block_heads_of_tensorrt_llm_draft_chains_and_need_1_3():
    with pytest.raises(InfeasibleError, match=r"expected Draft_Target before 1\.3\. Got DFlash"):
        choose("tensorrt-llm", BLOCK, engine_version="1.2.1")
    (warning,) = choose("tensorrt-llm", BLOCK, tree=k_ary(2, 3)).warnings
    assert "loads no static tree" in warning.problem


@pytest.mark.parametrize(
    ("name", "block", "warned"),
    [("vllm", 7, True), ("sglang", 7, True), ("vllm", 4, False), ("vllm", None, False), ("llama-cpp", 7, False)],
)
def test_chains_shorter_than_the_measured_block_are_warned_of_where_the_length_sets_the_block(name, block, warned):
    setting = choose(name, replace(BLOCK, block_draft_tokens=block))
    warnings = [text for text in map(str, setting.warnings) if "blocks of" in text]
    expected = (
        f"{engine_named(name).title} drafts blocks of as many tokens as it is set to, 4, but acceptance was measured with "
        "blocks of 7. Profile again with --block-draft-tokens 4,7, then solve and export."
    )
    assert warnings == ([expected] if warned else [])
