"""Acceptance of Medusa's heads, against a slow loop and decoding."""

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


def untrained_heads(target, heads=3):
    """Return heads that predict what the target predicts for the next token."""
    size = target.config.hidden
    return MedusaHeads(target, torch.zeros(heads, size, size), torch.zeros(heads, size))


def random_heads(target, heads=3, seed=0):
    generator, size = torch.Generator().manual_seed(seed), target.config.hidden
    return MedusaHeads(target, 0.4 * torch.randn(heads, size, size, generator=generator), torch.zeros(heads, size))


def fresh_pass(target, tokens):
    """Return the hidden state before the last token and the logits after it, from a pass over nothing else."""
    states = target.prefill(
        torch.tensor(tokens[:-1], dtype=torch.int64), new_cache(target, len(tokens)), RequestedStates(last=True)
    )
    return states and states.last, logits_after(target, tokens)[None]


def slow_counts(proposals, distributions, tokens):
    """Follow every root down for as long as the sequence continues with a proposal."""
    depth, branching = proposals.shape[1:]
    reached, accepted = np.zeros(depth), np.zeros((depth, branching))
    for root in range(len(tokens)):
        for level in range(min(depth, len(tokens) - root)):
            place = root + level
            reached[level] += 1
            for rank in range(branching):
                accepted[level, rank] += distributions[place, proposals[root, level, rank]]
            if tokens[place] not in proposals[root, level].tolist():
                break
    return reached, accepted


class TestCounting:
    @pytest.mark.parametrize(("roots", "branching"), [(0, 3), (1, 3), (2, 1), (4, 5), (60, 3)])
    def test_counts_are_those_of_a_slow_loop(self, roots, branching):
        generator = np.random.default_rng(roots)
        proposals = np.argsort(generator.random((roots, 3, 5)))
        distributions = torch.from_numpy(generator.dirichlet(np.ones(5), roots))
        tokens = torch.from_numpy(generator.integers(5, size=roots))
        logits = -torch.from_numpy(np.argsort(proposals)).double()  # the likeliest tokens are the proposals
        heads = SimpleNamespace(name="heads", tokens=5, logits=lambda _: logits)
        sequence = HeadSequence(HiddenStates((), torch.zeros(roots, 1)), distributions, tokens, tokens[:0])
        counts = head_counts(heads, sequence, branching)
        reached, accepted = slow_counts(proposals[..., :branching], distributions.numpy(), tokens.numpy())
        assert counts.reached.tolist() == reached.tolist()
        np.testing.assert_allclose(counts.accepted, accepted, rtol=1e-12)
        assert roots < 60 or 0 < reached[2] <= 58

    def test_branching_is_at_most_the_vocabulary(self, target):
        sequence = generated(target, [1, 2, 3], 10, GREEDY)
        assert head_counts(untrained_heads(target), sequence, 99).accepted.shape == (3, 23)


class TestSequence:
    @pytest.mark.parametrize(
        ("prompt", "sampling"),
        [
            *(([3, 14, 15, 9], sampling) for sampling in (Sampling(1.0), Sampling(0.8, 0.7), Sampling(0.8, top_k=3))),
            *((prompt, GREEDY) for prompt in ([3], [3, 14], [3, 14, 15, 9])),
        ],
    )
    def test_roots_have_the_hidden_state_before_and_the_distribution_after_them(self, target, prompt, sampling):
        sequence, tokens = generated(target, prompt, 12, sampling), list(prompt)
        if len(prompt) == 1:  # no hidden state precedes it, so the next token is the first root
            tokens.append(int(fresh_pass(target, prompt)[1].argmax()))
        assert len(tokens) + len(sequence.tokens) == len(prompt) + 12
        for root, token in enumerate(sequence.tokens.tolist()):
            hidden, logits = fresh_pass(target, tokens)
            torch.testing.assert_close(sequence.hidden[root : root + 1], hidden, rtol=1e-4, atol=1e-4)
            if sampling.greedy:
                assert token == int(logits.argmax())
                assert sequence.distributions[root].tolist() == [float(each == token) for each in range(23)]
            else:
                expected = distribution(logits, sampling)
                torch.testing.assert_close(sequence.distributions[root : root + 1], expected, rtol=1e-3, atol=1e-5)
                assert sequence.distributions[root, token] > 0
            tokens.append(token)

    def test_tokens_are_accepted_as_often_as_expected(self, target, prompts):
        expected, accepted, variance = np.zeros((3, 4))
        for seed, prompt in enumerate(prompts):
            sequence = generated(target, prompt, 100, Sampling(1.0), seed)
            children = random_heads(target).logits(sequence.hidden).topk(4).indices[:, 0]
            p = sequence.distributions.gather(1, children).double().numpy()
            expected, variance = expected + p.sum(0), variance + (p * (1 - p)).sum(0)
            accepted = accepted + (children == sequence.tokens[:, None]).double().numpy().sum(0)
        assert np.all(np.abs(accepted - expected) < 4 * np.sqrt(variance))
        assert np.all(accepted > 5)

    def test_end_token_ends_the_sequence(self, make_model):
        tokens = generated(make_model(seed=1), [3, 14], 25, GREEDY).tokens.tolist()
        target = make_model(seed=1, end_tokens=(tokens[7],))
        assert generated(target, [3, 14], 25, GREEDY).tokens.tolist() == tokens[: tokens.index(tokens[7]) + 1]
        target = make_model(seed=1, end_tokens=(int(fresh_pass(target, [3])[1].argmax()),))
        counts = head_counts(untrained_heads(target), generated(target, [3], 25, GREEDY), 4)
        assert counts.reached.tolist() == [0, 0, 0]  # the sequence ends at once


