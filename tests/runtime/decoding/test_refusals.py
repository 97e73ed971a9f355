"""Invalid arguments of a decoder are refused before any model runs."""

import pytest

from tests.support.decoded import PROMPT
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.runtime import Decoder, Sampling, load_model
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import chain, level_widths


class Untouchable:
    """A model whose attributes can be read, but that must not run."""

    def __init__(self, model):
        self.config, self.device, self.dtype, self.name = model.config, model.device, model.dtype, model.name
        self.new_caches, self.cache_bytes, self.pass_bytes = model.new_caches, model.cache_bytes, model.pass_bytes

    def prefill(self, *_, **__):
        raise AssertionError("a model ran")

    forward = prefill


class TestSequences:
    @pytest.mark.parametrize(
        ("prompt", "count", "reason"),
        [
            ([], 5, r"token_ids: expected at least one token. Got an empty prompt"),
            ([1, 23], 5, r"token_ids: expected tokens from 0 to 22, which .* has. Got 23: use its own tokenizer"),
            ([-1, 2], 5, r"token_ids: expected tokens from 0 to 22, which .* Got -1"),
            (
                [1] * 100,
                29,
                r"max_new_tokens: expected at most 28 after a prompt of 100 tokens, because .* takes 128 tokens, its trained length. Got 29",
            ),
            (
                [1] * 129,
                0,
                r"token_ids: expected at most 128 tokens, because .* takes 128 tokens, its trained length. Got 129: give a shorter prompt",
            ),
            (
                [1] * 128,
                1,
                r"token_ids: expected at most 127 tokens before a new one, because .* takes 128 tokens, its trained length. Got 128: give a shorter prompt",
            ),
            ([1], -1, r"max_new_tokens: expected at least 0. Got -1"),
        ],
    )
    def test_an_invalid_sequence_is_refused(self, target, draft, prompt, count, reason):
        decoder = Decoder(Untouchable(target), Untouchable(draft), chain(2))
        with pytest.raises(InvalidValueError, match=reason):
            decoder.generate(prompt, count)

    @pytest.mark.parametrize(
        ("prompt", "reason"),
        [
            ([], r"token_ids: expected at least one token. Got an empty prompt"),
            ([1, 23], r"token_ids: expected tokens from 0 to 22, which .* has. Got 23"),
            ([1] * 129, r"token_ids: expected at most 128 tokens, because .* Got 129: give a shorter prompt"),
        ],
    )
    @pytest.mark.parametrize("begin", [Decoder.start, lambda decoder, prompt: decoder.decode_steps(prompt, 5)])
    def test_step_by_step_an_invalid_sequence_is_refused(self, target, draft, begin, prompt, reason):
        decoder = Decoder(Untouchable(target), Untouchable(draft), chain(2))
        with pytest.raises(InvalidValueError, match=reason):
            begin(decoder, prompt)

    def test_a_refusal_leaves_the_current_sequence_and_its_generator_alone(self, target, draft):
        decoder, other = (Decoder(target, draft, chain(2), seed=4) for _ in range(2))
        tokens, expected = decoder.generate(PROMPT, 20), list(other.generate(PROMPT, 20))
        first = [next(tokens) for _ in range(5)]
        for refused in ({"token_ids": []}, {"token_ids": [1], "stop": [[]]}, {"token_ids": [99], "seed": 3}):
            with pytest.raises(InvalidValueError):
                decoder.generate(**refused, max_new_tokens=3)
        assert [*first, *tokens] == expected


@pytest.mark.parametrize("call", ["step", "draft", "verify"])
def test_a_step_before_start_is_refused(target, draft, call):
    decoder, started = (Decoder(target, draft, chain(2)) for _ in range(2))
    started.start(PROMPT)
    arguments = [started.draft()] if call == "verify" else []
    with pytest.raises(
        TreeoptError, match=r"expected a sequence that has begun. Got none: call start\(token_ids\) first"
    ):
        getattr(decoder, call)(*arguments)


