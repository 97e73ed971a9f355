"""The decode loop: the target's own text at temperature 0, the target's own law above it, whatever the tree."""

from dataclasses import replace
from itertools import count, product

import numpy as np
import pytest
import torch

from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, Transformer, drafter, load_model, probabilities
from treeopt.runtime.sampling import likeliest
from treeopt.trees import TokenTree, chain, chains, k_ary, level_widths

PROMPT = [3, 14, 15, 9, 2, 6, 5]


def random_tree(seed, nodes=12):
    generator = np.random.default_rng(seed)
    return TokenTree.ordered([-1, *(int(generator.integers(node)) for node in range(1, nodes))])


TREES = {
    "root alone": chain(0),
    "chain of 1": chain(1),
    "chain of 4": chain(4),
    "two chains": chains(2, 3),
    "wide, then narrow": level_widths([3, 3, 2, 1]),
    "narrow, then wide": level_widths([1, 2, 6]),
    "binary": k_ary(2, 3),
    "random 1": random_tree(1),
    "random 2": random_tree(2),
    "random 3": random_tree(3),
}
all_trees = pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())


@pytest.fixture(scope="session")
def greedy_text(logits_after):
    """Return the function that continues a text by the likeliest token, a fresh pass for each."""

    def continued(model, prompt, count):
        text = list(prompt)
        for _ in range(count):
            text.append(int(logits_after(model, text).argmax()))
        return text[len(prompt) :]

    return continued


@pytest.fixture(scope="session")
def expected(target, greedy_text):
    return greedy_text(target, PROMPT, 40)


def joined(steps):
    return [token for step in steps for token in step]


def with_end(model, token):
    return Transformer(replace(model.config, end_tokens=(token,)), model.weights, name=model.name)


class TestTemperatureZero:
    @all_trees
    def test_the_text_is_that_of_plain_decoding(self, target, draft, tree, expected):
        decoder = Decoder(target, draft, tree, temperature=0.0)
        tokens = list(decoder.generate(PROMPT, 40))
        assert tokens == expected
        assert {type(token) for token in tokens} == {int}

    def test_plain_decoding_needs_no_drafter(self, target, expected):
        assert list(Decoder(target, None, chain(0), temperature=0.0).generate(PROMPT, 40)) == expected

    @all_trees
    def test_a_draft_like_the_target_is_accepted_down_the_first_children(self, target, tree, expected):
        first_children, node = 0, 0
        while len(children := tree.children(node)) > 0:
            first_children, node = first_children + 1, children[0]
        steps = list(Decoder(target, target, tree, temperature=0.0).steps(PROMPT, 36))
        assert {len(step) for step in steps[:-1]} == {first_children + 1}
        assert joined(steps) == expected[:36]

    @pytest.mark.parametrize("tree", [chain(5), level_widths([2, 2, 2, 2, 2]), k_ary(2, 5)])
    def test_a_draft_like_the_target_yields_its_depth_and_one(self, target, tree):
        steps = list(Decoder(target, target, tree, temperature=0.0).steps(PROMPT, 36))
        assert [len(step) for step in steps] == [6] * 6

    @pytest.mark.parametrize("tree", [chain(3), k_ary(2, 3), random_tree(1)])
    def test_prompts_after_one_another_leave_no_state(self, target, draft, tree, greedy_text):
        decoder = Decoder(target, draft, tree, temperature=0.0)
        for prompt in ([1], [2, 2], PROMPT * 5, [1], PROMPT[:3]):
            assert list(decoder.generate(prompt, 15)) == greedy_text(target, prompt, 15)

    def test_a_text_that_is_given_up_leaves_no_state(self, target, draft, expected):
        decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.0)
        given_up = decoder.generate([7, 8, 9], 30)
        assert len([next(given_up) for _ in range(5)]) == 5
        assert list(decoder.generate(PROMPT, 40)) == expected

    @pytest.mark.parametrize("tree", [chain(0), chain(5), level_widths([3, 3, 2, 1])])
    @pytest.mark.parametrize("drafts_like_target", [False, True])
    def test_a_text_may_be_as_long_as_the_models_were_trained_for(
        self, target, draft, tree, drafts_like_target, greedy_text
    ):
        prompt = PROMPT * 17
        decoder = Decoder(target, target if drafts_like_target else draft, tree, temperature=0.0)
        assert list(decoder.generate(prompt, 128 - len(prompt))) == greedy_text(target, prompt, 128 - len(prompt))

    def test_a_shorter_limit_changes_nothing_below_it(self, target, draft, expected):
        decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.0, max_text_tokens=47)
        assert decoder.max_text_tokens == 47
        assert list(decoder.generate(PROMPT, 40)) == expected


