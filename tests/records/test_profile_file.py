"""The profile file of docs/reference/profile-file.md: golden bytes, round trips, and invalid files."""

import copy
import dataclasses
import json
import math
import random
import time
from itertools import pairwise
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from treeopt.errors import FormatError, InfeasibleError, InvalidValueError, TreeoptError, printable
from treeopt.files import yaml_file
from treeopt.files.yaml_file import MAX_NESTING
from treeopt.records.acceptance import AcceptanceTable, SequenceSums
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.latency import LatencyTable, PrefillLatency, Timing
from treeopt.records.machine import Machine, Pair
from treeopt.records.measured_acceptance import ACCEPTANCE, MeasuredAcceptance
from treeopt.records.profile import INCLUDED, MAX_BYTES, Profile, describe_origins, trace_origins
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import (
    LATENCY_PARTS,
    Imported,
    Interference,
    RuleOverhead,
    RuleSteps,
    StepLatency,
    TimedTree,
)
from treeopt.trees import TokenTree

ROOT = Path(__file__).resolve().parents[2]
GOLDEN_FILE = ROOT / "tests" / "data" / "profile-golden.yaml"
SPECIFICATION = ROOT / "docs" / "reference" / "profile-file.md"
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "docs" / "reference" / "profile-file.schema.json").read_bytes())
)
ELSEWHERE = ("drafters", "per_block", "context_tokens", "categories")
"""Keys that other files have: profile-drafters.yaml, profile-contexts.yaml and those of test_categories.py."""

MACHINE = Machine(device="cpu", processor="AMD EPYC 7763", threads=2, system="Linux 6.8", python="3.12", torch="2.8.0")
PAIR = Pair(
    target="bundled/target",
    draft="bundled/draft",
    dtype="float32",
    vocabulary=256,
    target_parameters=4_900_000,
    draft_parameters=230_000,
    target_weight_bytes=19_600_000,
    draft_weight_bytes=920_000,
    target_kv_bytes=4096,
    draft_kv_bytes=512,
    target_source="models/target",
    draft_source="models/draft",
    target_digest="6f1f0a8b9c2d3e4f",
    draft_digest="0123456789abcdef",
)
VERIFY = LatencyTable(
    [1, 4, 16, 64],
    [
        Timing([0.00191, 0.00189, 0.00204]),
        Timing([0.0024, 0.00246, 0.00239]),
        Timing([0.004, 0.00403, 0.0041]),
        Timing([0.0082, 0.0081, 0.0083]),
    ],
)
DRAFT = LatencyTable([1, 64], [Timing([0.00016, 0.000158, 0.000171]), Timing([0.0004, 0.00041, 0.00039])])
PREFILL = PrefillLatency(
    target=LatencyTable([16, 64], [Timing([0.0036, 0.00355]), Timing([0.0079])]),
    draft=LatencyTable([16, 64], [Timing([0.00041, 0.00043]), Timing([0.00078])]),
)
OVERHEAD = Timing([0.00011, -2e-05, 0.00013], allow_negative=True)
OF_TYPICAL = RuleOverhead(rule="typical", overhead=Timing([9e-05, -1e-05, 8.5e-05], allow_negative=True))
PER_DEPTH = AcceptanceTable(
    [[0.73, 0.12, 0.05], [5 / 7, 0.0, 0.1]],
    counts=[4096, 3701.25],
    standard_error=[[0.0102344, 0.00557934, 0.00416838], [0.00997731, 0.0121307, 0.00551078]],
)
TEXTS = SequenceSums(
    [[2048, 1850.5], [2048, 1850.75]],
    [[[1516, 250, 100.5], [1340.25, 0, 181.125]], [[1474.08, 241.52, 104.3], [1303.5, 0, 189]]],
)
GOLDEN = Profile(
    created="2026-11-20T11:12:00Z",
    tool="treeopt 0.1.0",
    machine=MACHINE,
    pair=PAIR,
    latencies=(
        StepLatency(
            context_tokens=256,
            batch_size=1,
            verify=VERIFY,
            draft=DRAFT,
            overhead=OVERHEAD,
            rule_overheads=(OF_TYPICAL,),
            host=Timing([4e-05, 5e-05]),
            sampled=False,
            imported=(Imported(what="verify", source="costs.json (SGLang cost table)"),),
            limit_tokens=96,
            interference=Interference(calls=0.25, samples=0.125, processors=0.95),
            steps=(
                RuleSteps(
                    rule="typical",
                    trees=(
                        TimedTree(tree=TokenTree([-1, 0]), steps=Timing([0.00251, 0.00249])),
                        TimedTree(tree=TokenTree([-1, 0, 0]), steps=Timing([0.0028])),
                    ),
                ),
            ),
        ),
    ),
    prefill=PREFILL,
    acceptances=(
        MeasuredAcceptance(
            rule="sequoia",
            temperature=0.6,
            top_p=1.0,
            top_k=50,
            draft_sampling=Sampling(0.8, 0.95),
            prompts=2,
            positions=4096,
            table=PER_DEPTH,
            texts=TEXTS,
            imported=(Imported(what="acceptance", source="metrics.txt (vLLM metrics)"),),
            accepted_ranks=AcceptedRanks([[0, 0, -1, 2, 0], [-1, 0, 1]]),
        ),
        MeasuredAcceptance(
            rule="typical", temperature=0.0, top_p=0.9, prompts=1, positions=1, table=AcceptanceTable([0.8, 0.1])
        ),
    ),
)


def check_same(result: Profile, expected: Profile) -> None:
    """Expect equal profiles, up to the digits that the file keeps."""
    assert result.prefill == expected.prefill
    for name in ("created", "tool", "machine", "pair"):
        assert getattr(result, name) == getattr(expected, name)
    for one, other in zip(result.latencies, expected.latencies, strict=True):
        for name in ("context_tokens", "batch_size", "sampled", "imported", "limit_tokens", "interference"):
            assert getattr(one, name) == getattr(other, name)
        for table, wanted in ((one.verify, other.verify), (one.draft, other.draft)):
            assert table.tokens.tolist() == wanted.tokens.tolist()
            for timing, wanted_timing in zip(table.timings, wanted.timings, strict=True):
                close(timing.samples_s, wanted_timing.samples_s)
        close(one.overhead.samples_s, other.overhead.samples_s)
        for steps, wanted_steps in zip(one.steps, other.steps, strict=True):
            assert steps.rule == wanted_steps.rule
            for timed, wanted_timed in zip(steps.trees, wanted_steps.trees, strict=True):
                assert timed.tree == wanted_timed.tree
                close(timed.steps.samples_s, wanted_timed.steps.samples_s)
        assert [each.rule for each in one.rule_overheads] == [each.rule for each in other.rule_overheads]
        for overhead, wanted_overhead in zip(one.rule_overheads, other.rule_overheads, strict=True):
            close(overhead.overhead.samples_s, wanted_overhead.overhead.samples_s)
    for one, other in zip(result.acceptances, expected.acceptances, strict=True):
        for name in ("rule", "temperature", "top_p", "top_k", "draft_sampling", "prompts", "positions", "imported"):
            assert getattr(one, name) == getattr(other, name)
        np.testing.assert_allclose(one.table.p, other.table.p, rtol=5.1e-10, atol=1e-300)
        for name in ("counts", "standard_error"):
            array, wanted = getattr(one.table, name), getattr(other.table, name)
            assert (array is None) == (wanted is None)
            if array is not None:
                close(array, wanted)
        assert (one.texts is None) == (other.texts is None)
        if one.texts is not None:
            close(one.texts.reached, other.texts.reached)
            close(one.texts.accepted, other.texts.accepted)
        assert ranks_of(one) == ranks_of(other)


