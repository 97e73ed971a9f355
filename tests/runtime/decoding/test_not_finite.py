"""Logits that are NaN or infinite: a draft's never change the output, a target's are an error."""

import warnings
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from tests.contracts.drafters import medusa, redrafter
from tests.support.decoded import PROMPT, decoded_step, joined
from tests.support.enumeration import ORDERS, drafts, end_probabilities
from tests.support.invented_distributions import PairDistributions, dirichlet
from tests.support.table_model import INF, NAN, NOT_FINITE, Table, counted
from treeopt.errors import InvalidValueError, TreeoptError, TreeoptWarning
from treeopt.records.rules import LOSSY_RULES
from treeopt.runtime import Decoder, ExpandingDrafter, Sampling, Transformer, Verifier, draw, verify
from treeopt.runtime.models.finite import count_usable_nodes
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import NO_STATES, Output, Outputs
from treeopt.runtime.models.padded_batch import last_outputs
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, chain, k_ary, level_widths
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting

SAMPLED_DRAFTS = ["sequoia", "specinfer", "traversal"]
SIZE = 3
CHAIN, TREE = chain(2), level_widths([2, 3])


@pytest.fixture(scope="module")
def toys():
    """Return a target of few tokens, and a similar draft."""
    logits, noise = (torch.randn((SIZE, SIZE), generator=torch.Generator().manual_seed(seed)) / 4 for seed in (1, 2))
    logits[torch.arange(SIZE), (torch.arange(SIZE) + 1) % SIZE] = 0.8
    return Table(logits), Table(logits + noise, "draft")


@pytest.fixture(scope="module")
def circle():
    """Return a target that repeats eight of its sixteen tokens."""
    logits = torch.randn((16, 16), generator=torch.Generator().manual_seed(1))
    logits[torch.arange(16), (torch.arange(16) + 1) % 8] = 9.0
    return Table(logits)


