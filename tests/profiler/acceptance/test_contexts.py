"""Acceptance by context: on a toy pair whose draft agrees with its target at some positions of a text and not at others."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.profiler.pretended import FakeClock
from tests.support.markov import Memoryless
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.planner import plan, step_model
from treeopt.profiler import Checkpoint, Measurement, Settings
from treeopt.profiler.acceptance import per_prompt
from treeopt.profiler.acceptance.contexts import LongSequences, PromptsAtContext, Window
from treeopt.profiler.acceptance.per_prompt import AcceptanceCounter
from treeopt.profiler.processes.processes import OneProcess
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.models.model import NO_STATES, Output, Outputs
from treeopt.trees import TokenTree, chain

VOCABULARY, TRAINED, END = 8, 400, 7
CONTEXTS = (40, 120, 300)


class Counter(Memoryless):
    """A model whose greedy text counts 0, 1, 2, … 6, 0, …; its second likeliest token is the one after the next.

    Args:
        right: from the tokens in the cache before a token, whether it knows what follows that token; where it does not,
            what follows is its second likeliest.
        ends: the tokens in the cache before one that ends the text, by the text's first token; None for no end.
    """

    def __init__(self, right=lambda _: True, ends=None, name="toy"):
        self.right, self.ends, self.name = right, ends or {}, name
        end_tokens = (END,) if ends else ()
        self.config = SimpleNamespace(vocabulary=VOCABULARY, max_positions=TRAINED, end_tokens=end_tokens)

    def prefill(self, tokens, cache, requested_states=NO_STATES):  # noqa: ARG002
        cache.text = tokens.tolist()
        cache.length = len(cache.text)

    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):  # noqa: ARG002
        found = [self.after(sequence)[-1 if last_only else 0 :] for sequence in inputs]
        return Outputs(Output(torch.cat(found)), [len(each) for each in found])

    def after(self, sequence):
        """Return the logits (n, V) after the tokens of a sequence."""
        sequence.cache.feed(sequence)
        logits = torch.full((sequence.nodes.rows, VOCABULARY), -9.0)
        for row, (token, depth) in enumerate(zip(sequence.tokens.tolist(), sequence.nodes.depth, strict=True)):
            before = sequence.cache.length + int(depth)
            ordered = [(token + 1) % 7, (token + 2) % 7]
            if not self.right(before):
                ordered.reverse()
            if before >= self.ends.get(next(iter(sequence.cache.text), None), TRAINED):
                ordered = [END, ordered[0]]
            logits[row, ordered] = torch.tensor([2.0, 1.0])
        return logits


def right_until(context):
    """Return a draft that knows what follows up to so many tokens in the cache, and then every third time only."""
    return Counter(lambda before: before < context or before % 3 == 0, name="small")


SETTINGS = Settings(
    context_tokens=CONTEXTS, max_tokens=4, rounds=1, positions=4 * 20, branching=2, depth=4, samplings=(GREEDY,)
)
PROMPTS = [[number % 7, (number + 1) % 7, 3][: 1 + number] for number in range(4)]


def measured(draft, target=None, settings=SETTINGS, prompts=PROMPTS, checkpoint=None, fastest_tree=None) -> Profile:
    measurement = Measurement(
        target or Counter(name="big"),
        draft,
        prompts,
        settings,
        clock=FakeClock(lambda: 1.0),
        checkpoint=checkpoint or Checkpoint(None, ""),
        fastest_tree=fastest_tree,
    )
    latencies = tuple(
        replace(each, context_tokens=context) for context in settings.context_tokens for each in (latency(),)
    )
    return measurement.profile(latencies=latencies, show_progress=False)


def latency():
    from tests.support.invented_machines import latency as invented
    from tests.support.invented_machines import seconds

    return invented(seconds(lambda n: 1 + 0.1 * n, lambda _: 0.1, nodes=4))


def enumerated(right, window, depth):
    """Return acceptance (depth, 2) of the positions of a window, counted one by one."""
    places = range(window.prompt_tokens - 1, window.prompt_tokens - 1 + window.positions)
    reached, accepted = np.zeros(depth), np.zeros((depth, 2))
    for root in places:
        for level in range(depth):
            if root + level not in places:
                break
            reached[level] += 1
            accepted[level, 0 if right(root + level) else 1] += 1
    return accepted / reached[:, None]


class TestWindows:
    def test_the_context_lies_in_the_middle(self):
        for context, positions, trained in itertools.product((1, 2, 10, 64, 300), (1, 2, 19, 20, 500), (64, 400)):
            if context + 1 > trained:
                continue
            found = Window.around(context, positions, trained)
            first = found.prompt_tokens - 1
            assert found.positions >= 1
            assert found.prompt_tokens >= 1
            assert found.prompt_tokens + found.positions <= trained + 1
            assert first >= context - context // 2
            assert found.positions <= max(1, min(positions + 1, context))
            if found.positions > 1:
                assert first + found.positions / 2 == context

    def test_known_ones(self):
        asked = [(256, 128, 1024), (64, 128, 1024), (896, 128, 1024), (960, 400, 1024), (1, 1, 1024)]
        found = [Window.around(*each) for each in asked]
        assert [(each.prompt_tokens, each.positions) for each in found] == [
            (193, 128),
            (33, 64),
            (833, 128),
            (898, 126),
            (2, 1),
        ]


class TestAcceptance:
    def test_it_is_that_of_the_positions_around_each_context(self):
        for limit in (0, 35, 125, 300, TRAINED):
            draft = right_until(limit)
            found = measured(draft)
            assert [each.context_tokens for each in found.acceptances] == list(CONTEXTS)
            for each in found.acceptances:
                window = Window.around(each.context_tokens, 20, TRAINED)
                expected = enumerated(draft.right, window, 4)
                np.testing.assert_allclose(each.table.p, expected, err_msg=f"{limit} {each.context_tokens}")
                assert each.positions == 4 * window.positions
                assert each.prompts == 4

    def test_a_fault_that_ignores_the_context_is_found(self):
        """The draft is right up to 125 tokens: were contexts taken for one another, some table would be another."""
        draft = right_until(125)
        tables = [
            enumerated(draft.right, Window.around(context, 20, TRAINED), 4).round(3).tolist() for context in CONTEXTS
        ]
        assert tables[0] != tables[1] != tables[2] != tables[0]

    def test_ranks_are_those_of_the_window(self):
        draft = right_until(125)
        for each in measured(draft).acceptances:
            window = Window.around(each.context_tokens, 20, TRAINED)
            places = range(window.prompt_tokens - 1, window.prompt_tokens - 1 + window.positions)
            for ranks in each.accepted_ranks.ranks:
                assert ranks.tolist() == [0 if draft.right(place) else 1 for place in places]

    def test_predicted_tokens_are_those_decoded_at_each_context(self):
        draft = right_until(125)
        found = measured(draft)
        for context, tree in itertools.product(CONTEXTS, (chain(1), TokenTree([-1, 0, 0]), TokenTree([-1, 0, 0, 1]))):
            window = Window.around(context, 20, TRAINED)
            place, steps, end = window.prompt_tokens - 1, 0, window.prompt_tokens - 1 + window.positions
            start = place
            while place < end - tree.max_depth:
                node = 0
                for _ in range(tree.max_depth + 1):
                    place += 1
                    children = np.flatnonzero(tree.parents == node)
                    rank = 0 if draft.right(place - 1) else 1
                    if rank >= len(children):
                        break
                    node = int(children[rank])
                steps += 1
            model = step_model(found, context_tokens=context, raw=True)
            if steps * 4 >= 100:  # otherwise the table alone tells
                assert model.tokens_per_step(tree) == pytest.approx((place - start) / steps, rel=1e-9)

    def test_one_context_is_measured_as_ever(self):
        """Behind the prompts, however long these are; nothing is said of a context."""
        draft = right_until(125)
        (found,) = measured(draft, settings=replace(SETTINGS, context_tokens=(300,))).acceptances
        assert found.context_tokens is None
        np.testing.assert_array_equal(found.table.p[:, 0], 1)

    def test_every_sampling_and_rule_at_every_context(self):
        settings = replace(
            SETTINGS, rules=("sequoia", "traversal"), samplings=(Sampling(1.0), GREEDY), context_tokens=(40, 120)
        )
        found = measured(right_until(80), settings=settings, fastest_tree=lambda profile: tree_for(profile))
        asked = [("sequoia", 1.0), ("traversal", 1.0), ("sequoia", 0.0)]
        assert [(each.context_tokens, each.rule, each.temperature) for each in found.acceptances] == [
            (context, *each) for context in (40, 120) for each in asked
        ]
        for rule in ("sequoia", "traversal"):
            short, long = (
                found.acceptances_by_context(found.acceptance(rule=rule, temperature=1.0))[place].table.p
                for place in (0, 1)
            )
            assert short[0, 0] > long[0, 0] + 0.1


def tree_for(profile: Profile) -> TokenTree:
    """Return a tree, after a look at what is planned from: one context's times and acceptance."""
    (measured_at,) = {each.context_tokens for each in profile.latencies}
    assert [each.context_tokens for each in profile.acceptances] == [measured_at]
    return TokenTree([-1, 0, 0, 1])


