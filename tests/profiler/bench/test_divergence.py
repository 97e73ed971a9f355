"""Where greedy texts part: near-ties are told from faults, and a broken decoder is found."""

import numpy as np
import pytest
import torch

from tests.support.bench import bench
from treeopt.profiler.bench.divergence import divergence
from treeopt.profiler.bench.text_divergence import NEAR_TIE_ULPS
from treeopt.runtime import Decoder, Verdict, verify_greedy
from treeopt.runtime.decoding.acceptance import GreedyAcceptance, child_ranges
from treeopt.runtime.models.pair import load_pair
from treeopt.texts.prompts import bench_prompts, load_prompts
from treeopt.trees import chain, level_widths

STEP = 2.0**-7 * 8  # of bfloat16 numbers from 8 to 16
bfloat16 = {"dtype": torch.bfloat16}


def after_any_token(model, plain, other, prompt=(3,)):
    return divergence(model, 0, prompt, plain, other)


def accept_the_second_likeliest(_, drafts, logits, noise):  # noqa: ARG001
    """Verify greedily as if the target's second-likeliest token were what it wants, but for plain decoding."""
    (draft,) = drafts
    place = 1 if len(draft.tokens) > 1 else 0
    return [verify_greedy(child_ranges(draft.tree), draft.tokens, logits.topk(2).indices[:, place].tolist())]


class TestDivergence:
    @pytest.mark.parametrize("text", [[], [1], [0, 1, 0]])
    def test_texts_that_are_the_same_have_none(self, make_markov, text):
        assert after_any_token(make_markov([1.0, 2.0, 3.0, 4.0]), text, text) is None

    @pytest.mark.parametrize(("plain", "other"), [([0, 1], [0]), ([0], [0, 1]), ([], [2])])
    def test_a_text_that_ends_too_early_is_none(self, make_markov, plain, other):
        found = after_any_token(make_markov([1.0, 2.0, 3.0, 4.0]), plain, other)
        assert (found.place, found.near_tie) == (min(len(plain), len(other)), False)

    @pytest.mark.parametrize("steps", [0, 1, NEAR_TIE_ULPS])
    def test_a_few_rounding_steps_are_a_near_tie(self, make_markov, steps):
        model = make_markov([8.0, 8.0 - steps * STEP, 1.0, 0.0], **bfloat16)
        found = after_any_token(model, [0, 0, 0], [0, 1, 0])
        assert (found.prompt, found.place, found.near_tie) == (0, 1, True)
        assert found.gap == steps * STEP

    def test_more_of_them_are_not(self, make_markov):
        model = make_markov([8.0, 8.0 - (NEAR_TIE_ULPS + 1) * STEP, 1.0, 0.0], **bfloat16)
        assert not after_any_token(model, [0], [1]).near_tie

    def test_rounding_steps_are_those_of_the_number_format(self, make_markov):
        logits = [8.0, 8.0 - STEP, 1.0, 0.0]
        assert not after_any_token(make_markov(logits), [0], [1]).near_tie
        logits[1] = 8.0 - 2.0**-23 * 8
        assert after_any_token(make_markov(logits), [0], [1]).near_tie

    def test_it_is_a_near_tie_whichever_of_both_plain_decoding_took(self, make_markov):
        near, wide = (make_markov([8.0, 8.0 - gap, 1.0, 0.0], **bfloat16) for gap in (STEP, 4.0))
        assert after_any_token(near, [1], [0]).near_tie
        found = after_any_token(wide, [1], [0])  # plain decoding itself is broken
        assert (found.gap, found.near_tie) == (4.0, False)

    def test_a_less_likely_token_is_none(self, make_markov):
        model = make_markov([8.0, 7.9375, 5.0, 0.0], **bfloat16)
        assert after_any_token(model, [0], [1]).near_tie
        found = after_any_token(model, [0], [2])
        assert (found.gap, found.near_tie) == (3.0, False)

    @pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 2), (2, 1)])
    def test_any_two_of_three_equal_tokens_are_a_near_tie(self, make_markov, pair):
        found = after_any_token(make_markov([8.0, 8.0, 8.0, 0.0], **bfloat16), *([each] for each in pair))
        assert (found.gap, found.near_tie) == (0.0, True)

    def test_the_logits_are_those_after_the_common_text(self, make_markov):
        after_0, after_1 = [8.0, 7.9375, 0.0, 0.0], [8.0, 4.0, 0.0, 0.0]
        model = make_markov([after_0, after_1, after_1, after_1], **bfloat16)
        for prompt, common, near_tie in (([0], [], True), ([1], [], False), ([1], [0], True), ([2, 0], [0, 1], False)):
            found = divergence(model, 7, prompt, [*common, 0, 3], [*common, 1, 2])
            assert (found.prompt, found.place, found.near_tie) == (7, len(common), near_tie)


class TestBench:
    def bench(self, target, draft, prompts, **changes):
        keywords = {"max_new_tokens": 12, "repeats": 2, "show_progress": False} | changes
        return bench(target, draft, level_widths([3, 2, 1]), prompts, **keywords)

    def test_an_honest_decoder_has_none(self, target, draft, prompts):
        measured = self.bench(target, draft, prompts)
        assert measured.divergences == ()
        assert measured.identical is True

    def test_above_temperature_zero_nobody_looks(self, target, draft, prompts):
        assert self.bench(target, draft, prompts[:1], temperature=0.5).divergences is None

    def test_a_decoder_that_takes_second_likeliest_tokens_is_found(self, target, draft, prompts, monkeypatch):
        monkeypatch.setattr(GreedyAcceptance, "__call__", accept_the_second_likeliest)
        measured = self.bench(target, draft, prompts)
        assert measured.identical is False
        assert [each.prompt for each in measured.divergences] == list(range(len(prompts)))
        assert [each.place for each in measured.divergences] == [0] * len(prompts)
        assert not any(each.near_tie for each in measured.divergences)
        assert min(each.gap for each in measured.divergences) > 1e-4

    def test_each_text_counts_once_and_those_alike_do_not(self, target, draft, prompts, monkeypatch):
        true_test, wrong = GreedyAcceptance.__call__, prompts[1][-1]

        def now_and_then(self, drafts, logits, noise):
            (draft,), (verdict,) = drafts, true_test(self, drafts, logits, noise)
            if len(draft.tokens) > 1 and draft.tokens[0] == wrong:
                return [Verdict(verdict.nodes[:1], int(logits[0].argmin()))]
            return [verdict]

        kept = [prompt for prompt in prompts if wrong not in self.plain(target, prompt)] + [prompts[1]]
        assert len(kept) > 1
        monkeypatch.setattr(GreedyAcceptance, "__call__", now_and_then)
        (found,) = self.bench(target, draft, kept).divergences
        assert (found.prompt, found.place, found.near_tie) == (len(kept) - 1, 0, False)

    def plain(self, target, prompt):
        return [prompt[-1], *Decoder(target, None, chain(0), temperature=0.0).generate(prompt, 12)]


@pytest.mark.slow
def test_the_bundled_pair_parts_in_bfloat16_at_near_ties_only():
    pair = load_pair(dtype="bfloat16")
    prompts = [pair.tokenizer.encode(text) for text in bench_prompts(load_prompts())[:1]]
    tree = level_widths([4, 6, 6, 4, 3, 2])
    measured = bench(pair.target, pair.draft, tree, prompts, max_new_tokens=60, repeats=1, show_progress=False)
    assert all(each.near_tie for each in measured.divergences)
    gaps = np.array([each.gap for each in measured.divergences])
    assert np.all(gaps < 0.5)
