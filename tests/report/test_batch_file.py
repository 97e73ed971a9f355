"""Files of benches of several texts: read as they were written, and refused where they contradict themselves."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.pages import BATCHES, DIVERGENCE, HEADING
from treeopt.errors import FormatError
from treeopt.records.batch_bench import BatchBench
from treeopt.report.batch_bench import batch_bench_json, batch_bench_table
from treeopt.report.bench_file import is_bench, parse_benches


def read(text: str) -> BatchBench:
    (found,) = parse_benches("b.json", text)
    assert isinstance(found.bench, BatchBench)
    return found.bench


def test_a_bench_is_read_as_it_was_written() -> None:
    warm = replace(BATCHES, temperature=0.7)
    unchosen = replace(
        BATCHES,
        sizes=tuple(
            replace(size, rows=tuple(replace(row, chosen=False) for row in size.rows)) for size in BATCHES.sizes
        ),
    )
    for bench in (BATCHES, warm, unchosen):
        text = batch_bench_json(HEADING, bench)
        assert is_bench(text.encode())
        assert read(text) == bench
        assert batch_bench_json(HEADING, read(text)) == text
        assert batch_bench_table(read(text)) == batch_bench_table(bench)
    assert [each.bench for each in parse_benches("b.json", f"[{text}, {text}]")] == [unchosen, unchosen]


def test_what_contradicts_itself_or_is_no_number_is_refused() -> None:
    huge = "9" * 400
    for where, change, reason in (
        ((), {"lossy": True}, "lossy: expected False, which follows"),
        ((), {"sizes": []}, "sizes: expected a list of at least one"),
        ((), {"rounds": 0}, "rounds: expected a whole number"),
        ((), {"more": 0}, "more: unknown field"),
        (("sizes", 1), {"batch_size": 1}, "sizes: expected batch sizes that rise"),
        (("sizes", 0), {"batch_size": 2.0}, r"sizes\[0\].batch_size: expected a whole number"),
        (("sizes", 1), {"regret": 0.2}, r"sizes\[1\].regret: expected about 0.05"),
        (("sizes", 1), {"regret": None}, r"sizes\[1\].regret: expected a number"),
        (("sizes", 1, "settings", 1), {"chosen": True}, r"sizes\[1\].settings: expected at most one"),
        (("sizes", 0, "settings", 1), {"kind": "chain"}, "settings.1..kind: expected 'tree', which follows"),
        (("sizes", 0, "settings", 1), {"nodes": 6}, "settings.1..nodes: expected 5"),
        (("sizes", 0, "settings", 1), {"nodes": True}, "settings.1..nodes: expected 5"),
        (("sizes", 0, "settings", 1), {"depth": 3}, "settings.1..depth: expected 2"),
        (("sizes", 0, "settings", 1), {"parents": [-1, 2, 0]}, "settings.1..parents"),
        (("sizes", 0, "settings", 1), {"measured_speedup": 0}, "measured_speedup: expected a number"),
        (("sizes", 0, "settings", 1), {"measured_tokens_per_s": 1e300}, "measured_tokens_per_s: expected a number"),
        (("sizes", 0, "settings", 1), {"predicted_tokens_per_s": int(huge)}, "predicted_tokens_per_s: expected"),
        (("sizes", 0, "settings", 1), {"overhead": 2.0}, "overhead: expected a number from 0 to 1"),
        (("sizes", 1, "settings", 1), {"predicted_at_pace": {"step_s": 1}}, "predicted_at_pace.speedup: is missing"),
        (("sizes", 1), {"pace": {"plain": -1}}, "pace.plain: expected a number"),
        (("sizes", 1, "settings", 1), {"equal_texts": 16}, "equal_texts: expected 15"),
        (("sizes", 1, "settings", 1), {"near_ties": 0}, "near_ties: expected 1"),
        (("sizes", 1, "settings", 1), {"divergences": None}, "divergences: expected a list"),
        (("sizes", 1, "settings", 1), {"divergences": [{"prompt": 1}]}, r"divergences\[0\].place: is missing"),
    ):
        content: Any = json.loads(batch_bench_json(HEADING, BATCHES))
        inner = content
        for step in where:
            inner = inner[step]
        inner |= change
        with pytest.raises(FormatError, match=reason) as refused:
            read(json.dumps(content))
        assert "\n" not in str(refused.value)


def test_near_ties_above_temperature_0_are_known_to_nobody() -> None:
    size = BATCHES.sizes[1]
    rows = (*size.rows[:1], replace(size.rows[1], measured=replace(size.rows[1].measured, divergences=(DIVERGENCE,))))
    warm = replace(BATCHES, temperature=0.7, sizes=(replace(size, rows=rows),))
    text = batch_bench_json(HEADING, warm)
    assert read(text) == warm
    with pytest.raises(FormatError, match="near_ties: expected None"):
        read(text.replace('"near_ties": null', '"near_ties": 0'))
