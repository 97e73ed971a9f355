"""Files of benches: what was written is read, and nothing else."""

import json
from pathlib import Path

import pytest

from tests.cli.invented import invented
from tests.support.pages import DIVERGENCE, ENGINE, GRID, HEADING, METHODS, PACE, PACED, bench_of, planned
from treeopt.errors import FormatError
from treeopt.files.record_form import written_record
from treeopt.report.bench_file import Bench, FiledBench, is_bench, parse_benches
from treeopt.report.bench_heading import headed_json, heading_words
from treeopt.report.engine_bench import engine_bench_json
from treeopt.report.methods_bench import methods_json

TREE = bench_of(planned(), 1.5)
TREES = (
    TREE,
    bench_of(
        planned(), 1.5, predicted_speedup=1.4, predicted_step_s=None, divergences=None, identical_to_plain_decoding=None
    ),
    bench_of(planned(), 1.5, predicted_at_pace=PACED, pace=PACE),
    bench_of(planned(), 1.5, predicted_speedup=None, predicted_tokens_per_step=None, divergences=(DIVERGENCE,)),
)


def test_every_kind_is_read_as_it_was_written() -> None:
    texts: list[tuple[str, Bench]] = [(headed_json(HEADING, each), each) for each in (*TREES, GRID)]
    texts += [(methods_json(HEADING, METHODS), METHODS), (engine_bench_json(HEADING, ENGINE), ENGINE)]
    for text, bench in texts:
        assert is_bench(text.encode())
        assert parse_benches("b.json", text) == (FiledBench(HEADING, bench),)
    listed = f"[{texts[-1][0]}, {texts[0][0]}]"
    assert is_bench(listed.encode())
    assert [each.bench for each in parse_benches("b.json", listed)] == [ENGINE, TREE]


def test_a_bench_says_its_pair_machine_versions_and_date() -> None:
    content = json.loads(headed_json(HEADING, TREE))
    profile = invented()
    assert content["created"] == "2026-11-23T00:10:00+00:00"
    assert content["pair"] == written_record(profile.pair)
    assert content["machine"] == written_record(profile.machine)
    assert {"processor", "device", "threads", "system", "python", "torch"} <= set(content["machine"])
    assert heading_words(HEADING) == "big + small on invented (2 threads), float32, measured 2026-11-23"


def test_other_files_are_told_apart() -> None:
    for data in (
        b'{"format": "treeopt-tree"}',
        b"format: treeopt-profile",
        b"PK\x03\x04",
        b"",
        b'{"tool": "other"}',
        b"[1]",
    ):
        assert not is_bench(data)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"nodes": 0}, "nodes: expected a whole number of at least 1"),
        ({"rule": "a\u001b[31m"}, "rule: expected printable text"),
        ({"lossy": 1}, "lossy: expected true or false"),
        ({"measured_speedup": "2"}, "measured_speedup: expected a number"),
        ({"measured_speedup_interval": [2.0, 1.0]}, "measured_speedup_interval: expected two numbers"),
        ({"measured_speedup_interval": [1.0]}, "measured_speedup_interval: expected two numbers"),
        ({"divergences": {}}, "divergences: expected a list"),
        ({"divergences": [{"prompt": 1}]}, r"divergences\[0\].place: is missing"),
        ({"more": 1}, "more: unknown field"),
        ({"tokens": None}, "tokens: expected a whole number"),
        ({"created": 3}, "created: expected text"),
        ({"machine": {"device": "cpu"}}, "machine.processor: is missing"),
        ({"pair": {"target": "a", "draft": "b", "dtype": "c", "more": 1}}, "pair.more: unknown field"),
        ({"trees": []}, "trees: expected a list of at least one"),
        ({"rows": [{"method": "a", "temperature": -1, "reason": "x"}]}, r"rows\[0\].temperature"),
        ({"engine": "e", "version": "1", "rows": 3}, "rows: expected a list"),
    ],
)
def test_what_no_bench_says_is_refused(change: dict[str, object], reason: str) -> None:
    content = json.loads(headed_json(HEADING, TREE)) | change
    if "trees" in change or "rows" in change:
        content = (
            written_record(HEADING)
            | {
                "rule": "r",
                "temperature": 0,
                "predicted_plain_step_s": 1,
                "measured_plain_step_s": 1,
            }
            | change
        )
    with pytest.raises(FormatError, match=reason) as refused:
        parse_benches(Path("b.json"), json.dumps(content))
    assert "\n" not in str(refused.value)


def test_json_of_other_commands_is_refused() -> None:
    for text in ('{"tool": "treeopt 1", "load": {}}', '{"tool": "treeopt 1"', '{"tool": "treeopt 1", "nodes": NaN}'):
        with pytest.raises(FormatError):
            parse_benches("b.json", text)
