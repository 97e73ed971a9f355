"""Logits that are NaN or infinite: a draft's never change the text, a target's are an error."""

import warnings
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from tests.support.decoded import PROMPT, decoded_step
from tests.support.enumeration import ORDERS, drafts, end_probabilities
from tests.support.invented_texts import Text, dirichlet
from tests.support.table_model import INF, NAN, NOT_FINITE, Table, counted
from treeopt.errors import InvalidValueError, TreeoptError, TreeoptWarning
from treeopt.records.rules import LOSSY_RULES, RULES
from treeopt.runtime import Decoder, ExpandingDrafter, Sampling, Transformer, Verifier, draw, verify
from treeopt.runtime.drafters.medusa import MedusaDrafter, MedusaHeads
from treeopt.runtime.drafters.redrafter import RedrafterDrafter, RedrafterHead
from treeopt.runtime.models.finite import count_usable_nodes
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import NO_STATES, Output, Outputs
from treeopt.runtime.models.padded_batch import last_outputs
from treeopt.runtime.rules import RULES as RUNTIME_RULES
from treeopt.trees import TokenTree, chain, k_ary, level_widths
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting

SAMPLED_DRAFTS = ["sequoia", "specinfer", "traversal"]
SIZE = 3
CHAIN, TREE = chain(2), level_widths([2, 3])
LENGTH, TEXTS = 3, 400
BAD = (1,)


@pytest.fixture(scope="module")
def toys():
    """Return a target of few tokens, and a draft that is not unlike it."""
    logits, noise = (torch.randn((SIZE, SIZE), generator=torch.Generator().manual_seed(seed)) / 4 for seed in (1, 2))
    logits[torch.arange(SIZE), (torch.arange(SIZE) + 1) % SIZE] = 0.8
    return Table(logits), Table(logits + noise, "draft")


@pytest.fixture(scope="module")
def circle():
    """Return a target that goes round eight of its sixteen tokens."""
    logits = torch.randn((16, 16), generator=torch.Generator().manual_seed(1))
    logits[torch.arange(16), (torch.arange(16) + 1) % 8] = 9.0
    return Table(logits)


