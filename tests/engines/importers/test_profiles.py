"""Profiles of imported parts: reported sources, refusals, and mutated files of every kind."""

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.cli.invented import call, invented, solved_json
from tests.engines.importers.samples import ACCEPTANCE_FILES, LATENCY_FILES
from tests.support.drawn import examples
from treeopt import planner
from treeopt.engines.importers import imported_profile, read_acceptance, read_latency, step_latencies
from treeopt.errors import InfeasibleError, InvalidValueError, TreeoptError
from treeopt.planner import Confidence, Plan, plan
from treeopt.records.profile import INCLUDED, Profile
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import Imported
from treeopt.report.plan_warnings import plan_warnings
from treeopt.trees import load_file

DRAFT = "tokens,seconds,batch\n1,0.0005,1\n32,0.0006,1\n1,0.001,4\n32,0.0012,4\n"


@pytest.fixture
def folder(tmp_path):
    for name, text in (LATENCY_FILES | ACCEPTANCE_FILES | {"draft.csv": DRAFT}).items():
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def drafts(folder):
    return read_latency(folder / "draft.csv", drafts=True)


def acceptance(folder, name="rates.json"):
    return read_acceptance(folder / name, sampling=Sampling(), rule="sequoia")


def with_times(profile, curves):
    """Return a profile with imported times at its first context."""
    return dataclasses.replace(profile, latencies=step_latencies(curves, profile.latencies, context_tokens=256))


def everything(folder, curve="costs.json", table="rates.json"):
    return imported_profile(
        [*read_latency(folder / curve), *drafts(folder)],
        [acceptance(folder, table)],
        context_tokens=1024,
        target="T",
        draft="D",
    )


class TestAllImported:
    def test_missing_facts_are_unknown(self, folder):
        profile = everything(folder)
        profile.save(folder / "p.yaml")
        content = yaml.safe_load((folder / "p.yaml").read_bytes())
        assert content["machine"] | content["pair"] == {
            **dict.fromkeys(("processor", "system", "python", "torch", "dtype"), "unknown"),
            "device": "imported",
            "target": "T",
            "draft": "D",
        }
        assert {"prompts", "positions", "sequences", "counts"} & set(content["acceptance"][0]) == set()
        again = Profile.load(folder / "p.yaml")
        assert (again.machine, again.pair) == (profile.machine, profile.pair)
        assert [latency.imported for latency in again.latencies] == [latency.imported for latency in profile.latencies]

    def test_imported_whole_steps_have_zero_overhead(self, folder):
        latency = everything(folder).latencies[0]
        assert (latency.context_tokens, latency.overhead.samples_s.tolist()) == (1024, [0.0])
        source = "costs.json (TensorRT-LLM cost table)"
        assert latency.imported == (
            Imported(what="verify", source=source),
            Imported(what="draft", source="draft.csv (CSV)"),
            Imported(what="overhead", source=INCLUDED),
        )

    def test_plan_uses_the_imported_numbers(self, folder):
        """The chain of 3 yields 1 + .71 + .52 + .38 tokens in 3 drafts and a pass over 4 nodes, 14.2 ms."""
        profile = everything(folder)
        prediction = planner.step_model(profile).predict(planner.planning.chain(3))
        assert prediction.tokens_per_step.value == pytest.approx(2.61)
        draft_s = 0.0005
        assert prediction.step_s.value == pytest.approx(0.0142 + 3 * draft_s)
        assert prediction.speedup.value == pytest.approx(2.61 * 0.0112 / (0.0142 + 3 * draft_s))
        assert plan(profile, 4).choice.kind == "chain"

        assert [latency.batch_size for latency in profile.latencies] == [1, 4]
        tokens = plan(everything(folder, table="metrics.txt"), 4, batch_size=4).chain.tokens_per_step
        assert tokens.low < tokens.value < tokens.high  # counts give intervals

    def test_missing_and_repeated_curves_are_refused(self, folder):
        missing = r"draft_latency: expected times of drafting for 8 tokens of context x batch 1, as in samples\.json"
        with pytest.raises(InfeasibleError, match=missing):
            step_latencies(read_latency(folder / "samples.json"), context_tokens=8)
        with pytest.raises(InfeasibleError, match=r"^latency: expected times of verification"):
            step_latencies(drafts(folder), context_tokens=8)
        twice = [*read_latency(folder / "samples.json"), *read_latency(folder / "curve.csv")]
        with pytest.raises(InvalidValueError, match=r"verify: expected one .* samples\.json .* and curve\.csv"):
            step_latencies(twice, context_tokens=8)


