"""Where greedy outputs diverge: near-ties are distinguished from faults, and a broken decoder is found."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from tests.support.bench import bench
from treeopt.profiler.bench.divergence import divergence
from treeopt.profiler.bench.output_divergence import NEAR_TIE_ULPS
from treeopt.runtime import Decoder, Verdict, verify_greedy
from treeopt.runtime.decoding.acceptance import Acceptance
from treeopt.runtime.models.pair import load_pair
from treeopt.runtime.rules.layout import host_tree
from treeopt.texts.prompts import bench_prompts, load_prompts
from treeopt.trees import chain, level_widths

STEP = 2.0**-7 * 8  # of bfloat16 numbers from 8 to 16


def accept_the_second_likeliest(_, drafts, logits, noise):  # noqa: ARG001
    """Verify greedily as if the target's second-likeliest token were its choice, except in plain decoding."""
    (draft,) = drafts
    place = 1 if len(draft.tokens) > 1 else 0
    return [verify_greedy(host_tree(draft.tree).children, draft.tokens, logits.topk(2).indices[:, place].tolist())]


class TestDivergence:
    @pytest.mark.parametrize(
        ("plain", "other", "place"),
        [([], [], None), ([0, 1, 0], [0, 1, 0], None), ([0, 1], [0], 1), ([0], [0, 1], 1), ([], [2], 0)],
    )
    def test_equal_outputs_have_none_and_early_ends_are_faults(self, make_markov, plain, other, place):
        result = divergence(make_markov([1.0, 2.0, 3.0, 4.0]), 0, [3], plain, other)
        assert result is None if place is None else (result.position, result.near_tie) == (place, False)

    @pytest.mark.parametrize(
        ("logits", "plain", "other", "gap", "near_tie"),
        [
            *(
                ([8.0, 8.0 - n * STEP, 1.0, 0.0], 0, 1, n * STEP, n <= NEAR_TIE_ULPS)
                for n in (0, 1, NEAR_TIE_ULPS, NEAR_TIE_ULPS + 1)
            ),
            ([8.0, 8.0 - STEP, 1.0, 0.0], 1, 0, STEP, True),
            ([8.0, 4.0, 1.0, 0.0], 1, 0, 4.0, False),  # plain decoding itself is broken
            ([8.0, 7.9375, 5.0, 0.0], 0, 2, 3.0, False),
            ([8.0, 8.0, 8.0, 0.0], 1, 2, 0.0, True),  # any two of three equal tokens
            ([8.0, 8.0, 8.0, 0.0], 2, 1, 0.0, True),
        ],
    )
    def test_few_rounding_steps_between_the_logits_are_a_near_tie(
        self, make_markov, logits, plain, other, gap, near_tie
    ):
        model = make_markov(logits, dtype=torch.bfloat16)
        result = divergence(model, 0, [3], [0, plain, 0], [0, other, 0])
        assert (result.prompt, result.position, result.gap, result.near_tie) == (0, 1, gap, near_tie)

    def test_rounding_steps_are_those_of_the_dtype(self, make_markov):
        for gap, near_tie in ((STEP, False), (2.0**-23 * 8, True)):
            model = make_markov([8.0, 8.0 - gap, 1.0, 0.0])  # float32
            assert divergence(model, 0, [3], [0], [1]).near_tie is near_tie

    @pytest.mark.parametrize(
        ("weight_dtype", "gap", "near_tie"),
        [("q4_1", 0.2, True), ("q4_1", 0.3, False), ("f16", 0.02, True), ("f16", 0.2, False), ("f32", 0.02, False)],
    )
    def test_quantised_weights_round_activations(self, make_markov, weight_dtype, gap, near_tie):
        model = make_markov([8.0, 8.0 - gap, 1.0, 0.0])  # float32 logits, as llama.cpp's
        model.config = SimpleNamespace(**{**asdict(model.config), "weight_dtype": weight_dtype})
        assert divergence(model, 0, [3], [0], [1]).near_tie is near_tie

    def test_logits_are_those_after_the_common_output(self, make_markov):
        after_0, after_1 = [8.0, 7.9375, 0.0, 0.0], [8.0, 4.0, 0.0, 0.0]
        model = make_markov([after_0, after_1, after_1, after_1], dtype=torch.bfloat16)
        for prompt, common, near_tie in (([0], [], True), ([1], [], False), ([1], [0], True), ([2, 0], [0, 1], False)):
            result = divergence(model, 7, prompt, [*common, 0, 3], [*common, 1, 2])
            assert (result.prompt, result.position, result.near_tie) == (7, len(common), near_tie)


class TestBench:
    def bench(self, target, draft, prompts):
        tree = level_widths([3, 2, 1])
        return bench(target, draft, tree, prompts, max_new_tokens=12, repeats=2)

    def test_correct_decoder_has_no_divergence(self, target, draft, prompts):
        measured = self.bench(target, draft, prompts[:3])
        assert (measured.divergences, measured.identical) == ((), True)

    def test_second_likeliest_tokens_are_found(self, target, draft, prompts, monkeypatch):
        monkeypatch.setattr(Acceptance, "__call__", accept_the_second_likeliest)
        measured = self.bench(target, draft, prompts)
        assert measured.identical is False
        assert [(each.prompt, each.position) for each in measured.divergences] == [(n, 0) for n in range(len(prompts))]
        assert not any(each.near_tie for each in measured.divergences)
        assert min(each.gap for each in measured.divergences) > 1e-4

    def test_each_prompt_counts_once_and_only_if_it_diverges(self, target, draft, prompts, monkeypatch):
        verify, wrong = Acceptance.__call__, prompts[1][-1]

        def verify_wrongly(self, drafts, logits, noise):
            (draft,), (verdict,) = drafts, verify(self, drafts, logits, noise)
            if len(draft.tokens) > 1 and draft.tokens[0] == wrong:
                return [Verdict(verdict.nodes[:1], int(logits[0].argmin()))]
            return [verdict]

        plain = Decoder(target, None, chain(0), temperature=0.0)
        correct = [prompt for prompt in prompts if wrong not in [prompt[-1], *plain.generate(prompt, 12)]]
        assert correct
        monkeypatch.setattr(Acceptance, "__call__", verify_wrongly)
        (result,) = self.bench(target, draft, [*correct, prompts[1]]).divergences
        assert (result.prompt, result.position, result.near_tie) == (len(correct), 0, False)


@pytest.mark.slow
def test_bundled_pair_in_bfloat16_diverges_at_near_ties_only():
    pair = load_pair(dtype="bfloat16")
    prompts = [pair.tokenizer.encode(text) for text in bench_prompts(load_prompts())[:1]]
    tree = level_widths([4, 6, 6, 4, 3, 2])
    measured = bench(pair.target, pair.draft, tree, prompts, max_new_tokens=40, repeats=1)
    assert all(each.near_tie and each.gap < 0.5 for each in measured.divergences)
