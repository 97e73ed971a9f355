import json
import re
import shlex

import pytest
import yaml

from tests.engines.settings.named import engine_named
from treeopt.engines import ENGINES
from treeopt.engines.engine import BatchLength, SettingRequest, VerifyTime
from treeopt.engines.settings import (
    eagle,
    exllamav3,
    hf,
    llama_cpp,
    lmdeploy,
    mlx_lm,
    openvino,
    sglang,
    tensorrt_llm,
    vllm,
)
from treeopt.engines.settings.common import rounded_rates, varying_schedule, version_numbers
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.trees.dynamic_tree import DynamicTree

CHAIN = DynamicTree.chain(3)
TREE = DynamicTree(top_k=4, depth=5, nodes=16)
SURVIVAL = (0.8, 0.5, 1 / 3)


def schedule(*parts: tuple[int, int, int]) -> tuple[BatchLength, ...]:
    return tuple(BatchLength(first_batch=first, last_batch=last, length=length) for first, last, length in parts)


FALLING = schedule((1, 8, 3), (9, 16, 1), (17, 32, 1), (33, 64, 0))


def asked(tree: DynamicTree = CHAIN, **more) -> SettingRequest:
    return SettingRequest(**({"tree": tree, "draft_model": "drafts/small"} | more))


def texts(name: str, setting: SettingRequest) -> dict[str, str]:
    return {file.name: file.text for file in engine_named(name).emit(setting).files}


def warnings(name: str, setting: SettingRequest) -> str:
    return "\n".join(map(str, engine_named(name).emit(setting).warnings))


VLLM = """{
  "method": "draft_model",
  "model": "drafts/small",
  "num_speculative_tokens": 3
}
"""
VLLM_SCHEDULE = """{
  "method": "eagle3",
  "model": "drafts/small",
  "num_speculative_tokens": 3,
  "num_speculative_tokens_per_batch_size": [
    [1, 8, 3],
    [9, 32, 1],
    [33, 64, 0]
  ]
}
"""
VLLM_SYNTHETIC = """{
  "method": "draft_model",
  "model": "drafts/small",
  "num_speculative_tokens": 3,
  "rejection_sample_method": "synthetic",
  "synthetic_acceptance_rates": [0.8, 0.5, 0.333333]
}
"""
SGLANG_CHAIN = (
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path drafts/small --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4\n"
)
SGLANG_TREE = (
    "--speculative-algorithm STANDALONE --speculative-draft-model-path drafts/small --speculative-num-steps 5 "
    "--speculative-eagle-topk 4 --speculative-num-draft-tokens 16\n"
)
SGLANG_ADAPTIVE = """{
  "1": {
    "candidate_steps": [3]
  },
  "9": {
    "candidate_steps": [1]
  },
  "33": {
    "candidate_steps": [0]
  }
}
"""
SGLANG_COSTS = """{
  "sample_batch_tokens": [1, 8],
  "sample_steps_per_sec": [100.0, 66.6667],
  "max_batch_tokens": 8
}
"""
TENSORRT_TREE = """speculative_config:
  decoding_type: Eagle3
  speculative_model: drafts/small
  max_draft_len: 5
  use_dynamic_tree: true
  dynamic_tree_max_topK: 4
  max_total_draft_tokens: 15
"""
TENSORRT_CHAIN = """speculative_config:
  decoding_type: Draft_Target
  speculative_model: drafts/small
  max_draft_len: 3
  draft_len_schedule:
    8: 3
    32: 1
    64: 0
"""
HF = """{
  "num_assistant_tokens": 3,
  "num_assistant_tokens_schedule": "constant",
  "assistant_confidence_threshold": 0.0
}
"""
LLAMA = "--spec-type draft-simple --spec-draft-n-max 3 --spec-draft-n-min 0 --spec-draft-p-min 0.00 -md drafts/small\n"
LLAMA_SYNTH = "--spec-synth-rates 0.800000,0.500000,0.333333\n"
LMDEPLOY = "--speculative-num-draft-tokens 3 --speculative-algorithm eagle3 --speculative-draft-model drafts/small\n"
MLX = "--draft-model drafts/small --num-draft-tokens 3\n"
EXLLAMA = """{
  "num_draft_tokens": 3,
  "dynamic_draft_tokens": false
}
"""
EXLLAMA_SCHEDULE = """{
  "num_draft_tokens": 3,
  "dynamic_draft_tokens": false,
  "draft_max_rows": 64
}
"""
OPENVINO_CHAIN = """{
  "num_assistant_tokens": 3,
  "assistant_confidence_threshold": 0.0
}
"""
OPENVINO_TREE = """{
  "num_assistant_tokens": 15,
  "branching_factor": 4,
  "tree_depth": 5
}
"""
EAGLE = "--total-token 16 --depth 4 --top-k 4\n"
EAGLE_KEYWORDS = """{
  "total_token": 16,
  "depth": 4,
  "top_k": 4
}
"""


