"""Records as values: equality, copies, read-only arrays, and short reprs."""

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.invented import FOUR_CONDITIONS, invented
from treeopt.planner import plan, schedule, step_model
from treeopt.planner.costs import StepCosts
from treeopt.planner.curves import Curve
from treeopt.records.acceptance import AcceptanceTable, SequenceSums
from treeopt.records.acceptance_counts import AcceptanceCounts
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.draft_record import DraftRecord
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.profile import Profile
from treeopt.solver import solve
from treeopt.trees import Provenance, TokenTree, TreeFile, chain

PROFILE = Path(__file__).parents[2] / "docs" / "profiles" / "bundled-2-cores-outcomes.yaml"
LIMIT = 400
"""Characters of a record's text: a few lines of a screen."""
RISING = [[0.3, 0.05, 0.6], [0.6, 0.05, 0.06]]


def big_record() -> DraftRecord:
    roots = 200
    return DraftRecord(
        pair="a folder with a long name/large + " + 20 * "a folder with a long name/" + "small",
        created="2026-01-02T03:04:05+00:00",
        temperature=0.6,
        top_p=0.95,
        target_top_k=20,
        depth=3,
        sequence_starts=np.array([0, 120, roots]),
        node_starts=np.arange(roots + 1),
        parent=np.full(roots, -1, np.int32),
        rank=np.zeros(roots, np.int32),
        log_probs=np.full((roots, 4), -1.5, np.float32),
        accepted_ranks=np.full((roots, 3), -1, np.int32),
    )


def counts() -> LatencyTable:
    tokens = np.arange(1, 500, 3)
    return LatencyTable(tokens, [Timing(1e-3 * (n + np.arange(25))) for n in tokens.tolist()])


MAKERS: dict[str, Callable[[], Any]] = {
    "AcceptanceTable": lambda: AcceptanceTable(
        np.full((16, 32), 0.01), counts=np.full(16, 9.0), standard_error=np.full((16, 32), 0.001)
    ),
    "SequenceSums": lambda: SequenceSums(np.full((24, 16), 9.0), np.full((24, 16, 32), 0.1)),
    "AcceptanceCounts": lambda: AcceptanceCounts(np.full(16, 9.0), np.full((16, 32), 0.1)),
    "Timing": lambda: Timing(np.linspace(0.1, 0.2, 99)),
    "Timing of differences": lambda: Timing([-0.1, 0.2], allow_negative=True),
    "LatencyTable": counts,
    "AcceptedRanks": lambda: AcceptedRanks([[0, 1, -1] * 50, [2] * 90]),
    "DraftRecord": big_record,
    "StepCosts": lambda: StepCosts(
        verify=Curve.of(np.arange(99.0)), draft=Curve.of(np.arange(9.0)), overhead_s=np.zeros(())
    ),
    "Profile": lambda: Profile.load(PROFILE),
    "Profile of four conditions": lambda: invented(conditions=FOUR_CONDITIONS),
    "MeasuredAcceptance": lambda: Profile.load(PROFILE).acceptances[0],
    "StepLatency": lambda: Profile.load(PROFILE).latencies[0],
    "StepModel": lambda: step_model(invented()),
    "Plan": lambda: plan(invented(), 32),
    "Schedule": lambda: schedule(invented(conditions=FOUR_CONDITIONS), max_nodes=32),
    "Solution, best first": lambda: solve(AcceptanceTable([0.7, 0.12]), 64, 8),
    "Solution, dynamic program": lambda: solve(AcceptanceTable(RISING), 12),
    "TreeFile": lambda: TreeFile(
        tree=chain(400), reach=np.full(401, 1.0), provenance=Provenance(source="x" * 500, speedup=1.5)
    ),
    "TokenTree": lambda: chain(1000),
}
records = pytest.mark.parametrize("name", MAKERS)


@cache
def pair(name: str) -> tuple[Any, Any]:
    """Return two values that were made one after the other of the same numbers."""
    return MAKERS[name](), MAKERS[name]()


def copies(value: Any) -> Iterator[Any]:
    yield copy.copy(value)
    yield copy.deepcopy(value)
    yield from (pickle.loads(pickle.dumps(value, protocol)) for protocol in (2, pickle.HIGHEST_PROTOCOL))


