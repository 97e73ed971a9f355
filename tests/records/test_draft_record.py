"""The draft record file: round trips and invalid content."""

from dataclasses import fields, replace

import numpy as np
import pytest

from treeopt.errors import FormatError, InvalidValueError
from treeopt.records.draft_record import DraftRecord

RECORD = DraftRecord(
    pair="large + small",
    created="2026-01-02T03:04:05+00:00",
    temperature=0.6,
    top_p=0.95,
    target_top_k=20,
    depth=3,
    sequence_starts=np.array([0, 2, 3]),
    node_starts=np.array([0, 3, 4, 6]),
    parent=np.array([-1, 0, 1, -1, -1, 0], np.int32),
    rank=np.array([0, 1, 0, 0, 0, 0], np.int32),
    log_probs=np.log(np.array([[0.5, 0.5], [0.9, 0.1], [1, 0.2], [0.4, 0.3], [0.6, 0.2], [0.3, 0.3]], np.float32)),
    accepted_ranks=np.array([[1, 0, -1], [-1, -1, -1], [0, 1, -1]], np.int32),
)
ARRAYS = [field.name for field in fields(DraftRecord)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.record.npz"


def saved_with(path, **changes):
    """Save the record with some arrays changed, None for left out."""
    RECORD.save(path)
    with np.load(path) as archive:
        arrays = dict(archive) | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def changed(name, index, value):
    array = getattr(RECORD, name).copy()
    array[index] = value
    return {name: array}


def wrapped(name):
    """Return an array whose 64-bit numbers are those of the record only in their lowest 32 bits."""
    return {name: getattr(RECORD, name).astype(np.int64) + 2**32}


class TestFile:
    def test_round_trip(self, path):
        RECORD.save(path)
        loaded = DraftRecord.load(path)
        for name in ARRAYS:
            one, other = np.asarray(getattr(RECORD, name)), np.asarray(getattr(loaded, name))
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
        assert (loaded.top_k, loaded.roots, loaded.sequences) == (2, 3, 2)
        assert type(loaded.temperature) is float

    def test_archive_contains_only_fields(self, path):
        RECORD.save(path)
        with np.load(path) as archive:
            assert set(archive.files) == {"format", "version", *ARRAYS}

    def test_same_record_gives_same_bytes(self, path):
        RECORD.save(path)
        first = path.read_bytes()
        DraftRecord.load(path).save(path)
        assert path.read_bytes() == first


class TestMalformedFiles:
    @pytest.mark.parametrize("name", ["format", "version", *ARRAYS])
    def test_missing_array_raises(self, path, name):
        saved_with(path, **{name: None})
        with pytest.raises(FormatError, match=f"a.record.npz: {name}: is missing"):
            DraftRecord.load(path)

    @pytest.mark.parametrize("name", ["format", "version", *ARRAYS])
    def test_wrong_dtype_or_dimensions_raise(self, path, name):
        kind = "i8" if name in ("format", "pair", "created") else "U3"
        for wrong in (np.zeros((2, 2, 2)), np.array(0, kind) if kind == "i8" else np.array("abc")):
            saved_with(path, **{name: wrong})
            with pytest.raises(FormatError, match=f"a.record.npz: {name}: expected kind"):
                DraftRecord.load(path)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"format": np.array("treeopt-solution")}, "format: expected 'treeopt-draft-record'"),
            ({"version": np.array(2)}, r"version: expected 1. Got 2"),
            ({"temperature": np.array(np.nan)}, "temperature: expected finite numbers"),
            ({"top_p": np.array(0.0)}, "top_p: expected a number above 0"),
            ({"target_top_k": np.array(-1)}, "top_k: expected 0"),
            ({"depth": np.array(2)}, r"accepted_ranks: expected shape \(3, 2\). Got \(3, 3\)"),
            (changed("sequence_starts", 0, 1), "sequence_starts: expected to rise from 0 to 3"),
            ({"sequence_starts": np.zeros(0, int)}, "sequence_starts: expected to rise from 0 to 3"),
            (changed("node_starts", 1, 4), "node_starts: expected to rise from 0 to 6"),
            ({"node_starts": np.array([0, 3, 6])}, "sequence_starts: expected to rise from 0 to 2"),
            ({"rank": np.zeros(5, int)}, "rank, log_probs: expected 6 rows"),
            ({"log_probs": RECORD.log_probs[:, :0]}, "accepted_ranks: expected shape"),
            (changed("parent", 0, 0), "parent: expected -1 for each root's first node"),
            (changed("parent", 1, -1), "parent: expected -1 for each root's first node"),
            (changed("parent", 1, 1), "parent: .*an earlier node"),
            (changed("parent", 5, 4), "parent: .*an earlier node"),
            (changed("rank", 1, 2), "rank: expected 0 to 1"),
            (
                {"parent": np.array([-1, 0, 0, -1, -1, 0]), "rank": np.array([0, 1, 1, 0, 0, 0])},
                "rank: expected each child of a node once",
            ),
            (changed("accepted_ranks", (0, 0), 2), "accepted_ranks: expected -1 to 1"),
            (changed("accepted_ranks", (0, 0), -1), "accepted_ranks: expected -1 at every depth after the first"),
            (
                {"accepted_ranks": np.array([[1, -1, 0], [-1, -1, -1], [0, 1, -1]])},  # not only behind a first depth
                "accepted_ranks: expected -1 at every depth after the first",
            ),
            (changed("log_probs", (0, 0), 0.1), "log_probs: expected non-increasing numbers of at most 0"),
            (changed("log_probs", (1, 1), 0.0), "log_probs: expected non-increasing"),
            (changed("log_probs", (0, 1), np.nan), "log_probs: expected non-increasing numbers of at most 0"),
        ],
    )
    def test_inconsistent_array_raises_by_name(self, path, changes, reason):
        saved_with(path, **changes)
        with pytest.raises(FormatError, match=f"a.record.npz: .*{reason}"):
            DraftRecord.load(path)

    def test_truncated_file_raises(self, path):
        RECORD.save(path)
        whole = path.read_bytes()
        for length in range(0, len(whole), 397):
            path.write_bytes(whole[:length])
            with pytest.raises(FormatError, match=r"a.record.npz: content: expected a numpy archive"):
                DraftRecord.load(path)

    def test_nothing_in_a_file_is_executed(self, path):
        saved_with(path, pair=np.array([print], object))
        with pytest.raises(FormatError, match=r"a.record.npz: content: expected a numpy archive"):
            DraftRecord.load(path)


