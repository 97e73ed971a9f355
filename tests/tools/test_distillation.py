"""Distillation of drafters: teacher outputs equal those of transformers, and saved heads draft what they predicted."""

import argparse

import numpy as np
import pytest
import torch

from tests.scripts import together
from tests.support.passes import level_of, new_cache
from treeopt.runtime import load_model
from treeopt.runtime.drafters.draft_model import new_draft_sequences, node_logits, root_logits
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.runtime.models.runner import Runner
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
    """Return the modules teacher_outputs, distillation, train_chat_head and train_eagle."""
    return together("tools", "teacher_outputs", "distillation", "train_chat_head", "train_eagle")


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    """Return the folder of a random target of 8 layers, in which all hidden states that a head reads differ."""
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
def outputs(tools, target, tmp_path, monkeypatch):
    """Return the target's outputs on CHATS, in shards of one chat."""
    monkeypatch.setattr(tools[0], "SHARD_CHATS", 1)
    tools[0].write_teacher_outputs(target, [tools[0].TokenizedChat(*chat) for chat in CHATS], tmp_path / "teacher")
    return tools[0].load_teacher_outputs(tmp_path / "teacher")


@pytest.fixture
def head(tools, target):
    """Return a head with random weights and a reduced vocabulary."""
    torch.manual_seed(5)
    head = tools[3].EagleHead(
        target, torch.randn(len(KNOWN), 32), inner=24, unrolled=3, draft_tokens=torch.tensor(KNOWN)
    )
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(0.2 * torch.randn(weight.shape) + (weight.ndim == 1))
    return head


def predict_with(tools, head):
    numbers = torch.full((VOCABULARY,), -1)
    numbers[torch.tensor(KNOWN)] = torch.arange(len(KNOWN))
    return lambda batch: tools[2].predict_eagle(head, numbers, batch)


class TestTeacherOutputs:
    def test_they_equal_those_of_transformers(self, outputs, target_folder):
        model = transformers.AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32).eval()
        for output, (tokens, answer, temperature) in zip(outputs, CHATS, strict=True):
            with torch.no_grad():
                expected = model(torch.tensor([tokens]), output_hidden_states=True)
            states = torch.cat([expected.hidden_states[boundary][0] for boundary in (2, 4, 5)], -1)
            probabilities, top_tokens = expected.logits[0].softmax(-1).topk(output.top_probabilities.shape[-1])
            assert (output.tokens.tolist(), output.answer_start, output.temperature) == (tokens, answer, temperature)
            np.testing.assert_allclose(output.hidden_states, states, atol=2e-3, rtol=2e-3)
            np.testing.assert_allclose(output.top_probabilities, probabilities, atol=1e-3)
            np.testing.assert_array_equal(output.top_tokens[:, 0], top_tokens[:, 0])

    def test_only_missing_shards_are_computed(self, tools, outputs, tmp_path, monkeypatch):
        monkeypatch.setattr(tools[0], "SHARD_CHATS", 1)
        (tmp_path / "teacher" / "00001.pt").unlink()
        computed = []
        monkeypatch.setattr(tools[0], "compute_shard", lambda _, chats: computed.append(chats) or {})
        tools[0].write_teacher_outputs(None, CHATS, tmp_path / "teacher")
        assert computed == [CHATS[1:2]]
        assert len(outputs) == 3

    def test_a_batch_marks_the_tokens_of_answers(self, tools, outputs):
        batch = tools[0].Batch.collate(outputs)
        marked = [(row, position + 1) for row, position in batch.predicts_answer.nonzero().tolist()]
        assert marked == [
            (row, position) for row, (tokens, answer, _) in enumerate(CHATS) for position in range(answer, len(tokens))
        ]

    def test_held_out_chats_are_not_trained_on(self, tools, outputs, monkeypatch):
        monkeypatch.setattr(tools[0], "HELD_OUT_EVERY", 2)
        train, held_out = tools[0].split_held_out(outputs)
        assert ([output.answer_start for output in train], [output.answer_start for output in held_out]) == (
            [3],
            [4, 5],
        )