def ranks_of(acceptance: MeasuredAcceptance) -> list[list[int]] | None:
    return acceptance.accepted_ranks and [ranks.tolist() for ranks in acceptance.accepted_ranks.ranks]


def close(result: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(result, expected, rtol=5.1e-6, atol=1e-300)


def test_all_profiles_of_the_docs_load() -> None:
    for path in (ROOT / "docs" / "profiles").glob("*.yaml"):
        assert Profile.load(path).acceptances, path


class TestGoldenFile:
    def test_written_bytes(self, tmp_path):
        GOLDEN.save(tmp_path / "p.yaml")
        assert (tmp_path / "p.yaml").read_bytes() == GOLDEN_FILE.read_bytes()

    def test_read_contents(self):
        check_same(Profile.load(GOLDEN_FILE), GOLDEN)

    def test_saved_again_byte_for_byte(self, tmp_path):
        Profile.load(str(GOLDEN_FILE)).save(str(tmp_path / "p.yaml"))
        assert (tmp_path / "p.yaml").read_bytes() == GOLDEN_FILE.read_bytes()

    def test_the_same_bytes_without_the_c_library(self, tmp_path, monkeypatch):
        monkeypatch.setattr(yaml_file, "_Dumper", yaml.SafeDumper)
        GOLDEN.save(tmp_path / "p.yaml")
        assert (tmp_path / "p.yaml").read_bytes() == GOLDEN_FILE.read_bytes()

    def test_schema_accepts(self):
        VALIDATOR.validate(yaml.safe_load(GOLDEN_FILE.read_bytes()))

    def test_golden_file_has_every_schema_key_in_order(self):
        self.check_keys(yaml.safe_load(GOLDEN_FILE.read_bytes()), VALIDATOR.schema)

    def check_keys(self, content, schema):
        schema = VALIDATOR.schema["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if isinstance(content, dict):
            assert list(content) == [key for key in schema["properties"] if key in content or key not in ELSEWHERE]
            for key, value in content.items():
                self.check_keys(value, schema["properties"][key])
        elif isinstance(content, list) and "items" in schema:
            self.check_keys(content[0], schema["items"])

    def test_specification_shows_golden_file(self):
        assert f"```yaml\n{GOLDEN_FILE.read_text('utf-8')}```" in SPECIFICATION.read_text("utf-8")

    def test_table_matches_sums(self):
        close(TEXTS.table().p, PER_DEPTH.p)
        close(TEXTS.table().counts, PER_DEPTH.counts)
        close(TEXTS.table().standard_error, PER_DEPTH.standard_error)

    def test_dash_is_standard_output(self, capsys):
        GOLDEN.save("-")
        assert capsys.readouterr().out == GOLDEN_FILE.read_text("utf-8")


TEXT = st.text(max_size=12).map(printable) | st.sampled_from(
    ["null", "yes", "3.11", "2026-11-20", "1e5", "=", "<<", "*a", "- b", "~"]
)
WHOLE = st.integers(1, 2**63 - 1)
SECONDS = st.floats(1e-300, 1e6)


@st.composite
def latency_tables(draw: st.DrawFn) -> LatencyTable:
    tokens = sorted(draw(st.sets(st.integers(1, 2**31 - 1), min_size=1, max_size=4)))
    return LatencyTable(tokens, [Timing(draw(st.lists(SECONDS, min_size=1, max_size=4))) for _ in tokens])


@st.composite
def acceptance_tables(draw: st.DrawFn) -> AcceptanceTable:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))  # (B,), (D, B) or (D, R, B)
    p = draw(arrays(shape, st.floats(0, 1)))
    p = p / np.maximum(p.sum(axis=-1, keepdims=True), 1.0)
    return AcceptanceTable(
        p,
        counts=draw(st.none() | arrays(shape[:-1] or [1], st.floats(0, 1e300))),
        standard_error=draw(st.none() | arrays(shape, st.floats(0, 1))),
    )


