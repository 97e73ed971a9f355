import json
import re
import shlex

import pytest

from tests.engines.exporters.named import render
from treeopt.engines import ENGINES
from treeopt.engines.exporters import vllm
from treeopt.engines.exporters.common import render_setting, version_numbers
from treeopt.engines.exporters.engine import BatchLength, SettingRequest
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.trees.drafter_parameters import DynamicTree

CHAIN = DynamicTree.chain(3)
TREE = DynamicTree(top_k=4, depth=5, nodes=16)
SURVIVAL = (0.8, 0.5, 1 / 3)


def schedule(*parts: tuple[int, int, int]) -> tuple[BatchLength, ...]:
    return tuple(BatchLength(first_batch=first, last_batch=last, length=length) for first, last, length in parts)


FALLING = schedule((1, 8, 3), (9, 16, 1), (17, 32, 1), (33, 64, 0))


def make(tree: DynamicTree = CHAIN, **fields) -> SettingRequest:
    return SettingRequest(tree=tree, draft_model=fields.pop("draft_model", MODEL), **fields)


def files(name: str, request: SettingRequest) -> dict[str, str]:
    return dict(render(name, request).files)


def warnings(name: str, request: SettingRequest) -> str:
    return "\n".join(map(str, render(name, request).warnings))


MODEL = "drafts/small"
VLLM = {"method": "draft_model", "model": MODEL, "num_speculative_tokens": 3}
VLLM_SCHEDULE = VLLM | {
    "method": "eagle3",
    "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 32, 1], [33, 64, 0]],
}
VLLM_SYNTHETIC = VLLM | {
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_rates": [0.8, 0.5, 0.333333],
}
SGLANG_CHAIN = (
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path drafts/small --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4\n"
)
SGLANG_TREE = (
    "--speculative-algorithm STANDALONE --speculative-draft-model-path drafts/small --speculative-num-steps 5 "
    "--speculative-eagle-topk 4 --speculative-num-draft-tokens 16\n"
)
SGLANG_NEXTN = (
    "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4\n"
)
SGLANG_ADAPTIVE = {"1": {"candidate_steps": [3]}, "9": {"candidate_steps": [1]}, "33": {"candidate_steps": [0]}}
SGLANG_COSTS = {"sample_batch_tokens": [1, 8], "sample_steps_per_sec": [100.0, 66.6667], "max_batch_tokens": 8}
TENSORRT_TREE = """speculative_config:
  decoding_type: Eagle3
  speculative_model: drafts/small
  max_draft_len: 5
  use_dynamic_tree: true
  dynamic_tree_max_topK: 4
  max_total_draft_tokens: 15
"""
TENSORRT_MTP = "speculative_config:\n  decoding_type: MTP\n  max_draft_len: 3\n"
TENSORRT_CHAIN = """speculative_config:
  decoding_type: Draft_Target
  speculative_model: drafts/small
  max_draft_len: 3
  draft_len_schedule:
    8: 3
    32: 1
    64: 0
"""
TENSORRT_OLD = """speculative_config:
  decoding_type: Draft_Target
  speculative_model_dir: drafts/small
  max_draft_len: 3
"""
HF = {
    "num_assistant_tokens": 5,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.0,
}
LLAMA = "--spec-type draft-simple --spec-draft-n-max 3 --spec-draft-n-min 0 --spec-draft-p-min 0.00 -md drafts/small\n"
LLAMA_SYNTH = "--spec-synth-rates 0.800000,0.500000,0.333333\n"
LMDEPLOY = "--speculative-num-draft-tokens 3 --speculative-algorithm eagle3 --speculative-draft-model drafts/small\n"
MLX = "--draft-model drafts/small --num-draft-tokens 3\n"
EXLLAMA = {"num_draft_tokens": 3, "dynamic_draft_tokens": False}
OPENVINO_TREE = {"num_assistant_tokens": 15, "branching_factor": 4, "tree_depth": 5}
EAGLE = "--total-token 16 --depth 4 --top-k 4\n"


OFF = {
    "vllm": "null\n",  # read as None, while {} would be a configuration without a method
    **dict.fromkeys(("sglang", "llama-cpp", "lmdeploy", "mlx-lm", "eagle"), "\n"),
    **dict.fromkeys(("tensorrt-llm", "hf", "exllamav3", "openvino"), "{}\n"),
}
WITHOUT_DRAFT = {
    "hf": "without assistant_model",
    "exllamav3": "without draft_model",
    "openvino": "without draft_model",
    "eagle": "naivegenerate",
}
"""Engines that get the draft in Python, and how to omit it."""


