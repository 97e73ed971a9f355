"""`verify` and `verify_greedy`: results, arguments and errors."""

import numpy as np
import pytest
import torch

from tests.support.enumeration import CPU
from treeopt.errors import InvalidValueError
from treeopt.records.rules import LOSSY_RULES
from treeopt.runtime import Verifier, draw, verify, verify_greedy
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, chain, level_widths

SPARSE = TokenTree([-1, 0, 0, 0, 1, 1, 2])  # 3 children, with 2, 1 and 0 below
LOSSLESS = [rule for rule in RULES if rule not in LOSSY_RULES]
all_rules = pytest.mark.parametrize("rule", RULES)


class TestVerify:
    @all_rules
    @pytest.mark.parametrize(
        ("tree", "tokens", "likeliest", "path", "bonus"),
        [
            (SPARSE, [9, 0, 1, 2, 3, 4, 0], [1, 0, 0, 0, 2, 2, 2], [0, 2, 6], 2),
            (chain(1), [9, 0], [2, 1], [0], 2),
            (chain(0), [9], [2], [0], 2),
        ],
        ids=["a path", "nothing accepted", "the root alone"],
    )
    def test_the_path_follows_a_certain_target(self, rule, tree, tokens, likeliest, path, bonus):
        draft, target = torch.full((tree.nodes, 5), 0.2), torch.eye(5)[likeliest]
        verdict = verify(rule, tree, torch.tensor(tokens), draft, target, lossy=True)
        assert (verdict.path.tolist(), verdict.path.dtype, verdict.bonus) == (path, torch.int64, bonus)

    @pytest.mark.parametrize("rule", LOSSLESS)
    def test_draft_rows_of_leaves_are_not_read(self, rule):
        draft, target = torch.full((2, 3), torch.nan), torch.eye(3)[[1, 0]]
        draft[0] = target[0]
        assert verify(rule, chain(1), torch.tensor([0, 1]), draft, target).nodes == (0, 1)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @all_rules
    def test_arguments_are_not_changed(self, rule, dtype):
        distributions = torch.softmax(torch.randn((2, 7, 5), generator=torch.Generator().manual_seed(0)).to(dtype), -1)
        tokens = torch.tensor([0, 1, 2, 3, 4, 0, 1])
        before = distributions.clone(), tokens.clone()
        verify(rule, SPARSE, tokens, *distributions, lossy=True)
        assert torch.equal(distributions, before[0])
        assert torch.equal(tokens, before[1])

    @pytest.mark.parametrize("rule", LOSSLESS)
    def test_the_same_generator_state_gives_the_same_verdict(self, rule):
        distributions = torch.softmax(torch.randn((2, 7, 5), generator=torch.Generator().manual_seed(0)), -1)
        tokens = torch.tensor([0, 1, 2, 3, 4, 0, 1])

        def verdicts():
            generator = torch.Generator().manual_seed(1)
            return [verify(rule, SPARSE, tokens, *distributions, generator) for _ in range(50)]

        assert verdicts() == verdicts()
        assert len({str(verdict) for verdict in verdicts()}) > 1

    @pytest.mark.parametrize(
        ("tokens", "draft", "target", "reason"),
        [
            (2, (3, 4), (3, 4), r"tokens: expected \(3,\), one per node. Got \(2,\)"),
            (3, (2, 4), (3, 4), r"draft_probs: expected \(3, V\), a row per node. Got \(2, 4\)"),
            (3, (3, 4), (4, 4), r"target_probs: expected \(3, V\), a row per node. Got \(4, 4\)"),
            (3, (3, 5), (3, 4), r"draft_probs: expected \(3, V\), a row per node. Got \(3, 5\)"),
            (3, (3, 4), (3,), r"_probs: expected \(3, V\)"),
        ],
    )
    def test_other_shapes_are_refused(self, tokens, draft, target, reason):
        with pytest.raises(InvalidValueError, match=reason):
            verify("sequoia", chain(2), torch.zeros(tokens, dtype=torch.int64), torch.ones(draft), torch.ones(target))

    @pytest.mark.parametrize("tokens", [[9, 0, 4], [9, -1, 0]])
    def test_drafted_tokens_outside_the_vocabulary_are_refused(self, tokens):
        with pytest.raises(
            InvalidValueError, match=r"tokens: expected drafted tokens from 0 to 3\. Got \[(0, 4|-1, 0)\]"
        ):
            verify("sequoia", chain(2), torch.tensor(tokens), torch.ones(3, 4), torch.ones(3, 4))

    def test_arguments_of_other_types_are_refused(self):
        arguments = {
            "tree": chain(1),
            "tokens": [0, 1],
            "draft_probs": np.ones((2, 2)),
            "target_probs": np.ones((2, 2)),
        }
        assert len(verify("sequoia", **arguments).nodes) in (1, 2)  # lists and arrays are converted
        for name, value, expected in (
            ("tree", [-1, 0], "a TokenTree"),
            ("tokens", None, "a tensor"),
            ("tokens", torch.zeros(2), "whole numbers"),
            ("draft_probs", None, "a tensor"),
            ("target_probs", "half", "a tensor"),
            ("target_probs", torch.zeros(2, 2), "probabilities of at least 0, with one above 0"),
            ("target_probs", torch.tensor([[1.0, 0.0], [1.5, -0.5]]), "probabilities of at least 0"),
        ):
            with pytest.raises(InvalidValueError, match=f"{name}: expected {expected}"):
                verify("sequoia", **arguments | {name: value})

    def test_unknown_and_lossy_rules_are_refused(self):
        arguments = chain(0), torch.tensor([0]), torch.ones((1, 2)), torch.ones((1, 2))
        for lossy in (False, True):
            with pytest.raises(InvalidValueError, match=r"rule: expected one of sequoia.*Got 'eagle'"):
                verify("eagle", *arguments, lossy=lossy)
        with pytest.raises(InvalidValueError, match=r"rule: expected a lossless one. Got 'typical'.*lossy=True"):
            verify("typical", *arguments)
        verify("typical", *arguments, lossy=True)


