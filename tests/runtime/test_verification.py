"""Verification leaves the target's law untouched, by enumeration of every draft and every outcome of the verifier.

The checker computes the joint law of the next max_depth + 1 tokens: it draws children in every possible order, takes
every branch of the verifier, and lets the target sample what a step left undecided.
"""

from functools import cache
from itertools import permutations, product

import numpy as np
import pytest
import torch

from treeopt.errors import InvalidValueError
from treeopt.runtime import draw, verification, verify, verify_greedy
from treeopt.runtime.verification import _attempts, acceptance_probabilities, sample_after
from treeopt.trees import TokenTree, chain, k_ary, level_widths

TREES = {
    "root alone": chain(0),
    "chain of 2": chain(2),
    "chain of 3": chain(3),
    "two children": level_widths([2]),
    "three children": level_widths([3]),
    "binary": k_ary(2, 2),
    "sparse": TokenTree([-1, 0, 0, 0, 1, 1, 2]),  # 3 children, of which 2, 1 and 0 below
    "deep first child": TokenTree([-1, 0, 0, 1, 1, 3]),
}


def rule(children, draft, target):
    return _attempts("sequoia", children, draft, target)


def order_law(law, count):
    """Return every order of `count` tokens drawn one after the other, with its probability."""
    found = []
    for order in permutations(range(len(law)), count):
        probability, untried = 1.0, list(range(len(law)))
        for token in order:
            left = sum(law[x] for x in untried)
            probability *= law[token] / left if left > 0 else 1 / len(untried)
            untried.remove(token)
        found.append((order, probability))
    return found


class Text:
    """Laws of target and draft after every text of up to `depth` tokens."""

    def __init__(self, target, draft, vocabulary, depth):
        self.vocabulary, self.depth = vocabulary, depth
        texts = [text for length in range(depth + 1) for text in product(range(vocabulary), repeat=length)]
        self.target = {text: target(text) for text in texts}
        self.draft = {text: draft(text) for text in texts}

    def target_law(self, start=()):
        """Return the joint law of the tokens from `start` up to depth + 1."""
        if len(start) > self.depth:
            return np.ones(())
        below = [self.target_law((*start, token)) for token in range(self.vocabulary)]
        return np.stack([p * law for p, law in zip(self.target[start], below, strict=True)])

    def step_law(self, tree, attempts=rule, reorder=None):
        """Return the joint law of the tokens when a step comes first and the target samples the rest."""
        target_law = cache(self.target_law)

        @cache
        def below(node, start):
            law = np.zeros((self.vocabulary,) * (self.depth + 1 - len(start)))
            children = tree.children(node)
            draft, target = (torch.tensor(laws[start], dtype=torch.float64) for laws in (self.draft, self.target))
            for drawn, weight in order_law(self.draft[start], len(children)):
                if weight == 0:
                    continue
                tokens = sorted(drawn, key=reorder(self.draft[start])) if reorder else drawn
                outcomes = attempts(tokens, draft, target)
                for child, token in zip(children, tokens, strict=True):
                    accepted = float(next(outcomes)[0])
                    if accepted > 0:
                        law[token] += weight * accepted * below(child, (*start, token))
                    weight *= 1 - accepted
                for token, p in enumerate(next(outcomes)[1].tolist()):
                    law[token] += weight * p * target_law((*start, token))
            return law

        return below(0, ())

    def error(self, tree, **changes):
        return np.abs(self.step_law(tree, **changes) - self.target_law()).max()


def noise(seed, text):
    """Return the random numbers that belong to a text, whichever tests run before."""
    return np.random.default_rng([seed, len(text), *text])


def dirichlet(seed, vocabulary, concentration=0.7):
    return lambda text: noise(seed, text).dirichlet(np.full(vocabulary, concentration))


def one_hot(seed, vocabulary):
    return lambda text: np.eye(vocabulary)[noise(seed, text).integers(vocabulary)]


def with_zeros(seed, vocabulary, zeros):
    def law(text):
        generator = noise(seed, text)
        weights = generator.dirichlet(np.ones(vocabulary))
        weights[generator.permutation(vocabulary)[:zeros]] = 0
        return weights / weights.sum()

    return law