class TestLength:
    @pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 11])
    @pytest.mark.parametrize("temperature", [0.0, 0.6])
    def test_exactly_as_many_tokens_as_asked_for(self, target, draft, count, temperature):
        for model in (draft, target):
            decoder = Decoder(target, model, chain(4), temperature=temperature)
            assert len(list(decoder.generate(PROMPT, count))) == count

    def test_the_last_step_is_cut(self, target, expected):
        steps = list(Decoder(target, target, chain(4), temperature=0.0).steps(PROMPT, 12))
        assert [len(step) for step in steps] == [5, 5, 2]
        assert joined(steps) == expected[:12]

    @pytest.mark.parametrize("drafts_like_target", [False, True])
    @pytest.mark.parametrize("tree", [chain(0), chain(4), k_ary(2, 3)])
    def test_the_end_token_stops_the_text(self, target, draft, drafts_like_target, tree, expected):
        for end in set(expected):
            model = with_end(target, end)
            decoder = Decoder(model, target if drafts_like_target else draft, tree, temperature=0.0)
            assert list(decoder.generate(PROMPT, 40)) == expected[: expected.index(end) + 1]

    def test_an_end_token_of_the_prompt_does_not_stop_the_text(self, target, draft, expected):
        unused = next(token for token in range(23) if token not in expected)
        prompt = [unused, *PROMPT, unused]
        decoder = Decoder(with_end(target, unused), draft, chain(2), temperature=0.0)
        assert len(list(decoder.generate(prompt, 5))) >= 1


class TestSeed:
    def test_the_same_seed_gives_the_same_text(self, target, draft):
        def text(seed):
            decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.6, top_p=0.95, seed=seed)
            return [list(decoder.generate(PROMPT, 30)) for _ in range(2)]

        first, second = text(5)
        assert first != second
        assert text(5) == [first, second]
        assert text(6) != [first, second]

    def test_the_global_generator_is_not_touched(self, target, draft):
        before = torch.get_rng_state()
        list(Decoder(target, draft, k_ary(2, 2), temperature=1.0).generate(PROMPT, 10))
        assert torch.equal(torch.get_rng_state(), before)


class TestDrafting:
    @all_trees
    def test_the_drafter_is_fed_internal_nodes_only(self, target, draft, tree, monkeypatch):
        fed = []
        forward = draft.forward
        monkeypatch.setattr(
            draft, "forward", lambda tokens, *a, **k: fed.append(len(tokens)) or forward(tokens, *a, **k)
        )
        decoder = Decoder(target, draft, tree, temperature=0.8)
        decoder.start(PROMPT)
        pending = 1
        for _ in range(12):
            fed.clear()
            drafted = decoder.draft()
            assert fed == ([pending, *tree.draft_widths[1:].tolist()] if tree.max_depth else [])
            tokens = drafted.tokens.tolist()
            verdict = decoder.judge(drafted, tokens, decoder.score(drafted.tokens))
            decoder.commit(tokens, verdict)
            pending = 2 if tree.child_counts[verdict.path[-1]] == 0 else 1

    @pytest.mark.parametrize("drafts_like_target", [False, True])
    @all_trees
    def test_every_law_is_that_of_a_fresh_pass(self, target, draft, tree, drafts_like_target, logits_after):
        model = target if drafts_like_target else draft
        decoder = Decoder(target, model, tree, temperature=0.7, seed=3)
        decoder.start(PROMPT)
        text = list(PROMPT)
        for _ in range(6):
            drafted = decoder.draft()
            tokens, logits = drafted.tokens.tolist(), decoder.score(drafted.tokens)
            assert tokens[0] == text[-1]
            for node in range(tree.nodes):
                path = [tokens[above] for above in np.flatnonzero(tree.ancestor_mask[node])]
                fresh = logits_after(target, [*text[:-1], *path])
                torch.testing.assert_close(logits[node], fresh, rtol=1e-4, atol=1e-4)
                children = tree.children(node)
                assert len({tokens[child] for child in children}) == len(children)
                if len(children) > 0:
                    law = probabilities(logits_after(model, [*text[:-1], *path])[None], 0.7)[0]
                    torch.testing.assert_close(drafted.probs[node], law, rtol=1e-3, atol=1e-5)
            verdict = decoder.judge(drafted, tokens, logits)
            text += decoder.commit(tokens, verdict)

    def test_at_temperature_zero_children_are_the_likeliest(self, target, draft, logits_after):
        tree = level_widths([3, 4, 2])
        decoder = Decoder(target, draft, tree, temperature=0.0)
        decoder.start(PROMPT)
        text = list(PROMPT)
        for _ in range(8):
            drafted = decoder.draft()
            tokens = drafted.tokens.tolist()
            for node in range(tree.nodes):
                path = [tokens[above] for above in np.flatnonzero(tree.ancestor_mask[node])]
                wanted = logits_after(draft, [*text[:-1], *path]).topk(len(tree.children(node))).indices.tolist()
                assert [tokens[child] for child in tree.children(node)] == wanted
            verdict = decoder.judge(drafted, tokens, decoder.score(drafted.tokens))
            text += decoder.commit(tokens, verdict)