def arrays(shape: list[int], numbers: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    size = math.prod(shape)
    return st.lists(numbers, min_size=size, max_size=size).map(lambda values: np.reshape(values, shape))


@st.composite
def sequence_sums(draw: st.DrawFn) -> SequenceSums:
    texts, depth, branching = draw(st.integers(2, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    reached = draw(arrays([texts, depth], st.just(0.0) | st.floats(1e-3, 1e6)))
    reached[0] += 0.5
    shares = draw(arrays([texts, depth, branching], st.floats(0, 1)))
    shares = shares / np.maximum(shares.sum(axis=-1, keepdims=True), 1.0)
    return SequenceSums(reached, shares * reached[:, :, None])


COUNT = st.none() | WHOLE
MACHINES = st.builds(Machine, device=TEXT, processor=TEXT, threads=COUNT, system=TEXT, python=TEXT, torch=TEXT)
PAIRS = st.builds(
    Pair, target=TEXT, draft=TEXT, dtype=TEXT, vocabulary=COUNT, target_parameters=COUNT, draft_parameters=COUNT
)


def imports(parts: tuple[str, ...]) -> st.SearchStrategy[tuple[Imported, ...]]:
    each = st.builds(Imported, what=st.sampled_from(parts), source=TEXT)
    return st.lists(each, max_size=3, unique_by=lambda one: one.what).map(tuple)


SHARES = st.integers(0, 100_000).map(lambda count: count / 100_000)  # in digits that the file keeps
OVERHEADS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4).map(lambda s: Timing(s, allow_negative=True))
LATENCIES = st.builds(
    StepLatency,
    context_tokens=st.integers(0, 2**31),
    batch_size=WHOLE,
    verify=latency_tables(),
    draft=latency_tables(),
    overhead=OVERHEADS,
    rule_overheads=st.lists(
        st.builds(RuleOverhead, rule=TEXT, overhead=OVERHEADS), max_size=3, unique_by=lambda each: each.rule
    ).map(tuple),
    sampled=st.none() | st.booleans(),
    imported=imports(LATENCY_PARTS),
    interference=st.none()
    | st.just(Interference(calls=0.0, samples=0.0))
    | st.builds(Interference, calls=SHARES.filter(bool), samples=SHARES, processors=SHARES),
)
ACCEPTANCES = st.builds(
    MeasuredAcceptance,
    rule=TEXT,
    temperature=st.floats(0, 1e300),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 2**31),
    draft_sampling=st.none()
    | st.builds(Sampling, st.just(0.0) | st.floats(1e-6, 1e300), st.floats(1e-300, 1), st.integers(0, 2**31)),
    prompts=COUNT,
    positions=COUNT,
    table=acceptance_tables(),
    imported=imports((ACCEPTANCE,)),
)
ACCEPTANCES_OF_TEXTS = st.builds(
    lambda acceptance, texts, ranks: dataclasses.replace(
        acceptance,
        table=texts.table(),
        texts=texts,
        accepted_ranks=AcceptedRanks((ranks * len(texts.reached))[: len(texts.reached)]) if ranks else None,
    ),
    ACCEPTANCES,
    sequence_sums(),
    st.lists(st.lists(st.integers(-1, 2**31 - 1), max_size=4), max_size=3),
)
PROFILES = st.builds(
    Profile,
    created=TEXT,
    tool=TEXT,
    machine=MACHINES,
    pair=PAIRS,
    latencies=st.lists(LATENCIES, min_size=1, max_size=2, unique_by=lambda each: each.context_tokens).map(tuple),
    acceptances=st.lists(
        ACCEPTANCES | ACCEPTANCES_OF_TEXTS, min_size=1, max_size=2, unique_by=lambda each: each.rule
    ).map(tuple),
)


class TestRoundTrip:
    @settings(deadline=None, derandomize=True, max_examples=examples(120, fast=10))
    @given(PROFILES)
    def test_round_trip(self, tmp_path_factory, profile):
        path = tmp_path_factory.getbasetemp() / "round-trip.yaml"
        profile.save(path)
        result, text = Profile.load(path), path.read_bytes()
        check_same(result, profile)
        VALIDATOR.validate(yaml.safe_load(text))
        result.save(path)
        assert path.read_bytes() == text

    def test_single_row_stays_single_row(self, tmp_path):
        """Written as a list of one row it came back as a table of depth 1."""
        GOLDEN.save(tmp_path / "p.yaml")
        one_row = Profile.load(tmp_path / "p.yaml").acceptances[1].table
        assert one_row.position_invariant
        assert one_row.max_depth is None

    def test_a_row_per_rank_of_the_parent(self, tmp_path):
        p = [[[0.5, 0.25], [0.5, 0.25]], [[0.75, 0.125], [0.25, 0.125]]]
        table = AcceptanceTable(p, counts=[[100, 0], [75, 25]], standard_error=np.full((2, 2, 2), 0.01))
        acceptance = dataclasses.replace(GOLDEN.acceptances[1], table=table)
        dataclasses.replace(GOLDEN, acceptances=(acceptance,)).save(tmp_path / "p.yaml")
        result = Profile.load(tmp_path / "p.yaml").acceptance().table
        assert result.p.tolist() == p
        assert result.counts.tolist() == [[100, 0], [75, 25]]
        assert result.standard_error.tolist() == table.standard_error.tolist()
        VALIDATOR.validate(yaml.safe_load((tmp_path / "p.yaml").read_bytes()))

    def test_row_above_1_by_rounding(self, tmp_path):
        """Such a row was scaled on loading, and saved again it had other digits."""
        p = [0.70000000006, 0.10000000006, 0.10000000006, 0.09999999982]
        acceptance = dataclasses.replace(GOLDEN.acceptances[1], table=AcceptanceTable(p))
        dataclasses.replace(GOLDEN, acceptances=(acceptance,)).save(tmp_path / "p.yaml")
        assert sum(yaml.safe_load((tmp_path / "p.yaml").read_bytes())["acceptance"][0]["p"]) > 1 + 1e-10
        Profile.load(tmp_path / "p.yaml").save(tmp_path / "again.yaml")
        assert (tmp_path / "again.yaml").read_bytes() == (tmp_path / "p.yaml").read_bytes()

    def test_a_file_without_overheads_of_rules(self, tmp_path):
        (tmp_path / "p.yaml").write_bytes(perturbed("latency", 0, "rule_overheads"))
        result = Profile.load(tmp_path / "p.yaml")
        assert result.latencies[0].rule_overheads == ()
        result.save(tmp_path / "again.yaml")
        assert b"rule_overheads" not in (tmp_path / "again.yaml").read_bytes()

    @pytest.mark.parametrize(
        "where", [("latency", 0, "timed"), ("latency", 0, "imported"), ("acceptance", 0, "imported")], ids=str
    )
    def test_file_without_imports(self, tmp_path, where):
        (tmp_path / "p.yaml").write_bytes(perturbed(*where))
        result = Profile.load(tmp_path / "p.yaml")
        record = result.latencies[0] if where[0] == "latency" else result.acceptances[0]
        assert (record.sampled is None) if where[2] == "timed" else record.imported == ()
        result.save(tmp_path / "again.yaml")
        again = yaml.safe_load((tmp_path / "again.yaml").read_bytes())
        assert where[2] not in again[where[0]][0]

    def test_older_file_without_interference(self, tmp_path):
        (tmp_path / "p.yaml").write_bytes(perturbed("latency", 0, "disturbed"))
        result = Profile.load(tmp_path / "p.yaml")
        assert result.latencies[0].interference is None
        result.save(tmp_path / "again.yaml")
        assert b"disturbed" not in (tmp_path / "again.yaml").read_bytes()

    def test_older_file_without_prefill(self, tmp_path):
        (tmp_path / "p.yaml").write_bytes(perturbed("prefill"))
        result = Profile.load(tmp_path / "p.yaml")
        assert result.prefill is None
        result.save(tmp_path / "again.yaml")
        assert b"prefill" not in (tmp_path / "again.yaml").read_bytes()

    def test_a_file_without_texts(self, tmp_path):
        without = yaml.safe_load(GOLDEN_FILE.read_bytes())
        del without["acceptance"][0]["texts"], without["acceptance"][0]["outcomes"]
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(without))
        result = Profile.load(tmp_path / "p.yaml").acceptances[0]
        assert result.texts is None
        np.testing.assert_allclose(result.table.p, PER_DEPTH.p, rtol=5.1e-10)

    def test_any_yaml_layout_loads(self, tmp_path):
        content = dict(reversed(yaml.safe_load(GOLDEN_FILE.read_bytes()).items()))
        block = yaml.safe_dump(content, sort_keys=False, default_flow_style=False, indent=5)
        flow = yaml.safe_dump(content, sort_keys=False, default_flow_style=True, width=40)
        for name, text in {"block": f"# a remark\n---\n{block}", "flow": "\ufeff" + flow.replace("\n", "\r\n")}.items():
            (tmp_path / name).write_bytes(text.encode())
            check_same(Profile.load(tmp_path / name), GOLDEN)


def perturbed(*where: object, value: object = ...) -> bytes:
    """Return the bytes of the golden file with one value replaced; ... takes it away."""
    content = copy.deepcopy(yaml.safe_load(GOLDEN_FILE.read_bytes()))
    holder = content
    for key in where[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[where[-1]]
    else:
        holder[where[-1]] = value
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None).encode()


def repeated(field: str) -> bytes:
    """Return the bytes of the golden file with the first item of a list once more at its end."""
    content = yaml.safe_load(GOLDEN_FILE.read_bytes())
    return perturbed(field, value=[*content[field], copy.deepcopy(content[field][0])])


def replaced(old: str, new: str) -> bytes:
    text = GOLDEN_FILE.read_text("utf-8")
    assert text.count(old) == 1
    return text.replace(old, new).encode()


def line_of(text: str) -> int:
    """Return the number of the golden file's line that holds a text."""
    return GOLDEN_FILE.read_text("utf-8").partition(text)[0].count("\n") + 1


LAUGHS = "a: &a [ha, ha]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghi"))

