"""The n-gram pool: against a plain dictionary that remembers when everything happened."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.lookahead import NgramPool

SIZES = st.integers(2, 4), st.integers(1, 4), st.integers(1, 3)


class SlowPool:
    """Looks at the time of every entry whenever there are too many."""

    def __init__(self, capacity_keys, per_key, *, touch_on_find=True):
        self.capacity_keys, self.per_key, self.touch_on_find = capacity_keys, per_key, touch_on_find
        self.added, self.used, self.now = {}, {}, 0

    def add(self, ngram):
        self.now += 1
        key, continuation = ngram[0], tuple(ngram[1:])
        self.used[key] = self.now
        self.added.setdefault(key, {})[continuation] = self.now
        if len(self.added[key]) > self.per_key:
            del self.added[key][min(self.added[key], key=self.added[key].get)]
        if len(self.used) > self.capacity_keys:
            oldest = min(self.used, key=self.used.get)
            del self.used[oldest], self.added[oldest]

    def find(self, key):
        self.now += 1
        if self.touch_on_find and key in self.used:
            self.used[key] = self.now
        found = self.added.get(key, {})
        return sorted(found, key=found.get, reverse=True)


def tokens(generator):
    return generator.draw(st.integers(0, 5))


def parted(data, slow, pool):
    """Return whether the two ever answer differently while n-grams are added and found."""
    for _ in range(data.draw(st.integers(0, 60))):
        if data.draw(st.booleans()):
            ngram = [tokens(data) for _ in range(pool.ngram)]
            slow.add(ngram)
            pool.add(ngram)
        else:
            key = tokens(data)
            if slow.find(key) != pool.find(key):
                return True
        assert sizes(pool) == (len(slow.added), sum(map(len, slow.added.values())))
        assert len(slow.added) <= pool.capacity_keys
    return any(slow.find(key) != pool.find(key) for key in range(6))


@given(st.data(), *SIZES)
def test_it_answers_like_a_dictionary_that_remembers_times(data, ngram, capacity_keys, per_key):
    assert not parted(data, SlowPool(capacity_keys, per_key), NgramPool(ngram, capacity_keys, per_key))


def test_a_dictionary_that_forgets_what_was_found_answers_otherwise():
    slow, pool = SlowPool(2, 1, touch_on_find=False), NgramPool(2, 2, 1)
    for each in (slow, pool):
        each.add([1, 7])
        each.add([2, 8])
        each.find(1)
        each.add([3, 9])
    assert pool.find(1) == [(7,)] != slow.find(1)


def test_what_is_found_stays_as_it_was():
    pool = NgramPool(2, 2, 2)
    pool.add([1, 7])
    found = pool.find(1)
    pool.add([1, 8])
    assert found == [(7,)]


def test_all_ngrams_of_a_text_in_its_order():
    pool = NgramPool(3, 10, 10)
    pool.add_all([1, 2, 3, 1, 2, 4])
    assert pool.find(1) == [(2, 4), (2, 3)]
    assert pool.find(2) == [(3, 1)]
    assert pool.find(3) == [(1, 2)]
    pool.add_all([8, 9])
    assert pool.find(8) == []


def test_it_forgets_everything():
    pool = NgramPool(2, 2, 2)
    pool.add([1, 7])
    pool.clear()
    assert (*sizes(pool), pool.find(1)) == (0, 0, [])


def sizes(pool):
    """Return the numbers of keys and of continuations."""
    return len(pool._continuations), sum(map(len, pool._continuations.values()))


def memory(pool):
    """Return the bytes of all that a pool holds, every object once."""
    held = {id(each): each for each in [pool._continuations, *pool._continuations]}
    for kept in pool._continuations.values():
        held |= {id(each): each for each in [kept, *kept, *(token for entry in kept for token in entry)]}
    return sum(map(sys.getsizeof, held.values()))


@pytest.mark.parametrize(("ngram", "capacity_keys", "per_key"), [(2, 1000, 1), (4, 500, 8), (8, 20, 32), (2, 8, 1)])
def test_memory_stays_within_the_bound_and_comes_near_it(ngram, capacity_keys, per_key):
    pool, token = NgramPool(ngram, capacity_keys, per_key), 10**6
    for key in range(capacity_keys + 5):
        for _ in range(3 * per_key):
            pool.add([10**6 + key, *range(token, token + ngram - 1)])
            token += ngram
    assert sizes(pool) == (capacity_keys, capacity_keys * per_key)
    most_bytes = 1024 + capacity_keys * (320 + per_key * (64 + 40 * (ngram - 1)))  # as the docstring says
    assert 0.4 * most_bytes < memory(pool) <= most_bytes


class Counted(int):
    """A token that counts how often tokens are compared."""

    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return int(self) == int(other)

    __hash__ = int.__hash__


def comparisons(pool, age):
    """Return the most comparisons that adding or finding takes in a pool to which `age` n-grams were added."""
    for number in range(age):
        pool.add([number % 50, *(number * step for step in range(1, pool.ngram))])
    most = 0
    for number in range(100):
        for use in (
            lambda n=number: pool.add([Counted(n % 50), Counted(n), Counted(7)]),
            lambda n=number: pool.find(n),
        ):
            before = Counted.compared
            use()
            most = max(most, Counted.compared - before)
    return most


def test_the_cost_of_a_look_up_does_not_grow_with_age():
    most = comparisons(NgramPool(3, 20, 4), 100)
    assert most == comparisons(NgramPool(3, 20, 4), 30_000) <= 4 * 3 + 10


def test_the_same_count_finds_a_cost_that_grows():
    class Hoards(NgramPool):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.per_key = 10**9

    assert comparisons(Hoards(3, 50, 4), 30_000) > 10 * comparisons(Hoards(3, 50, 4), 100)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((1, 1, 1), r"ngram: expected at least 2. Got 1"),
        ((2, 0, 1), r"capacity_keys: expected at least 1. Got 0"),
        ((2, 1, 0), r"per_key: expected at least 1. Got 0"),
    ],
)
def test_a_pool_that_cannot_be_made(sizes, reason):
    with pytest.raises(InvalidValueError, match=reason):
        NgramPool(*sizes)