@pytest.mark.parametrize(
    ("name", "setting", "files"),
    [
        ("vllm", asked(), {"": VLLM}),
        ("vllm", asked(survival=SURVIVAL), {"": VLLM, "FILE.synthetic.json": VLLM_SYNTHETIC}),
        ("vllm", asked(schedule=FALLING, method="eagle3"), {"": VLLM_SCHEDULE}),
        ("vllm", asked(schedule=schedule((1, 4, 3), (5, 9, 3))), {"": VLLM}),
        ("sglang", asked(TREE), {"": SGLANG_TREE}),
        (
            "sglang",
            asked(
                schedule=FALLING,
                method="EAGLE3",
                verify_times=(VerifyTime(tokens=1, seconds=0.01), VerifyTime(tokens=8, seconds=0.015)),
            ),
            {"": SGLANG_CHAIN, "FILE.adaptive.json": SGLANG_ADAPTIVE, "FILE.sps.json": SGLANG_COSTS},
        ),
        ("tensorrt-llm", asked(TREE), {"": TENSORRT_TREE}),
        ("tensorrt-llm", asked(schedule=FALLING), {"": TENSORRT_CHAIN}),
        ("hf", asked(), {"": HF}),
        ("llama-cpp", asked(), {"": LLAMA}),
        ("llama-cpp", asked(survival=SURVIVAL), {"": LLAMA, "FILE.synth.txt": LLAMA_SYNTH}),
        ("lmdeploy", asked(), {"": "--speculative-num-draft-tokens 3\n"}),
        ("lmdeploy", asked(method="eagle3"), {"": LMDEPLOY}),
        ("mlx-lm", asked(), {"": MLX}),
        ("exllamav3", asked(), {"": EXLLAMA}),
        ("exllamav3", asked(schedule=FALLING), {"": EXLLAMA_SCHEDULE}),
        ("openvino", asked(), {"": OPENVINO_CHAIN}),
        ("openvino", asked(TREE), {"": OPENVINO_TREE}),
        ("eagle", asked(TREE), {"": EAGLE, "FILE.kwargs.json": EAGLE_KEYWORDS}),
    ],
)
def test_files_are_as_written_down_here(name, setting, files):
    assert texts(name, setting) == files


OFF = {
    "vllm": "null\n",  # read as None, where {} would be a configuration without a method
    "sglang": "\n",
    "tensorrt-llm": "{}\n",
    "hf": "{}\n",
    "llama-cpp": "\n",
    "lmdeploy": "\n",
    "mlx-lm": "\n",
    "exllamav3": "{}\n",
    "openvino": "{}\n",
    "eagle": "\n",
}
WITHOUT_DRAFT = {
    "hf": "without assistant_model",
    "exllamav3": "without draft_model",
    "openvino": "without draft_model",
    "eagle": "naivegenerate",
}
"""Engines whose draft is given in Python, and how they are told to leave it out."""


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_speculation_is_switched_off_by_a_file_and_a_line_without_a_draft(engine):
    off = engine.off
    assert [(file.name, file.text) for file in off.files] == [("", OFF[engine.name])]
    assert WITHOUT_DRAFT.get(engine.name, "TARGET") in off.usage
    on = engine.emit(asked()).files[0].text
    for text, drafts in ((on, True), (OFF[engine.name], False)):
        assert bool(re.search("spec|draft|assist|token", text)) == drafts