NOT_PLAIN_YAML = {
    "empty": (b"", "expected fields with names"),
    "words": (b"no profile at all", "expected fields with names"),
    "list": (b"- a\n- b\n", "expected fields with names"),
    "names that are numbers": (b"1: 2\n", "expected fields with names"),
    "names that are lists": (b"? [a, b]\n: 2\n", r"expected YAML .*unhashable"),
    "two documents": (GOLDEN_FILE.read_bytes() + b"---\na: 1\n", r"expected YAML .*single document"),
    "cut short": (GOLDEN_FILE.read_bytes().rstrip()[:-1], "expected YAML"),
    "tabs": (b"a:\n\t- b\n", "expected YAML"),
    "control characters": (b"a: \x07\n", "expected YAML .*control characters"),
    "key twice": (
        replaced("version: 1\n", "version: 1\nversion: 1\n"),
        r"expected YAML \(line 1: a field appears twice",
    ),
    "key twice inside": (replaced("  batch_size: 1\n", "  batch_size: 1\n  'batch_size': 2\n"), "line 10: .* twice"),
    "merged keys": (replaced("{device: cpu,", "{<<: {device: cpu},"), "line 5: merging with << is not allowed"),
    "a date that is none": (replaced("'2026-11-20T11:12:00Z'", "2026-13-20"), "expected YAML .*month"),
    "5000 digits": (replaced("version: 1", f"version: {'9' * 5000}"), "expected YAML .*digits"),
}

TRICKS = {
    "billion laughs": (LAUGHS.encode(), "line 1"),
    "alias": (b"a: *b\n", "line 1"),
    "a list inside itself": (b"a: &b [*b]\n", "line 1"),
    "anchor": (replaced("version: 1", "version: &v 1"), "line 2"),
    "anchor of a key": (replaced("version: 1", "&v version: 1"), "line 2"),
    "tag": (replaced("version: 1", "version: !!int 1"), "line 2"),
    "tag of a list": (replaced("p: [0.8, 0.1]", "p: !!set {0.8, 0.1}"), f"line {line_of('p: [0.8, 0.1]')}"),
    "tag of code": (b"!!python/object/apply:os.system [exit]", "line 1"),
    "bare tag": (replaced("version: 1", "version: ! 1"), "line 2"),
}

