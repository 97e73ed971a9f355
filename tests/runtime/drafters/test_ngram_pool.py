"""The n-gram pool, next to a plain dictionary that stores the time of every addition and use."""

from hypothesis import given
from hypothesis import strategies as st

from treeopt.runtime.drafters.lookahead import NgramPool


class SlowPool:
    """Searches the times of all entries when there are too many."""

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
        continuations = self.added.get(key, {})
        return sorted(continuations, key=continuations.get, reverse=True)


def count_entries(pool):
    """Return the numbers of keys and of continuations."""
    return len(pool._continuations), sum(map(len, pool._continuations.values()))


@given(st.data(), st.integers(2, 4), st.integers(1, 4), st.integers(1, 3))
def test_it_equals_the_slow_pool(data, ngram, capacity_keys, per_key):
    slow, pool, tokens = SlowPool(capacity_keys, per_key), NgramPool(ngram, capacity_keys, per_key), st.integers(0, 5)
    for _ in range(data.draw(st.integers(0, 60))):
        if data.draw(st.booleans()):
            new = [data.draw(tokens) for _ in range(ngram)]
            slow.add(new)
            pool.add(new)
        else:
            key = data.draw(tokens)
            assert slow.find(key) == pool.find(key)
        assert count_entries(pool) == (len(slow.added), sum(map(len, slow.added.values())))
        assert len(slow.added) <= capacity_keys
    assert all(slow.find(key) == pool.find(key) for key in range(6))


def test_a_slow_pool_without_times_of_use_differs():
    slow, pool = SlowPool(2, 1, touch_on_find=False), NgramPool(2, 2, 1)
    for each in (slow, pool):
        each.add([1, 7])
        each.add([2, 8])
        each.find(1)
        each.add([3, 9])
    assert pool.find(1) == [(7,)] != slow.find(1)


def test_all_ngrams_of_a_sequence_are_added_in_order():
    pool = NgramPool(3, 10, 10)
    pool.add_all([1, 2, 3, 1, 2, 4])
    continuations = pool.find(1)
    assert (continuations, pool.find(2), pool.find(3)) == ([(2, 4), (2, 3)], [(3, 1)], [(1, 2)])
    pool.add_all([8, 9])
    assert pool.find(8) == []
    pool.add([1, 5, 5])
    assert continuations == [(2, 4), (2, 3)]  # a copy
