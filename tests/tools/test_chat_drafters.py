"""Drafters trained on a chat model's chats: lessons are what transformers say, a head drafts what it learnt to say."""

import numpy as np
import pytest
import torch

from tests.scripts import together
from treeopt.runtime import load_model
from treeopt.runtime.drafters.draft_model import outputs_at_roots
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.runtime.drafters.eagle.text import texts_of
from treeopt.runtime.models.passes import PassNodes
from treeopt.trees import chain

transformers = pytest.importorskip("transformers", reason="needs the hf extra")
VOCABULARY = 23
KNOWN = [1, 2, 5, 6, 9, 11, 14, 15, 20, 22]
CHATS = [
    ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], 4, 0.0),
    ([2, 7, 1, 8, 2, 8, 1, 8], 3, 0.7),
    ([1, 6, 1, 8, 0, 3, 3, 9, 8, 8, 7, 4, 9], 5, 0.0),
]


@pytest.fixture(scope="module")
def tools():
    """Return the modules chat_lessons, chat_training, train_chat_eagle and train_eagle."""
    return together("tools", "chat_lessons", "chat_training", "train_chat_eagle", "train_eagle")


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    """Return the folder of a random target of 8 layers, in which all boundaries that a head reads differ."""
    folder = tmp_path_factory.mktemp("target")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.2,
            tie_word_embeddings=False,
        )
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(target_folder):
    return load_model(target_folder)


@pytest.fixture
def lessons(tools, target, tmp_path, monkeypatch):
    """Return what the target says of CHATS, in shards of one chat."""
    monkeypatch.setattr(tools[0], "SHARD_CHATS", 1)
    tools[0].make_lessons(target, CHATS, tmp_path / "lessons")
    return tools[0].load_lessons(tmp_path / "lessons")


@pytest.fixture
def head(tools, target):
    """Return a head of random weights that knows some tokens."""
    torch.manual_seed(5)
    made = tools[3].LearningHead(target, torch.randn(len(KNOWN), 32), inner=24, unrolled=3, kept=torch.tensor(KNOWN))
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(0.2 * torch.randn(weight.shape) + (weight.ndim == 1))
    return made


def guess_with(tools, head):
    numbers = torch.full((VOCABULARY,), -1)
    numbers[torch.tensor(KNOWN)] = torch.arange(len(KNOWN))
    return lambda batch: tools[2].guesses_of(head, numbers, batch)


class TestLessons:
    def test_they_are_what_transformers_say(self, lessons, target_folder):
        model = transformers.AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32).eval()
        for lesson, (tokens, answer, temperature) in zip(lessons, CHATS, strict=True):
            with torch.no_grad():
                found = model(torch.tensor([tokens]), output_hidden_states=True)
            states = torch.cat([found.hidden_states[boundary][0] for boundary in (2, 4, 5)], -1)
            shares, likeliest = found.logits[0].softmax(-1).topk(lesson.shares.shape[-1])
            assert (lesson.tokens.tolist(), lesson.answer, lesson.temperature) == (tokens, answer, temperature)
            np.testing.assert_allclose(lesson.taps, states, atol=2e-3, rtol=2e-3)
            np.testing.assert_allclose(lesson.shares, shares, atol=1e-3)
            np.testing.assert_array_equal(lesson.likeliest[:, 0], likeliest[:, 0])

    def test_a_shard_that_is_there_is_not_made_again(self, tools, lessons, tmp_path, monkeypatch):
        monkeypatch.setattr(tools[0], "SHARD_CHATS", 1)
        (tmp_path / "lessons" / "00001.pt").unlink()
        made = []
        monkeypatch.setattr(tools[0], "_shard", lambda _, chats: made.append(chats) or {})
        tools[0].make_lessons(None, CHATS, tmp_path / "lessons")
        assert made == [CHATS[1:2]]
        assert len(lessons) == 3

    def test_a_batch_asks_for_the_tokens_of_answers_alone(self, tools, lessons):
        batch = tools[0].Batch.of(lessons)
        asked = [(row, place + 1) for row, place in batch.answers.nonzero().tolist()]
        assert asked == [
            (row, place) for row, (tokens, answer, _) in enumerate(CHATS) for place in range(answer, len(tokens))
        ]

    def test_nothing_is_both_learnt_from_and_held_out(self, tools, lessons, monkeypatch):
        monkeypatch.setattr(tools[0], "HELD_OUT_EVERY", 2)
        learnt, held_out = tools[0].split_lessons(lessons)
        assert ([each.answer for each in learnt], [each.answer for each in held_out]) == ([3], [4, 5])