class TestDecoders:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            (
                {"temperature": -0.1},
                r"temperature: expected 0, which is greedy, or a finite number of at least 1e-06. Got -0.1",
            ),
            ({"temperature": float("nan")}, r"temperature: .*Got nan"),
            ({"temperature": float("inf")}, r"temperature: .*Got inf"),
            ({"temperature": 1e-7}, r"temperature: .*Got 1e-07"),
            ({"top_p": 0.0}, r"top_p: expected a number above 0 and at most 1. Got 0"),
            ({"top_p": 1.01}, r"top_p: .*Got 1.01"),
            ({"top_k": -1}, r"top_k: expected 0, which keeps all tokens, or more. Got -1"),
            ({"rule": "eagle"}, r"rule: expected one of sequoia.*Got 'eagle'"),
            ({"rule": "typical"}, r"rule: expected a lossless one. Got 'typical'.*lossy=True"),
            ({"draft_sampling": Sampling(0.0)}, r"draft_sampling: expected a temperature above 0. Got 0"),
            (
                {"temperature": 0.0, "draft_sampling": Sampling(0.5)},
                r"draft_sampling: expected a temperature of 0, as the target has. Got 0.5",
            ),
            (
                {"max_sequence_tokens": 129},
                r"max_sequence_tokens: expected 1 to 128, because model\d+ takes 128 tokens, its trained length. Got 129",
            ),
            (
                {"max_sequence_tokens": 0},
                r"max_sequence_tokens: expected 1 to 128, because model\d+ takes 128 tokens, its trained length. Got 0",
            ),
            ({"tree": level_widths([24])}, r"tree: expected at most 23 children per node, the vocabulary. Got 24"),
            (
                {"tree": chain(129)},
                r"tree: expected a depth of at most 128, because model\d+ takes 128 tokens, its trained length. Got 129",
            ),
            ({"drafter": None}, r"drafter: expected a draft model for a tree of 3 nodes. Got None"),
        ],
    )
    def test_invalid_arguments_are_refused(self, target, draft, changes, reason):
        arguments = {"drafter": Untouchable(draft), "tree": chain(2)} | changes
        with pytest.raises(InvalidValueError, match=reason):
            Decoder(Untouchable(target), **arguments)

    @pytest.mark.parametrize(("rule", "reason"), [("typical", "lossy=True"), ("sequoia", "expected target or typical")])
    def test_rules_for_other_drafts_are_refused(self, target, rule, reason):
        with pytest.raises(InvalidValueError, match=f"rule: .*{reason}"):
            Decoder(target, PromptLookupDrafter(2, 3), rule=rule)

    def test_a_tree_belongs_to_a_draft_model(self, target, draft):
        with pytest.raises(
            InvalidValueError, match=r"tree: expected none with a drafter that brings its own. Got 3 nodes"
        ):
            Decoder(target, PromptLookupDrafter(2, 3), chain(2))
        with pytest.raises(InvalidValueError, match=r"tree: expected the tree that the draft model fills. Got None"):
            Decoder(target, draft)

    def test_other_vocabularies_are_refused(self, target, make_checkpoint):
        other = load_model(make_checkpoint(seed=9, vocab_size=24))
        with pytest.raises(InvalidValueError, match=r"drafter: expected the target's vocabulary of 23 tokens. Got 24"):
            Decoder(target, other, chain(1))

    def test_errors_name_the_model_with_the_shortest_length(self, draft, make_checkpoint):
        short = load_model(make_checkpoint(seed=9, max_position_embeddings=32))
        reason = f"because {short.name} takes 32 tokens, its trained length"
        with pytest.raises(InvalidValueError, match=rf"max_sequence_tokens: expected 1 to 32, {reason}. Got 33"):
            Decoder(short, draft, chain(1), max_sequence_tokens=33)
        with pytest.raises(
            InvalidValueError, match=rf"max_new_tokens: expected at most 22 after a prompt of 10 tokens, {reason}"
        ):
            Decoder(short, draft, chain(1)).generate([1] * 10, 23)
        with pytest.raises(InvalidValueError, match=rf"tree: expected a depth of at most 32, {reason}. Got 33"):
            Decoder(draft, short, chain(33))

    def test_errors_name_max_sequence_tokens(self, target, draft):
        decoder = Decoder(target, draft, chain(1), max_sequence_tokens=20)
        with pytest.raises(InvalidValueError, match="because the decoder was made with max_sequence_tokens 20"):
            decoder.generate([1] * 10, 11)

    def test_as_many_children_as_tokens_are_allowed(self, target, draft):
        steps = list(Decoder(target, draft, level_widths([23]), temperature=1.0).stream(PROMPT, 10))
        assert [len(step) for step in steps] == [2] * 5