def test_engines_are_listed_in_order():
    names = "vllm sglang tensorrt-llm hf llama-cpp lmdeploy mlx-lm exllamav3 openvino eagle"
    assert " ".join(engine.name for engine in ENGINES) == names


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
class TestEveryEngine:
    def test_takes_a_chain_and_says_how_to_start(self, engine):
        emitted = engine.emit(asked())
        assert emitted.files[0].name == ""
        assert all(file.text.endswith("\n") and "\n\n" not in file.text for file in emitted.files)
        assert "FILE" in emitted.usage
        assert "\n" not in emitted.usage

    def test_takes_its_own_default(self, engine):
        if engine.default is not None:
            assert engine.emit(asked(engine.default)).files

    def test_takes_a_tree_only_where_it_drafts_trees(self, engine):
        if engine.dynamic:
            assert engine.emit(asked(TREE)).files
            return
        with pytest.raises(
            InfeasibleError, match=r"expected a chain, .*Got top-k 4, depth 5, 16 nodes: ask for a chain"
        ):
            engine.emit(asked(TREE))

    def test_refuses_an_unknown_method_and_says_which_there_are(self, engine):
        with pytest.raises(InvalidValueError, match=r"method: expected (one of|none)"):
            engine.emit(asked(method="medusa"))

    def test_says_that_another_version_was_not_checked(self, engine):
        assert engine.emit(asked()).warnings == engine.emit(asked(engine_version=None)).warnings
        assert "not checked" in warnings(engine.name, asked(engine_version="0.0.1"))

    def test_ends_each_warning_in_an_action(self, engine):
        rising = asked(schedule=schedule((1, 8, 1), (9, 16, 3)), engine_version="0.0.1")
        for setting in [rising, asked(schedule=FALLING), *([asked(TREE)] if engine.dynamic else [])]:
            for warning in engine.emit(setting).warnings:
                assert re.match("[A-Z][a-z]+ ", warning.action), warning

    def test_says_the_same_twice(self, engine):
        assert engine.emit(asked(schedule=FALLING)) == engine.emit(asked(schedule=FALLING))


@pytest.mark.parametrize("name", ["mlx-lm", "exllamav3", "eagle"])
def test_no_method_is_taken_where_there_is_no_choice(name):
    with pytest.raises(InvalidValueError, match=r"expected none, .*leave it out"):
        engine_named(name).emit(asked(method="eagle3"))


@pytest.mark.parametrize("name", ["hf", "llama-cpp", "lmdeploy", "mlx-lm", "exllamav3", "openvino", "eagle"])
def test_a_schedule_that_cannot_be_given_is_told(name):
    told = "one length for all batch sizes, so the schedule .3 at batch sizes 1 to 8, 1 at batch sizes 9 to 32, 0 at"
    assert re.search(told, warnings(name, asked(schedule=FALLING)))
    assert "schedule" not in warnings(name, asked(schedule=schedule((1, 8, 3))))


def test_quoted_flags_reach_the_engine_whole():
    emitted = mlx_lm.emit(asked(draft_model="my drafts/it's small"))
    assert shlex.split(emitted.files[0].text)[1] == "my drafts/it's small"
    assert emitted.usage == 'eval "mlx_lm.server --model TARGET $(cat FILE)"'
    assert mlx_lm.emit(asked()).usage == "mlx_lm.server --model TARGET $(cat FILE)"


