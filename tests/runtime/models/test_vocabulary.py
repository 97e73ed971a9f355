"""Drafts are limited to tokens that both tokenizers have; the target's text does not depend on the draft's vocabulary."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.passes import new_cache
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, ExpandingDrafter, load_model
from treeopt.runtime.models.model import SequenceInput
from treeopt.runtime.models.runner import GraphPool, Runner
from treeopt.runtime.models.vocabulary import limit_draft
from treeopt.texts.shared_tokens import compare_tokens
from treeopt.trees import level_widths
from treeopt.trees.drafter_parameters import DynamicTree

PROMPT = [3, 1, 4, 1, 5]


def resized(folder, tmp_path_factory, columns):
    """Return a model with another number of logits: more ones are larger than all others."""
    folder = shutil.copytree(folder, tmp_path_factory.mktemp("resized") / "model")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": columns, "eos_token_id": [17, 30]}), "utf-8")
    tensors = load_file(folder / "model.safetensors")
    for name in {"model.embed_tokens.weight", "lm_head.weight"} & tensors.keys():
        more = 50 * torch.randn((max(0, columns - 23), 32), generator=torch.Generator().manual_seed(3))
        tensors[name] = torch.cat([tensors[name], more])[:columns].clone()
    save_file(tensors, folder / "model.safetensors")
    return load_model(folder)


@pytest.fixture(scope="module")
def padded(target_folder, tmp_path_factory):
    return resized(target_folder, tmp_path_factory, 32)


@pytest.fixture(scope="module")
def cut(target_folder, tmp_path_factory):
    return resized(target_folder, tmp_path_factory, 19)


def tokenizer(tokens, added=()):
    return SimpleNamespace(vocabulary={token: index for index, token in enumerate(tokens)}, added_ids=frozenset(added))


class TestTokenizers:
    @pytest.mark.parametrize(
        ("target", "draft", "shared", "counts"),
        [
            ("abcd", "abcd", 4, (0, 0, 0)),
            ("abcde", "abcd", 4, (0, 1, 0)),
            ("abc", "abcdefgh", 3, (0, 0, 5)),
            (("a", "b", "<x>"), ("a", "b", "<y>", "c"), 2, (1, 0, 1)),
        ],
        ids=["the same", "target has more", "draft has more", "a special token differs"],
    )
    def test_those_that_nearly_match(self, target, draft, shared, counts):
        found = compare_tokens(tokenizer(target, added=[2]), tokenizer(draft))
        assert found.ids == tuple(range(shared))
        assert (found.differing, found.target_only, found.draft_only) == counts
        assert found.identical is (counts == (0, 0, 0))

    @pytest.mark.parametrize(
        ("target", "draft", "reason"),
        [
            ("abcd", "acbd", r"2 ids stand for other tokens, the first is 1: 'b' in the target, 'c' in the draft"),
            ("abcd", "dcba", r"4 ids stand for other tokens"),
            ("abcde", "ab", r"2 of the target's 5 tokens have the same id in the draft"),
        ],
        ids=["two swapped", "all differ", "too few shared"],
    )
    def test_another_one(self, target, draft, reason):
        with pytest.raises(InvalidValueError, match=f"^draft: expected the target's tokenizer. {reason}"):
            compare_tokens(tokenizer(target), tokenizer(draft))


class TestLimitedDraft:
    def test_a_draft_with_the_targets_logits_stays_as_it_is(self, target):
        assert limit_draft(target, range(23), 23) is target

    def test_no_shared_logits(self, target):
        with pytest.raises(InvalidValueError, match="expected logits of tokens that the target shares"):
            limit_draft(target, [23, 24], 32)

    def test_its_sizes(self, padded):
        model = limit_draft(padded, range(20), 23)
        assert (model.config.vocabulary, model.config.max_positions, model.config.end_tokens) == (23, 128, (17,))
        assert (model.name, model.parameters) == (padded.name, padded.parameters)
        assert (model.dtype, model.device) == (padded.dtype, padded.device)

    def test_a_pass_that_is_replayed_has_the_same_limits(self, padded):
        model = limit_draft(padded, [*range(7), *range(8, 23)], 40)
        runner, cache = Runner(model, max_nodes=5, pool=GraphPool(torch.device("cpu"))), new_cache(model, 20)
        for token in range(4):
            inputs = [SequenceInput.causal(cache, torch.tensor([token, 21]))]
            torch.testing.assert_close(runner.forward(inputs).logits, model.forward(inputs).logits)
        assert runner.captured

    def test_logits_of_other_tokens_are_ruled_out(self, padded, target, logits_after):
        assert logits_after(padded, PROMPT).argmax() >= 23
        found = logits_after(limit_draft(padded, [*range(7), *range(8, 23)], 40), PROMPT)
        expected = torch.full((40,), -torch.inf)
        expected[:23] = logits_after(target, PROMPT)
        expected[7] = -torch.inf
        torch.testing.assert_close(found, expected)

    def test_a_token_without_an_embedding_is_read_as_the_end_token(self, cut, logits_after):
        model = limit_draft(cut, range(19), 23)
        assert torch.equal(logits_after(model, [3, 21, 4]), logits_after(model, [3, 17, 4]))


class TestTexts:
    """A draft of other logits changes no text."""

    @pytest.mark.parametrize("cuda_graphs", [False, True])
    @pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 0.7}])
    @pytest.mark.parametrize("rule", ["sequoia", "traversal"])
    def test_padding_leaves_the_drafts_as_they_are(self, padded, target, cuda_graphs, options, rule):
        def text(draft):
            options_of_all = {"rule": rule, "seed": 5, "max_sequence_tokens": 60, "cuda_graphs": cuda_graphs, **options}
            return list(Decoder(target, draft, level_widths([2, 2, 1]), **options_of_all).stream(PROMPT, 40))

        assert text(limit_draft(padded, range(23), 23)) == text(target)

    def test_without_a_limit_padding_is_drafted(self, padded, greedy_text):
        assert max(greedy_text(padded, PROMPT, 5)) >= 23

    @pytest.mark.parametrize("ids", [range(19), [*range(3), *range(6, 19)]], ids=["cut", "with a gap"])
    def test_a_draft_that_lacks_tokens(self, target, cut, ids, greedy_text):
        draft = limit_draft(cut, ids, 23)
        expected = greedy_text(target, PROMPT, 60)
        assert set(expected) - set(ids)  # the draft reads what it cannot propose
        prompts = [PROMPT, [22, 21], [20]]
        for drafter, tree in (
            (draft, level_widths([2, 2, 1])),
            (ExpandingDrafter(draft, DynamicTree(top_k=3, depth=3, nodes=8), capacity=128), None),
        ):
            decoder = Decoder(target, drafter, tree, temperature=0.0)
            assert list(decoder.generate(PROMPT, 60)) == expected
            texts = [[], [], []]
            for number, tokens in decoder.generate_all(prompts, 30, batch_size=3):
                texts[number] += tokens
            assert texts == [greedy_text(target, prompt, 30) for prompt in prompts]

    def test_sampled_texts_follow_the_target(self, target, cut, logits_after, chi_squared):
        decoder = Decoder(target, limit_draft(cut, range(3, 19), 23), level_widths([2]), temperature=1.0, seed=1)
        counts = torch.zeros(23)
        for _ in range(1500):
            counts[next(decoder.generate(PROMPT, 1))] += 1
        assert chi_squared(counts, logits_after(target, PROMPT).double().softmax(0)) > 1e-3