# What a JSON Schema can refuse: id -> (bytes, field, reason).
VERIFY_AT, DRAFT_AT = ("latency", 0, "verify"), ("latency", 0, "draft")
FIRST = ("acceptance", 0)
TEXTS_AT = (*FIRST, "texts")
TIMED = {"parents": [-1, 0], "samples_s": [0.1]}
WRONG_SHAPE = {
    "no format": (perturbed("format"), "format", "is missing"),
    "other format": (perturbed("format", value="treeopt-tree"), "format", "'treeopt-profile'. Got 'treeopt-tree'"),
    "format null": (perturbed("format", value=None), "format", "expected text. Got None"),
    "no version": (perturbed("version"), "version", "is missing"),
    "version 0": (perturbed("version", value=0), "version", "at least 1. Got 0"),
    "newer version": (perturbed("version", value=2), "version", "expected 1. Got 2: update treeopt"),
    "version true": (perturbed("version", value=True), "version", "whole number.* Got True"),
    "created as a date": (replaced("'2026-11-20T11:12:00Z'", "2026-11-20"), "created", "expected text. Got date"),
    "torch as a number": (perturbed("machine", "torch", value=2.8), "machine.torch", "expected text. Got 2.8"),
    "no system": (perturbed("machine", "system"), "machine.system", "is missing"),
    "threads null": (perturbed("machine", "threads", value=None), "machine.threads", "at least 1. Got None"),
    "threads 0": (perturbed("machine", "threads", value=0), "machine.threads", "at least 1. Got 0"),
    "threads 1.5": (perturbed("machine", "threads", value=1.5), "machine.threads", "whole number.* Got 1.5"),
    "machine text": (perturbed("machine", value="mine"), "machine", "expected fields with names"),
    "pair null": (perturbed("pair", value=None), "pair", "expected fields with names"),
    "huge integer": (
        perturbed("pair", "vocabulary", value=2**63),
        "pair.vocabulary",
        "whole number.* Got 922337203685477",
    ),
    "huge number": (perturbed(*FIRST, "temperature", value=10**400), "acceptance[0].temperature", r"Got 1000.*\.\.\."),
    "steps without trees": (
        perturbed("latency", 0, "steps", value=[{"rule": "sequoia", "trees": []}]),
        "latency[0].steps[0].trees",
        "at least one",
    ),
    "outcomes below -1": (
        perturbed(*FIRST, "outcomes", value=[[0], [-2]]),
        "acceptance[0].outcomes",
        "at least -1",
    ),
    "outcomes not whole": (
        perturbed(*FIRST, "outcomes", value=[[0], [0.5]]),
        "acceptance[0].outcomes[1]",
        "whole numbers",
    ),
    "outcomes flat": (
        perturbed(*FIRST, "outcomes", value=[0, 1]),
        "acceptance[0].outcomes[0]",
        "whole numbers",
    ),
    "unknown field": (perturbed("note", value="hello"), "note", "unknown field"),
    "unknown field of the machine": (perturbed("machine", "owner", value="me"), "machine.owner", "unknown field"),
    "unknown field of latency": (perturbed("latency", 0, "note", value="x"), "latency[0].note", "unknown field"),
    "unknown field of a table": (perturbed(*VERIFY_AT, "unit", value="s"), "latency[0].verify.unit", "unknown field"),
    "unknown field of the overhead": (
        perturbed("latency", 0, "overhead", "tokens", value=[1]),
        "latency[0].overhead.tokens",
        "unknown field",
    ),
    "unknown field of acceptance": (perturbed(*FIRST, "q", value=1), "acceptance[0].q", "unknown field"),
    "unknown field of the draft's sampling": (
        perturbed(*FIRST, "draft_sampling", value={"temperature": 0.8, "top_p": 1.0, "top_k": 0, "min_p": 0.1}),
        "acceptance[0].draft_sampling.min_p",
        "unknown field",
    ),
    "unknown field of steps": (
        perturbed("latency", 0, "steps", value=[{"rule": "sequoia", "trees": [{**TIMED}], "note": "x"}]),
        "latency[0].steps[0].note",
        "unknown field",
    ),
    "unknown field of a timed tree": (
        perturbed("latency", 0, "steps", value=[{"rule": "sequoia", "trees": [{**TIMED, "note": "x"}]}]),
        "latency[0].steps[0].trees[0].note",
        "unknown field",
    ),
    "no latency": (perturbed("latency"), "latency", "is missing"),
    "latency empty": (perturbed("latency", value=[]), "latency", r"at least one. Got \[\]"),
    "latency not a list": (perturbed("latency", value={}), "latency", "at least one. Got {}"),
    "latency of text": (perturbed("latency", 0, value="fast"), "latency[0]", "expected fields with names"),
    "context negative": (
        perturbed("latency", 0, "context_tokens", value=-1),
        "latency[0].context_tokens",
        "at least 0",
    ),
    "batch 0": (perturbed("latency", 0, "batch_size", value=0), "latency[0].batch_size", "at least 1. Got 0"),
    "timed true": (perturbed("latency", 0, "timed", value=True), "latency[0].timed", "expected text. Got True"),
    "timed otherwise": (
        perturbed("latency", 0, "timed", value="often"),
        "latency[0].timed",
        "expected sampled or greedy. Got 'often'",
    ),
    "disturbed without samples": (
        perturbed("latency", 0, "disturbed", "samples"),
        "latency[0].disturbed.samples",
        "is missing",
    ),
    "disturbed more often than always": (
        perturbed("latency", 0, "disturbed", "calls", value=1.5),
        "latency[0].disturbed.calls",
        "from 0 to 1. Got 1.5",
    ),
    "disturbed by a number of programs": (
        perturbed("latency", 0, "disturbed", "programs", value=3),
        "latency[0].disturbed.programs",
        "unknown field",
    ),
    "disturbed true": (perturbed("latency", 0, "disturbed", value=True), "latency[0].disturbed", "fields with names"),
    "imported empty": (perturbed("latency", 0, "imported", value=[]), "latency[0].imported", r"at least one. Got \[\]"),
    "imported text": (perturbed(*FIRST, "imported", value="f"), "acceptance[0].imported", "at least one. Got 'f'"),
    "prompts without a draft model": (perturbed("prefill", "draft"), "prefill", "expected times of the draft model"),
    "prompts by another name": (perturbed("prefill", "prompt", value=1), "prefill.prompt", "unknown field"),
    "imported from nowhere": (
        perturbed("latency", 0, "imported", 0, "source"),
        "latency[0].imported[0].source",
        "is missing",
    ),
    "unknown field of an import": (
        perturbed("latency", 0, "imported", 0, "when", value="today"),
        "latency[0].imported[0].when",
        "unknown field",
    ),
    "an unknown part imported": (
        perturbed("latency", 0, "imported", 0, "what", value="threads"),
        "latency[0].imported",
        "each at most once. Got 'threads'",
    ),
    "times in an acceptance": (
        perturbed(*FIRST, "imported", 0, "what", value="verify"),
        "acceptance[0].imported",
        "expected acceptance, each at most once. Got 'verify'",
    ),
    "no overhead": (perturbed("latency", 0, "overhead"), "latency[0].overhead", "expected with draft, and only there"),
    "overhead empty": (
        perturbed("latency", 0, "overhead", "samples_s", value=[]),
        "latency[0].overhead.samples_s",
        "at least one finite number",
    ),
    "overheads of rules empty": (
        perturbed("latency", 0, "rule_overheads", value=[]),
        "latency[0].rule_overheads",
        r"at least one. Got \[\]",
    ),
    "overheads of rules by name": (
        perturbed("latency", 0, "rule_overheads", value={"typical": [0.1]}),
        "latency[0].rule_overheads",
        "list of at least one",
    ),
    "overhead of no rule": (
        perturbed("latency", 0, "rule_overheads", 0, "rule"),
        "latency[0].rule_overheads[0].rule",
        "is missing",
    ),
    "overhead of a rule without samples": (
        perturbed("latency", 0, "rule_overheads", 0, "samples_s", value=[]),
        "latency[0].rule_overheads[0].samples_s",
        "at least one finite number",
    ),
    "overhead of a rule in words": (
        perturbed("latency", 0, "rule_overheads", 0, "samples_s", value=["2 ms"]),
        "latency[0].rule_overheads[0].samples_s",
        "list of finite numbers",
    ),
    "unknown field of a rule's overhead": (
        perturbed("latency", 0, "rule_overheads", 0, "nodes", value=8),
        "latency[0].rule_overheads[0].nodes",
        "unknown field",
    ),
    "tokens text": (
        perturbed(*VERIFY_AT, "tokens", value="1 to 64"),
        "latency[0].verify.tokens",
        "list of whole numbers",
    ),
    "tokens 0": (
        perturbed(*VERIFY_AT, "tokens", 0, value=0),
        "latency[0].verify.tokens",
        "increasing counts of at least 1",
    ),
    "tokens 1.5": (perturbed(*VERIFY_AT, "tokens", 0, value=1.5), "latency[0].verify.tokens", "list of whole numbers"),
    "tokens huge": (perturbed(*DRAFT_AT, "tokens", 1, value=2**31), "latency[0].draft.tokens", "list of whole numbers"),
    "samples not nested": (
        perturbed(*DRAFT_AT, "samples_s", value=[0.1, 0.2]),
        "latency[0].draft.samples_s[0]",
        "list of finite numbers. Got 0.1",
    ),
    "samples null": (
        perturbed(*DRAFT_AT, "samples_s", value=None),
        "latency[0].draft.samples_s",
        "list of lists. Got None",
    ),
    "no samples": (perturbed(*VERIFY_AT, "samples_s", 2, value=[]), "latency[0].verify.samples_s[2]", "at least one"),
    "text instead of a number": (
        perturbed(*VERIFY_AT, "samples_s", 1, 2, value="2 ms"),
        "latency[0].verify.samples_s[1]",
        "list of finite numbers",
    ),
    "boolean instead of a number": (
        perturbed(*VERIFY_AT, "samples_s", 1, 2, value=True),
        "latency[0].verify.samples_s[1]",
        "list of finite numbers",
    ),
    "negative seconds": (
        perturbed(*VERIFY_AT, "samples_s", 1, 2, value=-0.1),
        "latency[0].verify.samples_s[1]",
        r"seconds above 0\. Got -0\.1",
    ),
    "no seconds": (
        perturbed(*DRAFT_AT, "samples_s", 0, 0, value=0.0),
        "latency[0].draft.samples_s[0]",
        "above 0. Got 0",
    ),
    "rule a number": (perturbed(*FIRST, "rule", value=1), "acceptance[0].rule", "expected text. Got 1"),
    "temperature negative": (
        perturbed(*FIRST, "temperature", value=-1),
        "acceptance[0].temperature",
        "at least 0. Got -1",
    ),
    "top_p above 1": (perturbed(*FIRST, "top_p", value=1.5), "acceptance[0].top_p", "from 0 to 1. Got 1.5"),
    "prompts 0": (perturbed(*FIRST, "prompts", value=0), "acceptance[0].prompts", "at least 1. Got 0"),
    "no p": (perturbed(*FIRST, "p"), "acceptance[0].p", "is missing"),
    "p empty": (perturbed(*FIRST, "p", value=[]), "acceptance[0].p", "at least one entry"),
    "p of empty rows": (perturbed(*FIRST, "p", value=[[], []]), "acceptance[0].p", "at least one entry"),
    "p text": (perturbed(*FIRST, "p", value="high"), "acceptance[0].p", "list of finite numbers. Got 'high'"),
    "p rows and numbers": (
        perturbed(*FIRST, "p", 0, value=0.5),
        "acceptance[0].p[0]",
        "list of finite numbers. Got 0.5",
    ),
    "p negative": (perturbed(*FIRST, "p", 1, 2, value=-0.5), "acceptance[0].p", r"p\[1, 2\]: .* Got -0\.5"),
    "p above 1": (perturbed(*FIRST, "p", 1, 2, value=1.5), "acceptance[0].p", r"p\[1, 2\]: .* Got 1\.5"),
    "counts negative": (perturbed(*FIRST, "counts", 0, value=-1.0), "acceptance[0].p", "counts: .*at least 0"),
    "p nested too deep": (
        perturbed(*FIRST, "p", value=[[[[0.5]]]]),
        "acceptance[0].p[0][0]",
        r"list of finite numbers. Got \[0\.5\]",
    ),
    "p rows and lists of rows": (
        perturbed(*FIRST, "p", 0, value=[[0.5]]),
        "acceptance[0].p[1][0]",
        "list of finite numbers. Got 0.714",
    ),
    "texts a list": (perturbed(*FIRST, "texts", value=[]), "acceptance[0].texts", "expected fields with names"),
    "texts without sums": (perturbed(*TEXTS_AT, "accepted"), "acceptance[0].texts.accepted", "is missing"),
    "unknown field of texts": (perturbed(*TEXTS_AT, "p", value=1), "acceptance[0].texts.p", "unknown field"),
    "reached not nested": (
        perturbed(*TEXTS_AT, "reached", value=[2048.0]),
        "acceptance[0].texts.reached[0]",
        "list of finite numbers. Got 2048",
    ),
    "reached negative": (
        perturbed(*TEXTS_AT, "reached", 1, 0, value=-1.0),
        "acceptance[0].texts.accepted",
        r"reached: .*at least 0 in shape \(2, 2\)",
    ),
    "accepted not nested": (
        perturbed(*TEXTS_AT, "accepted", 1, value=[1.0, 2.0]),
        "acceptance[0].texts.accepted[1][0]",
        "list of finite numbers. Got 1.0",
    ),
    "accepted a number": (
        perturbed(*TEXTS_AT, "accepted", 1, value=1.0),
        "acceptance[0].texts.accepted[1]",
        "list of lists. Got 1.0",
    ),
    "one text": (
        perturbed("acceptance", 0, "texts", value={"reached": [[9.0]], "accepted": [[[3.0]]]}),
        "acceptance[0].texts.accepted",
        "J at least 2",
    ),
    "counts null": (
        perturbed(*FIRST, "counts", value=None),
        "acceptance[0].counts",
        "list of finite numbers. Got None",
    ),
}