class TestHead:
    def test_a_saved_head_drafts_what_it_predicted_in_training(self, tools, target, outputs, head, tmp_path):
        tools[3].save(head, 8, tmp_path / "head")
        tools[3].load(head, tmp_path / "head")  # rounds the weights to float16, like the file
        loaded = load_eagle(tmp_path / "head", target)
        tokens = CHATS[2][0]
        training_states = list(head.states(outputs[2].hidden_states[None].float(), outputs[2].tokens[None]))
        for root in (3, 6, 8):
            (sequence,) = new_draft_sequences(loaded, 40, 2, 1)
            states = target.prefill(torch.tensor(tokens[:root]), new_cache(target, 40), loaded.requested_states)
            sequence.begin(tokens[: root + 1], states)
            runner = Runner(loaded, max_nodes=2)
            first = root_logits(runner, [sequence])[0]
            child = torch.tensor(tokens[root + 1 : root + 2])
            second = node_logits(runner, [sequence], [child], [level_of(chain(1), 1, 2)])[0]
            for logits, states in zip((first, second), training_states, strict=False):
                expected = states[0, root - 1] @ head.output.T
                np.testing.assert_allclose(logits[KNOWN], expected.detach(), atol=2e-2)
                assert logits[[token for token in range(len(logits)) if token not in KNOWN]].max() == float("-inf")

    def test_padding_does_not_change_predictions(self, tools, outputs, head):
        predict = predict_with(tools, head)
        batched, alone = predict(tools[0].Batch.collate(outputs[1:])), predict(tools[0].Batch.collate(outputs[1:2]))
        for (log_probabilities, *_), (expected, *_) in zip(batched, alone, strict=True):
            assert 0 < len(expected) < len(log_probabilities)
            torch.testing.assert_close(log_probabilities[: len(expected)], expected, atol=1e-5, rtol=1e-4)

    def test_tokens_outside_the_vocabulary_add_nothing_to_the_loss(self, tools):
        log_probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).log()
        tokens, probabilities = torch.tensor([[2, -1], [0, 1]]), torch.tensor([[0.6, 0.4], [0.7, 0.1]])
        expected = -(0.6 * np.log(0.25) + 0.7 * np.log(0.1) + 0.1 * np.log(0.1)) / 2
        assert tools[1].distillation_loss([(log_probabilities, tokens, probabilities)], 0.8) == pytest.approx(expected)
        assert [hits.tolist() for hits in tools[1].top_k_hits([(log_probabilities, tokens, probabilities)])] == [
            [False, False]
        ]
        assert [hits.tolist() for hits in tools[1].top_k_hits([(log_probabilities, tokens, probabilities)], 3)] == [
            [True, True]
        ]


class TestTraining:
    def test_an_interrupted_run_resumes_with_the_same_result(self, tools, outputs, head, tmp_path, monkeypatch):
        monkeypatch.setattr(tools[1], "CHATS_PER_STEP", 1)
        monkeypatch.setattr(tools[1], "CHECKPOINT_STEPS", 2)
        monkeypatch.setattr(tools[1], "measure_fastest_dtype", lambda: torch.float32)  # seconds on some machines
        monkeypatch.setattr(tools[0], "HELD_OUT_EVERY", 3)
        initial = {name: weight.clone() for name, weight in head.state_dict().items()}

        def run_training(checkpoint, max_calls=None, learning_rate=0.01):
            """Return the trained weights, and how often the head was called."""
            head.load_state_dict(initial)
            predict, batches = predict_with(tools, head), []

            def counted_predict(batch):
                batches.append(batch)
                if max_calls is not None and len(batches) > max_calls:
                    raise KeyboardInterrupt
                return predict(batch)

            tools[1].train(
                head,
                counted_predict,
                outputs,
                checkpoint=checkpoint,
                options=argparse.Namespace(steps=6, learning_rate=learning_rate, output=tmp_path / "head"),
                depth_weight=0.8,
                export=lambda folder: (folder / "weights").write_text(checkpoint.name),
            )
            return {name: weight.clone() for name, weight in head.state_dict().items()}, len(batches)

        expected, all_calls = run_training(tmp_path / "whole")
        checkpoint = tmp_path / "interrupted"
        with pytest.raises(KeyboardInterrupt):
            run_training(checkpoint, max_calls=all_calls - 4)  # two for the last evaluation, two for the last two steps
        assert checkpoint.exists()
        assert (tmp_path / "head" / "weights").read_text() == "whole"  # of the earlier, finished training
        interrupted = checkpoint.read_bytes()
        _, other_calls = run_training(checkpoint, learning_rate=0.02)
        assert other_calls == all_calls, "a checkpoint of other options is not continued"
        checkpoint.write_bytes(interrupted)
        resumed, calls = run_training(checkpoint)
        assert calls == all_calls - 4, "four steps were in the checkpoint"
        for name, weight in expected.items():
            torch.testing.assert_close(resumed[name], weight, msg=name)
        assert any(not torch.equal(expected[name], initial[name]) for name in expected)
        assert not checkpoint.exists(), "the training is complete"
