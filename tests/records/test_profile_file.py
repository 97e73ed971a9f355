"""The profile file of docs/reference/profile-file.md: golden bytes, round trips, and invalid files."""

import dataclasses
import math
import random
import re
from itertools import pairwise

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records.profile_contents import DATA, ROOT, VALIDATOR, changed, read_content, repeat_first, write_content
from tests.support.drawn import examples
from tests.support.mutations import mutate
from treeopt.errors import FormatError, InfeasibleError, InvalidValueError, TreeoptError, printable
from treeopt.files import yaml_file
from treeopt.files.yaml_file import MAX_NESTING
from treeopt.records.acceptance import AcceptanceTable, SequenceSums
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.latency import LatencyTable, PrefillLatency, Timing
from treeopt.records.machine import Machine, Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import INCLUDED, Profile, describe_origins, trace_origins
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

GOLDEN_FILE = DATA / "profile-golden.yaml"
PROFILES = [*sorted((ROOT / "docs" / "profiles").glob("*.yaml")), *sorted(DATA.glob("profile-*.yaml"))]
SPECIFICATION = ROOT / "docs" / "reference" / "profile-file.md"
ELSEWHERE = ("drafters", "per_block", "context_tokens", "categories")
"""Keys that other files have, see `test_profile_variants`."""

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
    [[0.73, 0.12, 0.05], [0.7142857143, 0.0, 0.1]],
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
            sampling=Sampling(0.6, top_k=50),
            draft_sampling=Sampling(0.8, 0.95, 40),
            prompts=2,
            positions=4096,
            table=PER_DEPTH,
            sequences=TEXTS,
            imported=(Imported(what="acceptance", source="metrics.txt (vLLM metrics)"),),
            accepted_ranks=AcceptedRanks([[0, 0, -1, 2, 0], [-1, 0, 1]]),
        ),
        MeasuredAcceptance(
            rule="typical", sampling=Sampling(0.0, 0.9), prompts=1, positions=1, table=AcceptanceTable([0.8, 0.1])
        ),
    ),
)