class TestTexts:
    def test_a_text_is_decoded_once_and_no_further_than_needed(self, monkeypatch):
        decoded = []
        true = LongSequences._decode

        def spy(self, number, sampling):
            decoded.append((number, sampling))
            text = true(self, number, sampling)
            assert len(text) == Window.around(300, 20, TRAINED).prompt_tokens
            return text

        monkeypatch.setattr(LongSequences, "_decode", spy)
        measured(right_until(125))
        assert decoded == [(number, GREEDY) for number in range(4)]

    def test_long_prompts_are_cut_and_not_decoded(self):
        class Silent(Counter):
            def forward(self, *given, **named):  # noqa: ARG002
                raise AssertionError("decoded")

        prompts = [[number] * 350 for number in range(2)]
        texts = LongSequences(Silent(), prompts, 291, Checkpoint(None, ""))
        for context in CONTEXTS:
            window = Window.around(context, 20, TRAINED)
            source = PromptsAtContext(sequences=texts, context_tokens=context, max_tokens=TRAINED)
            assert source.prompt(1, GREEDY, 20) == [1] * window.prompt_tokens

    def test_texts_that_end_before_are_left_out(self):
        target = Counter(ends={1: 90, 2: 250})
        prompts = [[number, 0] for number in range(5)]
        found = measured(right_until(TRAINED), target, prompts=prompts, settings=replace(SETTINGS, positions=100))
        assert [each.prompts for each in found.acceptances] == [5, 4, 3]
        assert [len(each.accepted_ranks.ranks) for each in found.acceptances] == [5, 5, 5]
        assert found.acceptances[1].accepted_ranks.ranks[1].tolist() == []
        assert plan(found, 4, context_tokens=300).choice.tokens_per_step.value > 1

    def test_too_few_that_are_long_enough(self):
        target = Counter(ends={1: 90, 2: 90, 3: 90})
        with pytest.raises(TreeoptError, match="acceptance at 120 tokens of context: expected two sequences"):
            measured(right_until(TRAINED), target, prompts=[[number, 0] for number in range(4)])

    def test_prompts_longer_than_a_context_are_allowed_and_cut(self):
        prompts = [[1, 2] * 195 for _ in range(4)]
        found = measured(right_until(TRAINED), prompts=prompts)
        assert [each.prompts for each in found.acceptances] == [4, 4, 4]
        with pytest.raises(InvalidValueError, match="positions: expected at most 40"):
            measured(right_until(TRAINED), prompts=prompts, settings=replace(SETTINGS, context_tokens=(40,)))