@pytest.mark.parametrize(
    "changes",
    [
        changed("log_probs", (0, 1), -np.inf),  # a token that the draft never takes
        {name: getattr(RECORD, name).astype(np.int64) for name in ("parent", "rank", "accepted_ranks")},
        {name: getattr(RECORD, name).astype(np.int32) for name in ("sequence_starts", "node_starts")},
        {"log_probs": RECORD.log_probs.astype(np.float64)},
    ],
    ids=str,
)
def test_valid_record_can_be_saved_and_loaded(path, changes):
    record = replace(RECORD, **changes)
    record.save(path)
    assert DraftRecord.load(path) == record
    for name in ARRAYS:
        assert np.asarray(getattr(record, name)).dtype == np.asarray(getattr(RECORD, name)).dtype


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (changed("log_probs", (0, 0), np.nan), "log_probs: expected non-increasing numbers of at most 0"),
        *(
            (wrapped(name), f"{name}: expected")
            for name in ("sequence_starts", "node_starts", "parent", "rank", "accepted_ranks")
        ),
        ({"temperature": np.nan}, "temperature: expected"),
        ({"target_top_k": 1.5}, "top_k: expected a whole number"),
    ],
    ids=str,
)
def test_record_in_memory_is_validated_like_file(changes, reason):
    with pytest.raises(InvalidValueError, match=reason):
        replace(RECORD, **changes)
