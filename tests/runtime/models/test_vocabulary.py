"""Pairs with other tokens are refused; columns of padding behind the tokens are never sampled."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.models.model import StaticModel
from treeopt.runtime.models.vocabulary import TrimmedModel, check_same_tokens, shared_columns, trimmed
from treeopt.trees import level_widths

TOKENS = {"a": 0, "b": 1, "c": 2}
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def padded(target_folder, tmp_path_factory):
    """Return the target with 9 more columns, whose logits are larger than all others."""
    folder = shutil.copytree(target_folder, tmp_path_factory.mktemp("padded") / "model")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 32, "eos_token_id": [22, 30]}), "utf-8")
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        more = 50 * torch.randn((9, 32), generator=torch.Generator().manual_seed(3))
        tensors[name] = torch.cat([tensors[name], more])
    save_file(tensors, folder / "model.safetensors")
    return load_model(folder)


class TestTokens:
    def test_the_same(self):
        check_same_tokens(TOKENS, dict(reversed(TOKENS.items())))

    @pytest.mark.parametrize(
        ("draft", "count", "first"),
        [
            ({"a": 0, "b": 2, "c": 1}, 4, "'b' as token 1"),
            ({"a": 0, "b": 1}, 1, "'c' as token 2"),
            (TOKENS | {"<reserved>": 3}, 1, "'<reserved>' as token 3"),
        ],
        ids=["two swapped", "one less", "one more"],
    )
    def test_a_difference(self, draft, count, first):
        with pytest.raises(InvalidValueError, match=f"{count} entries differ, the first is {first}: choose"):
            check_same_tokens(TOKENS, draft)


class TestColumns:
    @pytest.mark.parametrize(("target", "draft", "shared"), [(3, 3, 3), (8, 4, 4), (3, 8, 3), (2, 2, 2)])
    def test_padding_may_differ(self, target, draft, shared):
        assert shared_columns(TOKENS, target=target, draft=draft) == shared

    @pytest.mark.parametrize(("target", "draft", "name"), [(3, 2, "draft"), (2, 3, "target")])
    def test_a_token_without_a_column(self, target, draft, name):
        with pytest.raises(InvalidValueError, match=f"{name}: expected logits for every token, up to 2. Got 2, and"):
            shared_columns(TOKENS, target=target, draft=draft)


class TestTrimmedModel:
    def test_no_more_columns_than_shown(self, target):
        assert trimmed(target, 23) is target

    def test_its_sizes(self, padded):
        model = trimmed(padded, 23)
        assert (model.config.vocabulary, model.config.max_positions, model.config.end_tokens) == (23, 128, (22,))
        assert (model.name, model.parameters) == (padded.name, padded.parameters)
        assert (model.dtype, model.device) == (padded.dtype, padded.device)

    def test_a_graph_is_captured_where_the_model_has_a_static_pass(self, padded):
        assert isinstance(trimmed(padded, 23), StaticModel)
        assert not isinstance(TrimmedModel(padded, 23), StaticModel)

    def test_logits_are_the_first_of_the_model(self, padded, target, logits_after):
        assert logits_after(padded, PROMPT).argmax() >= 23
        torch.testing.assert_close(logits_after(trimmed(padded, 23), PROMPT), logits_after(target, PROMPT))

    @pytest.mark.parametrize("cuda_graphs", [False, True])
    @pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 0.7}])
    @pytest.mark.parametrize("rule", ["sequoia", "traversal"])
    def test_the_text_is_that_of_the_target_without_padding(self, padded, target, draft, cuda_graphs, options, rule):
        tree = level_widths([2, 2, 1])
        texts = [
            list(
                Decoder(
                    model, drafter, tree, rule=rule, seed=5, max_text_tokens=60, cuda_graphs=cuda_graphs, **options
                ).generate(PROMPT, 40)
            )
            for model, drafter in [(target, draft), (trimmed_without_ends(padded), draft)]
        ]
        assert texts[0] == texts[1]

    def test_without_trimming_padding_is_drawn(self, padded, greedy_text):
        assert max(greedy_text(padded, PROMPT, 5)) >= 23

    def test_the_draft_may_be_the_padded_one(self, padded, target, greedy_text):
        decoder = Decoder(target, trimmed(padded, 23), level_widths([1, 1, 1]), temperature=0, max_text_tokens=40)
        steps = list(decoder.steps(PROMPT, 24))
        assert [token for step in steps for token in step] == greedy_text(target, PROMPT, 24)
        assert max(map(len, steps)) == 4  # drafted by the same weights


def trimmed_without_ends(model):
    shown = trimmed(model, 23)
    shown.config = type(shown.config)(23, 128, ())
    return shown