class TestVersions:
    @pytest.mark.parametrize(
        ("text", "numbers"),
        [
            ("0.33.0", (0, 33, 0)),
            ("0.33", (0, 33, 0)),
            ("v5", (5, 0, 0)),
            ("1.4.0rc1", (1, 4, 0)),
            ("1.4.0-rc.1", (1, 4, 0)),
            ("0.33.1.dev3+g0a1", (0, 33, 1)),
            ("2026.4.1.0-2636", (2026, 4, 1, 0)),
        ],
    )
    def test_are_read_as_numbers(self, text, numbers):
        assert version_numbers(text) == numbers

    @pytest.mark.parametrize("text", ["", "new", "1.", "1..2", "1.2 3", "-1"])
    def test_without_numbers_are_refused(self, text):
        with pytest.raises(InvalidValueError, match="engine_version: expected numbers with dots"):
            version_numbers(text)

    def test_of_vllm_before_the_schedule_get_neither_it_nor_the_replay(self):
        old = asked(schedule=FALLING, survival=SURVIVAL, engine_version="0.32.1")
        assert texts("vllm", old) == {"": VLLM}
        assert "vLLM before 0.33.0 is not known to change lengths, so the schedule" in warnings("vllm", old)

    def test_of_vllm_decide_over_medusa(self):
        assert '"medusa"' in texts("vllm", asked(method="medusa", engine_version="0.23.0"))[""]
        with pytest.raises(InvalidValueError, match=r"one of vLLM's: draft_model, eagle, .*Got 'medusa'"):
            vllm.emit(asked(method="medusa", engine_version="0.33.0"))

    def test_of_tensorrt_llm_before_1_3_get_the_old_field_and_no_schedule(self):
        old = asked(schedule=FALLING, engine_version="1.2.0")
        config = yaml.safe_load(texts("tensorrt-llm", old)[""])["speculative_config"]
        assert config == {
            "decoding_type": "Draft_Target",
            "speculative_model_dir": "drafts/small",
            "max_draft_len": 3,
        }
        assert "before 1.3 reads draft_len_schedule otherwise" in warnings("tensorrt-llm", old)
        with pytest.raises(InfeasibleError, match=r"decoding_type: expected Draft_Target before 1.3. Got Eagle3"):
            tensorrt_llm.emit(asked(TREE, engine_version="1.2.0"))

    def test_of_tensorrt_llm_1_3_get_a_word_on_the_schedule(self):
        assert "some release candidates of 1.3" in warnings(
            "tensorrt-llm", asked(schedule=FALLING, engine_version="1.3.0rc27")
        )
        assert warnings("tensorrt-llm", asked(schedule=FALLING, engine_version="1.4.0rc1")) == ""


