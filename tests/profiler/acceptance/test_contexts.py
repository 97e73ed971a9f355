"""Acceptance by context length, with a draft that agrees with its target at some positions of a sequence only."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.profiler.pretended import interrupt, measure_profile, undated
from tests.support.invented_machines import latency as invent_latency
from tests.support.invented_machines import seconds
from tests.support.markov import Memoryless
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.planner import plan, step_model
from treeopt.planner.request import PlanRequest
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.acceptance import per_prompt
from treeopt.profiler.acceptance.contexts import LongSequences, PromptsAtContext, WholePrompts, Window
from treeopt.profiler.acceptance.per_prompt import AcceptanceCounter
from treeopt.profiler.processes.processes import Processes
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.models.model import NO_STATES, ModelSizes, Output, Outputs
from treeopt.trees import TokenTree, chain

VOCABULARY, MAX_TOKENS, END = 8, 400, 7
CONTEXTS = (40, 120, 300)
SETTINGS = Settings(context_tokens=CONTEXTS, max_tokens=4, rounds=1, positions=4 * 20, branching=2, depth=4)
PROMPTS = [[number % 7, (number + 1) % 7, 3][: 1 + number] for number in range(4)]


class Counter(Memoryless):
    """A model whose greedy sequence is 0, 1, 2, … 6, 0, …; its second likeliest token is the one after the next.

    Args:
        is_right: from the tokens in the cache before a token to whether the model knows the next; otherwise that is its
            second likeliest.
        ends: the tokens in the cache before the end token, by the sequence's first token; None for no end.
    """

    def __init__(self, is_right=lambda _: True, ends=None, name="toy"):
        self.is_right, self.ends, self.name = is_right, ends or {}, name
        end_tokens = (END,) if ends else ()
        self.config = ModelSizes(vocabulary=VOCABULARY, max_positions=MAX_TOKENS, end_tokens=end_tokens)

    def prefill(self, tokens, cache, requested_states=NO_STATES):  # noqa: ARG002
        cache.text = tokens.tolist()
        cache.length = len(cache.text)

    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):  # noqa: ARG002
        logits = [self.logits(sequence)[-1 if last_only else 0 :] for sequence in inputs]
        return Outputs(Output(torch.cat(logits)), [len(rows) for rows in logits])

    def logits(self, sequence):
        sequence.cache.feed(sequence)
        logits = torch.full((sequence.nodes.rows, VOCABULARY), -9.0)
        for row, (token, depth) in enumerate(zip(sequence.tokens.tolist(), sequence.nodes.depth, strict=True)):
            before = sequence.cache.length + int(depth)
            ordered = [(token + 1) % 7, (token + 2) % 7]
            if not self.is_right(before):
                ordered.reverse()
            if before >= self.ends.get(next(iter(sequence.cache.text), None), MAX_TOKENS):
                ordered = [END, ordered[0]]
            logits[row, ordered] = torch.tensor([2.0, 1.0])
        return logits


def right_until(context):
    """Return a draft that is right up to some tokens in the cache, and then at every third position."""
    return Counter(lambda before: before < context or before % 3 == 0, name="small")


def measure(draft, target=None, settings=SETTINGS, prompts=PROMPTS, **options) -> Profile:
    latency = invent_latency(seconds(lambda n: 1 + 0.1 * n, lambda _: 0.1, nodes=4))
    latencies = tuple(replace(latency, context_tokens=context) for context in settings.context_tokens)
    return measure_profile(target or Counter(name="big"), draft, prompts, settings, latencies=latencies, **options)


def window_around(context, positions=20):
    return Window.around(context, positions, MAX_TOKENS)


def roots_of(window):
    """Return the tokens in the cache before each counted position."""
    return range(window.prompt_tokens - 1, window.prompt_tokens - 1 + window.positions)


def enumerate_acceptance(draft, context, depth=4):
    """Return acceptance (depth, 2) of the positions of a window, counted one by one."""
    roots = roots_of(window_around(context))
    reached, accepted = np.zeros(depth), np.zeros((depth, 2))
    for root, level in itertools.product(roots, range(depth)):
        if root + level in roots:
            reached[level] += 1
            accepted[level, 0 if draft.is_right(root + level) else 1] += 1
    return accepted / reached[:, None]


@pytest.fixture(scope="module")
def profile():
    return measure(right_until(125))


@pytest.fixture(scope="module")
def long_profile():
    return measure(right_until(125), settings=replace(SETTINGS, positions=4 * 100))


class TestWindows:
    @pytest.mark.parametrize("context", [1, 2, 10, 64, 300])
    def test_context_is_in_the_middle(self, context):
        for positions, max_tokens in itertools.product((1, 2, 19, 20, 500), (64, 400)):
            if context + 1 > max_tokens:
                continue
            window = Window.around(context, positions, max_tokens)
            first = window.prompt_tokens - 1
            assert window.positions >= 1
            assert window.prompt_tokens >= 1
            assert window.prompt_tokens + window.positions <= max_tokens + 1
            assert first >= context - context // 2
            assert window.positions <= max(1, min(positions + 1, context))
            if window.positions > 1:
                assert first + window.positions / 2 == context

    @pytest.mark.parametrize(
        ("context", "positions", "expected"),
        [(256, 128, (193, 128)), (64, 128, (33, 64)), (960, 400, (898, 126)), (1, 1, (2, 1))],
    )
    def test_window_is_limited_by_positions_context_and_models(self, context, positions, expected):
        window = Window.around(context, positions, 1024)
        assert (window.prompt_tokens, window.positions) == expected


class TestAcceptance:
    @pytest.mark.parametrize("limit", [0, 35, 125, MAX_TOKENS])
    def test_acceptance_is_that_of_the_positions_around_each_context(self, limit):
        draft = right_until(limit)
        acceptances = measure(draft).acceptances
        assert [acceptance.context_tokens for acceptance in acceptances] == list(CONTEXTS)
        for acceptance, context in zip(acceptances, CONTEXTS, strict=True):
            np.testing.assert_allclose(acceptance.table.p, enumerate_acceptance(draft, context))
            assert acceptance.positions == 4 * window_around(context).positions
            assert acceptance.prompts == 4
            for ranks in acceptance.accepted_ranks.ranks:
                assert ranks.tolist() == [0 if draft.is_right(root) else 1 for root in roots_of(window_around(context))]

    def test_contexts_differ(self):
        """Negative control: exchanged contexts would have other tables."""
        tables = [enumerate_acceptance(right_until(125), context).round(3).tolist() for context in CONTEXTS]
        assert tables[0] != tables[1] != tables[2] != tables[0]

    @pytest.mark.parametrize("tree", [chain(1), TokenTree([-1, 0, 0]), TokenTree([-1, 0, 0, 1])])
    def test_predicted_tokens_are_those_decoded_at_each_context(self, long_profile, tree):
        draft, compared = right_until(125), 0
        for context in CONTEXTS:
            roots = roots_of(window_around(context, 100))
            root, steps = roots.start, 0
            while root < roots.stop - tree.max_depth:
                node = 0
                for _ in range(tree.max_depth + 1):
                    root += 1
                    children = np.flatnonzero(tree.parents == node)
                    rank = 0 if draft.is_right(root - 1) else 1
                    if rank >= len(children):
                        break
                    node = int(children[rank])
                steps += 1
            if steps * 4 >= 100:  # with fewer the table is used instead of a replay
                model = step_model(long_profile, PlanRequest(context_tokens=context, raw=True))
                assert model.tokens_per_step(tree) == pytest.approx((root - roots.start) / steps, rel=0.01)
                compared += 1
        assert compared

    def test_one_context_counts_after_whole_prompts(self):
        (acceptance,) = measure(right_until(125), settings=replace(SETTINGS, context_tokens=(300,))).acceptances
        assert acceptance.context_tokens is None
        np.testing.assert_array_equal(acceptance.table.p[:, 0], 1)
        processes, checkpoint = Processes(), Checkpoint(None, "")
        source = WholePrompts(PROMPTS)
        counter = AcceptanceCounter(
            Counter(), right_until(125), source, SETTINGS, checkpoint=checkpoint, processes=processes
        )
        counter.count(range(len(PROMPTS)), 20)
        assert counter.acceptances([20])[0].context_tokens is None

    def test_every_context_has_every_sampling_and_rule(self):
        def plan_tree(profile: Profile) -> TokenTree:
            (context,) = {latency.context_tokens for latency in profile.latencies}
            assert [acceptance.context_tokens for acceptance in profile.acceptances] == [context]
            return TokenTree([-1, 0, 0, 1])

        settings = replace(
            SETTINGS, rules=("sequoia", "traversal"), samplings=(Sampling(1.0), GREEDY), context_tokens=(40, 120)
        )
        profile = measure(right_until(80), settings=settings, fastest_tree=plan_tree)
        expected = [("sequoia", 1.0), ("traversal", 1.0), ("sequoia", 0.0)]
        assert [(each.context_tokens, each.rule, each.temperature) for each in profile.acceptances] == [
            (context, *rule_and_temperature) for context in (40, 120) for rule_and_temperature in expected
        ]
        for rule in ("sequoia", "traversal"):
            short, long = profile.acceptances_by_context(profile.acceptance(rule=rule, temperature=1.0))
            assert short.table.p[0, 0] > long.table.p[0, 0] + 0.1


class TestSequences:
    def test_each_sequence_is_decoded_once_up_to_the_longest_window(self, monkeypatch):
        decoded, decode = [], LongSequences._decode

        def record(self, prompt, number, sampling):
            new_tokens = decode(self, prompt, number, sampling)
            decoded.append((number, sampling, len(prompt) + len(new_tokens)))
            return new_tokens

        monkeypatch.setattr(LongSequences, "_decode", record)
        measure(right_until(125))
        assert sorted(decoded) == [(number, GREEDY, window_around(300).prompt_tokens) for number in range(4)]

    def test_long_prompts_are_cut_and_not_decoded(self):
        class Silent(Counter):
            def forward(self, *arguments, **options):  # noqa: ARG002
                raise AssertionError("decoded")

        sequences = LongSequences(Silent(), [[number] * 350 for number in range(2)], 291, Checkpoint(None, ""))
        for context in CONTEXTS:
            source = PromptsAtContext(sequences=sequences, context_tokens=context, max_tokens=MAX_TOKENS)
            assert source.prompt(1, GREEDY, 20) == [1] * window_around(context).prompt_tokens

    def test_sequences_that_end_before_a_context_are_left_out(self):
        target, prompts = Counter(ends={1: 90, 2: 250}), [[number, 0] for number in range(5)]
        profile = measure(right_until(MAX_TOKENS), target, replace(SETTINGS, positions=100), prompts)
        assert [acceptance.prompts for acceptance in profile.acceptances] == [5, 4, 3]
        assert [len(acceptance.accepted_ranks.ranks) for acceptance in profile.acceptances] == [5, 5, 5]
        assert profile.acceptances[1].accepted_ranks.ranks[1].tolist() == []
        assert plan(profile, 4, context_tokens=300).choice.tokens_per_step.value > 1

    def test_fewer_than_two_long_sequences_are_refused(self):
        target = Counter(ends={1: 90, 2: 90, 3: 90})
        with pytest.raises(TreeoptError, match="acceptance at 120 tokens of context: expected two sequences"):
            measure(right_until(MAX_TOKENS), target, prompts=[[number, 0] for number in range(4)])

    def test_prompts_longer_than_the_contexts_are_cut_if_there_are_several(self):
        prompts = [[1, 2] * 195 for _ in range(4)]
        profile = measure(right_until(MAX_TOKENS), prompts=prompts)
        assert [acceptance.prompts for acceptance in profile.acceptances] == [4, 4, 4]
        with pytest.raises(InvalidValueError, match="positions: expected at most 40"):
            measure(right_until(MAX_TOKENS), prompts=prompts, settings=replace(SETTINGS, context_tokens=(40,)))


def test_profile_by_context_is_saved_and_loaded(profile, tmp_path):
    profile.save(tmp_path / "p.yaml")
    text = (tmp_path / "p.yaml").read_text()
    assert text.count("context_tokens: 120\n") == 2
    loaded = Profile.load(tmp_path / "p.yaml")
    assert [acceptance.context_tokens for acceptance in loaded.acceptances] == list(CONTEXTS)
    loaded.save(tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == text


def test_resumed_profile_equals_a_whole_one(tmp_path, monkeypatch):
    settings = replace(SETTINGS, samplings=(Sampling(1.0), GREEDY))
    draft = right_until(125)
    whole = measure(draft, settings=settings)
    interrupt(monkeypatch, per_prompt, "continue_prompts", 2)
    with pytest.raises(KeyboardInterrupt):
        measure(draft, settings=settings, checkpoint=Checkpoint(tmp_path / "j", "h"))
    resumed = measure(draft, settings=settings, checkpoint=Checkpoint(tmp_path / "j", "h", resume=True))
    assert undated(resumed) == undated(whole)
