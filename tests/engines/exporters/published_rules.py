"""What engines demand of their settings, written down from their published rules, sharing nothing with the exporters.

Every function takes an engine's file as text and raises AssertionError where the engine would refuse or misread it.
"""

import itertools
import json
import re
import shlex
from dataclasses import dataclass

import yaml

VLLM_METHODS = {
    *("ngram", "ngram_gpu", "draft_model", "suffix", "custom_class", "eagle", "eagle3", "mtp"),
    *("dflash", "dspark", "extract_hidden_states"),
}


@dataclass(frozen=True)
class Triple:
    """Beams and children of each, draft levels, verified draft nodes without the root."""

    k: int
    levels: int
    drafts: int


def integer(value: object, least: int) -> int:
    assert type(value) is int, value
    assert value >= least, value
    return value


def flags(text: str) -> dict[str, str]:
    """Return the flags of a command line, each with one value."""
    words = shlex.split(text.replace("\\\n", " "))
    names, values = words[::2], words[1::2]
    assert len(names) == len(values) == len(set(names)), words
    assert all(re.fullmatch(r"--?[a-z][a-z-]*", name) for name in names), words
    return dict(zip(names, values, strict=True))


def vllm(text: str) -> int:
    """Check --speculative-config of 0.33.0 and return the longest draft."""
    config = json.loads(text)
    known = {"method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"}
    known |= {"rejection_sample_method", "synthetic_acceptance_rates"}
    assert set(config) <= known
    assert config["method"] in VLLM_METHODS
    assert isinstance(config["model"], str)
    longest = integer(config["num_speculative_tokens"], 1)
    end = 0
    for entry in config.get("num_speculative_tokens_per_batch_size", []):
        assert isinstance(entry, list)
        first, last, length = entry
        assert integer(first, 1) > end
        assert end > 0 or first == 1
        end = integer(last, first)
        assert integer(length, 0) <= longest  # above it vLLM clamps silently
    if "synthetic_acceptance_rates" in config:
        rates = config["synthetic_acceptance_rates"]
        assert config["rejection_sample_method"] == "synthetic"
        assert len(rates) == longest
        assert all(0 <= rate <= 1 for rate in rates)
        assert all(after <= before for before, after in itertools.pairwise(rates))
    return longest


def vllm_lengths(text: str) -> dict[int, int]:
    """Return the draft length at each batch size up to the last one named and two more, as vLLM reads its schedule."""
    config = json.loads(text)
    schedule = config.get("num_speculative_tokens_per_batch_size", [])
    length, lengths = config["num_speculative_tokens"], {}
    for batch in range(1, max((last for _, last, _ in schedule), default=1) + 3):
        for first, last, entry in schedule:
            if first <= batch <= last:
                length = entry
        lengths[batch] = length
    return lengths