for _sign in ("\x1b", "\n", "\u202e", "\x85"):
    WRONG_SHAPE[f"processor with {_sign!r}"] = (
        perturbed("machine", "processor", value=f"a{_sign}b"),
        "machine.processor",
        r"expected printable text. Got \\\w+: remove it",
    )
    WRONG_SHAPE[f"rule with {_sign!r}"] = (
        perturbed(*FIRST, "rule", value=_sign),
        "acceptance[0].rule",
        "printable text",
    )
for _seconds in (1e300, 1.1e6):
    WRONG_SHAPE[f"{_seconds:g} seconds of a pass"] = (
        perturbed(*VERIFY_AT, "samples_s", 0, 0, value=_seconds),
        "latency[0].verify.samples_s[0]",
        r"expected at most 1e\+06 seconds. Got .*: is it another unit\?",
    )
    WRONG_SHAPE[f"{-_seconds:g} seconds of overhead"] = (
        perturbed("latency", 0, "overhead", "samples_s", 0, value=-_seconds),
        "latency[0].overhead.samples_s",
        r"expected at most 1e\+06 seconds",
    )

# What only the loader refuses: NaN and infinity are in no JSON, lengths and sums in no schema.
WRONG_MEANING = {
    "steps with parents of no tree": (
        perturbed(
            "latency", 0, "steps", value=[{"rule": "sequoia", "trees": [{"parents": [0, 0], "samples_s": [1.0]}]}]
        ),
        "latency[0].steps[0].trees[0].parents",
        "parents",
    ),
    "outcomes of a text too many": (
        perturbed(*FIRST, "outcomes", value=[[0], [0], [0]]),
        "acceptance[0].texts",
        "outcomes: expected those of 2 texts.* Got 3",
    ),
    "disturbed by programs that used nobody knows what": (
        perturbed("latency", 0, "disturbed", "processors"),
        "latency[0].disturbed.calls",
        "processors, samples: expected where calls are disturbed, and only there",
    ),
    "prompts that fall": (
        perturbed("prefill", "target", "tokens", value=[64, 16]),
        "prefill.target.tokens",
        "increasing",
    ),
    "not disturbed, by programs that used something": (
        perturbed("latency", 0, "disturbed", value={"calls": 0.0, "samples": 0.0, "processors": 0.5}),
        "latency[0].disturbed.calls",
        "expected where calls are disturbed",
    ),
    "samples of disturbed calls that there are none of": (
        perturbed("latency", 0, "disturbed", value={"calls": 0.0, "samples": 0.5}),
        "latency[0].disturbed.calls",
        "expected where calls are disturbed",
    ),
    "a condition twice": (repeated("latency"), "latency", "once. Got 256 tokens x 1, greedy twice: remove one"),
    "a rule and temperature twice": (
        repeated("acceptance"),
        "acceptance",
        "once. Got 'sequoia' at temperature 0.6 twice: remove",
    ),
    "a limit within what was timed": (
        perturbed("latency", 0, "limit_tokens", value=64),
        "latency[0].limit_tokens",
        "expected more than 64, timed. Got 64",
    ),
    "a part imported twice": (
        perturbed("latency", 0, "imported", value=[{"what": "draft", "source": name} for name in ("a", "b")]),
        "latency[0].imported",
        "each at most once. Got 'draft'",
    ),
    "version 1.0": (perturbed("version", value=1.0), "version", "whole number.* Got 1.0"),
    "NaN seconds": (
        perturbed(*VERIFY_AT, "samples_s", 0, 0, value=float("nan")),
        "latency[0].verify.samples_s[0]",
        "list of finite numbers",
    ),
    "infinite overhead": (
        perturbed("latency", 0, "overhead", "samples_s", 0, value=float("-inf")),
        "latency[0].overhead.samples_s",
        "list of finite numbers",
    ),
    "overhead of a rule twice": (
        perturbed("latency", 0, "rule_overheads", value=[{"rule": "target", "samples_s": [t]} for t in (0.1, 0.2)]),
        "latency[0].rule_overheads",
        r"each rule once\. Got 'target' twice",
    ),
    "NaN overhead of a rule": (
        perturbed("latency", 0, "rule_overheads", 0, "samples_s", value=[float("nan")]),
        "latency[0].rule_overheads[0].samples_s",
        "list of finite numbers",
    ),
    "NaN acceptance": (
        perturbed(*FIRST, "p", 0, 0, value=float("nan")),
        "acceptance[0].p[0]",
        "list of finite numbers",
    ),
    "NaN temperature": (perturbed(*FIRST, "temperature", value=float("nan")), "acceptance[0].temperature", "Got nan"),
    "seconds overflow": (replaced("0.00191", "1.0e+999"), "latency[0].verify.samples_s[0]", "list of finite numbers"),
    "hexadecimal of 6000 digits": (
        replaced("vocabulary: 256", f"vocabulary: 0x{'f' * 5000}"),
        "pair.vocabulary",
        "Got a number of thousands of digits",
    ),
    "number without end": (
        replaced("temperature: 0.6", f"temperature: 0x{'f' * 5000}"),
        "acceptance[0].temperature",
        "Got a number of thousands of digits",
    ),
    "tokens that do not rise": (
        perturbed(*VERIFY_AT, "tokens", value=[1, 16, 4, 64]),
        "latency[0].verify.tokens",
        r"increasing counts of at least 1\. Got \[1, 16, 4, 64\]",
    ),
    "a token count twice": (
        perturbed(*DRAFT_AT, "tokens", value=[1, 1]),
        "latency[0].draft.tokens",
        "increasing counts",
    ),
    "more tokens than samples": (
        perturbed(*VERIFY_AT, "tokens", value=[1, 4, 16, 64, 128]),
        "latency[0].verify.tokens",
        r"expected 5, one per token count\. Got 4",
    ),
    "fewer tokens than samples": (
        perturbed(*DRAFT_AT, "tokens", value=[1]),
        "latency[0].draft.tokens",
        "expected 1, .* Got 2",
    ),
    "a row that sums to more than 1": (
        perturbed(*FIRST, "p", 1, 1, value=0.5),
        "acceptance[0].p",
        r"Row 1 sums to 1\.31",
    ),
    "rows of different lengths": (perturbed(*FIRST, "p", 0, value=[0.5]), "acceptance[0].p", "as many in every row"),
    "counts too short": (perturbed(*FIRST, "counts", value=[1.0]), "acceptance[0].p", r"counts: .*in shape \(2,\)"),
    "errors of another shape": (
        perturbed(*FIRST, "standard_error", value=[0.1, 0.1]),
        "acceptance[0].p",
        r"standard_error: .*in shape \(2, 3\)\. Got \(2,\)",
    ),
    "errors of different lengths": (
        perturbed(*FIRST, "standard_error", 0, value=[0.1]),
        "acceptance[0].p",
        r"standard_error: expected numbers in shape \(2, 3\)",
    ),
    "more accepted than reached": (
        perturbed(*TEXTS_AT, "reached", 1, 0, value=1800.0),
        "acceptance[0].texts.accepted",
        r"accepted\[1, 0\]: .*at most what was reached, 1800\. Got 1819\.9",
    ),
    "a depth that no position reached": (
        perturbed(
            *FIRST, "texts", value={"reached": [[9.0, 0.0], [8.0, 0.0]], "accepted": [[[3.0], [0.0]], [[2.0], [0.0]]]}
        ),
        "acceptance[0].texts.accepted",
        "reached: expected positions at every depth. Depth 2 has 0",
    ),
    "sums without end": (
        perturbed(*TEXTS_AT, "reached", value=[[1.7e308, 1850.5], [1.6e308, 1850.75]]),
        "acceptance[0].texts.accepted",
        "reached: expected positions at every depth. Depth 1 has inf",
    ),
    "texts of different lengths": (
        perturbed(*TEXTS_AT, "accepted", 0, 0, value=[1516.0]),
        "acceptance[0].texts.accepted",
        "accepted: expected numbers, as many in every row",
    ),
    "as many rows of reached as texts": (
        perturbed(*TEXTS_AT, "reached", value=[[4096.0, 3701.25]]),
        "acceptance[0].texts.accepted",
        r"reached: .*in shape \(2, 2\)\. Got \(1, 2\)",
    ),
    "texts of another table": (
        perturbed(*TEXTS_AT, "accepted", 0, 0, 1, value=250.1),
        "acceptance[0].texts",
        r"texts: expected accepted / reached, .* to be p\[0, 1\] = 0\.12\. Got 0\.120024",
    ),
    "texts of more ranks than the table": (
        perturbed(*FIRST, "texts", value={"reached": [[9.0], [8.0]], "accepted": [[[3.0]], [[2.0]]]}),
        "acceptance[0].texts",
        r"texts: expected sums for p in shape \(2, 3\)\. Got \(1, 1\)",
    ),
}


