import json
import re
import shlex

import pytest
import yaml

from tests.engines.exporters.named import render
from treeopt.engines import ENGINES
from treeopt.engines.exporters import sglang, vllm
from treeopt.engines.exporters.common import render_setting, round_rates, varying_schedule, version_numbers
from treeopt.engines.exporters.engine import BatchLength, SettingRequest
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.trees.drafter_parameters import DynamicTree

CHAIN = DynamicTree.chain(3)
TREE = DynamicTree(top_k=4, depth=5, nodes=16)
SURVIVAL = (0.8, 0.5, 1 / 3)


def schedule(*parts: tuple[int, int, int]) -> tuple[BatchLength, ...]:
    return tuple(BatchLength(first_batch=first, last_batch=last, length=length) for first, last, length in parts)


FALLING = schedule((1, 8, 3), (9, 16, 1), (17, 32, 1), (33, 64, 0))


def asked(tree: DynamicTree = CHAIN, **more) -> SettingRequest:
    return SettingRequest(**({"tree": tree, "draft_model": "drafts/small"} | more))


def texts(name: str, setting: SettingRequest) -> dict[str, str]:
    return dict(render(name, setting).files)


def warnings(name: str, setting: SettingRequest) -> str:
    return "\n".join(map(str, render(name, setting).warnings))


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
        ("vllm", asked(), {"FILE": VLLM}),
        ("vllm", asked(survival=SURVIVAL), {"FILE": VLLM, "FILE.synthetic.json": VLLM_SYNTHETIC}),
        ("vllm", asked(schedule=FALLING, method="eagle3"), {"FILE": VLLM_SCHEDULE}),
        ("vllm", asked(schedule=schedule((1, 4, 3), (5, 9, 3))), {"FILE": VLLM}),
        ("sglang", asked(TREE), {"FILE": SGLANG_TREE}),
        (
            "sglang",
            asked(
                schedule=FALLING,
                method="EAGLE3",
                verify_s={1: 0.01, 8: 0.015},
            ),
            {"FILE": SGLANG_CHAIN, "FILE.adaptive.json": SGLANG_ADAPTIVE, "FILE.sps.json": SGLANG_COSTS},
        ),
        ("tensorrt-llm", asked(TREE), {"FILE": TENSORRT_TREE}),
        ("tensorrt-llm", asked(schedule=FALLING), {"FILE": TENSORRT_CHAIN}),
        ("hf", asked(), {"FILE": HF}),
        ("llama-cpp", asked(), {"FILE": LLAMA}),
        ("llama-cpp", asked(survival=SURVIVAL), {"FILE": LLAMA, "FILE.synth.txt": LLAMA_SYNTH}),
        ("lmdeploy", asked(), {"FILE": "--speculative-num-draft-tokens 3\n"}),
        ("lmdeploy", asked(method="eagle3"), {"FILE": LMDEPLOY}),
        ("mlx-lm", asked(), {"FILE": MLX}),
        ("exllamav3", asked(), {"FILE": EXLLAMA}),
        ("exllamav3", asked(schedule=FALLING), {"FILE": EXLLAMA_SCHEDULE}),
        ("openvino", asked(), {"FILE": OPENVINO_CHAIN}),
        ("openvino", asked(TREE), {"FILE": OPENVINO_TREE}),
        ("eagle", asked(TREE), {"FILE": EAGLE, "FILE.kwargs.json": EAGLE_KEYWORDS}),
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
    assert off.files == {"FILE": OFF[engine.name]}
    assert WITHOUT_DRAFT.get(engine.name, "TARGET") in off.usage
    on = render_setting(engine, asked()).files["FILE"]
    for text, drafts in ((on, True), (OFF[engine.name], False)):
        assert bool(re.search("spec|draft|assist|token", text)) == drafts


def test_engines_are_listed_in_order():
    names = "vllm sglang tensorrt-llm hf llama-cpp lmdeploy mlx-lm exllamav3 openvino eagle"
    assert " ".join(engine.name for engine in ENGINES) == names


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
class TestEveryEngine:
    def test_takes_a_chain_and_says_how_to_start(self, engine):
        made = render_setting(engine, asked())
        assert next(iter(made.files)) == "FILE"
        assert all(name.startswith("FILE") for name in made.files)
        assert all(text.endswith("\n") and "\n\n" not in text for text in made.files.values())
        assert "FILE" in made.usage
        assert "\n" not in made.usage

    def test_takes_its_own_default(self, engine):
        if engine.default is not None:
            assert render_setting(engine, asked(engine.default)).files

    def test_takes_a_tree_only_where_it_drafts_trees(self, engine):
        if engine.dynamic:
            assert render_setting(engine, asked(TREE)).files
            return
        with pytest.raises(
            InfeasibleError, match=r"expected a chain, .*Got top-k 4, depth 5, 16 nodes: ask for a chain"
        ):
            render_setting(engine, asked(TREE))

    def test_refuses_an_unknown_method_and_says_which_there_are(self, engine):
        with pytest.raises(InvalidValueError, match=r"method: expected (one of|none)"):
            render_setting(engine, asked(method="medusa"))

    def test_says_that_another_version_was_not_checked(self, engine):
        assert render_setting(engine, asked()).warnings == render_setting(engine, asked(engine_version=None)).warnings
        assert "not checked" in warnings(engine.name, asked(engine_version="0.0.1"))

    def test_ends_each_warning_in_an_action(self, engine):
        rising = asked(schedule=schedule((1, 8, 1), (9, 16, 3)), engine_version="0.0.1")
        for setting in [rising, asked(schedule=FALLING), *([asked(TREE)] if engine.dynamic else [])]:
            for warning in render_setting(engine, setting).warnings:
                assert re.match("[A-Z][a-z]+ ", warning.action), warning

    def test_says_the_same_twice(self, engine):
        assert render_setting(engine, asked(schedule=FALLING)) == render_setting(engine, asked(schedule=FALLING))


