"""The contract of all drafters in batches: every sequence equals that of batch size 1."""

from itertools import chain

import pytest
import torch

from tests.contracts.drafters import CASES, independent, one_case_per_drafter
from tests.support.arriving import Scripted
from tests.support.decoded import PROMPT
from treeopt.errors import BatchError, TreeoptWarning
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.models import attention

PROMPTS = [PROMPT, [1], PROMPT[:3] * 4, PROMPT * 3, [4, 5], [7, 8, 9] * 5]
COUNTS = [9, 25, 3, 14, 0, 21]
"""New tokens of each, so that sequences join and leave in nearly every step."""
SEEDS = [3, 0, 7, 3, 2, 1]


def decoder_of(name, target, draft, **options):
    arguments, own = CASES[name].arguments(target, draft)
    return Decoder(target, *arguments, **{"temperature": 0.0, **own, **options})


def requests(stop=()):
    return [
        GenerationRequest(prompt, count, stop, seed=seed)
        for prompt, count, seed in zip(PROMPTS, COUNTS, SEEDS, strict=True)
    ]


def alone(decoder, wanted):
    return [
        list(decoder.generate(request.token_ids, request.max_new_tokens, stop=request.stop, seed=request.seed))
        for request in wanted
    ]


def together(decoder, wanted, batch_size=3):
    outputs, finished = {}, []
    for step in decoder.stream_all(wanted, batch_size=batch_size):
        assert step.error is None
        assert step.request not in finished
        outputs.setdefault(step.request, []).extend(step.tokens)
        finished += [step.request] * step.finished
    assert sorted(finished) == sorted(outputs)
    return [outputs[number] for number in sorted(outputs)]


def check_that_none_changes_another(decoder, wanted, sizes):
    """Check that every batch size gives the outputs of batch size 1, and return them."""
    expected = alone(decoder, wanted)
    for size in sizes:
        assert together(decoder, wanted, size) == expected
    return expected


def steps_of(decoder, wanted, batch_size, *, perturb=lambda: None):
    """Return the tokens of every step of each sequence; `perturb` is called after the first."""
    steps = [[] for _ in wanted]
    for step in decoder.stream_all(wanted, batch_size=batch_size):
        steps[step.request].append(step.tokens)
        perturb()
        perturb = lambda: None
    return steps


@pytest.mark.parametrize("name", one_case_per_drafter(lambda case: case.history))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_sequences_that_join_and_leave_equal_those_of_batch_size_1(target, draft, name, temperature):
    decoder = decoder_of(name, target, draft, temperature=independent(name, temperature))
    expected = check_that_none_changes_another(decoder, requests(), (3, 8))
    assert [len(text) for text in expected] == COUNTS


@pytest.mark.parametrize("name", one_case_per_drafter(lambda case: not case.history))
@pytest.mark.parametrize(("temperature", "size"), [(0.0, 3), (0.8, 8)])
def test_steps_of_a_batch_equal_those_of_batch_size_1(target, draft, name, temperature, size):
    decoder = decoder_of(name, target, draft, temperature=temperature)
    expected = [steps_of(decoder, [request], 1)[0] for request in requests()]
    assert any(len(tokens) > 1 for text in expected for tokens in text) or name == "plain"
    assert steps_of(decoder, requests(), size) == expected


@pytest.mark.parametrize("name", ["static tree", "dynamic tree", "best first", "eagle", "eagle, dynamic", "p-eagle"])
def test_a_non_finite_draft_does_not_affect_the_next_sequence_in_its_slot(target, name, monkeypatch):
    """The first sequence is the longest, so that the third, in the slot of the second, has masked slots."""
    monkeypatch.setattr(attention, "MOST_PADDING", 100.0)
    # the draft has two layers, so that its cache keeps what it computed from NaN
    decoder = decoder_of(name, target, target)
    wanted = [GenerationRequest(PROMPT * 3, 50), GenerationRequest(PROMPT * 2, 9), GenerationRequest([4, 5, 6], 20)]
    alone = [steps_of(decoder, [each], 1)[0] for each in wanted]
    assert max(map(len, alone[2])) > 1

    def perturb():
        _, (_, second) = sorted(decoder._drafter._sequences._used.items())
        with torch.inference_mode():
            getattr(second[1], "draft", second[1]).cache.layers[0][1][:, :, 0] = torch.nan

    with pytest.warns(TreeoptWarning, match="finite"):
        steps = steps_of(decoder, wanted, 2, perturb=perturb)
    assert steps[::2] == alone[::2]
    assert max(map(len, steps[1][1:])) == 1
    assert [*chain.from_iterable(steps[1])] == [*chain.from_iterable(alone[1])]


@pytest.mark.parametrize("name", one_case_per_drafter())
def test_arrivals_and_an_abandoned_batch_change_no_sequence(target, draft, name):
    decoder = decoder_of(name, target, draft, temperature=independent(name, 0.8))
    expected = alone(decoder, requests())
    arriving = Scripted([(2 * number, request) for number, request in enumerate(requests())])
    assert together(decoder, arriving) == expected
    abandoned = decoder.stream_all(requests(), batch_size=3)
    for _ in range(4):
        next(abandoned)
    assert alone(decoder, requests()[2:4]) == expected[2:4]  # while the batch still exists
    abandoned.close()
    assert together(decoder, requests()) == expected


@pytest.mark.parametrize("name", ["static tree", "dynamic tree", "eagle", "lookahead"])
def test_stop_sequences_end_each_sequence_of_a_batch(target, draft, name):
    decoder = decoder_of(name, target, draft)
    stop = [tuple(list(decoder.generate(PROMPTS[1], 25))[5:7])]
    expected = alone(decoder, requests(stop))
    assert [len(text) for text in expected] != COUNTS
    assert together(decoder, requests(stop)) == expected


@pytest.mark.parametrize("name", ["static tree that learns", "dynamic tree", "medusa", "dflash", "eagle", "lookahead"])
def test_a_refused_prompt_does_not_affect_the_others(target, draft, name):
    decoder = decoder_of(name, target, draft, temperature=independent(name, 0.8))
    wanted = [[], PROMPT, PROMPT * 19, [99], [4, 5]]
    expected = {number: list(decoder.generate(wanted[number], 9, seed=number)) for number in (1, 4)}
    outputs = {}

    def decode():
        for number, tokens in decoder.generate_all(wanted, 9, seeds=range(5), batch_size=2):
            outputs.setdefault(number, []).extend(tokens)

    with pytest.raises(BatchError, match=r"3 of 5 sequences .* number 0: token_ids: .* empty prompt") as raised:
        decode()
    assert outputs == expected
    assert [*raised.value.errors] == [0, 2, 3]