def cases(table: dict[str, tuple]) -> list:
    return [pytest.param(*case, id=name) for name, case in table.items()]


class TestMalformed:
    def test_unperturbed_document_loads(self, tmp_path):
        (tmp_path / "p.yaml").write_bytes(perturbed("version", value=1))
        check_same(Profile.load(tmp_path / "p.yaml"), GOLDEN)

    @pytest.mark.parametrize(("data", "reason"), cases(NOT_PLAIN_YAML))
    def test_no_yaml_with_names(self, tmp_path, data, reason):
        self.check(tmp_path / "p.yaml", data, "content", reason)

    @pytest.mark.parametrize(("data", "line"), cases(TRICKS))
    def test_tricks(self, tmp_path, data, line):
        self.check(tmp_path / "p.yaml", data, line, "anchors, aliases and tags are not allowed")

    @pytest.mark.parametrize(
        "data", [b"[" * 200_000, b"[" * 20 + b"]" * 20, b"- " * 20 + b"a"], ids=["flow", "closed", "block"]
    )
    def test_deep_nesting(self, tmp_path, data):
        self.check(tmp_path / "p.yaml", data, "line 1", f"nested more than {MAX_NESTING} deep")

    @pytest.mark.parametrize(("data", "field", "reason"), cases(WRONG_SHAPE | WRONG_MEANING))
    def test_wrong_field_raises(self, tmp_path, data, field, reason):
        self.check(tmp_path / "p.yaml", data, field, reason)

    def check(self, path, data, field, reason):
        """Expect an error at once that names the file, the field and the reason, and is short."""
        path.write_bytes(data)
        start = time.perf_counter()
        with pytest.raises(FormatError, match=reason) as caught:
            Profile.load(path)
        assert time.perf_counter() - start < 5
        assert (caught.value.path, caught.value.field) == (path, field)
        assert str(caught.value).startswith(f"{path}: {field}: ")
        assert len(str(caught.value)) < len(str(path)) + 400
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(("data", "field", "reason"), cases(WRONG_SHAPE))
    def test_schema_rejects_it_too(self, data, field, reason):  # noqa: ARG002
        assert not VALIDATOR.is_valid(yaml.safe_load(data))

    def test_schema_is_valid(self):
        VALIDATOR.check_schema(VALIDATOR.schema)


class TestUnreadable:
    def test_missing(self, tmp_path):
        with pytest.raises(TreeoptError, match=r"none\.yaml: no such file"):
            Profile.load(tmp_path / "none.yaml")

    def test_folder(self, tmp_path):
        with pytest.raises(TreeoptError, match=f"{tmp_path}: cannot be read"):
            Profile.load(tmp_path)

    def test_not_utf8(self, tmp_path):
        (tmp_path / "p.yaml").write_bytes(b"format: \xff")
        with pytest.raises(TreeoptError, match=r"p\.yaml: not UTF-8 text \(byte 8\)"):
            Profile.load(tmp_path / "p.yaml")

    def test_too_large(self, tmp_path):
        (tmp_path / "p.yaml").write_bytes(GOLDEN_FILE.read_bytes() + b" " * MAX_BYTES)
        with pytest.raises(TreeoptError, match=r"p\.yaml: larger than 32000000 bytes"):
            Profile.load(tmp_path / "p.yaml")

    def test_no_folder_to_save_in(self, tmp_path):
        with pytest.raises(TreeoptError, match="its folder does not exist"):
            GOLDEN.save(tmp_path / "none" / "p.yaml")


