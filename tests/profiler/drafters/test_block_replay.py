"""DDTree replayed along plain decoding takes the steps of decoding with every budget."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.profiler.drafters.test_measuring import SETTINGS
from tests.profiler.pretended import FakeClock, measure_profile
from tests.support.head_acceptance import plain_sequences
from treeopt.planner.costs import StepCosts
from treeopt.planner.curves import Curve
from treeopt.profiler.acceptance.contexts import DecodingPoint, WholePrompts
from treeopt.profiler.budget import Deadline
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.drafters.acceptance import count_sequences
from treeopt.profiler.drafters.decoded_settings import SettingsMeasurement
from treeopt.profiler.drafters.decodes import DecodedSequence
from treeopt.profiler.drafters.plain_sequences import PlainSequences
from treeopt.profiler.drafters.replays import count_needed_tokens, count_steps, replay_budgets, step_seconds
from treeopt.profiler.latency.rounds import Recorder
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.dflash import DDTreeDrafter
from treeopt.runtime.drafters.dflash.best_first import NEVER
from treeopt.trees.drafter_parameters import DDTreeSetting

BUDGETS, MAX_TOKENS, POSITIONS = (2, 6, 17, 40), 40, 24


def sequences_of(prompts, tokens, sampling=GREEDY):
    return PlainSequences(DecodingPoint(sampling, WholePrompts(prompts)), dict(enumerate(prompts)), POSITIONS, tokens)


def count_needed(drafter, sequences):
    return count_needed_tokens(drafter, sequences, MAX_TOKENS, Recorder(FakeClock(), Checkpoint(None, "")))


@pytest.fixture(scope="module")
def sequences(target, prompts):
    return plain_sequences(target, [*prompts[:2], [5, 3]], POSITIONS)


@pytest.fixture(scope="module")
def drafter(loaded):
    return loaded("ddtree")


@pytest.fixture(scope="module")
def needed(drafter, sequences):
    return count_needed(drafter, sequences)


def make_decoder(drafter, budget, sampling):
    ddtree = DDTreeDrafter(drafter.heads, DDTreeSetting(budget=budget), capacity=128)
    return Decoder(drafter.target, ddtree, sampling=sampling)


def decode_steps(drafter, prompt, tokens, budget):
    """Return the tokens of the decoded steps that begin where a replay may still step."""
    committed, steps = 0, []
    for step in make_decoder(drafter, budget, GREEDY).decode_steps(prompt, tokens):
        if committed < tokens - drafter.heads.levels:
            assert len(step.logits) == budget
            steps.append(len(step.tokens))
        committed += len(step.tokens)
    return steps


def test_replayed_steps_are_those_of_decoding(drafter, sequences, needed):
    longest = 0
    for budget, replayed in zip(BUDGETS, replay_budgets(BUDGETS, needed, drafter.heads), strict=True):
        steps = [
            decode_steps(drafter, prompt, len(sequences.tokens[number]), budget)
            for number, prompt in sequences.prompts.items()
        ]
        assert replayed.steps == tuple(map(len, steps))
        assert replayed.tokens == tuple(map(sum, steps))
        assert (replayed.pass_tokens, replayed.total_passes) == ((budget,), (sum(map(len, steps)),))
        longest = max(longest, *map(max, steps))
    assert longest > 2, "nothing was accepted: this test would not see a wrong count"


def test_replayed_steps_along_a_sampled_sequence_are_those_that_sampled_it(drafter, prompts):
    budget, sampling = 17, Sampling(0.9)
    decoder = make_decoder(drafter, budget, sampling)
    steps = [step.tokens for step in decoder.decode_steps(prompts[0], 60)]
    tokens = [token for step in steps for token in step]
    needed = count_needed(drafter, sequences_of(prompts[:1], {0: tokens}, sampling))
    starts = np.cumsum([0, *map(len, steps)])[:-1]
    expected = [len(step) for start, step in zip(starts, steps, strict=True) if start < len(tokens) - 4]
    (committed,), (step_count,) = count_steps(needed[0], np.array([budget]))
    assert (committed, step_count) == (sum(expected), len(expected))
    assert max(expected) > 1


def test_counts_of_other_roots_have_other_steps(drafter, needed):
    """Negative control."""
    shifted = {number: np.roll(rows, 1, axis=0) for number, rows in needed.items()}
    right, wrong = (replay_budgets([40], rows, drafter.heads)[0] for rows in (needed, shifted))
    assert sum(wrong.tokens) / sum(wrong.steps) < sum(right.tokens) / sum(right.steps)


def test_steps_of_an_example():
    needed = np.array([[2, 5], [3, NEVER], [2, 3], [9, NEVER], [NEVER, NEVER], [2, 4], [2, NEVER]])
    tokens, steps = count_steps(needed, np.array([2, 3, 9]))
    # budget 2: 0 -> 2 -> 4 -> 5; budget 3: 0 -> 2 -> 5; budget 9: 0 -> 3 -> 5
    assert tokens.tolist() == [5, 5, 5]
    assert steps.tolist() == [3, 2, 2]


def test_sequences_too_short_for_a_step_are_left_out(drafter, needed):
    head = drafter.heads
    short = {0: needed[0][: head.levels]}
    assert replay_budgets([2, 3], short, head) == [None, None]
    both = {0: needed[0], 1: short[0]}
    (replayed,) = replay_budgets([3], both, head, ["code", "chat"])
    assert (len(replayed.steps), replayed.categories) == (1, ("code",))
    assert replayed.passes == ((replayed.steps[0],),)


def test_largest_pass_is_the_whole_tree(needed):
    tiny = SimpleNamespace(tokens=2, levels=4)
    assert replay_budgets([8, 31, 40], needed, tiny)[2].pass_tokens == (31,)


def test_deadline_ends_counting_and_a_resumed_run_counts_the_rest(tmp_path):
    path, ticks = tmp_path / "checkpoint", []
    over, rows = Deadline(lambda: 1.0, 0.0), {0: (1.0,), 1: (), 2: (2.0,), 3: (3.0,)}
    recorder = Recorder(FakeClock(), Checkpoint(path, ""), lambda: ticks.append(1))
    first = count_sequences(rows.get, rows, "kind", recorder, over)
    assert first == {number: rows[number] for number in (0, 1, 2)}  # one is empty
    assert len(ticks) == 3
    resumed = Recorder(FakeClock(), Checkpoint(path, "", resume=True))
    assert count_sequences({3: (3.0,)}.get, rows, "kind", resumed) == rows


def test_step_seconds_are_those_of_passes_and_the_overhead_of_probes():
    verify = Curve.of([0.0, *(1.0 + 0.1 * tokens for tokens in range(1, 12))])
    costs = StepCosts(verify=verify, draft=Curve.free(11), overhead_s=np.zeros(()))
    plain = [DecodedSequence(10, 20.0, {1: 10})]  # at half the profile's pace
    probes = [[DecodedSequence(10, 20.0, {2: 5})], [DecodedSequence(10, 12.0, {10: 2})]]
    seconds = step_seconds(costs, plain, probes)
    # a step of 2 tokens takes 2 plain steps of 1.1 s, 1.0 s beyond its pass; one of 10 tokens 3, and 1.3 s
    assert seconds(np.array([2, 6, 10])) == pytest.approx([2.2, 1.6 + 1.15, 3.3])


def test_budgets_are_ranked_over_all_sizes(target, draft, prompts, loaded, monkeypatch):
    """Verification becomes cheap again after six tokens."""
    dented = lambda tokens: np.where(tokens < 6, 10.0 * tokens, 1.0)
    monkeypatch.setattr(SettingsMeasurement, "_step_seconds", lambda *_: dented)
    (drafter,) = measure_profile(target, draft, prompts, SETTINGS, drafters=[loaded("ddtree")]).drafters
    (decodes,) = drafter.decodes
    assert {value for setting in decodes.settings for _, value in setting.values} <= {6, 7, 8}
    for setting in decodes.settings:
        assert len(setting.replayed.steps) == len(prompts)
