"""Texts that are asked for while others are decoded: they join, wait for room, fail by themselves, and end the steps."""

from itertools import pairwise, product
from queue import Empty, Queue
from threading import Thread

import pytest
import torch

from tests.support.arriving import Scripted
from tests.support.decoded import PROMPT
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.trees import chain, level_widths
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

TREE = level_widths([2, 3, 1])
REQUESTS = [GenerationRequest([*PROMPT[:3], each], 4 + 3 * each, seed=each) for each in range(5)]


@pytest.fixture(scope="module")
def pair(make_checkpoint):
    """Return target and draft in float64, whose texts are the same whatever shares a pass."""
    folders = make_checkpoint(seed=1), make_checkpoint(seed=2, num_hidden_layers=1)
    return [load_model(folder, dtype=torch.float64) for folder in folders]


def decoded(decoder, source, **options):
    texts, errors = {}, {}
    for step in decoder.stream_all(source, **options):
        texts.setdefault(step.request, []).extend(step.tokens)
        if step.error is not None:
            errors[step.request] = step.error
    return texts, errors


def test_texts_that_arrive_are_those_decoded_alone(pair):
    decoder = Decoder(*pair, TREE, temperature=0.8, seed=3)
    expected = [list(decoder.generate(each.token_ids, each.max_new_tokens, seed=each.seed)) for each in REQUESTS]
    for batch_size, gap in product((1, 2, 8), (0, 1, 3)):
        source = Scripted([(gap * number, request) for number, request in enumerate(REQUESTS)])
        texts, errors = decoded(decoder, source, batch_size=batch_size)

        assert [texts[number] for number in range(5)] == expected
        assert not errors


def test_nothing_is_waited_for_while_texts_are_decoded(pair):
    source = Scripted([(0, REQUESTS[4]), (2, REQUESTS[0]), (50, REQUESTS[1])])
    decoder = Decoder(*pair, TREE, temperature=0.0)
    order = [(step.request, step.finished) for step in decoder.stream_all(source, batch_size=4)]

    first_of = [next(place for place, (text, _) in enumerate(order) if text == number) for number in range(3)]
    assert sum(source.waits) == 3  # for the first, for the third, and for the end
    assert source.waits[0]
    assert source.waits[-1]
    assert first_of[1] < order.index((0, True)) < first_of[2]  # the second joins, the third finds nobody there


def test_texts_without_a_seed_have_those_of_texts_one_after_the_other(pair):
    wanted = [GenerationRequest(each.token_ids, 6) for each in REQUESTS]
    texts, _ = decoded(
        Decoder(*pair, TREE, temperature=0.8, seed=3), Scripted([(2 * n, r) for n, r in enumerate(wanted)])
    )

    alone = Decoder(*pair, TREE, temperature=0.8, seed=3)
    assert [texts[number] for number in range(5)] == [list(alone.generate(each.token_ids, 6)) for each in wanted]


def test_a_request_that_is_none_leaves_the_others_alone(pair):
    wrong = [GenerationRequest(PROMPT, 5, stop=[()]), GenerationRequest([], 5), GenerationRequest([99], 5)]
    wanted = [REQUESTS[2], *wrong, REQUESTS[3]]
    decoder = Decoder(*pair, TREE, temperature=0.0)
    texts, errors = decoded(decoder, Scripted([(number, each) for number, each in enumerate(wanted)]), batch_size=2)

    for number in (0, 4):
        assert texts[number] == list(decoder.generate(wanted[number].token_ids, wanted[number].max_new_tokens))
    assert {number: str(error).partition(":")[0] for number, error in errors.items()} == {
        1: "stop",
        2: "token_ids",
        3: "token_ids",
    }
    with pytest.raises(InvalidValueError, match=r"^stop: expected"):
        decoder.stream_all(wanted)  # which are all known before anything runs


def test_a_schedule_sees_the_texts_that_are_there(pair, monkeypatch):
    trees = [TREE, chain(1), chain(0)]
    scheduled = [ScheduledTree(first_texts=texts, last_texts=texts, tree=tree) for texts, tree in enumerate(trees, 1)]
    schedule = TreeSchedule(trees=tuple(scheduled))
    decoder = Decoder(*pair, TREE, temperature=0.0, max_nodes=TREE.nodes)
    source = Scripted([(0, REQUESTS[4]), (3, REQUESTS[3]), (4, REQUESTS[2])])
    taken = []
    monkeypatch.setattr(decoder, "_use_tree", lambda tree, take=decoder._use_tree: (taken.append(tree), take(tree)))
    texts, _ = decoded(decoder, source, schedule=schedule)

    assert {each.nodes for each in taken} == {tree.nodes for tree in trees}
    assert [b for a, b in pairwise([taken[0], *taken]) if a != b][:2] == [chain(1), chain(0)]
    for number, request in enumerate([REQUESTS[4], REQUESTS[3], REQUESTS[2]]):
        assert texts[number] == list(decoder.generate(request.token_ids, request.max_new_tokens))


def test_a_queue_that_another_thread_fills_is_a_source(pair):
    requests = Queue()
    decoder = Decoder(*pair, TREE, temperature=0.0)

    def ask():
        for each in [*REQUESTS, None]:
            requests.put(each)

    thread = Thread(target=ask)
    thread.start()
    texts, _ = decoded(decoder, requests, batch_size=2)
    thread.join()
    assert [len(texts[number]) for number in range(5)] == [each.max_new_tokens for each in REQUESTS]
    with pytest.raises(Empty):
        requests.get(block=False)  # the end is asked for once