@contextmanager
def one_warning(name="broken draft"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [warning.category for warning in caught] == [TreeoptWarning]
    assert str(caught[0].message).startswith(f"{name}: expected a draft model whose logits are finite. Got NaN")


def dynamic(target, draft, **sampling):
    drafter = ExpandingDrafter(draft, DynamicTree(top_k=1, depth=2, nodes=3), capacity=128)
    return Decoder(target, drafter, **sampling)


def specexec(target, draft, **sampling):
    setting = SpecExecSetting(budget=3, branching=1, batch=1, max_passes=2)
    return Decoder(target, ExpandingDrafter(draft, setting, capacity=128), **sampling)


def static(rule, tree=CHAIN):
    return lambda target, draft, **sampling: Decoder(target, draft, tree, rule=rule, lossy=True, **sampling)


every_drafter = pytest.mark.parametrize(
    "make", [static("sequoia"), dynamic, specexec], ids=["static", "dynamic", "specexec"]
)


class TestDistribution:
    """The joint distribution of three tokens, which take several steps, if the draft is not finite after token 1."""

    @staticmethod
    def p_value(chi_squared, make, toys, kind, sequences=300):
        decoder = make(toys[0], toys[1].spoiled((1,), NOT_FINITE[kind]), temperature=1.0, seed=3)
        counts, steps = counted(decoder, (0, 2), 3, sequences, SIZE)
        return chi_squared(counts, toys[0].joint(2, 3, Sampling(1.0))), sequences * 3 / steps

    @pytest.mark.parametrize(
        ("make", "kind"),
        [
            *((static(rule), "one NaN") for rule in [*SAMPLED_DRAFTS, "target"]),
            (dynamic, "one NaN"),
            (specexec, "one NaN"),
            (static("sequoia", TREE), "all NaN"),
            (static("specinfer", TREE), "one infinity"),
            (static("traversal", TREE), "nothing allowed"),
        ],
    )
    def test_output_follows_the_target(self, chi_squared, toys, make, kind):
        with one_warning():
            p_value, tokens_per_step = self.p_value(chi_squared, make, toys, kind)
        assert p_value > 1e-3
        assert tokens_per_step > 1.1

    @pytest.mark.slow
    def test_output_without_the_check_does_not(self, chi_squared, toys, monkeypatch):
        """Other rules than traversal reject all children of a distribution that is NaN."""
        monkeypatch.setattr("treeopt.runtime.decoding.step.all_finite", lambda _: True)
        assert self.p_value(chi_squared, static("traversal"), toys, "all NaN", 400)[0] < 1e-6

    @pytest.mark.slow
    @pytest.mark.parametrize("rule", SAMPLED_DRAFTS)
    def test_output_with_whole_drafts_dropped_does_not(self, chi_squared, toys, rule, monkeypatch):
        monkeypatch.setattr("treeopt.runtime.decoding.step.count_usable_nodes", lambda *_: 1)
        with one_warning():
            assert self.p_value(chi_squared, static(rule), toys, "all NaN", 400)[0] < 1e-6


def count_to_level(tree, ended):
    """Return the nodes of a draft that ends with the first level in which a node's distribution is not finite."""
    return next((level.stop for level in tree.levels if any(ended[level])), tree.nodes)


def count_to_root(tree, ended):
    return 1 if any(ended) else tree.nodes


def step_distribution(rule, tree, pair, count_nodes):
    """Return the joint distribution of a step's tokens if drafts end after token 1; the target samples the rest."""
    internal, joint = tree.child_counts > 0, np.zeros((pair.vocabulary,) * (pair.depth + 1))
    for nodes, weight in drafts(tree, pair, ORDERS[rule.name]):
        ended = [bool(internal[index]) and node[-1:] == (1,) for index, node in enumerate(nodes)]
        usable = TokenTree(tree.parents[: count_nodes(tree, ended)])
        rows = torch.tensor([pair.row[node] for node in nodes[: usable.nodes]])
        verifier = Verifier(rule, pair.vocabulary, torch.device("cpu"))
        tokens = torch.tensor([0, *(node[-1] for node in nodes[1 : usable.nodes])])
        verifier.test([usable], tokens, *(torch.from_numpy(probs)[rows] for probs in (pair.draft, pair.target)))
        for node, probabilities in zip(nodes, weight * end_probabilities(verifier, usable)[0], strict=False):
            joint[node] += pair.completed(node, probabilities)
    return joint


class TestEnumeration:
    """The exact distribution of a step over all drafts, if drafts end after token 1."""

    PAIR = PairDistributions(dirichlet(1, 3), dirichlet(2, 3), 3, 2)

    @pytest.mark.parametrize("rule", [*SAMPLED_DRAFTS, "target"])
    def test_ending_a_draft_with_a_level_keeps_the_distribution(self, rule):
        for tree in (chain(2), k_ary(2, 2), TokenTree([-1, 0, 0, 1])):
            joint = step_distribution(RULES[rule], tree, self.PAIR, count_to_level)
            np.testing.assert_allclose(joint, self.PAIR.target_distribution(), atol=1e-12)

    @pytest.mark.parametrize("rule", SAMPLED_DRAFTS)
    def test_dropping_a_draft_changes_it(self, rule):
        joint = step_distribution(RULES[rule], chain(2), self.PAIR, count_to_root)
        assert np.abs(joint - self.PAIR.target_distribution()).max() > 0.01


class TestDraft:
    @every_drafter
    def test_greedy_output_is_the_targets_and_other_steps_draft(self, circle, make):
        for tokens, kind in product((range(16), [5]), NOT_FINITE):
            with one_warning():
                decoder = make(circle, circle.spoiled(tokens, NOT_FINITE[kind]), temperature=0.0)
                steps = list(decoder.stream([0], 40))
            assert joined(steps) == circle.text(0, 40)
            assert (len(steps) == 40) == (len(tokens) == 16)

    @pytest.mark.parametrize("rule", sorted(LOSSY_RULES))
    def test_a_lossy_rule_accepts_nothing_without_a_draft(self, toys, rule):
        draft = toys[1].spoiled(range(SIZE), NOT_FINITE["one NaN"])
        with one_warning():
            steps = list(static(rule)(toys[0], draft, temperature=1.0).stream([0], 20))
        assert [len(step) for step in steps] == [1] * 20

    @every_drafter
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_excluded_tokens_are_allowed(self, toys, make, temperature):
        models = [Table(model.logits.clone(), model.name) for model in toys]
        for model in models:
            model.logits[:, 1] = -INF
        assert 1 not in list(make(*models, temperature=temperature).generate([0], 30))

    def test_each_decoder_warns_once_and_names_the_model(self, toys):
        draft = toys[1].spoiled(range(SIZE), NOT_FINITE["all NaN"])
        for decoder in [static("sequoia")(toys[0], draft, temperature=0.8) for _ in range(2)]:
            with one_warning():
                for _ in range(3):
                    list(decoder.generate([0], 5))
        draft.name = "org/half"
        with pytest.warns(TreeoptWarning, match="^org/half: .*run it in float32 or bfloat16, .* or choose another.$"):
            list(static("sequoia")(toys[0], draft, temperature=0.8).generate([0], 5))


class NotFiniteAfter:
    """A model whose logits, and nothing else, are NaN after some tokens."""

    def __init__(self, model, tokens):
        self.model, self.tokens, self.name = model, torch.tensor(tokens), "broken draft"
        self.config, self.device, self.dtype = model.config, model.device, model.dtype
        self.cache_bytes, self.pass_bytes = model.cache_bytes, model.pass_bytes
        self.new_caches, self.prefill = model.new_caches, model.prefill

    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        spoiled = torch.isin(torch.cat([sequence.tokens for sequence in inputs]), self.tokens)
        outputs = self.model.forward(inputs, requested_states)
        whole = Outputs(Output(outputs.logits.masked_fill(spoiled[:, None], NAN)), outputs.sizes)
        return last_outputs(whole) if last_only else whole


def poisoned(model, tokens):
    """Return a model in which the embeddings of some tokens are NaN, and so its cache after them."""
    embedding = model.weights.embedding.clone()
    embedding[tokens] = NAN
    return Transformer(model.config, replace(model.weights, embedding=embedding), name="broken draft")


class TestState:
    """Caches and pending tokens after drafts that ended early."""

    @pytest.mark.parametrize("tree", [chain(4), level_widths([2, 3, 1])])
    def test_the_next_drafts_are_those_of_a_fresh_pass(self, target, draft, tree, greedy_text):
        decoder = Decoder(target, NotFiniteAfter(draft, [0, 7, 14]), tree, temperature=0.9, seed=4, rule="target")
        text, whole, cut = list(PROMPT), 0, 0
        decoder.start(text)
        with one_warning():
            for _ in range(60):
                proposal = decoder.draft()
                usable, scores = tree.nodes, proposal.scores
                if not scores.values.isfinite().all():
                    usable = count_usable_nodes(tree, scores.nodes, scores.values.tolist())
                tokens, path = proposal.tokens.tolist(), [0]
                while (children := tree.children(path[-1])) and children[0] < usable:
                    path.append(children[0])
                assert [tokens[node] for node in path[1:]] == greedy_text(draft, text, len(path) - 1)
                whole, cut = whole + (usable == tree.nodes), cut + (1 < usable < tree.nodes)
                text += decoded_step(decoder, proposal)
        assert whole > 0
        assert cut > 0

    @pytest.mark.parametrize("graphs", [False, True])
    @pytest.mark.parametrize("temperature", [0.0, 0.9])
    def test_the_next_sequence_is_drafted_again(self, target, graphs, temperature):
        tree = k_ary(2, 3)
        decoder = Decoder(target, poisoned(target, [22]), tree, temperature=temperature, cuda_graphs=graphs, seed=1)
        with one_warning():
            list(decoder.generate([22, *PROMPT * 5], 10))
            steps = list(decoder.stream(PROMPT, 12, seed=1))
        assert len(steps[0]) > 1
        alone = Decoder(target, target, tree, temperature=0.0)
        assert temperature or joined(steps) == list(alone.generate(PROMPT, 12))

    def test_slots_that_stay_nan_would_spread_to_captured_passes(self, target, monkeypatch):
        monkeypatch.setattr(KVCache, "_zero_nodes", lambda _: None)
        decoder = Decoder(target, poisoned(target, [22]), k_ary(2, 3), temperature=0.0, cuda_graphs=True)
        with one_warning():
            list(decoder.generate([22, *PROMPT * 5], 10))
            assert [len(step) for step in decoder.stream(PROMPT, 12)] == [1] * 12


def broken_medusa(target, value):
    """Return heads of which the second has a bias that is not finite."""
    return medusa(target, level_widths([2, 2]), second_bias=value)


def broken_redrafter(target, value, width=2):
    """Return a head whose state is not finite from the second token on."""
    drafter = redrafter(target, width, 3)
    weight = drafter.head.recurrence.weight
    drafter.head = replace(drafter.head, recurrence=Linear(weight, torch.full((len(weight),), value)))
    return drafter


class TestHeads:
    @pytest.mark.parametrize(
        ("make", "kind", "most"), [(broken_medusa, "Medusa heads", 2), (broken_redrafter, "ReDrafter head", 1)]
    )
    @pytest.mark.parametrize("value", [NAN, INF])
    def test_a_draft_ends_at_the_first_head_that_is_not_finite(self, target, make, kind, most, value, greedy_text):
        with one_warning(f"{kind} of {target.name}"):
            steps = list(Decoder(target, make(target, value), temperature=0.0).stream(PROMPT, 20))
        assert joined(steps) == greedy_text(target, PROMPT, 20)
        assert max(map(len, steps)) == most

    def test_beams_may_be_as_many_as_tokens(self, target):
        with one_warning(f"ReDrafter head of {target.name}"):
            drafter = broken_redrafter(target, NAN, width=target.config.vocabulary)
            list(Decoder(target, drafter, temperature=1.0).generate(PROMPT, 3))


class TestTarget:
    @pytest.mark.parametrize("make", [*map(static, RULES), dynamic, specexec])
    def test_the_error_names_the_model(self, toys, make):
        for kind, temperature in product(NOT_FINITE, (0.0, 1.0)):
            target = toys[0].spoiled(range(SIZE), NOT_FINITE[kind], name="org/target")
            tokens = make(target, toys[1], temperature=temperature).generate([0], 5)
            with pytest.raises(TreeoptError, match=r"^org/target: expected a target whose logits are finite. .*float"):
                next(tokens)

    @pytest.mark.parametrize(
        ("make", "temperature"),
        [
            *((make, 0.0) for make in (static("sequoia"), dynamic, specexec)),
            *((static(rule), 1.0) for rule in RULES if not RULES[rule].by_level),  # the others test all paths
            (dynamic, 1.0),
            (specexec, 1.0),
        ],
    )
    def test_tokens_that_are_not_generated_do_not_matter(self, toys, make, temperature):
        models = [Table(model.logits.clone(), model.name) for model in toys]
        for model in models:
            model.logits[:, 1] = -9.0
        decoder = make(models[0].spoiled([1], NOT_FINITE["all NaN"]), models[1], temperature=temperature, seed=1)
        assert 1 not in list(decoder.generate([0], 30))

    @pytest.mark.parametrize("graphs", [False, True])
    def test_the_next_sequence_can_be_decoded(self, target, graphs, greedy_text):
        decoder = Decoder(poisoned(target, [22]), target, k_ary(2, 2), temperature=0.0, cuda_graphs=graphs)
        with pytest.raises(TreeoptError, match="expected a target"):
            list(decoder.generate([22, *PROMPT * 5], 10))
        assert list(decoder.generate(PROMPT, 12)) == greedy_text(target, PROMPT, 12)

    def test_no_further_step_is_decoded(self, target):
        decoder = Decoder(poisoned(target, [22]), target, k_ary(2, 2), temperature=0.0)
        decoder.start([22, *PROMPT])
        with pytest.raises(TreeoptError, match="expected a target"):
            decoder.step()
        with pytest.raises(TreeoptError, match="expected a sequence that has begun"):
            decoder.step()


class TestFunctions:
    """`draw` and `verify`."""

    PROBS = torch.full((3, SIZE), 1 / SIZE)
    TREE, TOKENS, COUNTS = level_widths([1, 1]), torch.tensor([0, 1, 2]), torch.tensor([1, 1, 0])

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("value", [NAN, INF])
    def test_distributions_that_are_not_finite_are_refused(self, rule, value):
        spoiled = self.PROBS.clone()
        spoiled[1, 2] = value
        with pytest.raises(InvalidValueError, match=r"draft_probs: expected finite probabilities. Got NaN"):
            draw(rule, spoiled, self.COUNTS)
        for probs, name in (((spoiled, self.PROBS), "draft_probs"), ((self.PROBS, spoiled), "target_probs")):
            with pytest.raises(InvalidValueError, match=f"{name}: expected finite probabilities"):
                verify(rule, self.TREE, self.TOKENS, *probs, lossy=True)

    @pytest.mark.parametrize("rule", RULES)
    def test_draft_distributions_of_leaves_are_not_checked(self, rule):
        spoiled = self.PROBS.clone()
        spoiled[2] = NAN
        draw(rule, spoiled, self.COUNTS)
        verify(rule, self.TREE, self.TOKENS, spoiled, self.PROBS, lossy=True)