@contextmanager
def one_warning(name="broken draft"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [each.category for each in caught] == [TreeoptWarning]
    assert str(caught[0].message).startswith(f"{name}: expected a draft model whose logits are finite. Got NaN")


def dynamic(target, draft, **sampling):
    drafter = ExpandingDrafter(draft, DynamicTree(top_k=1, depth=2, nodes=3), capacity=128)
    return Decoder(target, drafter, **sampling)


def specexec(target, draft, **sampling):
    setting = SpecExecSetting(budget=3, branching=1, batch=1, max_passes=2)
    return Decoder(target, ExpandingDrafter(draft, setting, capacity=128), **sampling)


def static(rule, tree=CHAIN):
    return lambda target, draft, **sampling: Decoder(target, draft, tree, rule=rule, lossy=True, **sampling)


class TestDistribution:
    """The joint distribution of three tokens, which take several steps, where the draft is not finite after one of the tokens."""

    @staticmethod
    def p_value(chi_squared, make, toys, draft, prompt=(0, 2), texts=TEXTS):
        decoder = make(toys[0], draft, temperature=1.0, seed=3)
        counts, steps = counted(decoder, prompt, LENGTH, texts, SIZE)
        return chi_squared(counts, toys[0].joint(prompt[-1], LENGTH, Sampling(1.0))), texts * LENGTH / steps

    @pytest.mark.parametrize("make", [*map(static, [*SAMPLED_DRAFTS, "target"]), dynamic, specexec])
    def test_text_is_the_targets(self, chi_squared, toys, make):
        with one_warning():
            found, tokens_per_step = self.p_value(chi_squared, make, toys, toys[1].spoiled(BAD, NOT_FINITE["one NaN"]))
        assert found > 1e-3
        assert tokens_per_step > 1.1

    @pytest.mark.parametrize("rule", SAMPLED_DRAFTS)
    @pytest.mark.parametrize("kind", ["all NaN", "one infinity", "nothing allowed"])
    def test_so_it_is_for_every_kind_of_logits_and_a_tree(self, chi_squared, toys, rule, kind):
        draft = toys[1].spoiled(BAD, NOT_FINITE[kind])
        with one_warning():
            assert self.p_value(chi_squared, static(rule, TREE), toys, draft, texts=250)[0] > 1e-3

    def test_without_the_check_it_is_not(self, chi_squared, toys, monkeypatch):
        """The rules that try children in turn reject them all where the draft's distribution is NaN; traversal does not."""
        monkeypatch.setattr("treeopt.runtime.decoding.step.all_finite", lambda _: True)
        draft = toys[1].spoiled(BAD, NOT_FINITE["all NaN"])
        assert self.p_value(chi_squared, static("traversal"), toys, draft)[0] < 1e-6

    @pytest.mark.parametrize("rule", SAMPLED_DRAFTS)
    def test_to_drop_the_whole_draft_would_take_tokens_from_the_text(self, chi_squared, toys, rule, monkeypatch):
        monkeypatch.setattr("treeopt.runtime.decoding.step.count_usable_nodes", lambda *_: 1)
        draft = toys[1].spoiled(BAD, NOT_FINITE["all NaN"])
        with one_warning():
            assert self.p_value(chi_squared, static(rule), toys, draft)[0] < 1e-6


def at_the_level(tree, ended):
    """Return how many nodes are left where the draft ends with the first level that holds such a node."""
    return next((level.stop for level in tree.levels if any(ended[level])), tree.nodes)


def at_the_root(tree, ended):
    return 1 if any(ended) else tree.nodes


def step_distribution(rule, tree, text, nodes_left):
    """Return the joint distribution of a step's tokens, drafts ended behind token 1 and the rest sampled by the target."""
    internal, joint = tree.child_counts > 0, np.zeros((text.vocabulary,) * (text.depth + 1))
    for nodes, weight in drafts(tree, text, ORDERS[rule.name]):
        ended = [bool(internal[place]) and node[-1:] == (1,) for place, node in enumerate(nodes)]
        usable = TokenTree(tree.parents[: nodes_left(tree, ended)])
        rows = torch.tensor([text.row[node] for node in nodes[: usable.nodes]])
        verifier = Verifier(rule, text.vocabulary, torch.device("cpu"))
        tokens = torch.tensor([0, *(node[-1] for node in nodes[1 : usable.nodes])])
        verifier.test([usable], tokens, *(torch.from_numpy(probs)[rows] for probs in (text.draft, text.target)))
        for node, after in zip(nodes, weight * end_probabilities(verifier, usable), strict=False):
            joint[node] += text.completed(node, after)
    return joint


class TestEnumeration:
    """The distribution of a step over all drafts, exactly, where drafts end behind one token."""

    TEXT = Text(dirichlet(1, 3), dirichlet(2, 3), 3, 2)

    @pytest.mark.parametrize("rule", [*SAMPLED_DRAFTS, "target"])
    def test_a_draft_that_ends_with_a_level_changes_nothing(self, rule):
        for tree in (chain(2), k_ary(2, 2), TokenTree([-1, 0, 0, 1])):
            found = step_distribution(RUNTIME_RULES[rule], tree, self.TEXT, at_the_level)
            np.testing.assert_allclose(found, self.TEXT.target_distribution(), atol=1e-12)

    @pytest.mark.parametrize("rule", SAMPLED_DRAFTS)
    def test_one_that_is_dropped_for_what_was_sampled_does(self, rule):
        found = step_distribution(RUNTIME_RULES[rule], chain(2), self.TEXT, at_the_root)
        assert np.abs(found - self.TEXT.target_distribution()).max() > 0.01


class TestGreedy:
    @pytest.mark.parametrize("make", [*map(static, RULES), dynamic, specexec])
    def test_text_is_the_targets_and_other_steps_go_on_drafting(self, circle, make):
        for tokens, kind in product((range(16), [5]), NOT_FINITE):
            with one_warning():
                decoder = make(circle, circle.spoiled(tokens, NOT_FINITE[kind]), temperature=0.0)
                steps = list(decoder.stream([0], 40))
            assert [token for step in steps for token in step] == circle.text(0, 40)
            assert (len(steps) == 40) == (len(tokens) == 16)

    @pytest.mark.parametrize("rule", sorted(LOSSY_RULES))
    def test_a_lossy_rule_accepts_nothing_where_nothing_is_drafted(self, toys, rule):
        draft = toys[1].spoiled(range(SIZE), NOT_FINITE["one NaN"])
        with one_warning():
            steps = list(static(rule)(toys[0], draft, temperature=1.0).stream([0], 20))
        assert [len(step) for step in steps] == [1] * 20

    @pytest.mark.parametrize("make", [*map(static, RULES), dynamic, specexec])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_tokens_that_are_ruled_out_are_no_reason(self, toys, make, temperature):
        models = [Table(each.logits.clone(), each.name) for each in toys]
        for model in models:
            model.logits[:, 1] = -INF
        assert 1 not in list(make(*models, temperature=temperature).generate([0], 30))


class TestWarning:
    def test_each_decoder_warns_once(self, toys):
        draft = toys[1].spoiled(range(SIZE), NOT_FINITE["all NaN"])
        for decoder in [static("sequoia")(toys[0], draft, temperature=0.8) for _ in range(2)]:
            with one_warning():
                for _ in range(3):
                    list(decoder.generate([0], 5))

    def test_it_names_the_model_and_what_to_do(self, toys):
        draft = toys[1].spoiled(range(SIZE), NOT_FINITE["all NaN"], name="org/half")
        with pytest.warns(TreeoptWarning, match="^org/half: .*run it in float32 or bfloat16, .* or choose another.$"):
            list(static("sequoia")(toys[0], draft, temperature=0.8).generate([0], 5))


class AfterSome:
    """A model whose logits, and nothing else, are spoiled after some tokens."""

    def __init__(self, model, tokens, name="broken draft"):
        self.model, self.tokens, self.name = model, torch.tensor(tokens), name
        self.config, self.device, self.dtype = model.config, model.device, model.dtype
        self.cache_bytes, self.pass_bytes = model.cache_bytes, model.pass_bytes
        self.new_caches, self.prefill = model.new_caches, model.prefill

    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        spoiled = torch.isin(torch.cat([sequence.tokens for sequence in inputs]), self.tokens)
        outputs = self.model.forward(inputs, requested_states)
        whole = Outputs(Output(outputs.logits.masked_fill(spoiled[:, None], NAN)), outputs.sizes)
        return last_outputs(whole) if last_only else whole


def poisoned(model, tokens):
    """Return a model whose embeddings of some tokens are NaN, which its cache then holds."""
    embedding = model.weights.embedding.clone()
    embedding[tokens] = NAN
    weights = replace(model.weights, embedding=embedding)
    return Transformer(model.config, weights, name="broken draft")


class TestState:
    """Caches and what has not been fed, after steps whose draft ended early."""

    @pytest.mark.parametrize("tree", [chain(4), k_ary(2, 3), level_widths([2, 3, 1])])
    def test_the_next_drafts_are_those_of_a_fresh_pass(self, target, draft, tree, greedy_text):
        decoder = Decoder(target, AfterSome(draft, [0, 7, 14]), tree, temperature=0.9, seed=4, rule="target")
        text, whole, cut = list(PROMPT), 0, 0
        decoder.start(text)
        with one_warning():
            for _ in range(60):
                drafted = decoder.draft()
                usable = tree.nodes
                if not drafted.scores.values.isfinite().all():
                    usable = count_usable_nodes(tree, drafted.scores.nodes, drafted.scores.values.tolist())
                tokens = drafted.tokens.tolist()
                first = [0]  # down the first children, which are the likeliest
                while (children := tree.children(first[-1])) and children[0] < usable:
                    first.append(children[0])
                assert [tokens[node] for node in first[1:]] == greedy_text(draft, text, len(first) - 1)
                whole, cut = whole + (usable == tree.nodes), cut + (1 < usable < tree.nodes)
                text += decoded_step(decoder, drafted)
        assert whole > 0
        assert cut > 0

    @pytest.mark.parametrize("graphs", [False, True])
    @pytest.mark.parametrize("temperature", [0.0, 0.9])
    def test_what_one_text_left_does_not_reach_the_next(self, target, graphs, temperature):
        decoder = Decoder(
            target, poisoned(target, [22]), k_ary(2, 3), temperature=temperature, cuda_graphs=graphs, seed=1
        )
        with one_warning():
            list(decoder.generate([22, *PROMPT * 5], 10))
            steps = list(decoder.stream(PROMPT, 12, seed=1))
        assert len(steps[0]) > 1
        whole = Decoder(target, target, k_ary(2, 3), temperature=0.0)
        assert temperature or [t for step in steps for t in step] == list(whole.generate(PROMPT, 12))

    def test_what_is_not_finite_in_slots_after_the_text_would_spread_to_captured_passes(self, target, monkeypatch):
        monkeypatch.setattr(KVCache, "_zero_nodes", lambda _: None)
        decoder = Decoder(target, poisoned(target, [22]), k_ary(2, 3), temperature=0.0, cuda_graphs=True)
        with one_warning():
            list(decoder.generate([22, *PROMPT * 5], 10))
            assert [len(step) for step in decoder.stream(PROMPT, 12)] == [1] * 12


def medusa(target, **spoiled):
    """Return two random heads, an entry of the second spoiled."""
    hidden, generator = target.config.hidden, torch.Generator().manual_seed(3)
    weight = torch.randn((2, hidden, hidden), generator=generator) / 10
    weight[1, 0, 0] = spoiled.get("by", weight[1, 0, 0])
    return MedusaDrafter(MedusaHeads(target, weight, torch.zeros(2, hidden)), level_widths([2, 2]))


def redrafter(target, **spoiled):
    """Return a random head that is spoiled from the second token on."""
    hidden, generator = target.config.hidden, torch.Generator().manual_seed(4)
    product = [Linear(torch.randn((hidden, hidden), generator=generator) / 10) for _ in range(4)]
    bias = torch.zeros(hidden)
    head = RedrafterHead(
        target=target,
        recurrence=Linear(product[0].weight, torch.full((hidden,), spoiled.get("by", 0.0))),
        token=product[1],
        from_hidden=Linear(product[2].weight, bias),
        from_state=product[3],
        blocks=(),
    )
    return RedrafterDrafter(head, width=spoiled.get("width", 2), length=3)


class TestHeads:
    @pytest.mark.parametrize(("make", "kind", "most"), [(medusa, "Medusa heads", 2), (redrafter, "ReDrafter head", 1)])
    @pytest.mark.parametrize("by", [NAN, INF])
    def test_a_draft_ends_where_a_head_is_not_finite(self, target, make, kind, most, by, greedy_text):
        with one_warning(f"{kind} of {target.name}"):
            steps = list(Decoder(target, make(target, by=by), temperature=0.0).stream(PROMPT, 20))
        assert [token for step in steps for token in step] == greedy_text(target, PROMPT, 20)
        assert max(map(len, steps)) == most

    @pytest.mark.parametrize("make", [medusa, redrafter])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_other_heads_draft_as_ever(self, target, make, temperature):
        decoder = Decoder(target, make(target), temperature=temperature)
        decoder.start(PROMPT)
        assert decoder.draft().tree.nodes > 1
        decoder.step()

    def test_as_many_beams_as_tokens(self, target):
        with one_warning(f"ReDrafter head of {target.name}"):
            drafter = redrafter(target, by=NAN, width=target.config.vocabulary)
            list(Decoder(target, drafter, temperature=1.0).generate(PROMPT, 3))


class TestTarget:
    MAKE = (*map(static, RULES), dynamic, specexec)

    @pytest.mark.parametrize("make", MAKE)
    def test_it_is_an_error_that_names_the_model(self, toys, make):
        for kind, temperature in product(NOT_FINITE, (0.0, 1.0)):
            target = toys[0].spoiled(range(SIZE), NOT_FINITE[kind], name="org/target")
            text = make(target, toys[1], temperature=temperature).generate([0], 5)
            with pytest.raises(TreeoptError, match=r"^org/target: expected a target whose logits are finite. .*float"):
                next(text)

    @pytest.mark.parametrize(
        ("make", "temperature"),
        [
            *((make, 0.0) for make in MAKE),
            *((static(rule), 1.0) for rule in RULES if not RUNTIME_RULES[rule].by_level),  # others look at all paths
            (dynamic, 1.0),
            (specexec, 1.0),
        ],
    )
    def test_only_where_the_text_comes_by(self, toys, make, temperature):
        models = [Table(each.logits.clone(), each.name) for each in toys]
        for model in models:
            model.logits[:, 1] = -9.0  # hardly ever said
        decoder = make(models[0].spoiled([1], NOT_FINITE["all NaN"]), models[1], temperature=temperature, seed=1)
        assert 1 not in list(decoder.generate([0], 30))

    @pytest.mark.parametrize("graphs", [False, True])
    def test_another_text_can_be_decoded_after_it(self, target, graphs, greedy_text):
        broken = poisoned(target, [22])
        decoder = Decoder(broken, target, k_ary(2, 2), temperature=0.0, cuda_graphs=graphs)
        with pytest.raises(TreeoptError, match="expected a target"):
            list(decoder.generate([22, *PROMPT * 5], 10))
        assert list(decoder.generate(PROMPT, 12)) == greedy_text(target, PROMPT, 12)


class TestFunctions:
    """`draw` and `verify`, which are given probabilities."""

    PROBS = torch.full((3, SIZE), 1 / SIZE)

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("bad", [NAN, INF])
    def test_what_is_not_finite_is_refused(self, rule, bad):
        tree, tokens, spoiled = level_widths([1, 1]), torch.tensor([0, 1, 2]), self.PROBS.clone()
        spoiled[1, 2] = bad
        with pytest.raises(InvalidValueError, match=r"draft_probs: expected finite probabilities. Got NaN"):
            draw(rule, spoiled, torch.tensor([1, 1, 0]))
        for probs, name in (((spoiled, self.PROBS), "draft_probs"), ((self.PROBS, spoiled), "target_probs")):
            with pytest.raises(InvalidValueError, match=f"{name}: expected finite probabilities"):
                verify(rule, tree, tokens, *probs, lossy=True)

    @pytest.mark.parametrize("rule", RULES)
    def test_those_of_which_nothing_is_sampled_are_not_looked_at(self, rule):
        tree, tokens, spoiled = level_widths([1, 1]), torch.tensor([0, 1, 2]), self.PROBS.clone()
        spoiled[2] = NAN
        draw(rule, spoiled, torch.tensor([1, 1, 0]))
        verify(rule, tree, tokens, spoiled, self.PROBS, lossy=True)