ODD_TOKENS = [
    *(
        b"-1",
        b"0",
        b"1",
        b"1.0",
        b"1e5",
        b"1.0e+999",
        b".nan",
        b"-.inf",
        b"9" * 5000,
        b"0x" + b"f" * 5000,
        b"0b_",
        b"0_",
    ),
    *(b"1:30", b"1:59.5", b"2026-02-30", b"2026-01-01T00:00:00+99:99", b"true", b"~", b"=", b"<<", b"''", b'"\\x00"'),
    *(
        b"[]",
        b"{}",
        b"[[0.5]]",
        b"{a: 1}",
        b"*a",
        b"&a",
        b"!!int",
        b"!",
        b"? ",
        b"- ",
        b": ",
        b"#",
        b"%",
        b"---",
        b"\t",
        b"|",
    ),
    *(b"tokens", b"samples_s", b"p", b"\xef\xbb\xbf", b"\xc2\x85", b"\xe2\x80\xa8"),
]


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with one or two faults: a bit, a byte, a slice gone or doubled, lines swapped, an odd token."""
    for _ in range(rng.randint(1, 2)):
        start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        fault = rng.randrange(7)
        if fault == 0 and start < len(data):
            data = data[:start] + bytes([data[start] ^ 1 << rng.randrange(8)]) + data[start + 1 :]
        elif fault == 1:
            data = data[:start] if rng.random() < 0.2 else data[:start] + data[start + 1 :]
        elif fault == 2:
            data = data[:end] + data[start:end] + data[end:]
        elif fault == 3:
            data = data[:start] + bytes([rng.randrange(256)]) + data[start:]
        elif fault == 4:
            data = data[:start] + data[min(end, start + 8) :]
        elif fault == 5:
            lines = data.split(b"\n")
            one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            data = b"\n".join(lines)
        else:
            at = rng.choice([i for i, byte in enumerate(data) if byte in b"0123456789"] or [0])
            length = len(data[at:]) - len(data[at:].lstrip(b"0123456789.e-"))
            data = data[:at] + rng.choice(ODD_TOKENS) + data[at + max(1, length) :]
    return data


def test_mutated_files_load_or_raise_treeopt_error(tmp_path):
    rng, original = random.Random("seed 1"), GOLDEN_FILE.read_bytes()
    loaded = refused = unnamed = 0
    for number in range(500):
        path = tmp_path / f"{number}.yaml"
        path.write_bytes(mutate(rng, original))
        try:
            result = Profile.load(path)
        except TreeoptError as error:
            unnamed += not str(error).startswith(f"{path}: ")
            refused += 1
        else:
            again = path.with_suffix(".again")
            result.save(again)
            check_same(Profile.load(again), result)
            loaded += 1
    assert unnamed == 0
    assert loaded > 20
    assert refused > 250


class TestTargetOnly:
    """A profile without a draft model."""

    @pytest.fixture
    def alone(self):
        of_draft = ("draft", "draft_parameters", "draft_weight_bytes", "draft_kv_bytes", "draft_source", "draft_digest")
        pair = dataclasses.replace(GOLDEN.pair, **dict.fromkeys(of_draft))
        none = {"draft": None, "overhead": None, "rule_overheads": (), "host": None, "steps": (), "imported": ()}
        latencies = tuple(dataclasses.replace(each, **none) for each in GOLDEN.latencies)
        prefill = PrefillLatency(target=GOLDEN.prefill.target)
        return dataclasses.replace(GOLDEN, pair=pair, latencies=latencies, prefill=prefill, acceptances=())

    def test_target_only_round_trip(self, alone, tmp_path):
        alone.save(tmp_path / "alone.yaml")
        content = yaml.safe_load((tmp_path / "alone.yaml").read_text("utf-8"))
        assert VALIDATOR.is_valid(content)
        assert Profile.load(tmp_path / "alone.yaml") == alone
        assert (alone.has_draft_model, GOLDEN.has_draft_model) == (False, True)

    @pytest.mark.parametrize("part", ["draft", "overhead", "rule_overheads", "host_s", "steps"])
    def test_partial_draft_model_raises(self, alone, part, tmp_path):
        alone.save(tmp_path / "alone.yaml")
        content = yaml.safe_load((tmp_path / "alone.yaml").read_text("utf-8"))
        GOLDEN.save(tmp_path / "golden.yaml")
        golden = yaml.safe_load((tmp_path / "golden.yaml").read_text("utf-8"))["latency"][0]
        content["latency"][0][part] = golden.get(
            part, [{"rule": "sequoia", "trees": [{"parents": [-1], "samples_s": [1.0]}]}]
        )
        assert not VALIDATOR.is_valid(content)
        (tmp_path / "alone.yaml").write_text(yaml.safe_dump(content), "utf-8")
        with pytest.raises(FormatError):
            Profile.load(tmp_path / "alone.yaml")


class TestRecord:
    def test_lookup_by_condition(self):
        assert GOLDEN.latency() is GOLDEN.latency(context_tokens=256) is GOLDEN.latencies[0]
        assert GOLDEN.acceptance() is GOLDEN.acceptance(rule="sequoia") is GOLDEN.acceptances[0]
        assert GOLDEN.acceptance(temperature=0.0) is GOLDEN.acceptance(rule="typical") is GOLDEN.acceptances[1]

    def test_overhead_of_rule_or_of_all(self):
        latency = GOLDEN.latencies[0]
        assert latency.overhead_of("typical") is OF_TYPICAL.overhead
        assert latency.overhead_of("sequoia") is latency.overhead_of("no rule") is OVERHEAD

    def test_duplicate_rule_overhead_raises(self):
        with pytest.raises(InvalidValueError, match=r"rule_overheads: expected each rule once\. Got 'typical' twice"):
            dataclasses.replace(GOLDEN.latencies[0], rule_overheads=(OF_TYPICAL, OF_TYPICAL))

    def test_origins_contain_every_part(self):
        latency, acceptance = GOLDEN.latencies[0], GOLDEN.acceptances[0]
        assert trace_origins([latency], acceptance) == {
            "verify": "costs.json (SGLang cost table)",
            "draft": "measured",
            "overhead": "measured",
            "acceptance": "metrics.txt (vLLM metrics)",
        }
        here = dataclasses.replace(latency, imported=())
        assert trace_origins([here, latency], acceptance)["verify"] == "costs.json (SGLang cost table), measured"
        assert describe_origins([here], GOLDEN.acceptances[1]) == ""
        parts = tuple(Imported(what=part, source="c.csv (CSV)") for part in ("verify", "draft"))
        whole = dataclasses.replace(latency, imported=(*parts, Imported(what="overhead", source=INCLUDED)))
        assert describe_origins([whole], GOLDEN.acceptances[1]) == (
            "verify times, draft times: imported from c.csv (CSV); acceptance: measured"
        )

    @pytest.mark.parametrize("names", [["verify", "verify"], ["acceptance"], ["threads"]], ids=str)
    def test_invalid_imports_raise(self, names):
        imported = tuple(Imported(what=name, source="f") for name in names)
        with pytest.raises(InvalidValueError, match="imported: expected verify, draft, overhead, each at most once"):
            dataclasses.replace(GOLDEN.latencies[0], imported=imported)

    def test_unmeasured_conditions_raise(self):
        with pytest.raises(InfeasibleError, match=r"context 8 tokens x batch 1 .*Measured: 256 tokens x 1"):
            GOLDEN.latency(context_tokens=8)
        with pytest.raises(InfeasibleError, match=r"batch 4 was not measured"):
            GOLDEN.latency(batch_size=4)
        with pytest.raises(InfeasibleError, match=r"rule typical at temperature 1 .*sequoia at 0\.6, typical at 0"):
            GOLDEN.acceptance(rule="typical", temperature=1)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"latencies": ()}, "at least one latency"),
            (
                {"acceptances": ()},
                "a draft model in pair, its times in every latency and its acceptance, or none of them",
            ),
            ({"pair": dataclasses.replace(GOLDEN.pair, draft=None)}, "a draft model in pair"),
            ({"prefill": PrefillLatency(target=GOLDEN.prefill.target)}, "prefill: expected times of the draft model"),
        ],
    )
    def test_missing_parts_raise(self, changes, reason):
        with pytest.raises(InvalidValueError, match=reason):
            dataclasses.replace(GOLDEN, **changes)