def halves(vocabulary, *, upper):
    half = vocabulary // 2
    law = np.concatenate([np.zeros(half), np.ones(vocabulary - half)] if upper else [np.ones(half), np.zeros(half)])
    return lambda _: law / law.sum()


LAWS = {
    "random": (dirichlet(1, 4), dirichlet(2, 4)),
    "near": (dirichlet(3, 4, 30.0), dirichlet(4, 4, 30.0)),
    "peaked": (dirichlet(5, 4, 0.1), dirichlet(6, 4, 0.1)),
    "equal": (dirichlet(20, 4), dirichlet(20, 4)),
    "disjoint": (halves(4, upper=True), halves(4, upper=False)),
    "one-hot target": (one_hot(7, 4), dirichlet(8, 4)),
    "one-hot draft": (dirichlet(9, 4), one_hot(10, 4)),
    "both one-hot": (one_hot(11, 4), one_hot(12, 4)),
    "one token never drafted": (dirichlet(13, 4), with_zeros(14, 4, 1)),
    "two tokens never drafted": (dirichlet(15, 4), with_zeros(16, 4, 2)),
    "zeros in both": (with_zeros(17, 4, 2), with_zeros(18, 4, 2)),
    "even draft": (dirichlet(19, 4), lambda _: np.full(4, 0.25)),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
@pytest.mark.parametrize(("target", "draft"), LAWS.values(), ids=LAWS.keys())
def test_a_step_follows_the_law_of_the_target(target, draft, tree):
    assert Text(target, draft, 4, tree.max_depth).error(tree) < 1e-12


@pytest.mark.parametrize(
    ("vocabulary", "tree"),
    [(2, level_widths([2])), (2, k_ary(2, 3)), (3, level_widths([3])), (3, k_ary(3, 2)), (4, level_widths([4, 4]))],
)
@pytest.mark.parametrize("zeros", [0, 1])
def test_siblings_may_use_up_the_vocabulary(vocabulary, tree, zeros):
    for seed in range(3):
        target, draft = dirichlet(seed, vocabulary), with_zeros(seed, vocabulary, zeros)
        assert Text(target, draft, vocabulary, tree.max_depth).error(tree) < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_random_trees(seed):
    generator = np.random.default_rng(seed)
    tree = TokenTree.ordered([-1, *(int(generator.integers(node)) for node in range(1, 7))])
    while tree.max_depth > 3 or tree.child_counts.max() > 4:
        tree = TokenTree.ordered([-1, *(int(generator.integers(node)) for node in range(1, 7))])
    target, draft = dirichlet(seed, 4), with_zeros(seed + 100, 4, 1)
    assert Text(target, draft, 4, tree.max_depth).error(tree) < 1e-12


def other_attempts(*, swap=False, update=True, argmax=False, fall_back=True):
    """Return the rule written once more, with one mistake where one is asked for."""

    def attempts(children, draft, target):
        p, q = target.clone(), draft.clone()
        untried = torch.ones_like(q)
        for token in children:
            ratio = q[token] / p[token] if swap else p[token] / q[token]
            yield (float(token == p.argmax()) if argmax else min(1.0, float(ratio.nan_to_num(0.0)))), p
            residual = (p - q).clamp_min(0)
            p = residual / residual.sum() if residual.sum() > 0 else p
            untried[token] = 0
            if update:
                left = q * untried
                left = untried if fall_back and left.sum() == 0 else left
                q = left / left.sum().clamp_min(1e-300)
        yield 1.0, p

    return attempts


BROKEN = {
    "likelier siblings first": {"reorder": lambda law: lambda token: -law[token]},
    "less likely siblings first": {"reorder": lambda law: lambda token: law[token]},
    "ratio upside down": {"attempts": other_attempts(swap=True)},
    "draft law not updated": {"attempts": other_attempts(update=False)},
    "likeliest token accepted": {"attempts": other_attempts(argmax=True)},
}


class TestTheCheckerItself:
    """Mistakes that other programs have made must not get past the same check."""

    @pytest.mark.parametrize("mistake", BROKEN.values(), ids=BROKEN.keys())
    @pytest.mark.parametrize("name", ["three children", "binary", "sparse"])
    def test_a_mistake_is_found(self, name, mistake):
        assert Text(*LAWS["random"], 4, TREES[name].max_depth).error(TREES[name], **mistake) > 1e-3

    @pytest.mark.parametrize("mistake", [BROKEN["ratio upside down"], BROKEN["likeliest token accepted"]])
    def test_a_mistake_is_found_on_a_chain(self, mistake):
        assert Text(*LAWS["random"], 4, 2).error(chain(2), **mistake) > 1e-3

    def test_not_falling_back_to_the_untried_is_found(self):
        text = Text(dirichlet(31, 4), with_zeros(32, 4, 2), 4, 1)
        assert text.error(level_widths([4]), attempts=other_attempts(fall_back=False)) > 1e-3

    @pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
    def test_the_rule_written_once_more_passes(self, tree):
        text = Text(*LAWS["two tokens never drafted"], 4, tree.max_depth)
        assert text.error(tree, attempts=other_attempts()) < 1e-12


class TestVerify:
    """The function itself, on sampled drafts."""

    TREE = TREES["sparse"]
    SAMPLES = 4000

    TEXT = Text(dirichlet(41, 5), dirichlet(42, 5), 5, 2)

    def sampled(self, seed):
        """Return how often each three tokens came out of a step, completed by the target."""
        generator = torch.Generator().manual_seed(seed)
        rest = np.random.default_rng(seed)
        laws = {name: {k: torch.tensor(v) for k, v in getattr(self.TEXT, name).items()} for name in ("draft", "target")}
        counts = np.zeros((5, 5, 5))
        for _ in range(self.SAMPLES):
            tokens, texts = [9], [()]
            for node in range(self.TREE.nodes):
                wanted = self.TREE.child_counts[node : node + 1].astype(np.int64)
                if wanted[0]:
                    drawn = draw("sequoia", laws["draft"][texts[node]][None], torch.from_numpy(wanted), generator)
                    tokens.extend(drawn.tolist())
                    texts.extend((*texts[node], token) for token in drawn.tolist())
            draft_probs, target_probs = (torch.stack([laws[name][t] for t in texts]) for name in ("draft", "target"))
            verdict = verify("sequoia", self.TREE, torch.tensor(tokens), draft_probs, target_probs, generator)
            new = (*texts[int(verdict.path[-1])], verdict.bonus)
            while len(new) < 3:
                new = (*new, int(rest.choice(5, p=self.TEXT.target[new])))
            counts[new] += 1
        return counts

    def test_a_step_follows_the_law_of_the_target(self, chi_squared):
        assert chi_squared(self.sampled(seed=0), self.TEXT.target_law()) > 1e-3

    @pytest.mark.parametrize("mistake", [{"update": False}, {"argmax": True}])
    def test_the_same_test_finds_a_mistake(self, chi_squared, monkeypatch, mistake):
        broken = other_attempts(**mistake)
        monkeypatch.setattr(verification, "_attempts", lambda _, *arguments: map(tensors, broken(*arguments)))
        assert chi_squared(self.sampled(seed=1), self.TEXT.target_law()) < 1e-6

    def test_the_path_goes_from_the_root_down(self):
        tree, tokens = self.TREE, torch.tensor([9, 0, 1, 2, 3, 4, 0])
        target = torch.eye(5)[[1, 0, 0, 0, 2, 2, 2]]  # the target wants 1, then 0, then 2
        verdict = verify("sequoia", tree, tokens, torch.full((7, 5), 0.2), target)
        assert verdict.path.tolist() == [0, 2, 6]
        assert verdict.path.dtype == torch.int64
        assert verdict.bonus == 2

    def test_nothing_fits(self):
        verdict = verify("sequoia", chain(1), torch.tensor([9, 0]), torch.full((2, 3), 1 / 3), torch.eye(3)[[2, 1]])
        assert (verdict.path.tolist(), verdict.bonus) == ([0], 2)

    def test_the_root_alone(self):
        probs = torch.tensor([[0.0, 0.0, 1.0]])
        verdict = verify("sequoia", chain(0), torch.tensor([5]), probs, probs)
        assert (verdict.path.tolist(), verdict.bonus) == ([0], 2)

    def test_draft_rows_of_leaves_are_not_read(self):
        draft, target = torch.full((2, 3), torch.nan), torch.full((2, 3), 1 / 3)
        draft[0] = target[0]
        assert verify("sequoia", chain(1), torch.tensor([0, 1]), draft, target).path.tolist() == [0, 1]

    def test_the_same_state_gives_the_same_verdict(self):
        law = torch.softmax(torch.randn((2, 7, 5), generator=torch.Generator().manual_seed(0)), -1)
        tokens = torch.tensor([0, 1, 2, 3, 4, 0, 1])

        def verdicts():
            generator = torch.Generator().manual_seed(1)
            each = (verify("sequoia", self.TREE, tokens, *law, generator) for _ in range(50))
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

    def test_unknown_rule(self):
        with pytest.raises(InvalidValueError, match=r"rule: expected one of sequoia.*Got 'lossy'"):
            verify("lossy", chain(0), torch.tensor([0]), torch.ones((1, 2)), torch.ones((1, 2)))


def tensors(outcome):
    return torch.tensor(outcome[0], dtype=torch.float64), outcome[1]


class TestOneNode:
    SAMPLES = 3000

    @pytest.mark.parametrize("children", [[2], [3, 0], [1, 4, 2], [0, 1, 2, 3, 4], []])
    def test_acceptance_probabilities_are_frequencies(self, children, chi_squared):
        draft, target = (torch.tensor(dirichlet(seed, 5, 1.0)(())) for seed in (51, 52))
        expected = acceptance_probabilities("sequoia", children, draft, target)
        assert expected.dtype == torch.float64
        generator = torch.Generator().manual_seed(53)
        counts = np.zeros(len(children) + 1)
        for _ in range(self.SAMPLES):
            accepted, following = sample_after("sequoia", children, draft, target, generator)
            counts[len(children) if accepted is None else accepted] += 1
            assert accepted is None or following == children[accepted]
        law = np.append(expected.numpy(), max(0.0, 1 - float(expected.sum())))
        assert chi_squared(counts, law / law.sum()) > 1e-3

    @pytest.mark.parametrize(("target", "draft"), LAWS.values(), ids=LAWS.keys())
    def test_acceptance_probabilities_exclude_each_other(self, target, draft):
        target, draft = (torch.tensor(law(())) for law in (target, draft))
        for count in range(1, 5):
            for children, weight in order_law(draft.tolist(), count):
                if weight > 0:
                    accepted = acceptance_probabilities("sequoia", children, draft, target)
                    assert accepted.shape == (count,)
                    assert accepted.min() >= 0
                    assert accepted.sum() <= 1 + 1e-12
                    assert count < 4 or abs(accepted.sum() - 1) < 1e-12  # one of all tokens must be the next

    def test_a_single_child_is_accepted_as_often_as_the_laws_overlap(self):
        draft, target = (torch.tensor(dirichlet(seed, 5)(())) for seed in (54, 55))
        accepted = torch.cat([acceptance_probabilities("sequoia", [token], draft, target) for token in range(5)])
        torch.testing.assert_close(accepted @ draft, torch.minimum(draft, target).sum(), rtol=0, atol=1e-12)

    def test_equal_laws_accept_the_first_child(self):
        law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float32)
        assert acceptance_probabilities("sequoia", [1, 0], law, law).tolist() == [1.0, 0.0]

    def test_unknown_rule(self):
        law = torch.full((3,), 1 / 3)
        with pytest.raises(InvalidValueError, match=r"rule: expected one of sequoia"):
            acceptance_probabilities("typical", [0], law, law)


class TestVerifyGreedy:
    TREE = TREES["sparse"]
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

    def test_it_is_the_limit_of_verify(self):
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
            sampled = verify(
                "sequoia", self.TREE, torch.tensor(tokens), torch.full((7, 10), 0.1), torch.eye(10)[wanted]
            )
            greedy = verify_greedy(children, tokens, wanted)
            assert greedy.path.tolist() == sampled.path.tolist()
            assert greedy.bonus == sampled.bonus