class TestVllm:
    def test_drafts_from_the_text_without_a_model(self):
        assert json.loads(texts("vllm", asked(method="ngram"))[""]) == {"method": "ngram", "num_speculative_tokens": 3}

    def test_replays_beside_the_schedule(self):
        replay = json.loads(texts("vllm", asked(schedule=FALLING, survival=SURVIVAL))["FILE.synthetic.json"])
        assert list(replay)[3:] == [vllm.SCHEDULE, "rejection_sample_method", "synthetic_acceptance_rates"]

    @pytest.mark.parametrize("survival", [(0.5, 0.6, 0.1), (0.5, 0.4), (1.1, 0.5, 0.1), (0.5, 0.1, float("nan"))])
    def test_refuses_rates_that_are_none(self, survival):
        with pytest.raises(InfeasibleError, match="vLLM: synthetic_acceptance_rates: expected"):
            vllm.emit(asked(survival=survival))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"num_speculative_tokens": 0},
                "num_speculative_tokens: expected a whole number of at least 1. Got 0: ask",
            ),
            ({"num_speculative_tokens": True}, "num_speculative_tokens: expected a whole"),
            ({"method": "medusa"}, "method: expected one of draft_model"),
            ({vllm.SCHEDULE: {"1": 3}}, "a list of ranges"),
            ({vllm.SCHEDULE: []}, "a list of ranges"),
            ({vllm.SCHEDULE: [[1, 8]]}, "three whole numbers"),
            ({vllm.SCHEDULE: [[1, 8, True]]}, "three whole numbers"),
            ({vllm.SCHEDULE: [[2, 8, 3]]}, r"a first range that starts at 1. Got \[2, 8, 3\]"),
            ({vllm.SCHEDULE: [[1, 8, 3], [8, 9, 1]]}, "do not overlap"),
            ({vllm.SCHEDULE: [[1, 0, 3]]}, "rising ranges"),
            ({vllm.SCHEDULE: [[1, 8, 4]]}, "from 0 to num_speculative_tokens, 3. Got 4"),
            ({vllm.SCHEDULE: [[1, 8, -1]]}, "from 0 to num_speculative_tokens"),
            ({"synthetic_acceptance_rates": [0.5, 0.4, 0.3]}, "rejection_sample_method: expected synthetic"),
        ],
    )
    def test_check_finds_what_is_wrong(self, change, message):
        config = json.loads(VLLM)
        vllm.check(json.dumps(config))
        with pytest.raises(InfeasibleError, match=message):
            vllm.check(json.dumps(config | change))

    def test_check_lets_gaps_through_but_no_schedule_to_old_versions(self):
        text = json.dumps(json.loads(VLLM) | {vllm.SCHEDULE: [[1, 4, 3], [8, 9, 0]]})
        vllm.check(text)
        with pytest.raises(InfeasibleError, match=r"no schedule before 0.33.0"):
            vllm.check(text, "0.23.0")

    @pytest.mark.parametrize("text", ["", "[1]", "{"])
    def test_check_refuses_what_is_no_object(self, text):
        with pytest.raises(InfeasibleError, match="vLLM: expected"):
            vllm.check(text)


class TestSglang:
    def test_needs_no_draft_model_for_nextn(self):
        assert sglang.DRAFT not in texts("sglang", asked(method="NEXTN"))[""]

    def test_says_that_only_eagle_changes_lengths(self):
        assert "ignores the schedule for STANDALONE" in warnings("sglang", asked(schedule=FALLING))
        for method in ("EAGLE", "EAGLE3", "NEXTN"):
            assert warnings("sglang", asked(schedule=FALLING, method=method)) == ""

    def test_leaves_out_a_schedule_without_its_own_length(self):
        shorter = asked(schedule=schedule((1, 8, 2), (9, 16, 1)), method="EAGLE")
        assert list(texts("sglang", shorter)) == [""]
        assert "--speculative-num-steps 3 must be among the lengths, so the schedule" in warnings("sglang", shorter)

    def test_says_which_backends_draft_trees(self):
        assert "flashinfer, fa3 and triton" in warnings("sglang", asked(TREE))
        assert warnings("sglang", asked()) == ""

    def test_refuses_part_of_a_chain(self):
        with pytest.raises(InfeasibleError, match=r"num-draft-tokens: expected .* = 5 for .*topk 1. Got 3"):
            sglang.emit(asked(DynamicTree(top_k=1, depth=4, nodes=3)))

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("tokens 16", "tokens 70", "num-draft-tokens: expected at most 69, .*Got 70"),
            ("tokens 16", "tokens 1", "num-draft-tokens: expected a whole number of at least 2"),
            ("topk 4", "topk 0", "topk: expected a whole number of at least 1. Got 0"),
            ("STANDALONE", "MEDUSA", "algorithm: expected one of STANDALONE, EAGLE, EAGLE3, NEXTN"),
            ("--speculative-draft-model-path drafts/small ", "", "draft-model-path: expected the draft model"),
            ("topk 4", "topk", "each with a value"),
        ],
    )
    def test_check_finds_what_is_wrong(self, old, new, message):
        sglang.check(SGLANG_TREE)
        sglang.check(SGLANG_TREE.replace("tokens 16", "tokens 69"))
        with pytest.raises(InfeasibleError, match=message):
            sglang.check(SGLANG_TREE.replace(old, new))

    @pytest.mark.parametrize(
        ("slots", "message"),
        [
            ({"candidate_steps": [1, 3]}, "batch sizes as keys"),
            ({"2": {"candidate_steps": [3]}}, "the first of them 1"),
            ({"1": {"candidate_steps": []}}, "whole numbers from 0"),
            ({"1": {"candidate_steps": [-1]}}, "whole numbers from 0"),
            ({"1": [3]}, "whole numbers from 0"),
            ({"1": {"candidate_steps": [1, 2]}}, r"num-steps: expected one of the candidate_steps \[1, 2\]. Got 3"),
        ],
    )
    def test_check_of_a_schedule_finds_what_is_wrong(self, slots, message):
        sglang.check_adaptive(SGLANG_ADAPTIVE, 3)
        sglang.check_adaptive(json.dumps({"ema_alpha": 0.2, "1": {"candidate_steps": [3]}}), 3)
        with pytest.raises(InfeasibleError, match=message):
            sglang.check_adaptive(json.dumps(slots), 3)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"sample_batch_tokens": [8, 1]}, "rising numbers"),
            ({"sample_batch_tokens": [1, 1]}, "rising numbers"),
            ({"sample_batch_tokens": []}, "rising numbers"),
            ({"sample_steps_per_sec": [100.0]}, "2 numbers"),
            ({"sample_steps_per_sec": [100.0, 0.0]}, "above 0"),
            ({"max_batch_tokens": 7}, "at least 8"),
            ({"note": "bias_seconds"}, "no such text"),
        ],
    )
    def test_check_of_a_cost_table_finds_what_is_wrong(self, change, message):
        sglang.check_costs(SGLANG_COSTS)
        with pytest.raises(InfeasibleError, match=message):
            sglang.check_costs(json.dumps(json.loads(SGLANG_COSTS) | change))


