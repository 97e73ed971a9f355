"""Texts that the target generates alone: prompt lookup replayed along them takes the steps that it takes when it drafts."""

import pytest

from treeopt.errors import OutOfMemoryError
from treeopt.profiler.acceptance.contexts import Stretch
from treeopt.profiler.budget import Slice
from treeopt.profiler.drafters import plain_texts
from treeopt.profiler.drafters.plain_texts import BEYOND_TOKENS, PlainTexts, replayed_lookups
from treeopt.profiler.journal import Journal
from treeopt.records.sampling import GREEDY
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees.own_trees import PromptLookupSetting

SETTINGS = [PromptLookupSetting(*each) for each in ((2, 2), (1, 8), (4, 5))]
POSITIONS = 60


@pytest.fixture(scope="module")
def stretch(prompts):
    return Stretch(dict(enumerate(prompts[:5])), POSITIONS)


def whole_steps(target, prompt, setting):
    """Return tokens and size of the pass of each step that is inside the text's positions."""
    decoder = Decoder(target, PromptLookupDrafter(setting.ngram, setting.length), sampling=GREEDY, max_text_tokens=128)
    committed, found = 0, []
    for step in decoder.whole_steps(prompt, POSITIONS + BEYOND_TOKENS):
        if committed + setting.length + 1 <= POSITIONS + BEYOND_TOKENS:
            found.append((len(step.tokens), len(step.logits)))
        committed += len(step.tokens)
    return found


def test_a_replay_takes_the_steps_that_decoding_takes(target, stretch):
    texts = PlainTexts(target, Journal(None, "")).decoded(stretch, GREEDY, "")
    assert {len(each) for each in texts.values()} == {POSITIONS + BEYOND_TOKENS}
    for setting, found in zip(SETTINGS, replayed_lookups(SETTINGS, stretch, texts), strict=True):
        known = [whole_steps(target, prompt, setting) for prompt in stretch.prompts.values()]
        assert found.steps == tuple(map(len, known))
        assert found.tokens == tuple(sum(tokens for tokens, _ in each) for each in known)
        sizes = [size for each in known for _, size in each]
        assert dict(zip(found.pass_tokens, found.passes, strict=True)) == {size: sizes.count(size) for size in {*sizes}}
        assert sum(found.tokens) > sum(found.steps), "nothing was accepted: this test would not see a wrong count"


def test_texts_too_short_for_a_step_give_nothing(stretch):
    texts = {0: [1, 2, 3], 1: list(range(20))}
    short, long = replayed_lookups([PromptLookupSetting(2, 2), PromptLookupSetting(2, 19)], stretch, texts)
    assert len(short.steps) == 2
    assert len(long.steps) == 1
    assert replayed_lookups([PromptLookupSetting(2, 30)], stretch, texts) == [None]


def test_what_the_journal_holds_is_not_decoded_again_and_time_ends_it(target, prompts, tmp_path, monkeypatch):
    monkeypatch.setattr(plain_texts, "BATCH_SIZE", 2)
    stretch, over = Stretch(dict(enumerate(prompts[:5])), 8), Slice(lambda: 1.0, 0.0)
    first = PlainTexts(target, Journal(tmp_path / "journal", "")).decoded(stretch, GREEDY, "a", over)
    assert list(first) == [0, 1]
    resumed = Journal(tmp_path / "journal", "", resume=True)
    ticks = []
    whole = PlainTexts(target, resumed).decoded(stretch, GREEDY, "a", tick=lambda: ticks.append(1))
    assert list(whole) == [0, 1, 2, 3, 4]
    assert len(ticks) == 5
    assert {number: whole[number] for number in first} == first
    monkeypatch.setattr(Decoder, "generate_all", None)
    assert PlainTexts(target, resumed).decoded(stretch, GREEDY, "a") == whole


def test_where_a_batch_does_not_fit_texts_are_decoded_one_by_one(target, stretch, monkeypatch):
    whole, sizes, generate_all = (
        PlainTexts(target, Journal(None, "")).decoded(stretch, GREEDY, ""),
        [],
        Decoder.generate_all,
    )

    def with_little_memory(self, *args, batch_size, **more):
        sizes.append(batch_size)
        if batch_size > 1:
            raise OutOfMemoryError("too large")
        return generate_all(self, *args, batch_size=batch_size, **more)

    monkeypatch.setattr(Decoder, "generate_all", with_little_memory)
    assert PlainTexts(target, Journal(None, "")).decoded(stretch, GREEDY, "") == whole
    assert sizes == [plain_texts.BATCH_SIZE, 1]