def arrays(value: Any) -> Iterator[np.ndarray]:
    """Yield every array of a record and of the records in it."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from arrays(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from arrays(getattr(value, field.name))


@records
def test_equal_values_and_copies_are_equal_and_read_only(name):
    value, other = pair(name)
    assert value is not other
    writeable = [array.flags.writeable for array in arrays(value)]
    if "Solution" not in name and name not in ("Plan", "Schedule"):  # the solver's tables stay as its kernels take them
        assert not any(writeable)
    for equal in (other, *copies(value)):
        assert equal is not value
        assert type(equal) is type(value)
        assert equal == value
        assert hash(equal) == hash(value)
        assert repr(equal) == repr(value)
        assert [array.flags.writeable for array in arrays(equal)] == writeable
    assert [array.flags.writeable for array in arrays(value)] == writeable  # a copy leaves the original alone


@records
def test_repr_is_short_and_names_the_record(name):
    value, _ = pair(name)
    text = repr(value)
    assert len(text) < LIMIT
    assert "\n" not in text
    assert text.startswith(f"{type(value).__name__}(")


def test_repr_shows_content_and_sizes():
    for name, parts in {
        "AcceptanceTable": ["p=float64 (16, 32)"],
        "SequenceSums": ["(24, 16, 32)"],
        "Timing": ["(99,)", "median_s=0.15"],
        "LatencyTable": ["(167,)", "1 ... 499", "0.013 ... 0.511"],
        "AcceptedRanks": ["<2 int64 arrays, 240 entries>"],
        "DraftRecord": ["roots=200", "sequences=2", "top_k=4", "depth=3", "a folder"],
        "Profile": ["bundled target", "bundled draft", "StepLatency", "MeasuredAcceptance"],
        "Plan": ["sequoia at temperature 0", "speedup", "tree of"],
        "Schedule": ["4 Plan"],
        "Solution, best first": ["max_nodes=64", "max_depth=8", "best-first"],
        "TokenTree": ["nodes=1001", "max_depth=1000"],
    }.items():
        text = repr(pair(name)[0])
        assert [part for part in parts if part not in text] == [], text


def test_different_values_are_not_equal():
    record = big_record()
    assert record != dataclasses.replace(record, created="later")
    for name, change in {"rank": 1, "log_probs": -1.25, "accepted_ranks": 0}.items():
        changed = getattr(record, name).copy()
        changed[(3,) + (0,) * (changed.ndim - 1)] = change
        assert record != dataclasses.replace(record, **{name: changed}), name
    curve = Curve.of([0.0, 1.0])
    others = [
        (AcceptanceTable([0.5, 0.25]), AcceptanceTable([0.5, 0.125])),
        (AcceptanceTable([0.5]), AcceptanceTable([[0.5]])),
        (AcceptanceTable([0.5]), AcceptanceTable([0.5], counts=[9.0])),
        (AcceptanceTable([0.5]), AcceptanceTable([0.5], standard_error=[0.1])),
        (Timing([1.0, 2.0]), Timing([2.0, 1.0])),
        (LatencyTable([1, 2], [Timing([1.0]), Timing([2.0])]), LatencyTable([1, 3], [Timing([1.0]), Timing([2.0])])),
        (LatencyTable([1], [Timing([1.0, 1.0])]), LatencyTable([1], [Timing([1.0])])),
        (AcceptedRanks([[0], [1]]), AcceptedRanks([[0, 1]])),
        (SequenceSums([[9.0], [9.0]], [[[1.0]], [[1.0]]]), SequenceSums([[9.0], [9.0]], [[[1.0]], [[2.0]]])),
        (solve(AcceptanceTable([0.7, 0.12]), 64, 8), solve(AcceptanceTable([0.7, 0.12]), 64, 7)),
        (curve, dataclasses.replace(curve, seconds=curve.seconds * 2)),
        (curve, dataclasses.replace(curve, overhead_s=curve.overhead_s.astype(np.float32))),
    ]
    for one, other in others:
        assert one != other
        assert one != "something else"
        assert one is not None


def test_caches_are_not_part_of_the_value():
    replayed, fresh = AcceptedRanks([[0, 1, -1] * 50]), AcceptedRanks([[0, 1, -1] * 50])
    replayed.replay(TokenTree([-1, 0]))
    assert replayed == fresh
    assert len(pickle.dumps(replayed)) == len(pickle.dumps(fresh))
    assert (
        pickle.loads(pickle.dumps(replayed)).replay(TokenTree([-1, 0])).steps
        == replayed.replay(TokenTree([-1, 0])).steps
    )
    model = step_model(invented())
    before = len(pickle.dumps(model))
    model.drawn_costs  # noqa: B018 (drawn once, and kept)
    assert len(pickle.dumps(model)) == before
    again = pickle.loads(pickle.dumps(model))
    assert again == model
    assert again.predict(TokenTree([-1, 0])) == model.predict(TokenTree([-1, 0]))


def test_arrays_of_the_caller_are_copied():
    given = np.array([[0.5, 0.25], [0.5, 0.125]])
    values = [
        (AcceptanceTable(given), "p"),
        (AcceptanceTable(given, standard_error=given), "standard_error"),
        (AcceptanceTable(given, counts=given[:, 0]), "counts"),
        (SequenceSums(given, given[:, :, None]), "reached"),
        (SequenceSums(np.ones((2, 2)), given[:, :, None]), "accepted"),
        (Timing(given[0]), "samples_s"),
        (TreeFile(tree=chain(1), reach=np.array([1.0, 0.5])), "reach"),
        (TokenTree(parents := np.array([-1, 0, 0], np.int32)), "parents"),
    ]
    before = [getattr(value, name).tolist() for value, name in values]
    given[:], parents[2] = 0, 1
    assert [getattr(value, name).tolist() for value, name in values] == before
    for value, name in values:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, given)


def test_caller_can_still_write_its_arrays():
    given = np.zeros(5, np.int32)
    record = dataclasses.replace(
        big_record(),
        sequence_starts=np.array([0, 5]),
        node_starts=np.arange(6),
        parent=np.full(5, -1, np.int32),
        rank=given,
        log_probs=np.full((5, 4), -1.0, np.float32),
        accepted_ranks=np.full((5, 3), -1, np.int32),
    )
    assert given.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        record.rank[0] = 1
