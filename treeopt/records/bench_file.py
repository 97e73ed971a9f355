"""The results of `treeopt bench`: one record per subcommand, and the file that contains them."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from treeopt.files.fields import Fields
from treeopt.files.json_file import parse_json
from treeopt.files.serialization import in_file, read_inline_record, read_record, serialize_record
from treeopt.records.identity import Identity
from treeopt.records.machine import Machine, Pair
from treeopt.records.results import BatchBench, EngineBench, MethodRow, NotRun, TreeMeasurement, TreePrediction
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import TREE
from treeopt.version import TOOL

MAX_BYTES = 32_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBench:
    """`bench tree`: one tree, predicted and measured."""

    drafter: str = "model"
    """With its settings."""
    rule: str
    temperature: float
    nodes: int
    depth: int = field(metadata=in_file(least=0))
    predicted: TreePrediction
    measured: TreeMeasurement


@dataclass(frozen=True, slots=True, kw_only=True)
class GridTree:
    """One tree of a grid."""

    tree: TokenTree = field(metadata=TREE)
    predicted: TreePrediction
    measured: TreeMeasurement


@dataclass(frozen=True, slots=True, kw_only=True)
class GridBench:
    """`bench grid`: several trees, predicted and measured, the chosen tree first."""

    rule: str
    temperature: float
    predicted_plain_step_s: float
    plain_is_fastest: bool = field(default=False, metadata=in_file(optional=True))
    """Whether the plan chose plain decoding; the first tree is then the fastest one."""
    trees: tuple[GridTree, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodsBench:
    """`bench methods`: all methods on one pair."""

    rows: tuple[MethodRow, ...] = ()
    not_run: tuple[NotRun, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[MethodRow | NotRun]) -> "MethodsBench":
        rows = tuple(rows)
        return cls(
            rows=tuple(row for row in rows if isinstance(row, MethodRow)),
            not_run=tuple(row for row in rows if isinstance(row, NotRun)),
        )

    @property
    def temperatures(self) -> tuple[float, ...]:
        rows: list[MethodRow | NotRun] = [*self.rows, *self.not_run]
        return tuple(dict.fromkeys(row.temperature for row in rows))


Bench = TreeBench | GridBench | MethodsBench | EngineBench | BatchBench
KINDS: dict[str, type[Bench]] = {
    "tree": TreeBench,
    "grid": GridBench,
    "methods": MethodsBench,
    "engine": EngineBench,
    "batches": BatchBench,
}
_HEAD = re.compile(rb'\s*\[?\s*\{\s*"tool":\s*"treeopt\b')
_KIND = re.compile(rf'"bench":\s*"(?:{"|".join(KINDS)})"'.encode())
"""The key `bench`, wherever another program wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchHeading:
    """The first keys of every bench file."""

    tool: str = TOOL
    """Program and version."""
    created: str
    """Date and time, ISO 8601."""
    machine: Machine
    pair: Pair

    @property
    def identity(self) -> Identity:
        return Identity.of(self.pair, self.machine)


@dataclass(frozen=True, slots=True)
class BenchFile:
    """A bench and its heading."""

    heading: BenchHeading
    bench: Bench

    @property
    def text(self) -> str:
        """The file's content: one JSON object without null values, the heading first."""
        kind = next(name for name, kind in KINDS.items() if isinstance(self.bench, kind))
        content = serialize_record(self.heading) | {"bench": kind} | serialize_record(self.bench)
        return json.dumps(content, indent=2) + "\n"


def is_bench(data: bytes) -> bool:
    """Recognise a bench file by its first key or the key `bench`; other treeopt files begin with their format.

    >>> is_bench(b'{"tool": "treeopt 0.2.0", "rows": []}'), is_bench(b'{"format": "treeopt-tree"}')
    (True, False)
    """
    return _HEAD.match(data) is not None or _KIND.search(data) is not None


def parse_benches(path: Path | str, text: str) -> tuple[BenchFile, ...]:
    """Parse one bench, or a list of benches; raises FormatError."""
    content = parse_json(path, text, unique_keys=True, constants=False)
    items = content if isinstance(content, list) else [content]
    return tuple(
        _read_bench(Fields(path, item, f"[{index}]" if isinstance(content, list) else ""))
        for index, item in enumerate(items)
    )


def _read_bench(fields: Fields) -> BenchFile:
    if "bench" not in fields:
        raise fields.error("bench", "expected what treeopt bench --output writes. Is it of another command?")
    kind = fields.text("bench")
    if kind not in KINDS:
        raise fields.error("bench", f"expected one of {', '.join(KINDS)}. Got {kind!r:.40}.")
    return BenchFile(read_inline_record(fields, BenchHeading), read_record(fields, KINDS[kind]))
