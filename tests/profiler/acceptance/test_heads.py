"""Acceptance of Medusa's heads: counted as a slow loop would, and what decoding really does."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.head_acceptance import decoded_rate, generated, head_acceptance, head_counts
from tests.support.passes import logits_after, new_cache
from treeopt import bundled as bundle
from treeopt import solve
from treeopt.errors import TreeoptError
from treeopt.profiler.acceptance.heads import HeadSequence
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime import Decoder, distribution
from treeopt.runtime.drafters.medusa import MedusaDrafter, MedusaHeads, load_medusa
from treeopt.runtime.models.model import HiddenStates, RequestedStates
from treeopt.texts.prompts import load_prompts, profile_prompts
from treeopt.trees import chain, level_widths

DISTRIBUTION = [0.5, 0.25, 0.125, 0.0625, 0.0625]


def untrained(target, heads=3):
    """Return heads that say what the target says of the next token."""
    size = target.config.hidden
    return MedusaHeads(target, torch.zeros(heads, size, size), torch.zeros(heads, size))


def random_heads(target, heads=3, seed=0):
    generator, size = torch.Generator().manual_seed(seed), target.config.hidden
    return MedusaHeads(target, 0.4 * torch.randn(heads, size, size, generator=generator), torch.zeros(heads, size))


def fresh_pass(target, text):
    """Return the hidden state before the last token and the logits after it, from a pass over nothing but this text."""
    states = target.prefill(
        torch.tensor(text[:-1], dtype=torch.int64), new_cache(target, len(text)), RequestedStates(last=True)
    )
    return states and states.last, logits_after(target, text)[None]


def slow_counts(proposals, distributions, tokens):
    """Follow every root down for as long as the text goes on with a proposal."""
    depth, branching = proposals.shape[1:]
    reached, accepted = np.zeros(depth), np.zeros((depth, branching))
    for root in range(len(tokens)):
        for level in range(depth):
            place = root + level
            if place == len(tokens):
                break
            reached[level] += 1
            for rank in range(branching):
                accepted[level, rank] += distributions[place, proposals[root, level, rank]]
            if tokens[place] not in proposals[root, level].tolist():
                break
    return reached, accepted


class TestCounting:
    @pytest.mark.parametrize("places", [0, 1, 2, 3, 4, 60])
    @pytest.mark.parametrize("branching", [1, 3, 5])
    def test_it_counts_what_a_slow_loop_counts(self, places, branching):
        generator = np.random.default_rng(places)
        proposals = np.argsort(generator.random((places, 3, 5)))
        distributions = torch.from_numpy(generator.dirichlet(np.ones(5), places))
        tokens = torch.from_numpy(generator.integers(5, size=places))
        heads = SimpleNamespace(
            heads=3, likeliest=lambda _, count: (torch.zeros(proposals.shape), torch.from_numpy(proposals)[..., :count])
        )
        text = HeadSequence(HiddenStates((), torch.zeros(places, 1)), distributions, tokens, tokens[:0])
        counts = head_counts(heads, text, branching)
        reached, accepted = slow_counts(proposals[..., :branching], distributions.numpy(), tokens.numpy())
        assert counts.reached.tolist() == reached.tolist()
        np.testing.assert_allclose(counts.accepted, accepted, rtol=1e-12)
        if places == 60:
            assert 0 < reached[2] <= 58

    def test_a_head_is_never_asked_for_more_than_the_vocabulary(self, target):
        text = generated(target, [1, 2, 3], 10, GREEDY)
        assert head_counts(untrained(target), text, 99).accepted.shape == (3, 23)


class TestText:
    @pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.8, top_p=0.7), Sampling(0.8, top_k=3)])
    def test_every_place_has_the_state_before_and_the_distribution_after_its_root(self, target, sampling):
        text, known = generated(target, [3, 14, 15, 9], 12, sampling), [3, 14, 15, 9]
        assert len(text.hidden) == len(text.distributions) == len(text.tokens) == 12
        for place, token in enumerate(text.tokens.tolist()):
            hidden, logits = fresh_pass(target, known)
            torch.testing.assert_close(text.hidden[place : place + 1], hidden, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(
                text.distributions[place : place + 1], distribution(logits, sampling), rtol=1e-3, atol=1e-5
            )
            assert text.distributions[place, token] > 0
            known.append(token)

    @pytest.mark.parametrize("prompt", [[3], [3, 14], [3, 14, 15, 9]])
    def test_at_temperature_zero_too_and_after_a_single_token(self, target, prompt):
        text, known = generated(target, prompt, 12, GREEDY), list(prompt)
        if len(prompt) == 1:  # no state stands before it: the next token is the first root
            known.append(int(fresh_pass(target, prompt)[1].argmax()))
        assert len(known) + len(text.tokens) == len(prompt) + 12
        for place, token in enumerate(text.tokens.tolist()):
            hidden, logits = fresh_pass(target, known)
            torch.testing.assert_close(text.hidden[place : place + 1], hidden, rtol=1e-4, atol=1e-4)
            assert token == int(logits.argmax())
            assert text.distributions[place].tolist() == [float(each == token) for each in range(23)]
            known.append(token)

    def test_tokens_are_accepted_as_often_as_expected(self, target, prompts):
        expected, happened = np.zeros(4), np.zeros(4)
        variance = np.zeros(4)
        for seed, prompt in enumerate(prompts):
            text = generated(target, prompt, 100, Sampling(1.0), seed)
            children = random_heads(target).likeliest(text.hidden, 4)[1][:, 0]
            p = text.distributions.gather(1, children).double().numpy()
            expected, variance = expected + p.sum(0), variance + (p * (1 - p)).sum(0)
            happened = happened + (children == text.tokens[:, None]).double().numpy().sum(0)
        assert np.all(np.abs(happened - expected) < 4 * np.sqrt(variance))
        assert np.all(happened > 5)

    def test_the_end_token_ends_the_text(self, make_model):
        text = generated(make_model(seed=1), [3, 14], 25, GREEDY).tokens.tolist()
        end = text[7]
        target = make_model(seed=1, end_tokens=(end,))
        assert generated(target, [3, 14], 25, GREEDY).tokens.tolist() == text[: text.index(end) + 1]

    def test_a_text_that_ends_at_once_counts_nothing(self, make_model):
        end = int(fresh_pass(make_model(seed=1), [3])[1].argmax())
        target = make_model(seed=1, end_tokens=(end,))
        counts = head_counts(untrained(target), generated(target, [3], 25, GREEDY), 4)
        assert counts.reached.tolist() == [0, 0, 0]


class TestTable:
    def test_of_a_distribution_that_never_changes_it_is_the_distribution(self, make_markov):
        target = make_markov(np.log(DISTRIBUTION))
        found = head_acceptance(
            target, untrained(target), [[0, 1], [2, 3, 4]], sampling=Sampling(1.0), positions=200, branching=3
        )
        np.testing.assert_allclose(found.table.p, np.tile(DISTRIBUTION[:3], (3, 1)), rtol=1e-6)
        assert (found.rule, found.temperature, found.prompts, found.positions) == ("target", 1.0, 2, 200)
        assert found.table.counts[0] == 200
        assert 0.75 * 190 < found.table.counts[1] < 200

    def test_decoding_yields_the_tokens_that_it_expects(self, make_markov):
        target, tree = make_markov(np.log(DISTRIBUTION), max_positions=2000), level_widths([3, 4, 2])
        heads = untrained(target)
        found = head_acceptance(target, heads, [[0, 1], [2, 3]], sampling=Sampling(1.0), positions=400)
        decoder = Decoder(target, MedusaDrafter(heads, tree), temperature=1.0, seed=5)
        lengths = [len(step) for step in decoder.stream([0, 1], 1500)]
        error = np.std(lengths) / np.sqrt(len(lengths))
        assert abs(np.mean(lengths) - found.table.expected_tokens(tree)) < 4 * error
        assert error < 0.06

    def test_the_same_call_gives_the_same_table(self, target, prompts):
        first, second = (
            head_acceptance(target, random_heads(target), prompts, sampling=Sampling(0.9), positions=120)
            for _ in range(2)
        )
        assert first.table.p.tolist() == second.table.p.tolist()
        assert first.texts is not None


@pytest.fixture(scope="module")
def bundled(bundled_pair):
    """Return the bundled target, its heads and prompts of profiles."""
    prompts = [bundled_pair.tokenizer.encode(text) for text in profile_prompts(load_prompts())[:12]]
    heads = load_medusa(bundle.MEDUSA, bundled_pair.target)
    return SimpleNamespace(target=bundled_pair.target, heads=heads, prompts=prompts)


class TestBundled:
    @pytest.mark.slow
    def test_decoding_yields_the_tokens_that_the_table_expects(self, bundled):
        positions = 60
        found = head_acceptance(
            bundled.target, bundled.heads, bundled.prompts, sampling=GREEDY, positions=12 * positions
        )
        assert found.table.p.shape == (5, 16)
        assert np.all(np.diff(found.table.p[:, 0]) < 0)  # every head is worse than the one before
        for tree in (chain(2), solve(found.table, max_nodes=16, max_depth=5).tree(nodes=16, depth=5)):
            drafter = MedusaDrafter(bundled.heads, tree)
            rate, error = decoded_rate(bundled.target, drafter, bundled.prompts, positions)
            assert abs(rate - found.table.expected_tokens(tree)) < 3 * error
            assert error < 0.1 * rate

    def test_hidden_states_one_place_off_are_found(self, bundled):
        text = generated(bundled.target, bundled.prompts[0], 150, GREEDY)
        right = head_counts(bundled.heads, text, 4)
        wrong = head_counts(bundled.heads, text._replace(states=HiddenStates((), text.hidden.roll(1, 0))), 4)
        assert wrong.accepted[0, 0] < 0.8 * right.accepted[0, 0]


class TestRefusals:
    def test_too_little_text(self, target, prompts):
        with pytest.raises(TreeoptError, match="20 positions in all"):
            head_acceptance(target, untrained(target), prompts, sampling=GREEDY, positions=6)