class TestGoldenFile:
    def test_written_bytes(self, tmp_path):
        GOLDEN.save(tmp_path / "p.yaml")
        assert (tmp_path / "p.yaml").read_bytes() == GOLDEN_FILE.read_bytes()

    def test_read_contents(self):
        assert Profile.load(GOLDEN_FILE) == GOLDEN

    @pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
    def test_profiles_of_the_repository_are_written_as_they_were(self, path, tmp_path):
        Profile.load(path).save(tmp_path / "again.yaml")
        assert (tmp_path / "again.yaml").read_bytes() == path.read_bytes()

    def test_the_same_bytes_without_the_c_library(self, tmp_path, monkeypatch):
        monkeypatch.setattr(yaml_file, "_Dumper", yaml.SafeDumper)
        GOLDEN.save(tmp_path / "p.yaml")
        assert (tmp_path / "p.yaml").read_bytes() == GOLDEN_FILE.read_bytes()

    def test_schema_accepts(self):
        VALIDATOR.validate(CONTENT)

    def test_golden_file_has_every_schema_key_in_order(self):
        self.check_keys(CONTENT, VALIDATOR.schema)

    def check_keys(self, content, schema):
        schema = VALIDATOR.schema["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if isinstance(content, dict):
            assert list(content) == [key for key in schema["properties"] if key in content or key not in ELSEWHERE]
            for key, value in content.items():
                self.check_keys(value, schema["properties"][key])
        elif isinstance(content, list) and "items" in schema:
            self.check_keys(content[0], schema["items"])

    def test_example_of_the_specification_is_a_profile(self, tmp_path):
        (example,) = re.findall(r"```yaml\n(.*?)```", SPECIFICATION.read_text("utf-8"), re.DOTALL)
        path = tmp_path / "profile.yaml"
        path.write_text(example, "utf-8")
        VALIDATOR.validate(read_content(path))
        assert Profile.load(path).acceptances[0].table.p.shape == (2, 3)


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
    sequences, depth, branching = draw(st.integers(2, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    reached = draw(arrays([sequences, depth], st.just(0.0) | st.floats(1e-3, 1e6)))
    reached[0] += 0.5
    shares = draw(arrays([sequences, depth, branching], st.floats(0, 1)))
    shares = shares / np.maximum(shares.sum(axis=-1, keepdims=True), 1.0)
    return SequenceSums(reached, shares * reached[:, :, None])


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Draw a profile with the fields of the golden one."""
    texts = iter(draw(st.lists(TEXT, min_size=12, max_size=12, unique=True)))
    shares = st.integers(1, 100_000).map(lambda count: count / 100_000)  # in digits that the file keeps
    interference = st.builds(Interference, calls=shares, samples=shares, processors=shares)
    latency = dataclasses.replace(
        GOLDEN.latencies[0],
        context_tokens=draw(st.integers(0, 2**31)),
        batch_size=draw(WHOLE),
        verify=draw(latency_tables()),
        draft=draw(latency_tables()),
        overhead=Timing(draw(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4)), allow_negative=True),
        rule_overheads=(dataclasses.replace(OF_TYPICAL, rule=next(texts)),),
        sampled=draw(st.none() | st.booleans()),
        imported=(Imported(what=draw(st.sampled_from(LATENCY_PARTS)), source=next(texts)),),
        limit_tokens=None,
        interference=draw(st.none() | st.just(Interference(calls=0.0, samples=0.0)) | interference),
    )
    of_sequences, alone = GOLDEN.acceptances
    sums = draw(sequence_sums())
    ranks = st.lists(
        st.lists(st.integers(-1, 2**31 - 1), max_size=4), min_size=len(sums.reached), max_size=len(sums.reached)
    )
    of_sequences = dataclasses.replace(
        of_sequences,
        rule=next(texts),
        sequences=sums,
        table=sums.table(),
        accepted_ranks=draw(st.none() | ranks.map(AcceptedRanks)),
        draft_sampling=Sampling(draw(st.just(0.0) | st.floats(1e-6, 1e300)), draw(st.floats(1e-300, 1))),
    )
    alone = dataclasses.replace(
        alone,
        rule=next(texts),
        sampling=Sampling(draw(st.just(0.0) | st.floats(1e-6, 1e300)), draw(st.floats(1e-300, 1))),
        prompts=draw(st.none() | WHOLE),
        table=draw(acceptance_tables()),
    )
    machine = dataclasses.replace(MACHINE, device=next(texts), processor=next(texts), threads=draw(st.none() | WHOLE))
    return dataclasses.replace(
        GOLDEN,
        created=next(texts),
        tool=next(texts),
        machine=machine,
        pair=dataclasses.replace(PAIR, target=next(texts), vocabulary=draw(st.none() | WHOLE)),
        latencies=(latency,),
        acceptances=(of_sequences, alone),
    )


class TestRoundTrip:
    @settings(deadline=None, derandomize=True, max_examples=examples(120, fast=10))
    @given(profiles())
    def test_round_trip(self, tmp_path_factory, profile):
        path = tmp_path_factory.getbasetemp() / "round-trip.yaml"
        profile.save(path)
        result, text = Profile.load(path), path.read_bytes()
        VALIDATOR.validate(yaml.safe_load(text))
        result.save(path)
        assert path.read_bytes() == text

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

    @pytest.mark.parametrize(
        "where",
        [
            *("latency[0].rule_overheads", "latency[0].timed", "latency[0].imported", "latency[0].interference"),
            *("acceptance[0].imported", "prefill"),
        ],
    )
    def test_optional_field_stays_absent(self, tmp_path, where):
        content = changed(CONTENT, (where, ...))
        (tmp_path / "p.yaml").write_bytes(write_content(content))
        Profile.load(tmp_path / "p.yaml").save(tmp_path / "again.yaml")
        assert read_content(tmp_path / "again.yaml") == content

    def test_file_without_sequences_loads(self, tmp_path):
        without = changed(CONTENT, ("acceptance[0].sequences", ...), ("acceptance[0].accepted_ranks", ...))
        (tmp_path / "p.yaml").write_bytes(write_content(without))
        result = Profile.load(tmp_path / "p.yaml").acceptances[0]
        assert result.sequences is None
        np.testing.assert_allclose(result.table.p, PER_DEPTH.p, rtol=5.1e-10)

    def test_any_yaml_layout_loads(self, tmp_path):
        content = dict(reversed(CONTENT.items()))
        block = yaml.safe_dump(content, sort_keys=False, default_flow_style=False, indent=5)
        flow = yaml.safe_dump(content, sort_keys=False, default_flow_style=True, width=40)
        for name, text in {"block": f"# a remark\n---\n{block}", "flow": "\ufeff" + flow.replace("\n", "\r\n")}.items():
            (tmp_path / name).write_bytes(text.encode())
            assert Profile.load(tmp_path / name) == GOLDEN


CONTENT = read_content(GOLDEN_FILE)


def replaced(old: str, new: str) -> bytes:
    text = GOLDEN_FILE.read_text("utf-8")
    assert text.count(old) == 1
    return text.replace(old, new).encode()


LAUGHS = "a: &a [ha, ha]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghi"))

NOT_PLAIN_YAML = {
    "empty": (b"", "expected fields with names"),
    "list": (b"- a\n- b\n", "expected fields with names"),
    "names that are numbers": (b"1: 2\n", "expected fields with names"),
    "two documents": (GOLDEN_FILE.read_bytes() + b"---\na: 1\n", r"expected YAML .*single document"),
    "cut short": (GOLDEN_FILE.read_bytes().rstrip()[:-1], "expected YAML"),
    "control characters": (b"a: \x07\n", "expected YAML .*control characters"),
    "key twice": (
        replaced("version: 1\n", "version: 1\nversion: 1\n"),
        r"expected YAML \(line 1: a field appears twice",
    ),
    "merged keys": (replaced("{device: cpu,", "{<<: {device: cpu},"), "line 5: merging with << is not allowed"),
    "5000 digits": (replaced("version: 1", f"version: {'9' * 5000}"), "expected YAML .*digits"),
}

TRICKS = {
    "billion laughs": (LAUGHS.encode(), "line 1"),
    "anchor": (replaced("version: 1", "version: &v 1"), "line 2"),
    "tag": (replaced("version: 1", "version: !!int 1"), "line 2"),
    "tag of code": (b"!!python/object/apply:os.system [exit]", "line 1"),
}

Case = tuple[object, ...]
"""Path of the changed value, the new value or `...` for none, the reason, and the field that the error names if it is another."""
TIMED = {"parents": [-1, 0], "samples_s": [0.1]}
WRONG_SHAPE: list[Case] = [
    ("format", ..., "is missing"),
    ("format", "treeopt-tree", "'treeopt-profile'. Got 'treeopt-tree'"),
    ("version", ..., "is missing"),
    ("version", 2, "expected 1. Got 2: update treeopt"),
    ("version", True, "whole number.* Got True"),
    ("machine.threads", 0, "at least 1. Got 0"),
    ("machine", "mine", "expected fields with names"),
    ("pair.vocabulary", 2**63, "whole number.* Got 922337203685477"),
    ("acceptance[0].temperature", 10**400, r"Got 1000.*\.\.\."),
    ("latency[0].steps", [{"rule": "sequoia", "trees": []}], "at least one", "latency[0].steps[0].trees"),
    ("acceptance[0].accepted_ranks", [[0], [-2]], "at least -1"),
    ("acceptance[0].accepted_ranks", [0, 1], "whole numbers", "acceptance[0].accepted_ranks[0]"),
    ("note", "hello", "unknown field"),
    ("latency[0].verify.unit", "s", "unknown field"),
    (
        "latency[0].steps",
        [{"rule": "sequoia", "trees": [{**TIMED, "note": "x"}]}],
        "unknown field",
        "latency[0].steps[0].trees[0].note",
    ),
    ("latency", ..., "is missing"),
    ("latency", [], r"at least one. Got \[\]"),
    ("latency[0].batch_size", 0, "at least 1. Got 0"),
    ("latency[0].timed", "often", "expected sampled or greedy. Got 'often'"),
    ("latency[0].interference.samples", ..., "is missing"),
    ("latency[0].interference.calls", 1.5, "from 0 to 1. Got 1.5"),
    ("latency[0].imported", [], r"at least one. Got \[\]"),
    ("prefill.draft", ..., "expected times of the draft model", "prefill"),
    ("latency[0].imported[0].what", "threads", "each at most once. Got 'threads'", "latency[0].imported"),
    (
        "acceptance[0].imported[0].what",
        "verify",
        "expected acceptance, each at most once. Got 'verify'",
        "acceptance[0].imported",
    ),
    ("latency[0].overhead", ..., "expected with draft, and only there"),
    ("latency[0].overhead.samples_s", [], "at least one finite number"),
    ("latency[0].rule_overheads", {"typical": [0.1]}, "list of at least one"),
    ("latency[0].verify.tokens[0]", 0, "increasing counts of at least 1", "latency[0].verify.tokens"),
    ("latency[0].draft.tokens[1]", 2**31, "list of whole numbers", "latency[0].draft.tokens"),
    ("latency[0].draft.samples_s", [0.1, 0.2], "list of finite numbers. Got 0.1", "latency[0].draft.samples_s[0]"),
    ("latency[0].verify.samples_s[2]", [], "at least one"),
    ("latency[0].verify.samples_s[1][2]", -0.1, r"seconds above 0\. Got -0\.1", "latency[0].verify.samples_s[1]"),
    ("acceptance[0].rule", 1, "expected text. Got 1"),
    ("acceptance[0].top_p", 1.5, "from 0 to 1. Got 1.5"),
    ("acceptance[0].p", ..., "is missing"),
    ("acceptance[0].p", [], "at least one entry"),
    ("acceptance[0].p[0]", 0.5, "list of finite numbers. Got 0.5"),
    ("acceptance[0].p[1][2]", 1.5, r"p\[1, 2\]: .* Got 1\.5", "acceptance[0].p"),
    ("acceptance[0].counts[0]", -1.0, "counts: .*at least 0", "acceptance[0].counts"),
    ("acceptance[0].p", [[[[0.5]]]], r"list of finite numbers. Got \[0\.5\]", "acceptance[0].p[0][0]"),
    ("acceptance[0].sequences.accepted", ..., "is missing"),
    (
        "acceptance[0].sequences.reached",
        [2048.0],
        "list of finite numbers. Got 2048",
        "acceptance[0].sequences.reached[0]",
    ),
    (
        "acceptance[0].sequences",
        {"reached": [[9.0]], "accepted": [[[3.0]]]},
        "J at least 2",
        "acceptance[0].sequences.accepted",
    ),
    ("machine.processor", "a\x1bb", r"expected printable text. Got \\\w+: remove it"),
    ("machine.processor", "a\u202eb", "expected printable text"),
    (
        "latency[0].verify.samples_s[0][0]",
        1.1e6,
        r"expected at most 1e\+06 seconds. Got .*: is it another unit\?",
        "latency[0].verify.samples_s[0]",
    ),
    ("latency[0].host_s[0]", 1.1e6, r"at most 1e\+06 seconds", "latency[0].host_s"),
    ("latency[0].overhead.samples_s[0]", -1.1e6, r"at most 1e\+06 seconds", "latency[0].overhead.samples_s"),
]
"""Refused by the schema and by the loader."""
WRONG_MEANING: list[Case] = [
    (
        "latency[0].steps",
        [{"rule": "sequoia", "trees": [{"parents": [0, 0], "samples_s": [1.0]}]}],
        "parents",
        "latency[0].steps[0].trees[0].parents",
    ),
    (
        "acceptance[0].accepted_ranks",
        [[0], [0], [0]],
        "accepted_ranks: expected those of 2 sequences.* Got 3",
        "acceptance[0].sequences",
    ),
    (
        "latency[0].interference.processors",
        ...,
        "processors, samples: expected where calls are disturbed, and only there",
        "latency[0].interference.calls",
    ),
    (
        "latency[0].interference",
        {"calls": 0.0, "samples": 0.5},
        "expected where calls are disturbed",
        "latency[0].interference.calls",
    ),
    ("latency[0].limit_tokens", 64, "expected more than 64, timed. Got 64"),
    (
        "latency[0].imported",
        [{"what": "draft", "source": name} for name in ("a", "b")],
        "each at most once. Got 'draft'",
    ),
    ("version", 1.0, "whole number.* Got 1.0"),
    (
        "latency[0].rule_overheads",
        [{"rule": "target", "samples_s": [t]} for t in (0.1, 0.2)],
        r"each rule once\. Got 'target' twice",
    ),
    ("acceptance[0].temperature", float("nan"), "Got nan"),
    ("latency[0].verify.tokens", [1, 16, 4, 64], r"increasing counts of at least 1\. Got \[1, 16, 4, 64\]"),
    ("latency[0].verify.tokens", [1, 4, 16, 64, 128], r"expected 5, one per token count\. Got 4"),
    ("acceptance[0].p[1][1]", 0.5, r"Row 1 sums to 1\.31", "acceptance[0].p"),
    ("acceptance[0].p[0]", [0.5], "as many in every row", "acceptance[0].p"),
    ("acceptance[0].counts", [1.0], r"counts: .*in shape \(2,\)"),
    (
        "acceptance[0].standard_error",
        [0.1, 0.1],
        r"standard_error: .*in shape \(2, 3\)\. Got \(2,\)",
    ),
    (
        "acceptance[0].sequences.reached[1][0]",
        1800.0,
        r"accepted\[1, 0\]: .*at most what was reached, 1800\. Got 1819\.9",
        "acceptance[0].sequences.accepted",
    ),
    (
        "acceptance[0].sequences",
        {"reached": [[9.0, 0.0], [8.0, 0.0]], "accepted": [[[3.0], [0.0]], [[2.0], [0.0]]]},
        "reached: expected positions at every depth. Depth 2 has 0",
        "acceptance[0].sequences.reached",
    ),
    (
        "acceptance[0].sequences.reached",
        [[1.7e308, 1850.5], [1.6e308, 1850.75]],
        "reached: expected positions at every depth. Depth 1 has inf",
    ),
    (
        "acceptance[0].sequences.reached",
        [[4096.0, 3701.25]],
        r"reached: .*in shape \(2, 2\)\. Got \(1, 2\)",
    ),
    (
        "acceptance[0].sequences.accepted[0][0][1]",
        250.1,
        r"sequences: expected accepted / reached, .* to be p\[0, 1\] = 0\.12\. Got 0\.120024",
        "acceptance[0].sequences",
    ),
    (
        "acceptance[0].sequences",
        {"reached": [[9.0], [8.0]], "accepted": [[[3.0]], [[2.0]]]},
        r"sequences: expected sums for p in shape \(2, 3\)\. Got \(1, 1\)",
    ),
]
"""Refused by the loader alone; what the records refuse is tested with them."""
WRONG_TEXT = {
    "created as a date": (replaced("'2026-11-20T11:12:00Z'", "2026-11-20"), "created", "expected text. Got date"),
    "a condition twice": (
        write_content(changed(CONTENT, ("latency", repeat_first))),
        "latency",
        "once. Got 256 tokens x 1, greedy twice: remove one",
    ),
    "a rule and temperature twice": (
        write_content(changed(CONTENT, ("acceptance", repeat_first))),
        "acceptance",
        "once. Got 'sequoia' at temperature 0.6 twice: remove",
    ),
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
}


def cases(table: dict[str, tuple]) -> list:
    return [pytest.param(*case, id=name) for name, case in table.items()]


class TestMalformed:
    @pytest.mark.parametrize(("data", "reason"), cases(NOT_PLAIN_YAML))
    def test_content_that_is_no_yaml_mapping_raises(self, tmp_path, data, reason):
        self.check(tmp_path / "p.yaml", data, "content", reason)

    @pytest.mark.parametrize(("data", "line"), cases(TRICKS))
    def test_anchors_and_tags_raise(self, tmp_path, data, line):
        self.check(tmp_path / "p.yaml", data, line, "anchors, aliases and tags are not allowed")

    @pytest.mark.parametrize(
        "data", [b"[" * 200_000, b"[" * 20 + b"]" * 20, b"- " * 20 + b"a"], ids=["flow", "closed", "block"]
    )
    def test_deep_nesting_raises(self, tmp_path, data):
        self.check(tmp_path / "p.yaml", data, "line 1", f"nested more than {MAX_NESTING} deep")

    @pytest.mark.parametrize(("data", "field", "reason"), cases(WRONG_TEXT))
    def test_wrong_text_raises(self, tmp_path, data, field, reason):
        self.check(tmp_path / "p.yaml", data, field, reason)

    @pytest.mark.parametrize("case", [*WRONG_SHAPE, *WRONG_MEANING], ids=lambda case: f"{case[0]} {case[1]!r:.30}")
    def test_wrong_field_raises(self, tmp_path, case):
        path, value, reason, *field = case
        self.check(tmp_path / "p.yaml", write_content(changed(CONTENT, (path, value))), *(field or [path]), reason)

    def check(self, path, data, field, reason):
        """Check that the error names the file, the field and the reason, and is short."""
        path.write_bytes(data)
        with pytest.raises(FormatError, match=reason) as caught:
            Profile.load(path)
        assert (caught.value.path, caught.value.field) == (path, field)
        assert str(caught.value).startswith(f"{path}: {field}: ")
        assert len(str(caught.value)) < len(str(path)) + 400
        assert "\n" not in str(caught.value)

    def test_schema_rejects_wrong_shapes(self):
        accepted = [case for case in WRONG_SHAPE if VALIDATOR.is_valid(changed(CONTENT, case[:2]))]
        assert accepted == []

    def test_schema_is_valid(self):
        VALIDATOR.check_schema(VALIDATOR.schema)


def test_mutated_files_load_or_raise_treeopt_error(tmp_path):
    rng, original = random.Random("seed 1"), GOLDEN_FILE.read_bytes()
    loaded = refused = unnamed = 0
    for number in range(200):
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
            text = again.read_bytes()
            Profile.load(again).save(again)
            assert again.read_bytes() == text
            loaded += 1
    assert unnamed == 0
    assert loaded > 5
    assert refused > 100


class TestTargetOnly:
    """A profile without a draft model."""

    @pytest.fixture
    def alone(self):
        of_draft = ("draft", "draft_parameters", "draft_weight_bytes", "draft_kv_bytes", "draft_source", "draft_digest")
        pair = dataclasses.replace(GOLDEN.pair, **dict.fromkeys(of_draft))
        none = {"draft": None, "overhead": None, "rule_overheads": (), "host": None, "steps": (), "imported": ()}
        latencies = tuple(dataclasses.replace(item, **none) for item in GOLDEN.latencies)
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
        assert GOLDEN.acceptance() is GOLDEN.acceptance(rule="sequoia") is GOLDEN.acceptances[0]
        assert GOLDEN.acceptance(temperature=0.0) is GOLDEN.acceptance(rule="typical") is GOLDEN.acceptances[1]
        lossy_first = dataclasses.replace(GOLDEN, acceptances=GOLDEN.acceptances[::-1])
        assert lossy_first.acceptance() is GOLDEN.acceptances[0]

    def test_overhead_of_rule_or_of_all(self):
        latency = GOLDEN.latencies[0]
        assert latency.overhead_of("typical") is OF_TYPICAL.overhead
        assert latency.overhead_of("sequoia") is latency.overhead_of("no rule") is OVERHEAD

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

    def test_interference_of_more_than_all_processors_raises(self):
        with pytest.raises(InvalidValueError, match=r"processors: expected a share from 0 to 1\. Got 1\.5"):
            Interference(calls=0.5, samples=0.0, processors=1.5)

    def test_unmeasured_conditions_raise(self):
        contexts = tuple(dataclasses.replace(GOLDEN.acceptances[0], context_tokens=context) for context in (256, 512))
        several = dataclasses.replace(GOLDEN, acceptances=(*contexts, GOLDEN.acceptances[1]))
        for profile in (GOLDEN, several):
            with pytest.raises(
                InfeasibleError, match=r"rule typical at temperature 1 .*: sequoia at 0\.6, typical at 0\."
            ):
                profile.acceptance(rule="typical", temperature=1)

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
