"""Prompt lookup replayed along plain decoding takes the steps of decoding."""

import pytest

from treeopt.errors import OutOfMemoryError
from treeopt.profiler.acceptance.contexts import PromptSet
from treeopt.profiler.budget import Deadline
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.drafters import plain_sequences
from treeopt.profiler.drafters.plain_sequences import LOOKAHEAD_TOKENS, generate_sequences, replay_lookups
from treeopt.records.sampling import GREEDY
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees.drafter_parameters import PromptLookupSetting

SETTINGS = [PromptLookupSetting(*each) for each in ((2, 2), (1, 8), (4, 5))]
POSITIONS = 60


@pytest.fixture(scope="module")
def prompt_set(prompts):
    return PromptSet(dict(enumerate(prompts[:5])), POSITIONS)


def decode_steps(target, prompt, setting):
    """Return the tokens and the pass size of each step inside the counted positions."""
    decoder = Decoder(
        target, PromptLookupDrafter(setting.ngram, setting.length), sampling=GREEDY, max_sequence_tokens=128
    )
    committed, steps = 0, []
    for step in decoder.decode_steps(prompt, POSITIONS + LOOKAHEAD_TOKENS):
        if committed + setting.length + 1 <= POSITIONS + LOOKAHEAD_TOKENS:
            steps.append((len(step.tokens), len(step.logits)))
        committed += len(step.tokens)
    return steps


def test_replayed_steps_are_those_of_decoding(target, prompt_set):
    texts = generate_sequences(target, prompt_set, GREEDY, "", Checkpoint(None, ""))
    assert {len(each) for each in texts.values()} == {POSITIONS + LOOKAHEAD_TOKENS}
    for setting, replayed in zip(SETTINGS, replay_lookups(SETTINGS, prompt_set, texts), strict=True):
        expected = [decode_steps(target, prompt, setting) for prompt in prompt_set.prompts.values()]
        assert replayed.steps == tuple(map(len, expected))
        assert replayed.tokens == tuple(sum(tokens for tokens, _ in each) for each in expected)
        sizes = [size for each in expected for _, size in each]
        assert dict(zip(replayed.pass_tokens, replayed.passes, strict=True)) == {
            size: sizes.count(size) for size in {*sizes}
        }
        assert sum(replayed.tokens) > sum(replayed.steps), "nothing was accepted: this test would not see a wrong count"


def test_sequences_too_short_for_a_step_are_left_out(prompt_set):
    texts = {0: [1, 2, 3], 1: list(range(20))}
    short, long = replay_lookups([PromptLookupSetting(2, 2), PromptLookupSetting(2, 19)], prompt_set, texts)
    assert len(short.steps) == 2
    assert len(long.steps) == 1
    assert replay_lookups([PromptLookupSetting(2, 30)], prompt_set, texts) == [None]


def test_deadline_ends_decoding_and_a_resumed_run_decodes_the_rest(target, prompts, tmp_path, monkeypatch):
    monkeypatch.setattr(plain_sequences, "BATCH_SIZE", 2)
    prompt_set, over = PromptSet(dict(enumerate(prompts[:5])), 8), Deadline(lambda: 1.0, 0.0)
    first = generate_sequences(target, prompt_set, GREEDY, "a", Checkpoint(tmp_path / "checkpoint", ""), over)
    assert list(first) == [0, 1]
    resumed = Checkpoint(tmp_path / "checkpoint", "", resume=True)
    ticks = []
    whole = generate_sequences(target, prompt_set, GREEDY, "a", resumed, tick=lambda: ticks.append(1))
    assert list(whole) == [0, 1, 2, 3, 4]
    assert len(ticks) == 5
    assert {number: whole[number] for number in first} == first
    monkeypatch.setattr(Decoder, "generate_all", None)
    assert generate_sequences(target, prompt_set, GREEDY, "a", resumed) == whole


def test_sequences_are_decoded_one_by_one_if_a_batch_does_not_fit(target, prompt_set, monkeypatch):
    whole, sizes, generate_all = (
        generate_sequences(target, prompt_set, GREEDY, "", Checkpoint(None, "")),
        [],
        Decoder.generate_all,
    )

    def with_little_memory(self, *args, batch_size, **more):
        sizes.append(batch_size)
        if batch_size > 1:
            raise OutOfMemoryError("too large")
        return generate_all(self, *args, batch_size=batch_size, **more)

    monkeypatch.setattr(Decoder, "generate_all", with_little_memory)
    assert generate_sequences(target, prompt_set, GREEDY, "", Checkpoint(None, "")) == whole
    assert sizes == [plain_sequences.BATCH_SIZE, 1]