class TestTensorrtLlm:
    def test_names_no_draft_model_for_mtp(self):
        config = yaml.safe_load(texts("tensorrt-llm", asked(TREE, method="MTP"))[""])["speculative_config"]
        assert not set(config) & set(tensorrt_llm.MODEL_FIELDS)
        assert config["use_dynamic_tree"] is True

    def test_drafts_no_trees_with_a_separate_model(self):
        with pytest.raises(InfeasibleError, match="max_draft_len of Draft_Target: expected a chain"):
            tensorrt_llm.emit(asked(TREE, method="Draft_Target"))

    @pytest.mark.parametrize("nodes", [6, 21])
    def test_takes_trees_between_its_bounds(self, nodes):
        assert texts("tensorrt-llm", asked(DynamicTree(top_k=4, depth=5, nodes=nodes)))

    @pytest.mark.parametrize("nodes", [5, 22])
    def test_refuses_trees_outside_of_its_bounds(self, nodes):
        message = f"max_total_draft_tokens: expected from max_draft_len, 5, to .*, 20, .*Got {nodes - 1}"
        with pytest.raises(InfeasibleError, match=message):
            tensorrt_llm.emit(asked(DynamicTree(top_k=4, depth=5, nodes=nodes)))

    @pytest.mark.parametrize("parts", [[(1, 8, 1), (9, 16, 3)], [(1, 8, 2), (9, 16, 0)], [(1, 8, 0), (9, 16, 3)]])
    def test_leaves_out_a_schedule_that_does_not_start_with_the_longest(self, parts):
        setting = asked(schedule=schedule(*parts))
        assert "schedule" not in texts("tensorrt-llm", setting)[""]
        assert "must start with max_draft_len, the longest, so the schedule" in warnings("tensorrt-llm", setting)

    def test_says_that_nothing_is_drafted_beyond_the_last_batch(self):
        setting = asked(schedule=schedule((1, 8, 3), (9, 16, 1)))
        assert warnings("tensorrt-llm", setting).startswith("above batch size 16 nothing is drafted.")

    @pytest.mark.parametrize(
        ("text", "old", "new", "message"),
        [
            (TENSORRT_CHAIN, "  max_draft_len", "  made_by: us\n  max_draft_len", "made_by: expected no such field"),
            (TENSORRT_CHAIN, "Draft_Target", "Medusa", "decoding_type: expected one of Draft_Target"),
            (TENSORRT_CHAIN, "  speculative_model: drafts/small\n", "", "speculative_model: expected the draft model"),
            (TENSORRT_CHAIN, "8: 3", "8: 2", "draft_len_schedule: expected max_draft_len, 3, at 8"),
            (TENSORRT_CHAIN, "32: 1", "32: 4", "lengths from 0 to max_draft_len"),
            (TENSORRT_CHAIN, "8: 3", "0: 3", "batch sizes from 1"),
            (TENSORRT_CHAIN, "max_draft_len: 3", "max_draft_len: 0", "max_draft_len: expected a whole number"),
            (TENSORRT_TREE, "Eagle3", "Draft_Target", "decoding_type: expected Eagle3 or MTP for trees"),
            (TENSORRT_TREE, "tokens: 15", "tokens: 21", "max_total_draft_tokens: expected"),
            (TENSORRT_TREE, TENSORRT_TREE, "other: 1", "speculative_config: expected fields"),
        ],
    )
    def test_check_finds_what_is_wrong(self, text, old, new, message):
        tensorrt_llm.check(text)
        with pytest.raises(InfeasibleError, match=message):
            tensorrt_llm.check(text.replace(old, new, 1))


