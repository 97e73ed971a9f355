"""The results of `treeopt bench`: one record for each subcommand, and the file that contains any of them."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from treeopt.files.fields import Fields
from treeopt.files.json_file import parse_json
from treeopt.files.record_form import in_file, read_record, written_record
from treeopt.records.batch_bench import BatchBench
from treeopt.records.bench_heading import BenchHeading
from treeopt.records.results import EngineBench, Measured, NotRun, Row, TreePrediction
from treeopt.records.step_latency import parents, read_tree
from treeopt.trees.token_tree import TokenTree

MAX_BYTES = 32_000_000
_HEAD = re.compile(rb'\s*\[?\s*\{\s*"tool":\s*"treeopt\b')


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBench:
    """One tree, as predicted and as measured."""

    drafter: str = "model"
    """With its settings."""
    rule: str
    temperature: float
    nodes: int
    depth: int = field(metadata=in_file(least=0))
    predicted: TreePrediction
    measured: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class GridTree:
    """One tree of a grid."""

    tree: TokenTree = field(metadata=in_file("parents", read=read_tree, write=parents))
    predicted: TreePrediction
    measured: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class GridBench:
    """Many trees, each as predicted and as measured; the first is the choice."""

    rule: str
    temperature: float
    predicted_plain_step_s: float
    plain_is_fastest: bool = field(default=False, metadata=in_file(optional=True))
    """Whether plain decoding is the choice; then the first is the fastest tree."""
    trees: tuple[GridTree, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodsBench:
    """All methods on one pair."""

    rows: tuple[Row, ...] = ()
    not_run: tuple[NotRun, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[Row | NotRun]) -> "MethodsBench":
        rows = tuple(rows)
        return cls(
            rows=tuple(row for row in rows if isinstance(row, Row)),
            not_run=tuple(row for row in rows if isinstance(row, NotRun)),
        )

    @property
    def temperatures(self) -> tuple[float, ...]:
        rows: list[Row | NotRun] = [*self.rows, *self.not_run]
        return tuple(dict.fromkeys(row.temperature for row in rows))


Bench = TreeBench | GridBench | MethodsBench | EngineBench | BatchBench
KINDS: dict[str, type[Bench]] = {
    "tree": TreeBench,
    "grid": GridBench,
    "methods": MethodsBench,
    "engine": EngineBench,
    "batches": BatchBench,
}


@dataclass(frozen=True, slots=True)
class FiledBench:
    """A bench with its pair, machine, program and date."""

    heading: BenchHeading
    bench: Bench

    @property
    def text(self) -> str:
        """The file: one JSON object that begins with the heading; what is None is left out."""
        kind = next(name for name, kind in KINDS.items() if isinstance(self.bench, kind))
        content = written_record(self.heading) | {"bench": kind} | written_record(self.bench)
        return json.dumps(content, indent=2) + "\n"


def is_bench(data: bytes) -> bool:
    """Recognise a bench by its first key; other files of treeopt begin with their format.

    >>> is_bench(b'{"tool": "treeopt 0.2.0", "rows": []}'), is_bench(b'{"format": "treeopt-tree"}')
    (True, False)
    """
    return _HEAD.match(data) is not None


def parse_benches(path: Path | str, text: str) -> tuple[FiledBench, ...]:
    """Return the bench of a file, or the benches of a list.

    Raises FormatError naming the file, the field and the reason.
    """
    content = parse_json(path, text, unique_keys=True, constants=False)
    items = content if isinstance(content, list) else [content]
    return tuple(
        _bench(Fields(path, each, f"[{place}]" if isinstance(content, list) else ""))
        for place, each in enumerate(items)
    )


def _bench(fields: Fields) -> FiledBench:
    if "bench" not in fields:
        raise fields.error("bench", "expected what treeopt bench --output writes. Is it of another command?")
    kind = fields.text("bench")
    if kind not in KINDS:
        raise fields.error("bench", f"expected one of {', '.join(KINDS)}. Got {kind!r:.40}.")
    return FiledBench(BenchHeading.from_fields(fields), read_record(fields, KINDS[kind]))