class TestTable:
    def test_table_of_a_constant_distribution_is_that_distribution_and_predicts_decoding(self, make_markov):
        """Decoded tokens per step have a standard error below 0.06."""
        target, tree = make_markov(np.log(DISTRIBUTION), max_positions=2000), level_widths([3, 4, 2])
        heads = untrained_heads(target)
        acceptance = head_acceptance(target, heads, [[0, 1], [2, 3, 4]], sampling=Sampling(1.0), positions=300)
        np.testing.assert_allclose(acceptance.table.p, np.tile(DISTRIBUTION, (3, 1)), rtol=1e-6)
        assert (acceptance.rule, acceptance.temperature) == ("target", 1.0)
        assert (acceptance.prompts, acceptance.positions, acceptance.table.counts[0]) == (2, 300, 300)
        decoder = Decoder(target, MedusaDrafter(heads, tree), temperature=1.0, seed=5)
        lengths = [len(step) for step in decoder.stream([0, 1], 1200)]
        error = np.std(lengths) / np.sqrt(len(lengths))
        assert abs(np.mean(lengths) - acceptance.table.expected_tokens(tree)) < 4 * error
        assert error < 0.06

    def test_too_few_positions_are_refused(self, target, prompts):
        with pytest.raises(TreeoptError, match="20 positions in all"):
            head_acceptance(target, untrained_heads(target), prompts, sampling=GREEDY, positions=6)


@pytest.fixture(scope="module")
def bundled(bundled_pair):
    prompts = [bundled_pair.tokenizer.encode(text) for text in profile_prompts(load_prompts())[:12]]
    heads = load_medusa(bundle.MEDUSA, bundled_pair.target)
    return SimpleNamespace(target=bundled_pair.target, heads=heads, prompts=prompts)


class TestBundled:
    @pytest.mark.slow
    def test_table_predicts_the_tokens_of_decoding(self, bundled):
        """Within three standard errors, each below a tenth of the rate."""
        positions, prompts = 50, bundled.prompts
        acceptance = head_acceptance(
            bundled.target, bundled.heads, prompts, sampling=GREEDY, positions=len(prompts) * positions
        )
        assert acceptance.table.p.shape == (5, 16)
        assert np.all(np.diff(acceptance.table.p[:, 0]) < 0)  # every head is worse than the one before
        for tree in (chain(2), solve(acceptance.table, max_nodes=16, max_depth=5).tree(nodes=16, depth=5)):
            rate, error = decoded_rate(bundled.target, MedusaDrafter(bundled.heads, tree), prompts, positions)
            assert abs(rate - acceptance.table.expected_tokens(tree)) < 3 * error
            assert error < 0.1 * rate

    def test_hidden_states_of_the_wrong_position_are_found(self, bundled):
        """Negative control."""
        sequence = generated(bundled.target, bundled.prompts[0], 80, GREEDY)
        shifted = sequence._replace(states=HiddenStates((), sequence.hidden.roll(1, 0)))
        right, wrong = (head_counts(bundled.heads, each, 4).accepted[0, 0] for each in (sequence, shifted))
        assert wrong < 0.8 * right