class TestFiles:
    def test_round_trip(self, tmp_path):
        found = measured(right_until(125))
        found.save(tmp_path / "p.yaml")
        text = (tmp_path / "p.yaml").read_text()
        loaded = Profile.load(tmp_path / "p.yaml")

        assert text.count("context_tokens: 120\n") == 2
        assert [each.context_tokens for each in loaded.acceptances] == list(CONTEXTS)
        loaded.save(tmp_path / "again.yaml")
        assert (tmp_path / "again.yaml").read_text() == text

    def test_an_interrupted_profile_equals_a_whole_one(self, tmp_path, monkeypatch):
        settings = replace(SETTINGS, samplings=(Sampling(1.0), GREEDY))
        draft, target = right_until(125), Counter(name="big")
        whole = measured(draft, target, settings)
        true, calls = per_prompt.continue_prompt, itertools.count()

        def until_interrupted(*given):
            if next(calls) == 9:
                raise KeyboardInterrupt
            return true(*given)

        heading = settings.conditions(target, draft, PROMPTS)
        with monkeypatch.context() as patch:
            patch.setattr(per_prompt, "continue_prompt", until_interrupted)
            with pytest.raises(KeyboardInterrupt):
                measured(draft, target, settings, checkpoint=Checkpoint(tmp_path / "j", heading))
        resumed = measured(draft, target, settings, checkpoint=Checkpoint(tmp_path / "j", heading, resume=True))
        assert replace(resumed, created=whole.created) == whole


def test_counting_without_texts_counts_behind_the_prompts():
    counting = AcceptanceCounter(
        Counter(), right_until(125), PROMPTS, SETTINGS, checkpoint=Checkpoint(None, ""), processes=OneProcess()
    )
    (found,) = counting.measure(20, lambda: None)
    assert found.context_tokens is None
