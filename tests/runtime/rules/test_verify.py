"""`draw` and `verify` together follow the target's distribution; what they take, return and refuse."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.broken import argmax_accepted, rejection, verify_with_tensors
from tests.support.enumeration import CPU, one_after_the_other
from tests.support.invented_texts import Text, adversarial, dirichlet
from treeopt.errors import InvalidValueError
from treeopt.records.rules import LOSSY_RULES, check_rule
from treeopt.runtime import Verifier, draw, verify, verify_greedy
from treeopt.runtime.rules import RULES
from treeopt.runtime.rules.selection import TopDown
from treeopt.trees import TokenTree, chain, level_widths

SPARSE = TokenTree([-1, 0, 0, 0, 1, 1, 2])  # 3 children, of which 2, 1 and 0 below
SAMPLES = 1000
LOSSLESS = [rule for rule in RULES if rule not in LOSSY_RULES]
all_rules = pytest.mark.parametrize("rule", RULES)


class TestSampledSteps:
    """The public functions as a decoder of another program would use them."""

    TEXT = Text(dirichlet(41, 5), dirichlet(42, 5), 5, 2)

    def sampled(self, rule, seed):
        """Return how often each three tokens came out of a step, completed by the target."""
        generator, rest = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
        text, counts = self.TEXT, np.zeros((5, 5, 5))
        draft, target = torch.from_numpy(text.draft), torch.from_numpy(text.target)
        for _ in range(SAMPLES):
            nodes = [()]
            for level in SPARSE.levels[:-1]:
                rows = torch.tensor([text.row[node] for node in nodes[level]])
                wanted = SPARSE.child_counts[level].astype(np.int64)
                sampled = draw(rule, draft[rows], torch.from_numpy(wanted), generator).tolist()
                parents = np.repeat(np.arange(level.start, level.stop), wanted)
                nodes.extend((*nodes[parent], token) for parent, token in zip(parents, sampled, strict=True))
            rows = torch.tensor([text.row[node] for node in nodes])
            tokens = torch.tensor([9, *(node[-1] for node in nodes[1:])])
            verdict = verify(rule, SPARSE, tokens, draft[rows], target[rows], generator, lossy=True)
            new = (*nodes[int(verdict.path[-1])], verdict.bonus)
            while len(new) < 3:
                new = (*new, int(rest.choice(5, p=text.target[text.row[new]])))
            counts[new] += 1
        return counts

    @pytest.mark.parametrize("rule", LOSSLESS)
    def test_they_follow_the_distribution_of_the_target(self, rule, chi_squared):
        assert chi_squared(self.sampled(rule, seed=0), self.TEXT.target_distribution()) > 1e-3

    @pytest.mark.parametrize(
        ("rule", "changes"),
        [
            ("sequoia", {"accept_test": rejection(update=False)}),
            ("traversal", {"accept_test": argmax_accepted, "by_level": False, "selection": TopDown()}),
        ],
    )
    def test_the_same_test_finds_a_mistake(self, rule, changes, chi_squared, monkeypatch):
        verify_with_tensors(monkeypatch)
        monkeypatch.setitem(RULES, rule, replace(RULES[rule], **changes))
        assert chi_squared(self.sampled(rule, seed=1), self.TEXT.target_distribution()) < 1e-6

    def test_the_same_test_finds_the_lossy_rule(self, chi_squared):
        assert chi_squared(self.sampled("typical", seed=2), self.TEXT.target_distribution()) < 1e-6


class TestVerify:
    @all_rules
    def test_the_path_goes_from_the_root_down(self, rule):
        tokens = torch.tensor([9, 0, 1, 2, 3, 4, 0])
        target = torch.eye(5)[[1, 0, 0, 0, 2, 2, 2]]  # the target wants 1, then 0, then 2
        verdict = verify(rule, SPARSE, tokens, torch.full((7, 5), 0.2), target, lossy=True)
        assert verdict.path.tolist() == [0, 2, 6]
        assert verdict.path.dtype == torch.int64
        assert verdict.bonus == 2

    @all_rules
    def test_nothing_fits(self, rule):
        distributions = torch.full((2, 3), 1 / 3), torch.eye(3)[[2, 1]]
        verdict = verify(rule, chain(1), torch.tensor([9, 0]), *distributions, lossy=True)
        assert (verdict.path.tolist(), verdict.bonus) == ([0], 2)

    @all_rules
    def test_the_root_alone(self, rule):
        probs = torch.tensor([[0.0, 0.0, 1.0]])
        verdict = verify(rule, chain(0), torch.tensor([5]), probs, probs, lossy=True)
        assert (verdict.path.tolist(), verdict.bonus) == ([0], 2)

    @pytest.mark.parametrize("rule", LOSSLESS)
    def test_draft_rows_of_leaves_are_not_read(self, rule):
        draft, target = torch.full((2, 3), torch.nan), torch.eye(3)[[1, 0]]
        draft[0] = target[0]
        assert verify(rule, chain(1), torch.tensor([0, 1]), draft, target).path.tolist() == [0, 1]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @all_rules
    def test_distributions_and_tokens_are_left_as_they_were(self, rule, dtype):
        distributions = torch.softmax(torch.randn((2, 7, 5), generator=torch.Generator().manual_seed(0)).to(dtype), -1)
        tokens = torch.tensor([0, 1, 2, 3, 4, 0, 1])
        before = distributions.clone(), tokens.clone()
        verify(rule, SPARSE, tokens, *distributions, lossy=True)
        assert torch.equal(distributions, before[0])
        assert torch.equal(tokens, before[1])

    @pytest.mark.parametrize("rule", LOSSLESS)
    def test_the_same_state_gives_the_same_verdict(self, rule):
        distribution = torch.softmax(torch.randn((2, 7, 5), generator=torch.Generator().manual_seed(0)), -1)
        tokens = torch.tensor([0, 1, 2, 3, 4, 0, 1])

        def verdicts():
            generator = torch.Generator().manual_seed(1)
            each = (verify(rule, SPARSE, tokens, *distribution, generator) for _ in range(50))
            return [(verdict.path.tolist(), verdict.bonus) for verdict in each]

        assert verdicts() == verdicts()
        assert len({str(verdict) for verdict in verdicts()}) > 1

    @pytest.mark.parametrize(
        ("tokens", "draft", "target", "reason"),
        [
            (2, (3, 4), (3, 4), r"tokens: expected \(3,\), one per node. Got \(2,\)"),
            (3, (2, 4), (3, 4), r"draft_probs: expected \(3, V\), a row per node. Got \(2, 4\)"),
            (3, (3, 4), (4, 4), r"draft_probs: expected|target_probs: expected"),
            (3, (3, 5), (3, 4), r"draft_probs: expected \(3, V\), a row per node. Got \(3, 5\)"),
            (3, (3, 4), (3,), r"_probs: expected \(3, V\)"),
            (3, (12,), (12,), r"draft_probs: expected \(3, V\), a row per node. Got \(12,\)"),
        ],
    )
    def test_wrong_shapes(self, tokens, draft, target, reason):
        with pytest.raises(InvalidValueError, match=reason):
            verify("sequoia", chain(2), torch.zeros(tokens, dtype=torch.int64), torch.ones(draft), torch.ones(target))

    @pytest.mark.parametrize("lossy", [False, True])
    def test_an_unknown_rule(self, lossy):
        with pytest.raises(InvalidValueError, match=r"rule: expected one of sequoia.*Got 'eagle'"):
            verify("eagle", chain(0), torch.tensor([0]), torch.ones((1, 2)), torch.ones((1, 2)), lossy=lossy)

    def test_the_lossy_rule_has_to_be_allowed(self):
        arguments = "typical", chain(0), torch.tensor([0]), torch.ones((1, 2)), torch.ones((1, 2))
        with pytest.raises(InvalidValueError, match=r"rule: expected a lossless one. Got 'typical'.*lossy=True"):
            verify(*arguments)
        assert verify(*arguments, lossy=True).path.tolist() == [0]
        with pytest.raises(InvalidValueError, match="lossless"):
            check_rule("typical")
        for rule in LOSSLESS:
            check_rule(rule)

    def test_which_rules_are_lossless(self):
        assert LOSSLESS == ["sequoia", "specinfer", "target", "traversal"]
        assert [rule.name for rule in RULES.values() if rule.lossless] == LOSSLESS
        assert set(RULES) == {*LOSSLESS, "typical"}


class TestOneSiblingGroup:
    """The reach of children of the root: the acceptance table is made of it."""

    @staticmethod
    def reach(rule, children, draft, target):
        verifier = Verifier(RULES[rule], len(draft), CPU)
        distributions = (distribution.expand(len(children) + 1, -1) for distribution in (draft, target))
        tree = level_widths([len(children)]) if children else chain(0)
        verifier.test([tree], torch.tensor([0, *children]), *distributions)
        return verifier.reach()[1:]

    @pytest.mark.parametrize(("target", "draft"), adversarial(4).values(), ids=adversarial(4).keys())
    @pytest.mark.parametrize("rule", ["sequoia", "target", "traversal"])
    def test_children_exclude_each_other_and_all_tokens_leave_no_gap(self, rule, target, draft):
        target, draft = (torch.tensor(distribution(())) for distribution in (target, draft))
        for count in range(5):
            for children, weight in one_after_the_other(draft.tolist(), count):
                if weight > 0:
                    accepted = self.reach(rule, children, draft, target)
                    assert accepted.shape == (count,)
                    assert accepted.dtype == np.float64
                    assert accepted.min(initial=0) >= 0
                    assert accepted.sum() <= 1 + 1e-12
                    assert count < 4 or abs(accepted.sum() - 1) < 1e-12  # one of all tokens must be the next

    @pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal"])
    def test_a_single_child_is_accepted_as_often_as_the_distributions_overlap(self, rule):
        draft, target = (torch.tensor(dirichlet(seed, 5)(())) for seed in (54, 55))
        accepted = [float(self.reach(rule, [token], draft, target)[0]) for token in range(5)]
        assert abs(np.dot(accepted, draft.numpy()) - float(torch.minimum(draft, target).sum())) < 1e-12

    def test_children_of_the_target_rule_are_accepted_as_often_as_the_target_samples_them(self):
        draft, target = (torch.tensor(dirichlet(seed, 5)(())) for seed in (54, 55))
        np.testing.assert_allclose(self.reach("target", [3, 0, 4], draft, target), target[[3, 0, 4]], atol=1e-15)

    @pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal"])
    def test_equal_distributions_accept_the_first_child(self, rule):
        distribution = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float32)
        np.testing.assert_allclose(self.reach(rule, [1, 0], distribution, distribution), [1.0, 0.0], atol=1e-15)

    @pytest.mark.parametrize("rule", LOSSLESS)
    def test_distributions_of_float32_do_as_well(self, rule):
        """Sums that are 1 to eight digits leave the reach right to six."""
        generator = torch.Generator().manual_seed(3)
        for _ in range(50):
            draft, target = torch.softmax(3 * torch.randn((2, 6), generator=generator), -1)
            children = draw(rule, draft[None], torch.tensor([3]), generator).tolist()
            exact = self.reach(
                rule,
                children,
                *(distribution.double() / distribution.double().sum() for distribution in (draft, target)),
            )
            np.testing.assert_allclose(self.reach(rule, children, draft, target), exact, atol=1e-5)


class TestVerifyGreedy:
    TREE = SPARSE
    TOKENS = (9, 4, 5, 6, 7, 8, 4)

    @pytest.mark.parametrize(
        ("wanted", "path", "bonus"),
        [
            ((3, 0, 0, 0, 0, 0, 0), [0], 3),
            ((6, 0, 0, 8, 0, 0, 0), [0, 3], 8),
            ((4, 8, 0, 0, 0, 1, 0), [0, 1, 5], 1),
            ((4, 9, 0, 0, 0, 1, 0), [0, 1], 9),
            ((5, 0, 4, 0, 0, 0, 2), [0, 2, 6], 2),
            ((9, 9, 9, 9, 9, 9, 9), [0], 9),
        ],
    )
    def test_the_path_of_the_likeliest_tokens(self, wanted, path, bonus):
        children = [self.TREE.children(node) for node in range(self.TREE.nodes)]
        verdict = verify_greedy(children, self.TOKENS, wanted)
        assert verdict.path.tolist() == path
        assert verdict.path.dtype == torch.int64
        assert verdict.bonus == bonus

    @pytest.mark.parametrize("rule", RULES)
    def test_it_is_the_limit_of_verify(self, rule):
        children = [self.TREE.children(node) for node in range(self.TREE.nodes)]
        generator = np.random.default_rng(61)
        for _ in range(40):
            tokens = [
                9,
                *generator.permutation(10)[:3],
                *generator.permutation(10)[:2],
                *generator.integers(10, size=1),
            ]
            wanted = generator.choice(tokens, 7).tolist()
            distributions = torch.full((7, 10), 0.1), torch.eye(10)[wanted]
            sampled = verify(rule, self.TREE, torch.tensor(tokens), *distributions, lossy=True)
            greedy = verify_greedy(children, tokens, wanted)
            assert greedy.path.tolist() == sampled.path.tolist()
            assert greedy.bonus == sampled.bonus