@pytest.mark.parametrize(
    ("name", "setting", "expected"),
    [
        ("vllm", make(), {"FILE": VLLM}),
        ("vllm", make(survival=SURVIVAL), {"FILE": VLLM, "FILE.synthetic.json": VLLM_SYNTHETIC}),
        ("vllm", make(schedule=FALLING, method="eagle3"), {"FILE": VLLM_SCHEDULE}),
        ("vllm", make(schedule=schedule((1, 4, 3), (5, 9, 3))), {"FILE": VLLM}),
        ("vllm", make(schedule=FALLING, survival=SURVIVAL, engine_version="0.32.1"), {"FILE": VLLM}),
        ("vllm", make(method="mtp"), {"FILE": {"method": "mtp", "num_speculative_tokens": 3}}),
        ("vllm", make(method="ngram"), {"FILE": {"method": "ngram", "num_speculative_tokens": 3}}),
        ("sglang", make(method="NEXTN"), {"FILE": SGLANG_NEXTN}),
        ("sglang", make(TREE), {"FILE": SGLANG_TREE}),
        (
            "sglang",
            make(schedule=FALLING, method="EAGLE3", verify_s={1: 0.01, 8: 0.015}),
            {"FILE": SGLANG_CHAIN, "FILE.adaptive.json": SGLANG_ADAPTIVE, "FILE.sps.json": SGLANG_COSTS},
        ),
        ("sglang", make(schedule=schedule((1, 8, 2), (9, 16, 1)), method="EAGLE3"), {"FILE": SGLANG_CHAIN}),
        ("tensorrt-llm", make(TREE), {"FILE": TENSORRT_TREE}),
        ("tensorrt-llm", make(method="MTP"), {"FILE": TENSORRT_MTP}),
        ("tensorrt-llm", make(schedule=FALLING), {"FILE": TENSORRT_CHAIN}),
        ("tensorrt-llm", make(schedule=FALLING, engine_version="1.2.0"), {"FILE": TENSORRT_OLD}),
        ("hf", make(DynamicTree.chain(5)), {"FILE": HF}),
        ("llama-cpp", make(), {"FILE": LLAMA}),
        ("llama-cpp", make(survival=SURVIVAL), {"FILE": LLAMA, "FILE.synth.txt": LLAMA_SYNTH}),
        ("lmdeploy", make(), {"FILE": "--speculative-num-draft-tokens 3\n"}),
        ("lmdeploy", make(method="eagle3"), {"FILE": LMDEPLOY}),
        ("mlx-lm", make(), {"FILE": MLX}),
        ("exllamav3", make(), {"FILE": EXLLAMA}),
        ("exllamav3", make(schedule=FALLING), {"FILE": EXLLAMA | {"draft_max_rows": 64}}),
        ("openvino", make(), {"FILE": {"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.0}}),
        ("openvino", make(TREE), {"FILE": OPENVINO_TREE}),
        ("eagle", make(TREE), {"FILE": EAGLE, "FILE.kwargs.json": {"total_token": 16, "depth": 4, "top_k": 4}}),
        (
            "eagle",
            make(DynamicTree(top_k=10, depth=1, nodes=11)),
            {
                "FILE": "--total-token 11 --depth 0 --top-k 10\n",
                "FILE.kwargs.json": {"total_token": 11, "depth": 0, "top_k": 10},
            },
        ),
    ],
)
def test_files_are_those_of_the_engine(name, setting, expected):
    """JSON is compared with the order of its keys."""
    output = files(name, setting)
    assert output.keys() == expected.keys()
    for file, content in expected.items():
        if isinstance(content, dict):
            assert list(json.loads(output[file]).items()) == list(content.items())
        else:
            assert output[file] == content


def test_replay_of_vllm_contains_the_schedule():
    replay = json.loads(files("vllm", make(schedule=FALLING, survival=SURVIVAL))["FILE.synthetic.json"])
    assert list(replay)[3:] == [vllm.SCHEDULE, "rejection_sample_method", "synthetic_acceptance_rates"]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
class TestAllEngines:
    def test_file_without_speculation_contains_no_draft(self, engine):
        assert engine.off.files == {"FILE": OFF[engine.name]}
        assert WITHOUT_DRAFT.get(engine.name, "TARGET") in engine.off.usage
        on = render_setting(engine, make()).files["FILE"]
        for text, drafts in ((on, True), (OFF[engine.name], False)):
            assert bool(re.search("spec|draft|assist|token", text)) == drafts

    def test_chain_is_rendered_with_a_command(self, engine):
        output = render_setting(engine, make())
        assert next(iter(output.files)) == "FILE"
        assert all(name.startswith("FILE") for name in output.files)
        assert all(text.endswith("\n") and "\n\n" not in text for text in output.files.values())
        assert "FILE" in output.usage
        assert "\n" not in output.usage

    def test_default_is_within_the_limits(self, engine):
        if engine.default is not None:
            assert render_setting(engine, make(engine.default)).files

    def test_tree_is_refused_by_engines_of_chains(self, engine):
        if engine.dynamic:
            assert render_setting(engine, make(TREE)).files
            return
        message = r"expected a chain, .*Got top-k 4, depth 5, 16 nodes: ask for a chain"
        with pytest.raises(InfeasibleError, match=message):
            render_setting(engine, make(TREE))

    def test_unknown_method_is_refused_with_the_known_ones(self, engine):
        expected = "one of" if engine.method_names else "none, .*leave it out"
        with pytest.raises(InvalidValueError, match=f"method: expected {expected}"):
            render_setting(engine, make(method="bananas"))

    def test_unchecked_version_is_warned_of(self, engine):
        assert "not checked" in warnings(engine.name, make(engine_version="0.0.1"))
        assert "not checked" not in warnings(engine.name, make())

    def test_warnings_end_in_an_action(self, engine):
        rising = make(schedule=schedule((1, 8, 1), (9, 16, 3)), engine_version="0.0.1")
        for request in [rising, make(schedule=FALLING), *([make(TREE)] if engine.dynamic else [])]:
            for warning in render_setting(engine, request).warnings:
                assert re.match("[A-Z][a-z]+ ", warning.action), warning


@pytest.mark.parametrize(
    ("name", "setting", "reason"),
    [
        ("sglang", make(DynamicTree(top_k=1, depth=4, nodes=3)), r"num-draft-tokens: .* = 5 for .*topk 1. Got 3"),
        ("tensorrt-llm", make(TREE, engine_version="1.2.0"), "decoding_type: .*Draft_Target before 1.3. Got Eagle3"),
        *(
            (
                name,
                make(TREE, method=method),
                f"expected a chain, all that it drafts with {method}. Got top-k 4, depth 5",
            )
            for name, method in (
                ("tensorrt-llm", "Draft_Target"),
                ("sglang", "DFLASH"),
                ("sglang", "NGRAM"),
                ("openvino", "prompt_lookup"),
            )
        ),
        (
            "tensorrt-llm",
            make(DynamicTree(top_k=4, depth=5, nodes=22)),
            "max_total_draft_tokens: expected from max_draft_len, 5, to .*, 20, .*Got 21",
        ),
        (
            "openvino",
            make(DynamicTree(top_k=4, depth=5, nodes=5)),
            r"OpenVINO GenAI: num_assistant_tokens: expected from .*, 5, to .*, 68. Got 4: ask",
        ),
    ],
)
def test_settings_beyond_the_limits_are_refused(name, setting, reason):
    with pytest.raises(InfeasibleError, match=reason):
        render(name, setting)


ONE_LENGTH = r"one length for all batch sizes, so the schedule .3 at batch sizes 1 to 8, 1 at batch sizes 9 to 32, 0 at"
FIRST_LONGEST = "must start with max_draft_len, the longest, so the schedule"


@pytest.mark.parametrize(
    ("name", "setting", "warning"),
    [
        *(
            (name, make(schedule=FALLING), ONE_LENGTH)
            for name in ("hf", "llama-cpp", "lmdeploy", "openvino", "exllamav3")
        ),
        ("mlx-lm", make(schedule=schedule((1, 8, 3))), None),
        ("exllamav3", make(schedule=schedule((1, 8, 3), (9, 64, 0))), None),
        ("vllm", make(schedule=FALLING, engine_version="0.32.1"), "vLLM before 0.33.0 is not known to change lengths"),
        ("sglang", make(schedule=FALLING), "ignores the schedule for STANDALONE"),
        ("sglang", make(schedule=FALLING, method="NEXTN"), None),
        (
            "sglang",
            make(schedule=schedule((1, 8, 2), (9, 16, 1)), method="EAGLE"),
            "--speculative-num-steps 3 must be among the lengths, so the schedule",
        ),
        ("sglang", make(TREE), "flashinfer, fa3 and triton"),
        ("sglang", make(), None),
        (
            "tensorrt-llm",
            make(schedule=FALLING, engine_version="1.2.0"),
            "before 1.3 reads draft_len_schedule otherwise",
        ),
        ("tensorrt-llm", make(schedule=FALLING, engine_version="1.3.0rc27"), "some release candidates of 1.3"),
        ("tensorrt-llm", make(schedule=FALLING, engine_version="1.4.0rc1"), None),
        ("tensorrt-llm", make(schedule=schedule((1, 8, 1), (9, 16, 3))), FIRST_LONGEST),
        ("tensorrt-llm", make(schedule=schedule((1, 8, 2), (9, 16, 0))), FIRST_LONGEST),
        ("tensorrt-llm", make(schedule=schedule((1, 8, 3), (9, 16, 1))), "^above batch size 16 nothing is drafted."),
        ("openvino", make(TREE), "EAGLE3"),
        ("openvino", make(), None),
        ("lmdeploy", make(), "does not speculate without --speculative-algorithm"),
        ("lmdeploy", make(method="eagle3"), None),
    ],
)
def test_limitations_are_warned_of(name, setting, warning):
    if warning is None:
        assert warnings(name, setting) == ""
    else:
        assert re.search(warning, warnings(name, setting))
    if warning == FIRST_LONGEST:
        assert "schedule" not in files(name, setting)["FILE"]


def test_quoted_flags_reach_the_engine_whole():
    output = render("mlx-lm", make(draft_model="my drafts/it's small"))
    assert shlex.split(output.files["FILE"])[1] == "my drafts/it's small"
    assert output.usage == 'eval "mlx_lm.server --model TARGET $(cat FILE)"'
    assert render("mlx-lm", make()).usage == "mlx_lm.server --model TARGET $(cat FILE)"


@pytest.mark.parametrize(
    ("name", "draft_model", "expected"),
    [
        ("mlx-lm", "a b", "eval \"mlx_lm.server --model 'my m' $(cat 'my TARGET.txt')\""),
        ("vllm", MODEL, "vllm serve 'my m' --speculative-config \"$(cat 'my TARGET.txt')\""),
        ("openvino", MODEL, 'generation_config.update_generation_config(**json.load(open("my TARGET.txt")))'),
        ("eagle", "models/FILE", "--ea-model-path models/FILE $(cat 'my TARGET.txt')"),
    ],
)
def test_names_in_usages_are_quoted_for_a_shell(name, draft_model, expected):
    output = render(name, make(draft_model=draft_model))
    assert expected in output.describe_usage("my TARGET.txt", "my m")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.33.0", (0, 33, 0)),
        ("v5", (5, 0, 0)),
        ("1.4.0rc1", (1, 4, 0)),
        ("1.4.0-rc.1", (1, 4, 0)),
        ("0.33.1.dev3+g0a1", (0, 33, 1)),
        ("2026.4.1.0-2636", (2026, 4, 1, 0)),
    ],
)
def test_versions_are_read_as_numbers(text, numbers):
    assert version_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "new", "1.", "1..2", "1.2 3", "-1", pytest.param("9" * 5000, id="long")])
def test_versions_without_numbers_are_refused(text):
    with pytest.raises(InvalidValueError, match="engine_version: expected numbers with dots"):
        version_numbers(text)


def test_method_of_old_versions_is_refused_by_the_newest():
    assert '"medusa"' in files("vllm", make(method="medusa", engine_version="0.23.0"))["FILE"]
    with pytest.raises(InvalidValueError, match=r"one of vLLM's: draft_model, eagle, .*Got 'medusa'"):
        render("vllm", make(method="medusa", engine_version="0.33.0"))


def test_exllamav3_gets_rows_for_the_largest_batch_that_drafts():
    """A single sequence always gets the whole chain."""
    for parts, rows in ((((1, 1, 1), (2, 8, 0)), 4), (((1, 8, 3), (9, 64, 0)), 8 * 4)):
        assert json.loads(files("exllamav3", make(schedule=schedule(*parts)))["FILE"])["draft_max_rows"] == rows