@pytest.fixture(scope="session")
def pair(make_checkpoint):
    sizes = {"vocab_size": 5, "num_hidden_layers": 1, "tie_word_embeddings": False, "initializer_range": 0.25}
    return [load_model(make_checkpoint(seed=seed, **sizes)) for seed in (5, 6)]


class TestLaw:
    """The joint law of the first tokens, decoded over two steps or more, on models of 5 tokens."""

    PROMPT = (2, 0, 3)
    CASES = (
        (chain(1), 3000, {"temperature": 1.0}),
        (level_widths([2, 2]), 1500, {"temperature": 1.0}),
        (TokenTree([-1, 0, 0, 0, 1]), 1000, {"temperature": 0.6, "top_p": 0.8}),
    )

    @staticmethod
    def exact(model, prompt, length, logits_after, temperature, top_p=1.0):
        """Return the joint law of the next `length` tokens from a fresh pass for each text."""
        law = np.ones((5,) * length)
        for done in range(length):
            for text in product(range(5), repeat=done):
                logits = logits_after(model, [*prompt, *text])[None]
                after = probabilities(logits, temperature, top_p)[0].double().numpy()
                law[text] *= (after / after.sum()).reshape(5, *[1] * (length - done - 1))
        return law

    def p_value(self, pair, tree, generations, logits_after, chi_squared, seed, before_each=lambda: None, **sampling):
        length = tree.max_depth + 2
        decoder = Decoder(*pair, tree, seed=seed, **sampling)
        counts = np.zeros((5,) * length)
        for _ in range(generations):
            before_each()
            counts[tuple(decoder.generate(self.PROMPT, length))] += 1
        return chi_squared(counts, self.exact(pair[0], self.PROMPT, length, logits_after, **sampling))

    @pytest.mark.parametrize(("tree", "generations", "sampling"), CASES)
    def test_several_steps_follow_the_law_of_the_target(
        self, pair, tree, generations, sampling, logits_after, chi_squared
    ):
        assert self.p_value(pair, tree, generations, logits_after, chi_squared, seed=1, **sampling) > 1e-3

    def test_plain_decoding_follows_it_too(self, pair, logits_after, chi_squared):
        plain = (pair[0], None)
        assert self.p_value(plain, chain(0), 2000, logits_after, chi_squared, seed=2, temperature=1.0) > 1e-3

    @pytest.mark.parametrize("tree", [chain(1), level_widths([2, 2])])
    def test_noise_that_is_used_again_in_the_next_step_is_found(
        self, pair, tree, logits_after, chi_squared, monkeypatch
    ):
        generations = count()
        noise = torch.Generator()

        def draft_with_the_same_noise(decoder):
            return decoder._drafter.propose(noise.clone_state())

        monkeypatch.setattr(Decoder, "draft", draft_with_the_same_noise)
        p_value = self.p_value(
            pair,
            tree,
            1000,
            logits_after,
            chi_squared,
            seed=3,
            before_each=lambda: noise.manual_seed(next(generations)),
            temperature=1.0,
        )
        assert p_value < 1e-6

    @pytest.mark.parametrize("tree", [chain(1), level_widths([2, 2])])
    def test_likeliest_children_under_a_rule_for_drawn_ones_are_found(
        self, pair, tree, logits_after, chi_squared, monkeypatch
    ):
        monkeypatch.setattr(drafter, "draw", lambda _, law, counts, __: likeliest(law, counts, int(counts.max())))
        assert self.p_value(pair, tree, 500, logits_after, chi_squared, seed=4, temperature=1.0) < 1e-6


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompt", "count", "reason"),
        [
            ([], 5, r"token_ids: expected at least one token. Got an empty prompt"),
            ([1, 23], 5, r"token_ids: expected tokens from 0 to 22"),
            ([-1, 2], 5, r"token_ids: expected tokens from 0 to 22"),
            ([1] * 100, 29, r"max_new_tokens: expected 0 to 28 after a prompt of 100.*texts of 128 tokens. Got 29"),
            ([1] * 129, 0, r"max_new_tokens: expected 0 to -1|token_ids"),
            ([1], -1, r"max_new_tokens: expected 0 to 127.*Got -1"),
        ],
    )
    def test_a_text_that_cannot_be_decoded(self, target, draft, prompt, count, reason):
        decoder = Decoder(target, draft, chain(2))
        with pytest.raises(InvalidValueError, match=reason):
            decoder.steps(prompt, count)
        with pytest.raises(InvalidValueError, match=reason):
            next(decoder.generate(prompt, count))
        assert len(list(decoder.generate([1, 2], 3))) == 3

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            (
                {"temperature": -0.1},
                r"temperature: expected 0, which is greedy, or a finite number of at least 1e-06. Got -0.1",
            ),
            ({"temperature": float("nan")}, r"temperature: .*Got nan"),
            ({"temperature": float("inf")}, r"temperature: .*Got inf"),
            ({"top_p": 0.0}, r"top_p: expected a number above 0 and at most 1. Got 0"),
            ({"top_p": 1.01}, r"top_p: .*Got 1.01"),
            ({"top_p": float("nan")}, r"top_p: .*Got nan"),
            ({"rule": "typical"}, r"rule: expected one of sequoia.*Got 'typical'"),
            ({"max_text_tokens": 129}, r"max_text_tokens: expected 1 to 128, the trained length. Got 129"),
            ({"max_text_tokens": 0}, r"max_text_tokens: expected 1 to 128, the trained length. Got 0"),
            ({"max_text_tokens": -5}, r"max_text_tokens: expected 1 to 128, the trained length. Got -5"),
            ({"tree": level_widths([24])}, r"tree: expected at most 23 children per node, the vocabulary. Got 24"),
            ({"tree": chain(129)}, r"tree: expected a depth of at most 128, the trained length. Got 129"),
            ({"drafter": None}, r"drafter: expected a draft model for a tree of 3 nodes. Got None"),
        ],
    )
    def test_a_decoder_that_cannot_be_made(self, target, draft, changes, reason):
        arguments = {"drafter": draft, "tree": chain(2)} | changes
        with pytest.raises(InvalidValueError, match=reason):
            Decoder(target, **arguments)

    def test_models_with_different_vocabularies(self, target, make_checkpoint):
        other = load_model(make_checkpoint(seed=9, vocab_size=24))
        with pytest.raises(InvalidValueError, match=r"drafter: expected the target's vocabulary of 23 tokens. Got 24"):
            Decoder(target, other, chain(1))

    def test_the_model_trained_on_shorter_texts_sets_the_limit(self, target, make_checkpoint):
        short = load_model(make_checkpoint(seed=9, max_position_embeddings=32))
        assert Decoder(target, short, chain(1)).max_text_tokens == 32
        with pytest.raises(InvalidValueError, match=r"max_text_tokens: expected 1 to 32"):
            Decoder(target, short, chain(1), max_text_tokens=33)

    def test_as_many_children_as_tokens_are_allowed(self, target, draft):
        steps = list(Decoder(target, draft, level_widths([23]), temperature=1.0).steps(PROMPT, 10))
        assert [len(step) for step in steps] == [2] * 5