def sglang(text: str) -> Triple:
    """Check the server's flags of 0.5.23."""
    options = flags(text)
    assert options["--speculative-algorithm"] in {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"}
    steps, k, nodes = (
        integer(int(options[f"--speculative-{name}"]), 1) for name in ("num-steps", "eagle-topk", "num-draft-tokens")
    )
    assert nodes - 1 <= k + (steps - 1) * k * k
    assert k > 1 or nodes == steps + 1
    return Triple(k, steps, nodes - 1)


def sglang_lengths(text: str, num_steps: int, most: int) -> dict[int, int]:
    """Check the adaptive file and return the steps at each batch size: the largest key that is not above it."""
    config = json.loads(text)
    slots = {int(key): value for key, value in config.items() if key.isdigit()}
    assert "candidate_steps" not in config, "the flat form is refused"
    assert min(slots) >= 1
    union = set()
    for slot in slots.values():
        candidates = slot["candidate_steps"]
        assert len(candidates) == 1
        union |= {integer(candidate, 0) for candidate in candidates}
    assert num_steps in union
    return {
        batch: slots[max(key for key in slots if key <= batch)]["candidate_steps"][0]
        for batch in range(1, most + 1)
        if min(slots) <= batch
    }


def sglang_costs(text: str) -> dict[int, float]:
    """Check the steps-per-second table and return seconds at each token count."""
    table = json.loads(text)
    assert '"bias_seconds"' not in text, "that text switches the loader to the additive form"
    tokens, rates = table["sample_batch_tokens"], table["sample_steps_per_sec"]
    assert len(tokens) == len(rates) > 0
    assert all(integer(token, 1) for token in tokens)
    assert all(after > before for before, after in itertools.pairwise(tokens))
    assert all(rate > 0 for rate in rates)
    assert integer(table["max_batch_tokens"], tokens[-1])
    return {token: 1 / rate for token, rate in zip(tokens, rates, strict=True)}


def tensorrt_llm(text: str) -> Triple:
    """Check the YAML of 1.4; unknown keys are refused there."""
    content = yaml.safe_load(text)
    assert set(content) == {"speculative_config"}
    config = content["speculative_config"]
    levels = integer(config["max_draft_len"], 1)
    if "use_dynamic_tree" in config:
        expected = {"decoding_type", "use_dynamic_tree", "dynamic_tree_max_topK", "max_draft_len"}
        assert expected | {"max_total_draft_tokens"} <= set(config)
        assert set(config) <= expected | {"max_total_draft_tokens", "speculative_model"}
        assert config["use_dynamic_tree"] is True
        assert config["decoding_type"] in {"Eagle3", "MTP"}
        k, drafts = integer(config["dynamic_tree_max_topK"], 1), integer(config["max_total_draft_tokens"], 1)
        assert levels <= drafts <= k * levels
        return Triple(k, levels, drafts)
    assert set(config) <= {"decoding_type", "max_draft_len", "speculative_model", "draft_len_schedule"}
    assert config["decoding_type"] in {"Draft_Target", "Eagle3", "MTP"}
    if (schedule := config.get("draft_len_schedule")) is not None:
        keys = list(schedule)
        assert all(integer(key, 1) for key in keys)
        assert schedule[min(keys)] == levels
        assert all(integer(value, 0) <= levels for value in schedule.values())
    return Triple(1, levels, levels)


def tensorrt_llm_lengths(text: str, most: int) -> dict[int, int]:
    """Return the length at each batch size: that of the smallest key not below it, and 0 beyond the last."""
    config = yaml.safe_load(text)["speculative_config"]
    schedule = config.get("draft_len_schedule")
    if schedule is None:
        return dict.fromkeys(range(1, most + 1), config["max_draft_len"])
    return {
        batch: schedule[min((key for key in schedule if key >= batch), default=None)] if max(schedule) >= batch else 0
        for batch in range(1, most + 1)
    }


def llama_cpp(text: str) -> int:
    options = flags(text)
    assert not {"--draft-max", "--draft-n", "--draft-min"} & set(options), "removed"
    assert options["--spec-type"].split(",")[0].startswith("draft-")
    assert float(options["--spec-draft-p-min"]) == 0
    longest = integer(int(options["--spec-draft-n-max"]), 1)
    assert 0 <= int(options.get("--spec-draft-n-min", 0)) <= longest
    return longest


def llama_cpp_rates(text: str, length: int) -> list[float]:
    rates = [float(rate) for rate in flags(text)["--spec-synth-rates"].split(",")]
    assert len(rates) == length
    assert all(0 <= rate <= 1 for rate in rates)
    assert all(after <= before for before, after in itertools.pairwise(rates))
    return rates


def mlx_lm(text: str) -> int:
    options = flags(text)
    assert options["--draft-model"]
    return integer(int(options["--num-draft-tokens"]), 1)


def exllamav3(text: str) -> int:
    config = json.loads(text)
    assert set(config) <= {"num_draft_tokens", "dynamic_draft_tokens", "draft_confidence", "draft_max_rows"}
    length = integer(config["num_draft_tokens"], 1)
    assert config["dynamic_draft_tokens"] is False
    if "draft_max_rows" in config:
        assert integer(config["draft_max_rows"], 1 + length)
    return length


def openvino(text: str) -> Triple:
    config = json.loads(text)
    drafts = integer(config["num_assistant_tokens"], 1)
    if "tree_depth" not in config:
        assert set(config) <= {"num_assistant_tokens", "assistant_confidence_threshold"}
        return Triple(1, drafts, drafts)
    assert set(config) == {"num_assistant_tokens", "branching_factor", "tree_depth"}
    k, levels = integer(config["branching_factor"], 1), integer(config["tree_depth"], 1)
    assert k * k * (levels - 1) + k >= drafts >= levels
    return Triple(k, levels, drafts)


def eagle(text: str) -> Triple:
    options = flags(text)
    assert set(options) == {"--total-token", "--depth", "--top-k"}
    total, depth, k = (int(options[name]) for name in ("--total-token", "--depth", "--top-k"))
    return eagle_numbers(total, depth, k)


def eagle_numbers(total_token: int, depth: int, top_k: int) -> Triple:
    integer(depth, 0)
    integer(top_k, 1)
    integer(total_token, 2)
    assert top_k + depth * top_k**2 >= total_token - 1
    return Triple(top_k, depth + 1, total_token - 1)