class TestOthers:
    def test_openvino_says_when_it_drafts_trees(self):
        assert "EAGLE3" in warnings("openvino", asked(TREE))
        assert warnings("openvino", asked()) == ""

    @pytest.mark.parametrize("nodes", [6, 69])
    def test_openvino_takes_trees_between_its_bounds(self, nodes):
        assert texts("openvino", asked(DynamicTree(top_k=4, depth=5, nodes=nodes)))

    @pytest.mark.parametrize("nodes", [4, 69])
    def test_openvino_refuses_trees_outside_of_its_bounds(self, nodes):
        fields = {"num_assistant_tokens": nodes, "branching_factor": 4, "tree_depth": 5}
        with pytest.raises(InfeasibleError, match=f"num_assistant_tokens: expected from .*, 5, to .*, 68. Got {nodes}"):
            openvino.check(json.dumps(fields))

    def test_openvino_takes_one_way_to_end_a_chain(self):
        with pytest.raises(InfeasibleError, match=r"threshold: expected 0 beside num_assistant_tokens. Got 0.4"):
            openvino.check(OPENVINO_CHAIN.replace("0.0", "0.4"))

    def test_eagle_counts_the_passes_after_the_first(self):
        assert texts("eagle", asked(DynamicTree(top_k=10, depth=1, nodes=11)))[""] == (
            "--total-token 11 --depth 0 --top-k 10\n"
        )

    def test_eagle_keeps_within_the_pool(self):
        eagle.check(EAGLE.replace("16", "69"))
        with pytest.raises(InfeasibleError, match=r"total_token: expected at most 69, .*Got 70"):
            eagle.check(EAGLE.replace("16", "70"))
        with pytest.raises(InfeasibleError, match="total_token: expected at most 69"):
            eagle.check_keywords(EAGLE_KEYWORDS.replace("16", "70"))

    def test_exllamav3_never_cuts_the_chain_of_one_sequence(self):
        rows = json.loads(texts("exllamav3", asked(schedule=schedule((1, 1, 1), (2, 8, 0))))[""])["draft_max_rows"]
        assert rows == 4
        with pytest.raises(
            InfeasibleError, match=r"draft_max_rows: expected at least 1 \+ num_draft_tokens = 4. Got 3"
        ):
            exllamav3.check(EXLLAMA_SCHEDULE.replace("64", "3"))

    def test_exllamav3_is_told_where_drafting_ends_but_not_of_lengths_between(self):
        ends = asked(schedule=schedule((1, 8, 3), (9, 64, 0)))
        assert json.loads(texts("exllamav3", ends)[""])["draft_max_rows"] == 8 * 4
        assert warnings("exllamav3", ends) == ""
        assert "one length" in warnings("exllamav3", asked(schedule=FALLING))

    def test_lmdeploy_says_that_it_needs_a_method(self):
        assert "does not speculate without --speculative-algorithm" in warnings("lmdeploy", asked())
        assert warnings("lmdeploy", asked(method="eagle3")) == ""
        with pytest.raises(InfeasibleError, match="draft-model: expected none without --speculative-algorithm"):
            lmdeploy.check("--speculative-num-draft-tokens 3 --speculative-draft-model drafts/small\n")

    @pytest.mark.parametrize(
        ("check", "text", "old", "new"),
        [
            (hf.check, HF, "constant", "heuristic"),
            (hf.check, HF, "0.0", "0.4"),
            (hf.check, HF, "3", "0"),
            (llama_cpp.check, LLAMA, "n-min 0", "n-min 4"),
            (llama_cpp.check, LLAMA, "p-min 0.00", "p-min 0.75"),
            (llama_cpp.check, LLAMA, "-md drafts/small", ""),
            (llama_cpp.check, LLAMA, "draft-simple", "ngram-simple"),
            (lmdeploy.check, LMDEPLOY, "eagle3", "medusa"),
            (mlx_lm.check, MLX, "tokens 3", "tokens 0"),
            (mlx_lm.check, MLX, "--draft-model drafts/small", ""),
            (exllamav3.check, EXLLAMA, "false", "true"),
            (exllamav3.check, EXLLAMA, "3", "0"),
        ],
    )
    def test_checks_find_what_is_wrong(self, check, text, old, new):
        check(text)
        with pytest.raises(InfeasibleError, match=r"expected .* Got .*: "):
            check(text.replace(old, new, 1))

    @pytest.mark.parametrize("rates", ["0.5,0.6,0.1", "0.5,0.4", "1.5,0.4,0.1"])
    def test_llama_cpp_refuses_rates_that_are_none(self, rates):
        llama_cpp.check_rates(LLAMA_SYNTH, 3)
        with pytest.raises(InfeasibleError, match="--spec-synth-rates: expected"):
            llama_cpp.check_rates(f"--spec-synth-rates {rates}\n", 3)


