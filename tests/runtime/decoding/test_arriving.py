"""Requests that arrive during decoding: they join, wait for room, and fail alone."""

from queue import Empty, Queue
from threading import Thread

import pytest
import torch

from tests.support.arriving import Scripted
from tests.support.decoded import PROMPT
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.trees import level_widths

TREE = level_widths([2, 3, 1])
REQUESTS = [GenerationRequest([*PROMPT[:3], seed], 4 + 3 * seed, seed=seed) for seed in range(5)]


@pytest.fixture(scope="module")
def pair(make_checkpoint):
    """Return target and draft in float64, whose tokens do not depend on the batch."""
    folders = make_checkpoint(seed=1), make_checkpoint(seed=2, num_hidden_layers=1)
    return [load_model(folder, dtype=torch.float64) for folder in folders]


def decode(decoder, source, **options):
    outputs, errors = {}, {}
    for output in decoder.stream_all(source, **options):
        outputs.setdefault(output.request, []).extend(output.tokens)
        if output.error is not None:
            errors[output.request] = output.error
    return outputs, errors


def test_decoding_waits_for_requests_only_if_none_is_active(pair):
    source = Scripted([(0, REQUESTS[4]), (2, REQUESTS[0]), (50, REQUESTS[1])])
    decoder = Decoder(*pair, TREE, temperature=0.0)
    outputs = [(output.request, output.finished) for output in decoder.stream_all(source, batch_size=4)]

    first = [next(index for index, (request, _) in enumerate(outputs) if request == number) for number in range(3)]
    assert sum(source.waits) == 3  # for the first, for the third, and for the end
    assert source.waits[0]
    assert source.waits[-1]
    assert first[1] < outputs.index((0, True)) < first[2]  # the second joins the first, the third is alone


def test_default_seeds_are_those_of_successive_calls(pair):
    requests = [GenerationRequest(request.token_ids, 6) for request in REQUESTS]
    source = Scripted([(2 * number, request) for number, request in enumerate(requests)])
    outputs, _ = decode(Decoder(*pair, TREE, temperature=0.8, seed=3), source)
    alone = Decoder(*pair, TREE, temperature=0.8, seed=3)
    assert [outputs[number] for number in range(5)] == [list(alone.generate(each.token_ids, 6)) for each in requests]


def test_an_invalid_request_leaves_the_others_alone(pair):
    invalid = [GenerationRequest(PROMPT, 5, stop=[()]), GenerationRequest([], 5), GenerationRequest([99], 5)]
    requests = [REQUESTS[2], *invalid, REQUESTS[3]]
    decoder = Decoder(*pair, TREE, temperature=0.0)
    outputs, errors = decode(decoder, Scripted(list(enumerate(requests))), batch_size=2)

    for number in (0, 4):
        assert outputs[number] == list(decoder.generate(requests[number].token_ids, requests[number].max_new_tokens))
    fields = {number: str(error).partition(":")[0] for number, error in errors.items()}
    assert fields == {1: "stop", 2: "token_ids", 3: "token_ids"}
    with pytest.raises(InvalidValueError, match=r"^stop: expected"):
        decoder.stream_all(requests)  # all are known before anything runs


def test_another_thread_may_fill_a_queue(pair):
    requests = Queue()
    thread = Thread(target=lambda: [requests.put(request) for request in [*REQUESTS, None]])
    thread.start()
    outputs, _ = decode(Decoder(*pair, TREE, temperature=0.0), requests, batch_size=2)
    thread.join()
    assert [len(outputs[number]) for number in range(5)] == [request.max_new_tokens for request in REQUESTS]
    with pytest.raises(Empty):
        requests.get(block=False)  # the end was read once
