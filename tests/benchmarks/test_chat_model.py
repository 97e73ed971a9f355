"""The benchmark of a chat model: speedups are ratios of rates over the selected prompts, without prefill."""

import numpy as np
import pytest

from tests.scripts import together

pytest.importorskip("transformers", reason="needs the hf extra")


@pytest.fixture(scope="module")
def chat_model():
    return together("benchmarks", "chat_model")[0]


def option(chat_model, *runs):
    """Return an option whose prompts were decoded as (tokens, seconds) of every repeat."""
    option = chat_model.Option("name", "setting", None)
    option.runs = [
        [chat_model.TimedCall([0] * n, decode_s, {1: n}, decode_s + 100.0) for n, decode_s in prompt] for prompt in runs
    ]
    return option


def test_speedup_is_the_ratio_of_rates_with_the_median_of_repeats(chat_model):
    plain = option(chat_model, [(10, 1.0)] * 3, [(30, 3.0)] * 3)
    fast = option(chat_model, [(10, 0.5), (10, 0.4), (10, 9.0)], [(30, 0.5)] * 3)
    assert chat_model.speedup(fast, plain, [0, 1]).value == pytest.approx((40 / 1.0) / (40 / 4.0))
    assert chat_model.speedup(fast, plain, [0]).value == pytest.approx(2.0)
    assert chat_model.speedup(fast, plain, [1]).value == pytest.approx(6.0)


def test_interval_is_that_of_prompts(chat_model):
    seconds = np.random.default_rng(0).uniform(0.2, 0.8, 50)
    plain = option(chat_model, *([(10, 1.0)] for _ in seconds))
    fast = option(chat_model, *([(10, second)] for second in seconds))
    speedup = chat_model.speedup(fast, plain, range(50))
    half_width = 1.96 * seconds.std() / np.sqrt(50) / seconds.mean() ** 2
    assert speedup.high - speedup.low == pytest.approx(2 * half_width, rel=0.2)
    alone = chat_model.speedup(fast, plain, [7])
    assert alone.low == alone.high == alone.value


def test_whole_calls_count_the_prompt(chat_model):
    assert chat_model.tokens_per_s(option(chat_model, [(10, 1.0)], [(30, 3.0)])) == pytest.approx(40 / 204)