@pytest.mark.parametrize("name", ["mlx-lm", "exllamav3", "eagle"])
def test_no_method_is_taken_where_there_is_no_choice(name):
    with pytest.raises(InvalidValueError, match=r"expected none, .*leave it out"):
        render(name, asked(method="eagle3"))


@pytest.mark.parametrize("name", ["hf", "llama-cpp", "lmdeploy", "mlx-lm", "exllamav3", "openvino", "eagle"])
def test_a_schedule_that_cannot_be_given_is_told(name):
    told = "one length for all batch sizes, so the schedule .3 at batch sizes 1 to 8, 1 at batch sizes 9 to 32, 0 at"
    assert re.search(told, warnings(name, asked(schedule=FALLING)))
    assert "schedule" not in warnings(name, asked(schedule=schedule((1, 8, 3))))


def test_quoted_flags_reach_the_engine_whole():
    made = render("mlx-lm", asked(draft_model="my drafts/it's small"))
    assert shlex.split(made.files["FILE"])[1] == "my drafts/it's small"
    assert made.usage == 'eval "mlx_lm.server --model TARGET $(cat FILE)"'
    assert render("mlx-lm", asked()).usage == "mlx_lm.server --model TARGET $(cat FILE)"


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
        assert texts("vllm", old) == {"FILE": VLLM}
        assert "vLLM before 0.33.0 is not known to change lengths, so the schedule" in warnings("vllm", old)

    def test_of_vllm_decide_over_medusa(self):
        assert '"medusa"' in texts("vllm", asked(method="medusa", engine_version="0.23.0"))["FILE"]
        with pytest.raises(InvalidValueError, match=r"one of vLLM's: draft_model, eagle, .*Got 'medusa'"):
            render("vllm", asked(method="medusa", engine_version="0.33.0"))

    def test_of_tensorrt_llm_before_1_3_get_the_old_field_and_no_schedule(self):
        old = asked(schedule=FALLING, engine_version="1.2.0")
        config = yaml.safe_load(texts("tensorrt-llm", old)["FILE"])["speculative_config"]
        assert config == {
            "decoding_type": "Draft_Target",
            "speculative_model_dir": "drafts/small",
            "max_draft_len": 3,
        }
        assert "before 1.3 reads draft_len_schedule otherwise" in warnings("tensorrt-llm", old)
        with pytest.raises(InfeasibleError, match=r"decoding_type: expected Draft_Target before 1.3. Got Eagle3"):
            render("tensorrt-llm", asked(TREE, engine_version="1.2.0"))

    def test_of_tensorrt_llm_1_3_get_a_word_on_the_schedule(self):
        assert "some release candidates of 1.3" in warnings(
            "tensorrt-llm", asked(schedule=FALLING, engine_version="1.3.0rc27")
        )
        assert warnings("tensorrt-llm", asked(schedule=FALLING, engine_version="1.4.0rc1")) == ""


class TestVllm:
    def test_drafts_from_the_text_without_a_model(self):
        assert json.loads(texts("vllm", asked(method="ngram"))["FILE"]) == {
            "method": "ngram",
            "num_speculative_tokens": 3,
        }

    def test_replays_beside_the_schedule(self):
        replay = json.loads(texts("vllm", asked(schedule=FALLING, survival=SURVIVAL))["FILE.synthetic.json"])
        assert list(replay)[3:] == [vllm.SCHEDULE, "rejection_sample_method", "synthetic_acceptance_rates"]


class TestSglang:
    def test_needs_no_draft_model_for_nextn(self):
        assert sglang.DRAFT not in texts("sglang", asked(method="NEXTN"))["FILE"]

    def test_says_that_only_eagle_changes_lengths(self):
        assert "ignores the schedule for STANDALONE" in warnings("sglang", asked(schedule=FALLING))
        for method in ("EAGLE", "EAGLE3", "NEXTN"):
            assert warnings("sglang", asked(schedule=FALLING, method=method)) == ""

    def test_leaves_out_a_schedule_without_its_own_length(self):
        shorter = asked(schedule=schedule((1, 8, 2), (9, 16, 1)), method="EAGLE")
        assert list(texts("sglang", shorter)) == ["FILE"]
        assert "--speculative-num-steps 3 must be among the lengths, so the schedule" in warnings("sglang", shorter)

    def test_says_which_backends_draft_trees(self):
        assert "flashinfer, fa3 and triton" in warnings("sglang", asked(TREE))
        assert warnings("sglang", asked()) == ""

    def test_refuses_part_of_a_chain(self):
        with pytest.raises(InfeasibleError, match=r"num-draft-tokens: expected .* = 5 for .*topk 1. Got 3"):
            render("sglang", asked(DynamicTree(top_k=1, depth=4, nodes=3)))