class TestWithMeasurements:
    def test_measured_and_imported_drafting_is_kept(self, folder):
        """Operating points that were not imported are left out."""
        measured = invented(conditions=[(256, 1), (4096, 1)])
        profile = with_times(measured, read_latency(folder / "samples.json"))
        (latency,) = profile.latencies
        assert latency.context_tokens == 256
        assert latency.draft is measured.latencies[0].draft
        assert latency.verify.max_tokens == 64
        assert latency.overhead.samples_s.tolist() == [0.0]
        assert [part.what for part in latency.imported] == ["verify", "overhead"]
        assert profile.acceptances == measured.acceptances
        again = with_times(profile, drafts(folder)[:1])
        assert [part.what for part in again.latencies[0].imported] == ["verify", "draft", "overhead"]

    def test_imported_drafting_replaces_only_drafting(self, folder):
        measured = dataclasses.replace(invented().latencies[0], sampled=True)
        (latency,) = step_latencies(drafts(folder)[:1], [measured], context_tokens=256)
        assert (latency.verify, latency.overhead) == (measured.verify, measured.overhead)
        assert latency.sampled is True
        assert [part.what for part in latency.imported] == ["draft"]

    def test_imported_overhead(self, folder):
        (latency,) = step_latencies(read_latency(folder / "curve.csv"), context_tokens=256, sampled=False)
        np.testing.assert_allclose(latency.overhead.samples_s, [0.0005])
        assert latency.sampled is False
        assert {part.source for part in latency.imported} == {"curve.csv (CSV)"}