@pytest.mark.parametrize("rule", LOSSLESS)
def test_float32_distributions_have_the_same_reach(rule):
    def reach(*distributions):
        verifier = Verifier(RULES[rule], 6, CPU)
        verifier.test([level_widths([3])], children, *(probs.expand(4, -1) for probs in distributions))
        return verifier.reach()

    generator = torch.Generator().manual_seed(3)
    for _ in range(50):
        draft, target = torch.softmax(3 * torch.randn((2, 6), generator=generator), -1)
        children = torch.cat([torch.tensor([0]), draw(rule, draft[None], torch.tensor([3]), generator)])
        exact = (probs.double() / probs.double().sum() for probs in (draft, target))
        np.testing.assert_allclose(reach(draft, target), reach(*exact), atol=1e-5)


class TestVerifyGreedy:
    CHILDREN = tuple(SPARSE.children(node) for node in range(SPARSE.nodes))

    @pytest.mark.parametrize(
        ("likeliest", "path", "bonus"),
        [
            ((3, 0, 0, 0, 0, 0, 0), [0], 3),
            ((6, 0, 0, 8, 0, 0, 0), [0, 3], 8),
            ((4, 8, 0, 0, 0, 1, 0), [0, 1, 5], 1),
            ((5, 0, 4, 0, 0, 0, 2), [0, 2, 6], 2),
        ],
    )
    def test_the_path_follows_the_likeliest_tokens(self, likeliest, path, bonus):
        verdict = verify_greedy(self.CHILDREN, (9, 4, 5, 6, 7, 8, 4), likeliest)
        assert (verdict.path.tolist(), verdict.path.dtype, verdict.bonus) == (path, torch.int64, bonus)

    @all_rules
    def test_greedy_verification_is_the_limit_of_verify(self, rule):
        rng = np.random.default_rng(61)
        for _ in range(40):
            tokens = [9, *rng.permutation(10)[:3], *rng.permutation(10)[:2], *rng.integers(10, size=1)]
            likeliest = rng.choice(tokens, 7).tolist()
            distributions = torch.full((7, 10), 0.1), torch.eye(10)[likeliest]
            sampled = verify(rule, SPARSE, torch.tensor(tokens), *distributions, lossy=True)
            assert verify_greedy(self.CHILDREN, tokens, likeliest) == sampled