class TestTensorrtLlm:
    def test_names_no_draft_model_for_mtp(self):
        config = yaml.safe_load(texts("tensorrt-llm", asked(TREE, method="MTP"))["FILE"])["speculative_config"]
        assert not {"speculative_model", "speculative_model_dir"} & set(config)
        assert config["use_dynamic_tree"] is True

    def test_drafts_no_trees_with_a_separate_model(self):
        with pytest.raises(InfeasibleError, match="max_draft_len of Draft_Target: expected a chain"):
            render("tensorrt-llm", asked(TREE, method="Draft_Target"))

    @pytest.mark.parametrize("nodes", [6, 21])
    def test_takes_trees_between_its_bounds(self, nodes):
        assert texts("tensorrt-llm", asked(DynamicTree(top_k=4, depth=5, nodes=nodes)))

    @pytest.mark.parametrize("nodes", [5, 22])
    def test_refuses_trees_outside_of_its_bounds(self, nodes):
        message = f"max_total_draft_tokens: expected from max_draft_len, 5, to .*, 20, .*Got {nodes - 1}"
        with pytest.raises(InfeasibleError, match=message):
            render("tensorrt-llm", asked(DynamicTree(top_k=4, depth=5, nodes=nodes)))

    @pytest.mark.parametrize("parts", [[(1, 8, 1), (9, 16, 3)], [(1, 8, 2), (9, 16, 0)], [(1, 8, 0), (9, 16, 3)]])
    def test_leaves_out_a_schedule_that_does_not_start_with_the_longest(self, parts):
        setting = asked(schedule=schedule(*parts))
        assert "schedule" not in texts("tensorrt-llm", setting)["FILE"]
        assert "must start with max_draft_len, the longest, so the schedule" in warnings("tensorrt-llm", setting)

    def test_says_that_nothing_is_drafted_beyond_the_last_batch(self):
        setting = asked(schedule=schedule((1, 8, 3), (9, 16, 1)))
        assert warnings("tensorrt-llm", setting).startswith("above batch size 16 nothing is drafted.")


class TestOthers:
    def test_openvino_says_when_it_drafts_trees(self):
        assert "EAGLE3" in warnings("openvino", asked(TREE))
        assert warnings("openvino", asked()) == ""

    @pytest.mark.parametrize("nodes", [6, 69])
    def test_openvino_takes_trees_between_its_bounds(self, nodes):
        assert texts("openvino", asked(DynamicTree(top_k=4, depth=5, nodes=nodes)))

    def test_openvino_refuses_trees_with_fewer_draft_nodes_than_levels(self):
        message = r"OpenVINO GenAI: num_assistant_tokens: expected from .*, 5, to .*, 68. Got 4: ask"
        with pytest.raises(InfeasibleError, match=message):
            render("openvino", asked(DynamicTree(top_k=4, depth=5, nodes=5)))

    def test_eagle_counts_the_passes_after_the_first(self):
        assert texts("eagle", asked(DynamicTree(top_k=10, depth=1, nodes=11)))["FILE"] == (
            "--total-token 11 --depth 0 --top-k 10\n"
        )

    def test_exllamav3_never_cuts_the_chain_of_one_sequence(self):
        rows = json.loads(texts("exllamav3", asked(schedule=schedule((1, 1, 1), (2, 8, 0))))["FILE"])["draft_max_rows"]
        assert rows == 4

    def test_exllamav3_is_told_where_drafting_ends_but_not_of_lengths_between(self):
        ends = asked(schedule=schedule((1, 8, 3), (9, 64, 0)))
        assert json.loads(texts("exllamav3", ends)["FILE"])["draft_max_rows"] == 8 * 4
        assert warnings("exllamav3", ends) == ""
        assert "one length" in warnings("exllamav3", asked(schedule=FALLING))

    def test_lmdeploy_says_that_it_needs_a_method(self):
        assert "does not speculate without --speculative-algorithm" in warnings("lmdeploy", asked())
        assert warnings("lmdeploy", asked(method="eagle3")) == ""


def test_round_rates_never_rise():
    rates = [0.5 + 1e-9 - step * 1e-12 for step in range(50)]
    rounded = round_rates(rates)
    assert rounded == sorted(rounded, reverse=True)


class TestSchedules:
    def test_are_joined_where_lengths_are_equal(self):
        assert varying_schedule(asked(schedule=FALLING)) == schedule((1, 8, 3), (9, 32, 1), (33, 64, 0))
        assert varying_schedule(asked(schedule=schedule((1, 8, 2), (9, 9, 2)))) == ()
        assert varying_schedule(asked()) == ()
