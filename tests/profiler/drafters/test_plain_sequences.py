"""Prompt lookup replayed along plain decoding takes the steps of decoding."""

import pytest

from treeopt.errors import OutOfMemoryError
from treeopt.profiler.acceptance.contexts import DecodingPoint, WholePrompts
from treeopt.profiler.budget import Deadline
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.drafters import plain_sequences
from treeopt.profiler.drafters.plain_sequences import LOOKAHEAD_TOKENS, PlainSequences, generate_sequences
from treeopt.profiler.drafters.replays import replay_lookups
from treeopt.records.sampling import GREEDY
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees.drafter_parameters import PromptLookupSetting

SETTINGS = [PromptLookupSetting(*each) for each in ((2, 2), (1, 8), (4, 5))]
POSITIONS = 60


@pytest.fixture(scope="module")
def point(prompts):
    return DecodingPoint(GREEDY, WholePrompts(prompts[:5]))


def generate(target, point, positions=POSITIONS, checkpoint=None, **options):
    prompt_set = point.prompt_set(positions)
    return generate_sequences(target, point, prompt_set, checkpoint or Checkpoint(None, ""), **options)


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


def test_replayed_steps_are_those_of_decoding(target, point):
    sequences = generate(target, point)
    assert {len(tokens) for tokens in sequences.tokens.values()} == {POSITIONS + LOOKAHEAD_TOKENS}
    for setting, replayed in zip(SETTINGS, replay_lookups(SETTINGS, sequences), strict=True):
        expected = [decode_steps(target, prompt, setting) for prompt in sequences.prompts.values()]
        assert replayed.steps == tuple(map(len, expected))
        assert replayed.tokens == tuple(sum(tokens for tokens, _ in each) for each in expected)
        sizes = [size for each in expected for _, size in each]
        assert dict(zip(replayed.pass_tokens, replayed.total_passes, strict=True)) == {
            size: sizes.count(size) for size in {*sizes}
        }
        assert sum(replayed.tokens) > sum(replayed.steps), "nothing was accepted: this test would not see a wrong count"


def test_sequences_too_short_for_a_step_are_left_out(point, prompts):
    sequences = PlainSequences(point, dict(enumerate(prompts)), 20, {0: [1, 2, 3], 1: list(range(20))})
    short, long = replay_lookups([PromptLookupSetting(2, 2), PromptLookupSetting(2, 19)], sequences)
    assert len(short.steps) == 2
    assert len(long.steps) == 1
    assert replay_lookups([PromptLookupSetting(2, 30)], sequences) == [None]


def test_deadline_ends_decoding_and_a_resumed_run_decodes_the_rest(target, point, tmp_path, monkeypatch):
    monkeypatch.setattr(plain_sequences, "BATCH_SIZE", 2)
    over, path = Deadline(lambda: 1.0, 0.0), tmp_path / "checkpoint"
    first = generate(target, point, 8, Checkpoint(path, ""), deadline=over).tokens
    assert list(first) == [0, 1]
    resumed = Checkpoint(path, "", resume=True)
    ticks = []
    whole = generate(target, point, 8, resumed, tick=lambda: ticks.append(1))
    assert list(whole.tokens) == [0, 1, 2, 3, 4]
    assert len(ticks) == 5
    assert {number: whole.tokens[number] for number in first} == first
    monkeypatch.setattr(Decoder, "generate_all", None)
    assert generate(target, point, 8, resumed) == whole


def test_sequences_are_decoded_one_by_one_if_a_batch_does_not_fit(target, point, monkeypatch):
    whole, sizes, generate_all = generate(target, point), [], Decoder.generate_all

    def with_little_memory(self, *args, batch_size, **more):
        sizes.append(batch_size)
        if batch_size > 1:
            raise OutOfMemoryError("too large")
        return generate_all(self, *args, batch_size=batch_size, **more)

    monkeypatch.setattr(Decoder, "generate_all", with_little_memory)
    assert generate(target, point) == whole
    assert sizes == [plain_sequences.BATCH_SIZE, 1]
