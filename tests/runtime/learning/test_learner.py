"""Updates equal those of transformers' model in torch, and outputs stay the target's."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import log_softmax

from tests.runtime.learning.toy import FAST, learning_decoder
from tests.support.decoded import PROMPT, joined
from tests.support.perturbed import perturbed_model
from treeopt.errors import InfeasibleError, InvalidValueError, TreeoptWarning
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.learning.learner import Learner, LearningSettings, built_in_model, make_learning_copy
from treeopt.runtime.learning.replay_buffer import ReplayBuffer
from treeopt.runtime.models.vocabulary import limit_draft
from treeopt.runtime.models.weights import named_tensors
from treeopt.trees import chain

ARCHITECTURES = {
    "tied head": {"tie_word_embeddings": True},
    "untied head and biases": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
}


def decode(target, draft, tree, prompts=(PROMPT, PROMPT[:4], [1]), **options):
    """Return the steps of each text that a learning copy of a draft model decodes, and the learner."""
    decoder, learner = learning_decoder(target, draft, tree, **options)
    return [list(decoder.stream(prompt, 60)) for prompt in prompts], learner


def copy_weights(model):
    return {name: tensor.clone() for name, tensor in named_tensors(model).items()}


def assert_same_weights(model, expected):
    for name, tensor in named_tensors(model).items():
        assert torch.equal(tensor, expected[name]), name


def record_windows(target, draft):
    """Return the replay windows of a text that is decoded without learning."""
    buffer = ReplayBuffer(64)
    list(Decoder(target, draft, chain(3), temperature=0.0, on_step=buffer.add).generate(PROMPT, 40))
    return buffer.take()


@pytest.fixture
def perturbed(target, target_folder):
    """Return the target with noise on its weights."""
    return perturbed_model(target_folder, 0.5, device=target.device)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_updates_equal_torch_on_transformers_model(make_checkpoint, target, name):
    from transformers import LlamaForCausalLM

    folder = make_checkpoint(seed=7, **ARCHITECTURES[name])
    reference, draft = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), load_model(folder)
    before = copy_weights(draft)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=0.0)
    learner = Learner(draft, LearningSettings(rate=1e-2, max_grad_norm=0.3, max_time_share=1e9))
    windows = record_windows(target, draft)
    assert len(windows[0].rows) > 5
    for _ in range(2):
        optimizer.zero_grad()
        losses = []
        for window in windows:
            logits = reference(torch.tensor([window.tokens])).logits[0]
            probs = torch.stack(window.logits).softmax(-1)
            losses.append(-(probs * log_softmax(logits[window.rows], -1)).sum(-1))
        torch.cat(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.3)
        optimizer.step()
        learner._update(windows)
    expected = reference.state_dict()
    for tensor_name, tensor in named_tensors(draft).items():
        torch.testing.assert_close(tensor, expected[tensor_name], rtol=1e-3, atol=1e-4)
        assert not torch.allclose(tensor, before[tensor_name], rtol=1e-3, atol=1e-3)


def test_perturbed_draft_is_accepted_more_often(target, perturbed):
    prompts = [PROMPT] * 12
    fixed = list(Decoder(target, perturbed, chain(3), temperature=0.0).stream(PROMPT, 60))
    outputs, learner = decode(target, perturbed, chain(3), prompts, temperature=0.0)
    assert [*map(joined, outputs)] == [joined(fixed)] * 12
    assert sum(map(len, outputs[-2:])) < 0.8 * 2 * len(fixed)
    assert learner.stats.updates > 3


def test_only_the_copy_of_the_draft_changes(target, perturbed):
    before, target_before = copy_weights(perturbed), copy_weights(target)
    _, learner = decode(target, perturbed, chain(3), temperature=0.0)
    assert_same_weights(perturbed, before)
    assert_same_weights(target, target_before)
    assert learner.stats.updates
    assert any(not torch.equal(tensor, before[name]) for name, tensor in named_tensors(learner.model).items())


def test_update_that_is_not_finite_is_dropped_with_a_warning(target, perturbed):
    learner, windows, before = Learner(perturbed, FAST), record_windows(target, perturbed), copy_weights(perturbed)
    broken = replace(windows[0], logits=[torch.full_like(logits, math.nan) for logits in windows[0].logits])
    with pytest.warns(TreeoptWarning, match=r"was dropped.*lower --learning-rate"):
        learner._update([broken])
    assert (learner.stats.updates, learner.stats.dropped) == (0, 1)
    assert_same_weights(perturbed, before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner._update(windows)
    assert (learner.stats.updates, learner.stats.dropped) == (1, 1)
    assert all(bool(tensor.isfinite().all()) for tensor in named_tensors(perturbed).values())


def test_share_of_time_is_limited(target, perturbed, monkeypatch):
    """By a clock on which a step takes 1 s, and an update 3 s."""
    seconds = [0.0]
    learner = Learner(perturbed, replace(FAST, positions=1, max_time_share=0.25), now_s=lambda: seconds[0])
    update = learner._update

    def slow_update(windows):
        update(windows)
        seconds[0] += 3.0

    def step(event):
        seconds[0] += 1.0
        learner(event)

    monkeypatch.setattr(learner, "_update", slow_update)
    list(Decoder(target, perturbed, chain(3), temperature=0.0, on_step=step).generate(PROMPT, 110))
    stats = learner.stats
    assert stats.updates > 3
    assert stats.skipped > stats.updates
    assert stats.learning_s == 3.0 * stats.updates
    assert 0.2 < stats.share < 0.25 + 3.0 / stats.decoding_s
    assert str(stats) == (
        f"learning: {100 * stats.share:.0f} % of the time, {stats.updates} updates, {stats.skipped} left out"
    )


def test_draft_learns_from_batches(target, perturbed):
    decoder, learner = learning_decoder(target, perturbed, chain(3), temperature=0.0)
    plain = Decoder(target, None, temperature=0.0)
    outputs = {number: [] for number in range(5)}
    for number, tokens in decoder.generate_all([PROMPT] * 5, 60, batch_size=2):
        outputs[number] += tokens
    assert list(outputs.values()) == [list(plain.generate(PROMPT, 60))] * 5
    assert learner.stats.updates > 1


@pytest.mark.parametrize("sizes", [(32, 23), (19, 19)], ids=["more logits", "fewer tokens"])
def test_limited_draft_learns(make_checkpoint, target, sizes):
    logits, tokens = sizes
    whole = load_model(make_checkpoint(seed=3, vocab_size=logits))
    draft = limit_draft(whole, [*range(3), *range(4, tokens)], target.config.vocabulary)
    learner = Learner(draft, FAST)
    before = copy_weights(learner.model)
    list(Decoder(target, draft, chain(2), temperature=0.0, on_step=learner).generate(PROMPT, 60))
    assert learner.stats.updates > 0
    assert learner.stats.dropped == 0
    assert learner.model is whole is built_in_model(draft)
    assert not torch.equal(named_tensors(learner.model)["model.norm.weight"], before["model.norm.weight"])


def test_learning_copy_has_the_same_limit(make_checkpoint, target):
    draft = limit_draft(load_model(make_checkpoint(seed=3, vocab_size=32)), range(19), target.config.vocabulary)
    copy, _ = make_learning_copy(draft)
    assert copy.ids == draft.ids
    assert copy.config == draft.config
    assert copy.model is not draft.model


def test_small_updates_of_a_bfloat16_draft_add_up(make_checkpoint, target):
    """An update of 1e-5 is below the resolution of bfloat16."""
    draft = load_model(make_checkpoint(seed=2, num_hidden_layers=1), dtype=torch.bfloat16)
    learner, windows = Learner(draft, replace(FAST, rate=1e-5)), record_windows(target, draft)
    before = copy_weights(draft)["model.norm.weight"]
    learner._update(windows)
    assert torch.equal(named_tensors(draft)["model.norm.weight"], before)
    for _ in range(250):
        learner._update(windows)
    after = named_tensors(draft)["model.norm.weight"]
    assert after.dtype == torch.bfloat16
    assert not torch.equal(after, before)


def test_invalid_model_and_settings_are_refused(target):
    class Foreign:
        name, config = "foreign", target.config

    with pytest.raises(InfeasibleError, match=r"foreign: expected a draft model that is built in"):
        Learner(Foreign())
    for changes in (
        {"rate": 0.0},
        {"rate": math.nan},
        {"positions": 0},
        {"window_tokens": 1},
        {"max_time_share": -1.0},
    ):
        with pytest.raises(InvalidValueError, match=next(iter(changes))):
            replace(FAST, **changes)
