"""What every drafter keeps when several texts are decoded at a time: each text is the one that it is alone."""

from itertools import chain

import pytest
import torch

from tests.contracts.drafters import CASES, independent
from tests.support.arriving import Scripted
from tests.support.decoded import PROMPT
from treeopt.errors import BatchError, TreeoptWarning
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.models import attention

every_drafter = pytest.mark.parametrize("name", CASES)
PROMPTS = [PROMPT, [1], PROMPT[:3] * 4, PROMPT * 3, [4, 5], [7, 8, 9] * 5]
COUNTS = [9, 25, 3, 14, 0, 21]
"""New tokens of each: texts join and leave in nearly every step."""
SEEDS = [3, 0, 7, 3, 2, 1]


def decoder_of(name, target, draft, **options):
    arguments, own = CASES[name].arguments(target, draft)
    return Decoder(target, *arguments, **{"temperature": 0.0, **own, **options})


def requests(stop=()):
    return [
        GenerationRequest(*each, seed=seed)
        for *each, seed in zip(PROMPTS, COUNTS, [stop] * len(PROMPTS), SEEDS, strict=True)
    ]


def alone(decoder, wanted):
    return [
        list(decoder.generate(each.token_ids, each.max_new_tokens, stop=each.stop, seed=each.seed)) for each in wanted
    ]


def together(decoder, wanted, batch_size=3):
    texts = [[] for _ in wanted]
    ends = []
    for found in decoder.stream_all(wanted, batch_size=batch_size):
        assert found.error is None
        assert found.request not in ends
        texts[found.request] += found.tokens
        ends += [found.request] * found.finished
    assert sorted(ends) == list(range(len(wanted)))
    return texts


def check_that_none_changes_another(decoder, wanted, sizes):
    """Check that texts decoded together are those decoded alone, whatever their number at a time; return them."""
    expected = alone(decoder, wanted)
    for size in sizes:
        assert together(decoder, wanted, size) == expected
    return expected


def steps_of(decoder, wanted, batch_size, *, spoil=lambda: None):
    """Return the tokens of every step of each text; `spoil` is called after the first."""
    found = [[] for _ in wanted]
    for step in decoder.stream_all(wanted, batch_size=batch_size):
        found[step.request].append(step.tokens)
        spoil()
        spoil = lambda: None
    return found


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.history])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_that_join_and_leave_are_those_decoded_alone(target, draft, name, temperature):
    decoder = decoder_of(name, target, draft, temperature=independent(name, temperature))
    expected = check_that_none_changes_another(decoder, requests(), (3, 8))
    assert [len(text) for text in expected] == COUNTS


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.history])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_steps_accept_what_those_of_a_text_alone_do(target, draft, name, temperature):
    decoder = decoder_of(name, target, draft, temperature=temperature)

    expected = [steps_of(decoder, [each], 1)[0] for each in requests()]
    assert any(len(tokens) > 1 for text in expected for tokens in text) or name == "plain"
    for size in (3, 8):
        assert steps_of(decoder, requests(), size) == expected


@pytest.mark.parametrize("name", ["static tree", "dynamic tree", "best first", "eagle", "eagle, dynamic", "p-eagle"])
def test_a_draft_that_is_not_finite_does_not_reach_the_text_that_comes_next(target, name, monkeypatch):
    """The first text is the longest, so that slots are hidden behind the third, in the place of the second."""
    monkeypatch.setattr(attention, "MOST_PADDING", 100.0)
    decoder = decoder_of(name, target, target)  # a draft of more than one layer, which keeps what it made of NaN
    wanted = [GenerationRequest(PROMPT * 3, 50), GenerationRequest(PROMPT * 2, 9), GenerationRequest([4, 5, 6], 20)]
    alone = [steps_of(decoder, [each], 1)[0] for each in wanted]
    assert max(map(len, alone[2])) > 1

    def spoil():
        _, (_, second) = sorted(getattr(decoder._drafter, "_static", decoder._drafter)._sequences._used.items())
        with torch.inference_mode():
            getattr(second[1], "draft", second[1]).cache.layers[0][1][:, :, 0] = torch.nan

    with pytest.warns(TreeoptWarning, match="finite"):
        found = steps_of(decoder, wanted, 2, spoil=spoil)
    assert found[::2] == alone[::2]
    assert max(map(len, found[1][1:])) == 1
    assert [*chain.from_iterable(found[1])] == [*chain.from_iterable(alone[1])]


@every_drafter
def test_texts_that_arrive_while_others_are_decoded_are_those_decoded_alone(target, draft, name):
    decoder = decoder_of(name, target, draft, temperature=independent(name, 0.8))
    arriving = Scripted([(2 * number, request) for number, request in enumerate(requests())])
    texts = {}
    for found in decoder.stream_all(arriving, batch_size=3):
        texts.setdefault(found.request, []).extend(found.tokens)
    assert [texts[number] for number in range(len(PROMPTS))] == alone(decoder, requests())


@every_drafter
def test_stops_end_each_text_where_they_do_alone(target, draft, name):
    decoder = decoder_of(name, target, draft)
    stop = [tuple(list(decoder.generate(PROMPTS[1], 25))[5:7])]
    expected = alone(decoder, requests(stop))
    assert [len(text) for text in expected] != COUNTS
    assert together(decoder, requests(stop)) == expected


@every_drafter
def test_a_batch_that_is_given_up_leaves_nothing_behind(target, draft, name):
    decoder = decoder_of(name, target, draft, temperature=independent(name, 0.8))
    expected = alone(decoder, requests())
    steps = decoder.stream_all(requests(), batch_size=3)
    for _ in range(4):
        next(steps)
    assert alone(decoder, requests()) == expected  # while the batch is still there
    steps.close()
    assert together(decoder, requests()) == expected


@every_drafter
def test_a_text_that_cannot_be_decoded_leaves_the_others_alone(target, draft, name):
    decoder = decoder_of(name, target, draft, temperature=independent(name, 0.8))
    wanted = [[], PROMPT, PROMPT * 19, [99], [4, 5]]
    expected = {number: list(decoder.generate(wanted[number], 9, seed=number)) for number in (1, 4)}
    texts = {}

    def decode():
        for number, tokens in decoder.generate_all(wanted, 9, seeds=range(5), batch_size=2):
            texts.setdefault(number, []).extend(tokens)

    with pytest.raises(BatchError, match=r"3 of 5 sequences .* number 0: token_ids: .* empty prompt") as raised:
        decode()
    assert texts == expected
    assert [*raised.value.errors] == [0, 2, 3]
