"""Drafters measured around several context lengths: against all positions of whole texts, and texts decoded in plain loops."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.profiler.drafters.test_measuring import SETTINGS, few_texts, measured
from tests.support.head_acceptance import plain_texts
from tests.support.passes import logits_after
from treeopt.errors import TreeoptError
from treeopt.planner import drafter_choices
from treeopt.planner.request import PlanRequest
from treeopt.profiler import Checkpoint
from treeopt.profiler.acceptance.contexts import LongSequences, PromptsAtContext, PromptSet
from treeopt.profiler.drafters import decodes
from treeopt.profiler.drafters.acceptance import measure_head_acceptance, root_counter
from treeopt.profiler.drafters.one_drafter import select_settings
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime import Decoder
from treeopt.trees.drafter_setting import drafter_setting

__all__ = ["few_texts"]
CONTEXTS = (20, 40, 60)
BY_CONTEXT = replace(SETTINGS, context_tokens=CONTEXTS, positions=6 * 20)


def greedy(target, prompt, tokens):
    """Return the target's own text, as many tokens in all, from one pass over the whole text for every token."""
    text = list(prompt)
    while len(text) < tokens:
        text.append(int(logits_after(target, text, prefilled=0).argmax()))
    return text


class TestByContext:
    @pytest.mark.parametrize("name", ["medusa", "eagle"])
    def test_ranks_are_those_of_the_positions_around_each_context(self, name, target, draft, prompts, loaded):
        """Against every position of the whole text, counted at once behind its prompt."""
        drafter = loaded(name)
        (found,) = measured(target, draft, prompts, [drafter], settings=BY_CONTEXT).drafters
        items = found.trees_at(0.0)
        assert [each.context_tokens for each in items] == list(CONTEXTS)
        texts = plain_texts(target, PromptSet(dict(enumerate(prompts)), 80))
        whole = root_counter(drafter, dict(enumerate(prompts)), texts, sampling=GREEDY, branching=3, depth=3)
        for number, prompt in enumerate(prompts):
            counted, before = whole(number).ranks, len(prompt) - 1 + (name == "eagle" and len(prompt) == 1)
            for each, context in zip(items, CONTEXTS, strict=True):
                first = context - 10 - before  # roots by the tokens in the cache before them
                depths = each.ranks.ranks[number].shape[1]
                told = each.ranks.ranks[number]
                assert len(told) == 20
                expected = counted[first : first + 20, :depths]
                for row, (here, there) in enumerate(zip(told, expected, strict=True)):
                    known = min(depths, 20 - row)  # behind it the window ends
                    reached = list(itertools.takewhile(lambda rank: rank >= 0, there[:known].tolist()))
                    assert [rank for rank in here.tolist() if rank >= 0] == reached

    def test_each_context_is_another(self, target, draft, prompts, loaded):
        """Were contexts taken for one another, nothing above would tell: here their ranks differ."""
        (found,) = measured(target, draft, prompts, [loaded("medusa")], settings=BY_CONTEXT).drafters
        rows = [each.ranks.rows for each in found.trees]
        assert rows[0] != rows[1] != rows[2] != rows[0]

    def test_texts_go_on_from_the_target_s_own(self, target, draft, prompts, loaded, monkeypatch):
        given = []
        true = decodes.decode_run

        def spy(decoder, prompt, positions, seed, clock):
            given.append((len(prompt), list(prompt), positions))
            return true(decoder, prompt, positions, seed, clock)

        monkeypatch.setattr(decodes, "decode_run", spy)
        (found,) = measured(target, draft, prompts, [loaded("prompt-lookup")], settings=BY_CONTEXT).drafters
        assert {length for length, _, tokens in given if tokens == 20} == {context - 9 for context in CONTEXTS}
        texts = [greedy(target, prompt, 60) for prompt in prompts]
        assert all(any(prompt == text[:length] for text in texts) for length, prompt, _ in given)
        by_context = found.decodes_at(0.0)
        assert [each.context_tokens for each in by_context] == list(CONTEXTS)
        settings = [[each.values for each in item.settings] for item in by_context]
        assert settings[0] == settings[1] == settings[2]
        assert all(20 <= tokens < 28 for item in by_context for each in item.settings for tokens in each.decoded.tokens)

    def test_it_is_saved_planned_between_and_not_measured_again(
        self, target, draft, prompts, loaded, tmp_path, monkeypatch
    ):
        drafters = [loaded("medusa"), loaded("prompt-lookup")]
        settings = replace(BY_CONTEXT, samplings=(Sampling(0.8),), rules=("target",), context_tokens=(20, 60))
        whole = measured(target, draft, prompts, drafters, Checkpoint(tmp_path / "checkpoint", ""), settings)
        whole.save(tmp_path / "p.yaml")
        again = Profile.load(tmp_path / "p.yaml")
        for context in (20, 31, 60):
            choices = drafter_choices(again, PlanRequest(context_tokens=context))
            assert [each.option.drafter.name for each in choices] == ["model", "medusa", "prompt-lookup"]

        def never(*_):
            raise AssertionError("decoded again")

        monkeypatch.setattr(Decoder, "decode_steps", never)
        resumed = measured(
            target, draft, prompts, drafters, Checkpoint(tmp_path / "checkpoint", "", resume=True), settings
        )
        assert resumed.drafters == whole.drafters

    def test_where_texts_end_before_they_are_left_out(self, target, prompts, loaded, monkeypatch):
        texts = LongSequences(target, prompts, 61, Checkpoint(None, ""))
        true = LongSequences.sequence
        monkeypatch.setattr(
            LongSequences, "sequence", lambda self, number, how: true(self, number, how)[: 20 + 8 * number]
        )
        sources = [PromptsAtContext(sequences=texts, context_tokens=context, max_tokens=128) for context in CONTEXTS]
        assert [sorted(source.prompt_set(GREEDY, 20).prompts) for source in sources] == [
            [0, 1, 2, 3, 4, 5],
            [2, 3, 4, 5],
            [4, 5],
        ]
        assert sorted(sources[1].prompt_set(GREEDY, 20, 3).prompts) == [2, 3, 4]
        prompt_set = sources[1].prompt_set(GREEDY, 20)
        count = root_counter(
            loaded("medusa"), prompt_set.prompts, plain_texts(target, prompt_set), sampling=GREEDY, branching=3, depth=3
        )
        checkpoint = Checkpoint(None, "")
        found = measure_head_acceptance(count, range(6), GREEDY, "k", checkpoint, lambda: None)
        assert found == measure_head_acceptance(None, range(6), GREEDY, "k", checkpoint, lambda: None)
        assert (found.acceptance.prompts, len(found.ranks.ranks)) == (4, 6)
        assert found.acceptance.texts.reached[:2].sum() == 0
        assert [len(each) for each in found.ranks.ranks] == [0, 0, 20, 20, 20, 20]
        far = PromptsAtContext(sequences=texts, context_tokens=107, max_tokens=128)
        with pytest.raises(TreeoptError, match="acceptance at 107 tokens of context: expected two sequences"):
            far.prompt_set(GREEDY, 20)

    def test_prompts_as_long_as_the_models_are_cut(self, target, draft, loaded):
        long = [np.random.default_rng(seed).integers(23, size=127).tolist() for seed in range(3)]
        settings = replace(BY_CONTEXT, context_tokens=(20, 60))
        (found,) = measured(target, draft, long, [loaded("specexec")], settings=settings).drafters
        assert [each.context_tokens for each in found.decodes] == [20, 60]


def test_settings_that_are_kept_are_the_fastest_of_every_context():
    a, b, c, d = (drafter_setting("prompt-lookup", length=length, ngram=2) for length in (1, 2, 3, 4))
    assert select_settings([[a, b, c]]) == [a, b]
    assert select_settings([[a]]) == [a]
    assert select_settings([[a, b, c], [a, c, b]]) == [a, b]
    assert select_settings([[a, b], [c, a], [d, a]]) == [a, c, d]
