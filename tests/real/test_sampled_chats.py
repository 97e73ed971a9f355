"""Chats sampled from a real model: greedy answers equal those of transformers, and an interrupted run resumes."""

import json

import pytest
import torch

from tests.scripts import together

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def sample_chats():
    pytest.importorskip("transformers", reason="needs the hf extra")
    (module,) = together("tools", "sample_chats")
    return module


@pytest.fixture
def few(sample_chats, monkeypatch):
    """Make rounds small and chats short."""
    for name, value in {"ROUND_CHATS": 9, "BATCH_SIZE": 9, "MAX_USER_TOKENS": 60, "MAX_ANSWER_TOKENS": 20}.items():
        monkeypatch.setattr(sample_chats, name, value)


@pytest.mark.usefixtures("few")
def test_answers_at_temperature_0_are_those_of_transformers(sample_chats, model, hf_model, hf_tokenizer):
    chats = list(sample_chats.sample_round(hf_tokenizer, model, 1))
    assert {chat.temperature for chat in chats} == set(sample_chats.ANSWER_TEMPERATURES)
    for chat in chats:
        assert chat.category in sample_chats.CATEGORIES
        assert not any(token in chat.user + chat.answer for token in hf_tokenizer.all_special_tokens)
    for chat in [chat for chat in chats if chat.temperature == 0]:
        messages = [{"role": "user", "content": chat.user}]
        prompt = hf_tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt").input_ids
        with torch.no_grad():
            (text,) = hf_model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20)
        assert hf_tokenizer.decode(text[prompt.shape[1] :], skip_special_tokens=True) == chat.answer


@pytest.mark.usefixtures("few")
def test_an_interrupted_run_resumes(sample_chats, folder, model, tmp_path, monkeypatch):
    monkeypatch.setattr(sample_chats, "load_model", lambda _, **options: model)  # noqa: ARG005
    monkeypatch.setattr(sample_chats, "measure_fastest_dtype", lambda: None)
    path = tmp_path / "chats.jsonl"
    monkeypatch.setattr("sys.argv", ["sample_chats.py", str(folder), "-o", str(path), "--tokens", "30"])
    sample_chats.main()
    first = path.read_text("utf-8")
    sample_chats.main()
    assert path.read_text("utf-8") == first, "the file has enough tokens"
    more = 20 * len(first.splitlines()) + 1  # than these chats can have
    monkeypatch.setattr("sys.argv", ["sample_chats.py", str(folder), "-o", str(path), "--tokens", str(more)])
    sample_chats.main()
    lines = path.read_text("utf-8").splitlines()
    assert path.read_text("utf-8").startswith(first)
    assert len({json.loads(line)["user"] for line in lines}) == len(lines) > len(first.splitlines()), (
        "no message is repeated"
    )