class TestReportedSources:
    LINE = (
        "verify times: imported from samples.json (SGLang cost table); draft times: measured; "
        "acceptance: imported from rates.json (rates per position)"
    )

    @pytest.fixture
    def mixed(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        measured = dataclasses.replace(invented(), acceptances=(acceptance(folder),))
        return with_times(measured, read_latency(folder / "samples.json"))

    def test_solve_and_export_name_sources(self, mixed):
        mixed.save("profile.yaml")
        result = call("solve", "--profile", "profile.yaml", "--budget", 4, "-o", "tree.json")
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[1] == self.LINE
        assert load_file("tree.json").provenance.source == f"profile.yaml; {self.LINE}"
        result = call("export", "profile.yaml", "--to", "sglang", "-o", "flags.txt")
        assert result.exit_code == 0, result.output
        provenance = Path("flags.txt.provenance.json").read_text("utf-8")
        assert "samples.json (SGLang cost table)" in provenance
        assert "rates.json (rates per position)" in provenance

    def test_json_contains_sources_and_a_warning_of_numbers_without_errors(self, folder, mixed):
        solved = solved_json(folder, mixed, "--budget", 4)
        assert solved["origins"] == {
            "verify": "samples.json (SGLang cost table)",
            "draft": "measured",
            "overhead": INCLUDED,
            "acceptance": "rates.json (rates per position)",
        }
        (warning,) = solved["warnings"]
        assert warning.startswith("imported without uncertainty: acceptance, verification time. Intervals")
        counted = dataclasses.replace(invented(), acceptances=(acceptance(folder, "counts.json"),))
        assert not any("uncertainty" in warning for warning in solved_json(folder, counted, "--budget", 4)["warnings"])

    def test_uncertain_choice_from_imports_is_one_warning(self, mixed, monkeypatch):
        unsure = Confidence(probability=0.5, if_exact={"draft": 0.75})
        monkeypatch.setattr(Plan, "confidence", unsure)
        (warning,) = plan_warnings(plan(mixed, 4))
        assert "is only 50 %" in warning.problem
        assert "Imported without uncertainty: acceptance, verification time." in warning.problem
        assert warning.action == "Profile with a longer --time-budget, or more --rounds."

    def test_measured_profile_mentions_no_imports(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert set(solved_json(tmp_path, invented(), "--budget", 4)["origins"].values()) == {"measured"}


def test_curves_without_a_context_hold_at_named_contexts(tmp_path):
    verify = read_latency(written(tmp_path / "v.csv", b"tokens,ms,context\n1,10,0\n8,11,0\n1,12,512\n8,14,512\n"))
    draft = read_latency(written(tmp_path / "d.csv", b"tokens,ms\n1,1\n"), drafts=True)
    steps = step_latencies([*verify, *draft], context_tokens=256)
    assert [(step.context_tokens, step.verify.medians_s[0], step.draft.medians_s[0]) for step in steps] == [
        (0, 0.010, 0.001),
        (512, 0.012, 0.001),
    ]
    alone = read_latency(written(tmp_path / "a.csv", b"tokens,ms\n1,10\n8,11\n"))
    assert [latency.context_tokens for latency in step_latencies([*alone, *draft], context_tokens=256)] == [256]
    with pytest.raises(InvalidValueError, match="verify: expected one for 0 tokens"):
        step_latencies([*verify, *alone, *draft], context_tokens=256)


def test_contexts_of_other_batch_sizes_are_ignored(tmp_path):
    verify = read_latency(written(tmp_path / "v.csv", b"tokens,ms,context,batch\n1,10,512,1\n1,12,1024,4\n"))
    draft = read_latency(written(tmp_path / "d.csv", b"tokens,ms,batch\n1,1,1\n1,2,4\n"), drafts=True)
    steps = step_latencies([*verify, *draft], context_tokens=256)
    assert [(step.context_tokens, step.batch_size, step.draft.medians_s[0]) for step in steps] == [
        (512, 1, 0.001),
        (1024, 4, 0.002),
    ]


UNEXPECTED = (
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"9" * 5000,
    b"null",
    b"[]",
    b"{}",
    b'""',
    b",",
    b"\n",
    b"\xff",
    b"\x00",
    b"#",
    b'"',
)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with one or two faults."""
    for _ in range(rng.randint(1, 2)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.randint(1, 8))
        fault = rng.choice(["bit", "cut", "gone", "unexpected", "twice"])
        if fault == "bit" and start < len(data):
            data = data[:start] + bytes([data[start] ^ 1 << rng.randrange(8)]) + data[start + 1 :]
        elif fault == "cut" and rng.random() < 0.3:
            data = data[:start]
        elif fault == "gone":
            data = data[:start] + data[end:]
        elif fault == "unexpected":
            data = data[:start] + rng.choice(UNEXPECTED) + data[end:]
        else:
            data = data[:end] + data[start:end] + data[end:]
    return data


@pytest.mark.parametrize("name", [*LATENCY_FILES, *ACCEPTANCE_FILES, "vector.pt"])
def test_mutated_files_are_read_or_refused(tmp_path, name):
    """A profile of what is read is the same after saving and loading."""
    original = (LATENCY_FILES | ACCEPTANCE_FILES).get(name, "").encode() or vector(tmp_path)
    rng, profiles, refusals = random.Random(name), [], 0
    curve = read_latency(written(tmp_path / "whole.csv", b"tokens,ms,pass\n1,10,verify\n8,20,verify\n1,1,draft\n"))
    table = read_acceptance(written(tmp_path / "whole.json", b"[0.5]"), sampling=Sampling(), rule="sequoia")
    draft = dataclasses.replace(curve[0], verify=None)
    for content in [original, *(mutated(rng, original) for _ in range(examples(120, fast=60)))]:
        path = written(tmp_path / name, content)
        try:
            latencies, tables = curve, [table]
            if name in LATENCY_FILES:
                latency = read_latency(path)[0]
                if latency.batch_size == 1 and latency.verify is not None:
                    latencies = [dataclasses.replace(latency, draft=None, context_tokens=None), draft]
            else:
                tables = [read_acceptance(path, sampling=Sampling(), rule="sequoia")]
            profiles.append(imported_profile(latencies, tables, context_tokens=2))
        except TreeoptError as error:
            assert "\n" not in str(error)  # noqa: PT017, one line is what the command prints
            refusals += 1
    assert refusals > 0
    for profile in profiles[:10]:
        profile.save(tmp_path / "p.yaml")
        saved = (tmp_path / "p.yaml").read_bytes()
        Profile.load(tmp_path / "p.yaml").save(tmp_path / "p.yaml")
        assert (tmp_path / "p.yaml").read_bytes() == saved


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def vector(tmp_path: Path) -> bytes:
    import torch

    torch.save(torch.tensor([0.0, 0.6, 0.2, 0.1, 0.1]), tmp_path / "whole.pt")
    return (tmp_path / "whole.pt").read_bytes()