class TestHead:
    def test_a_saved_head_drafts_what_it_learnt_to_say(self, tools, target, lessons, head, tmp_path):
        tools[3].save(head, 8, tmp_path / "head")
        tools[3].load(head, tmp_path / "head")  # rounded to half precision, as what was saved
        loaded = load_eagle(tmp_path / "head", target)
        tokens = CHATS[2][0]
        learnt = list(head.states(*(each[None] for each in (lessons[2].taps.float(), lessons[2].tokens))))
        for root in (3, 6, 8):
            (text,) = texts_of(loaded, 40, 2, 1)
            text.begin(
                tokens[: root + 1], target.prefill(torch.tensor(tokens[:root]), target.new_cache(40), loaded.wants)
            )
            first = outputs_at_roots([text])[0].logits[0]
            child = PassNodes(visible=chain(1).ancestor_mask[1:2], depth=chain(1).depth[1:2], start=1)
            second = text.passes.once(child)(torch.tensor(tokens[root + 1 : root + 2])).logits
            for found, states in zip((first, second[0]), learnt, strict=False):
                expected = states[0, root - 1] @ head.output.T
                np.testing.assert_allclose(found[KNOWN], expected.detach(), atol=2e-2)
                assert found[[token for token in range(len(found)) if token not in KNOWN]].max() == float("-inf")

    def test_what_stands_beside_a_chat_changes_nothing(self, tools, lessons, head):
        guess = guess_with(tools, head)
        together, alone = guess(tools[0].Batch.of(lessons[1:])), guess(tools[0].Batch.of(lessons[1:2]))
        for (found, *_), (expected, *_) in zip(together, alone, strict=True):
            assert 0 < len(expected) < len(found)
            torch.testing.assert_close(found[: len(expected)], expected, atol=1e-5, rtol=1e-4)

    def test_of_tokens_that_it_does_not_know_it_learns_nothing(self, tools):
        log_shares = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).log()
        tokens, shares = torch.tensor([[2, -1], [0, 1]]), torch.tensor([[0.6, 0.4], [0.7, 0.1]])
        expected = -(0.6 * np.log(0.25) + 0.7 * np.log(0.1) + 0.1 * np.log(0.1)) / 2
        assert tools[1].divergence([(log_shares, tokens, shares)], 0.8) == pytest.approx(expected)
        assert [each.tolist() for each in tools[1].accepted([(log_shares, tokens, shares)])] == [[False, False]]
        assert [each.tolist() for each in tools[1].accepted([(log_shares, tokens, shares)], 3)] == [[True, True]]


class TestTraining:
    def test_one_that_was_stopped_goes_on_as_if_it_had_not_been(self, tools, lessons, head, tmp_path, monkeypatch):
        monkeypatch.setattr(tools[1], "SAVE_EVERY", 2)
        monkeypatch.setattr(tools[0], "HELD_OUT_EVERY", 3)
        begun = {name: weight.clone() for name, weight in head.state_dict().items()}

        def trained(checkpoint, stop_after=None):
            head.load_state_dict(begun)
            guess, passes = guess_with(tools, head), []

            def counted(batch):
                passes.append(batch)
                if stop_after is not None and len(passes) > stop_after:
                    raise KeyboardInterrupt
                return guess(batch)

            tools[1].fit(
                head, counted, lessons, checkpoint=tmp_path / checkpoint, steps=6, chats=1, rate=0.01, place_weight=0.8,
                export=lambda: None,
            )  # fmt: skip
            return {name: weight.clone() for name, weight in head.state_dict().items()}

        whole = trained("whole")
        with pytest.raises(KeyboardInterrupt):
            trained("stopped", stop_after=3)
        again = trained("stopped")
        for name, weight in whole.items():
            torch.testing.assert_close(again[name], weight, msg=name)
        assert any(not torch.equal(whole[name], begun[name]) for name in whole)
