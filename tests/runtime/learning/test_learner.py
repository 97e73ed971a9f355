"""A draft that learns: the weights are those that transformers' own model comes to, and the text stays the target's."""

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
from treeopt.runtime.models.checkpoint import named_tensors
from treeopt.runtime.models.vocabulary import limit_draft
from treeopt.trees import chain, level_widths

ARCHITECTURES = {
    "tied head": {"tie_word_embeddings": True},
    "untied head and biases": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
}


def decoded(target, draft, tree, prompts=(PROMPT, PROMPT[:4], [1]), count=60, **options):
    decoder, learner = learning_decoder(target, draft, tree, **options)
    return [list(decoder.stream(prompt, count)) for prompt in prompts], learner


def weights(model):
    return {name: tensor.clone() for name, tensor in named_tensors(model).items()}


def recorded_windows(target, draft, count=40):
    """Return what is met in a text where nothing is learnt."""
    buffer = ReplayBuffer(64)
    list(Decoder(target, draft, chain(3), temperature=0.0, on_step=buffer.add).generate(PROMPT, count))
    return buffer.take()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_updates_are_those_of_transformers_model_and_torch(make_checkpoint, target, name):
    from transformers import LlamaForCausalLM

    folder = make_checkpoint(seed=7, **ARCHITECTURES[name])
    theirs, ours = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), load_model(folder)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.0)
    learner = Learner(ours, LearningSettings(rate=1e-2, max_grad_norm=0.3, max_time_share=1e9))
    windows = recorded_windows(target, ours)
    assert len(windows[0].rows) > 5
    for _ in range(2):
        optimizer.zero_grad()
        losses = []
        for window in windows:
            logits = theirs(torch.tensor([window.tokens])).logits[0]
            wanted = torch.stack(window.logits).softmax(-1)
            losses.append(-(wanted * log_softmax(logits[window.rows], -1)).sum(-1))
        torch.cat(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
        optimizer.step()
        learner._update(windows)
    expected, before = theirs.state_dict(), weights(load_model(folder))
    for tensor_name, found in named_tensors(ours).items():
        torch.testing.assert_close(found, expected[tensor_name], rtol=1e-3, atol=1e-4)
        assert not torch.allclose(found, before[tensor_name], rtol=1e-3, atol=1e-3)


def test_a_perturbed_draft_is_accepted_more_often_and_the_greedy_text_is_the_same(target, target_folder):
    draft, prompts = perturbed_model(target_folder, 0.5, device=target.device), [PROMPT] * 12
    fixed = [list(Decoder(target, draft, chain(3), temperature=0.0).stream(prompt, 60)) for prompt in prompts]
    found, learner = decoded(target, draft, chain(3), prompts, temperature=0.0)
    assert [*map(joined, found)] == [*map(joined, fixed)]
    assert sum(map(len, found[-2:])) < 0.8 * sum(map(len, fixed[-2:]))
    assert learner.stats.updates > 3


def test_only_the_draft_of_this_decoder_changes(target, target_folder):
    draft = perturbed_model(target_folder, 0.5, device=target.device)
    before, target_before = weights(draft), weights(target)
    _, learner = decoded(target, draft, chain(3), temperature=0.0)
    for name, tensor in named_tensors(draft).items():
        assert torch.equal(tensor, before[name])
        assert torch.equal(named_tensors(target)[name], target_before[name])
    assert learner.stats.updates
    assert any(not torch.equal(tensor, before[name]) for name, tensor in named_tensors(learner.model).items())


def test_the_same_seed_learns_the_same(target, target_folder):
    draft = perturbed_model(target_folder, 0.5, device=target.device)
    options = {"temperature": 0.9, "seed": 3}
    first, again = (decoded(target, draft, level_widths([2, 2]), **options) for _ in range(2))
    assert first[0] == again[0]
    assert first[1].stats.updates == again[1].stats.updates > 0
    for name, tensor in named_tensors(first[1].model).items():
        assert torch.equal(tensor, named_tensors(again[1].model)[name])


def test_a_gradient_that_is_not_finite_is_dropped_and_told(target, target_folder):
    own = perturbed_model(target_folder, 0.5, device=target.device)
    learner, windows, before = Learner(own, FAST), recorded_windows(target, own), weights(own)
    broken = replace(windows[0], logits=[torch.full_like(each, math.nan) for each in windows[0].logits])
    with pytest.warns(TreeoptWarning, match=r"was dropped.*lower --learning-rate"):
        learner._update([broken])
    assert (learner.stats.updates, learner.stats.dropped) == (0, 1)
    for name, tensor in named_tensors(own).items():
        assert torch.equal(tensor, before[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner._update(windows)
    assert (learner.stats.updates, learner.stats.dropped) == (1, 1)
    assert all(bool(tensor.isfinite().all()) for tensor in named_tensors(own).values())


def test_its_share_of_the_time_is_bounded_and_told(target, target_folder, monkeypatch):
    """By a clock on which a step takes 1 s, and an update 3 s."""
    own, seconds = perturbed_model(target_folder, 0.5, device=target.device), [0.0]
    learner = Learner(own, replace(FAST, positions=1, max_time_share=0.25), now_s=lambda: seconds[0])
    update = learner._update

    def slow_update(windows):
        update(windows)
        seconds[0] += 3.0

    def step(event):
        seconds[0] += 1.0
        learner(event)

    monkeypatch.setattr(learner, "_update", slow_update)
    list(Decoder(target, own, chain(3), temperature=0.0, on_step=step).generate(PROMPT, 110))
    stats = learner.stats
    assert stats.updates > 3
    assert stats.skipped > stats.updates
    assert stats.learning_s == 3.0 * stats.updates
    assert 0.2 < stats.share < 0.25 + 3.0 / stats.decoding_s
    assert str(stats) == (
        f"learning: {100 * stats.share:.0f} % of the time, {stats.updates} updates, {stats.skipped} left out"
    )


def test_texts_in_a_batch_teach_too(target, target_folder):
    draft = perturbed_model(target_folder, 0.5, device=target.device)
    decoder, learner = learning_decoder(target, draft, chain(3), temperature=0.0)
    plain = Decoder(target, None, temperature=0.0)
    texts = {number: [] for number in range(5)}
    for number, tokens in decoder.generate_all([PROMPT] * 5, 60, batch_size=2):
        texts[number] += tokens
    assert list(texts.values()) == [list(plain.generate(PROMPT, 60))] * 5
    assert learner.stats.updates > 1


@pytest.mark.parametrize("sizes", [(32, 23), (19, 19)], ids=["more logits", "fewer tokens"])
def test_a_limited_draft_learns_the_tokens_that_it_may_propose(make_checkpoint, target, sizes):
    logits, tokens = sizes
    whole = load_model(make_checkpoint(seed=3, vocab_size=logits))
    draft = limit_draft(whole, [*range(3), *range(4, tokens)], target.config.vocabulary)
    learner = Learner(draft, FAST)
    before = weights(learner.model)
    list(Decoder(target, draft, chain(2), temperature=0.0, on_step=learner).generate(PROMPT, 60))
    assert learner.stats.updates > 0
    assert learner.stats.dropped == 0
    assert learner.model is whole is built_in_model(draft)
    assert not torch.equal(named_tensors(learner.model)["model.norm.weight"], before["model.norm.weight"])


def test_a_copy_that_learns_proposes_the_same_tokens(make_checkpoint, target):
    draft = limit_draft(load_model(make_checkpoint(seed=3, vocab_size=32)), range(19), target.config.vocabulary)
    copy, _ = make_learning_copy(draft)
    assert copy.ids == draft.ids
    assert copy.config == draft.config
    assert copy.model is not draft.model


def test_in_half_precision_it_learns_in_single(make_checkpoint, target):
    """An update of 1e-5 is less than bfloat16 can tell; many of them are not lost."""
    draft = load_model(make_checkpoint(seed=2, num_hidden_layers=1), dtype=torch.bfloat16)
    learner, windows, before = Learner(draft, replace(FAST, rate=1e-5)), recorded_windows(target, draft), weights(draft)
    norm, found = before["model.norm.weight"], named_tensors(draft)
    learner._update(windows)
    assert torch.equal(found["model.norm.weight"], norm)
    for _ in range(400):
        learner._update(windows)
    assert found["model.norm.weight"].dtype == torch.bfloat16
    assert not torch.equal(found["model.norm.weight"], norm)


def test_what_cannot_be_meant_is_refused(target):
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