def test_rounded_rates_never_rise():
    rates = [0.5 + 1e-9 - step * 1e-12 for step in range(50)]
    rounded = rounded_rates(rates)
    assert rounded == sorted(rounded, reverse=True)


class TestSchedules:
    def test_are_joined_where_lengths_are_equal(self):
        assert varying_schedule(asked(schedule=FALLING)) == schedule((1, 8, 3), (9, 32, 1), (33, 64, 0))
        assert varying_schedule(asked(schedule=schedule((1, 8, 2), (9, 9, 2)))) == ()
        assert varying_schedule(asked()) == ()

    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            ([(2, 8, 3)], "from batch size 1 on. Got 2 to 8"),
            ([(1, 8, 3), (10, 12, 1)], "from batch size 9 on. Got 10 to 12"),
            ([(1, 8, 3), (8, 12, 1)], "from batch size 9 on"),
            ([(1, 0, 3)], "from batch size 1 on"),
            ([(1, 8, 4)], "lengths from 0 to 3. Got 4"),
            ([(1, 8, -1)], "lengths from 0 to 3"),
        ],
    )
    def test_with_gaps_or_too_long_are_refused(self, parts, message):
        with pytest.raises(InvalidValueError, match=message):
            varying_schedule(asked(schedule=schedule(*parts)))
