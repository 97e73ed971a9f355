"""Drafts are limited to tokens that both tokenizers have; the target's text does not depend on the draft's vocabulary."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.decoded import joined
from tests.support.passes import new_cache
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, ExpandingDrafter, load_model
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.models.model import SequenceInput
from treeopt.runtime.models.runner import GraphPool, Runner
from treeopt.runtime.models.vocabulary import limit_draft
from treeopt.texts.shared_tokens import compare_tokens
from treeopt.trees import level_widths
from treeopt.trees.drafter_parameters import DynamicTree

PROMPT = [3, 1, 4, 1, 5]


def load_resized(folder, tmp_path_factory, columns):
    """Return a model with another number of logits; those added are larger than all others."""
    folder = shutil.copytree(folder, tmp_path_factory.mktemp("resized") / "model")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": columns, "eos_token_id": [17, 30]}), "utf-8")
    tensors = load_file(folder / "model.safetensors")
    for name in {"model.embed_tokens.weight", "lm_head.weight"} & tensors.keys():
        added = 50 * torch.randn((max(0, columns - 23), 32), generator=torch.Generator().manual_seed(3))
        tensors[name] = torch.cat([tensors[name], added])[:columns].clone()
    save_file(tensors, folder / "model.safetensors")
    return load_model(folder)


@pytest.fixture(scope="module")
def padded(target_folder, tmp_path_factory):
    """Return the target with 32 logits."""
    return load_resized(target_folder, tmp_path_factory, 32)


@pytest.fixture(scope="module")
def cut(target_folder, tmp_path_factory):
    """Return the target with 19 logits."""
    return load_resized(target_folder, tmp_path_factory, 19)


def tokenizer(tokens, added=()):
    return SimpleNamespace(vocabulary={token: index for index, token in enumerate(tokens)}, added_ids=frozenset(added))


class TestCompareTokens:
    @pytest.mark.parametrize(
        ("target", "draft", "shared", "counts"),
        [
            ("abcd", "abcd", 4, (0, 0, 0)),
            ("abcde", "abcd", 4, (0, 1, 0)),
            ("abc", "abcdefgh", 3, (0, 0, 5)),
            (("a", "b", "<x>"), ("a", "b", "<y>", "c"), 2, (1, 0, 1)),
        ],
        ids=["equal", "target has more", "draft has more", "a special token differs"],
    )
    def test_shared_tokens_are_counted(self, target, draft, shared, counts):
        tokens = compare_tokens(tokenizer(target, added=[2]), tokenizer(draft))
        assert tokens.ids == tuple(range(shared))
        assert (tokens.differing, tokens.target_only, tokens.draft_only) == counts
        assert tokens.identical is (counts == (0, 0, 0))

    @pytest.mark.parametrize(
        ("target", "draft", "reason"),
        [
            ("abcd", "acbd", r"2 ids stand for other tokens, the first is 1: 'b' in the target, 'c' in the draft"),
            ("abcde", "ab", r"2 of the target's 5 tokens have the same id in the draft"),
        ],
        ids=["two swapped", "too few shared"],
    )
    def test_another_tokenizer_is_refused(self, target, draft, reason):
        with pytest.raises(InvalidValueError, match=f"^draft: expected the target's tokenizer. {reason}"):
            compare_tokens(tokenizer(target), tokenizer(draft))


class TestLimitedDraft:
    def test_draft_with_the_same_logits_is_not_limited(self, target):
        assert limit_draft(target, range(23), 23) is target

    def test_draft_without_shared_logits_is_refused(self, target):
        with pytest.raises(InvalidValueError, match="expected logits of tokens that the target shares"):
            limit_draft(target, [23, 24], 32)

    def test_end_tokens_are_limited(self, padded):
        config = limit_draft(padded, range(20), 23).config
        assert (config.vocabulary, config.max_positions, config.end_tokens) == (23, 128, (17,))

    def test_other_tokens_have_no_probability_in_passes_and_replays(self, padded, target, logits_after):
        assert logits_after(padded, PROMPT).argmax() >= 23
        model = limit_draft(padded, [*range(7), *range(8, 23)], 40)
        expected = torch.full((40,), -torch.inf)
        expected[:23] = logits_after(target, PROMPT)
        expected[7] = -torch.inf
        torch.testing.assert_close(logits_after(model, PROMPT), expected)
        runner, cache = Runner(model, max_nodes=5, pool=GraphPool(torch.device("cpu"))), new_cache(model, 20)
        for token in range(3):
            inputs = [SequenceInput.causal(cache, torch.tensor([token, 21]))]
            torch.testing.assert_close(runner.forward(inputs).logits, model.forward(inputs).logits)
        assert runner.captured

    def test_token_without_embedding_is_read_as_the_end_token(self, cut, logits_after):
        model = limit_draft(cut, range(19), 23)
        assert torch.equal(logits_after(model, [3, 21, 4]), logits_after(model, [3, 17, 4]))


class TestDecoding:
    @pytest.mark.parametrize(
        ("rule", "cuda_graphs", "sampling"),
        [
            ("sequoia", False, {"temperature": 0}),
            ("sequoia", True, {"temperature": 0.8, "top_p": 0.7}),
            ("traversal", False, {"temperature": 0.8}),
        ],
    )
    def test_padding_of_the_draft_changes_no_step(self, padded, target, rule, cuda_graphs, sampling):
        def steps(draft):
            options = {"rule": rule, "seed": 5, "max_sequence_tokens": 60, "cuda_graphs": cuda_graphs, **sampling}
            return list(Decoder(target, draft, level_widths([2, 2, 1]), **options).stream(PROMPT, 30))

        assert steps(limit_draft(padded, range(23), 23)) == steps(target)

    @pytest.mark.parametrize("ids", [range(19), [*range(3), *range(6, 19)]], ids=["cut", "with a gap"])
    def test_greedy_outputs_equal_plain_decoding_with_a_draft_that_lacks_tokens(self, target, cut, ids, greedy_text):
        draft = limit_draft(cut, ids, 23)
        expected = greedy_text(target, PROMPT, 60)
        assert set(expected) - set(ids)  # the draft reads tokens that it cannot propose
        prompts = [PROMPT, [22, 21], [20]]
        for drafter, tree in (
            (draft, level_widths([2, 2, 1])),
            (ExpandingDrafter(draft, DynamicTree(top_k=3, depth=3, nodes=8), capacity=128), None),
        ):
            decoder = Decoder(target, drafter, tree, temperature=0.0)
            assert joined(decoder.stream(PROMPT, 60)) == expected
            outputs = [[], [], []]
            for number, tokens in decoder.generate_all(prompts, 20, batch_size=3):
                outputs[number] += tokens
            assert outputs == [greedy_text(target, prompt, 20) for prompt in prompts]

    def test_sampled_tokens_follow_the_target(self, target, cut, logits_after, chi_squared):
        """Detects an error of 0.08 in the probability of one token: 4 standard errors of 600 samples."""
        decoder = Decoder(target, limit_draft(cut, range(3, 19), 23), level_widths([2]), temperature=1.0, seed=1)
        counts = torch.zeros(23)
        for step in decoder.stream_all([GenerationRequest(PROMPT, 1)] * 600, batch_size=50):
            counts[step.tokens] += 1
        assert counts.sum() == 600
        assert chi_squared(counts, logits_after(target, PROMPT).double().softmax(0)) > 1e-3
