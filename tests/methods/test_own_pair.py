"""All methods on a pair that is not bundled; those that cannot run are rows with a reason."""

from dataclasses import replace

import pytest
import torch

from tests.cli.invented import TABLE, invented
from tests.methods.toys import little_rows, option_of
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.methods import running
from treeopt.methods.bench import bench_methods
from treeopt.methods.method import Method
from treeopt.methods.names import NAMES
from treeopt.planner import step_model
from treeopt.planner.segments import fastest_length
from treeopt.profiler.bench.compare import Workload
from treeopt.records.results import MethodRow, NotRun
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.trees import chain

HEADS = ["medusa", "dflash", "dspark", "ddtree", "redrafter", "eagle", "p-eagle"]


@pytest.fixture(scope="module")
def rows(target, draft, prompts):
    return little_rows(target, draft, prompts, names=["all"], temperatures=[0.0])


def test_every_method_has_a_row_in_the_order_of_the_table(rows):
    assert [row.method for row in rows] == list(NAMES)
    assert [row.method for row in rows if isinstance(row, NotRun)] == HEADS


def test_heads_of_another_target_are_refused_with_their_reason(rows):
    for row in rows:
        if isinstance(row, NotRun):
            assert row.temperature == 0.0
            assert row.reason.startswith("heads: ")
            assert "--drafter" in row.reason


def test_the_others_ran(rows):
    ran = [row for row in rows if isinstance(row, MethodRow)]
    assert len(ran) == len(NAMES) - len(HEADS)
    assert [row.method for row in ran if not row.lossless] == []


def test_times_are_above_the_clock_resolution(rows):
    for row in rows:
        if isinstance(row, MethodRow):
            assert min(each for each in (row.step_s, row.draft_s, row.verify_s, row.overhead_s) if each != 0) > 1e-8


def test_only_learning_has_assumptions(rows):
    assert [row.method for row in rows if isinstance(row, MethodRow) and row.assumed] == ["osd"]


@pytest.mark.slow
def test_target_run_by_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the hf extra")
    from treeopt.runtime.models.hf.loading import load_adapter

    def model(layers, name):
        torch.manual_seed(layers)
        sizes = {"vocab_size": 61, "n_embd": 32, "n_layer": layers, "n_head": 4, "n_positions": 256}
        config = transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / name)
        return load_adapter(tmp_path / name)

    texts = [torch.randint(61, (9,), generator=torch.Generator().manual_seed(seed)).tolist() for seed in range(6)]
    found = little_rows(model(2, "large"), model(1, "small"), texts, names=["all"], temperatures=[0.7])
    assert [row.method for row in found] == list(NAMES)
    assert [row.method for row in found if isinstance(row, NotRun)] == ["osd", *HEADS]
    assert all(row.lossless for row in found if isinstance(row, MethodRow))


def test_method_that_fails_while_decoding_is_not_run(target, prompts):
    def make(fault_after=0):
        decoder = Decoder(target, None, chain(0), temperature=0.0)
        start, texts = decoder.start, []

        def counted(prompt, **options):
            texts.append(prompt)
            if fault_after and len(texts) > fault_after:
                raise InfeasibleError("cache: no room for this prompt")
            start(prompt, **options)

        decoder.start = counted
        return decoder

    def method(name, **options):
        return Method(name=name, option=option_of(chain(0)), build=lambda: make(**options))

    made = [method("plain"), method("late", fault_after=2), method("early", fault_after=0), method("other")]
    found = bench_methods(
        made, target, Workload(prompts=prompts[:3], max_new_tokens=4, repeats=1), Sampling(0.0), show_progress=False
    )
    assert [row.method for row in found] == ["plain", "late", "early", "other"]
    assert found[1] == NotRun(method="late", temperature=0.0, reason="cache: no room for this prompt")
    assert [isinstance(row, MethodRow) for row in found] == [True, False, True, True]
    with pytest.raises(InfeasibleError, match="no room"):
        bench_methods(
            [method("plain", fault_after=1)],
            target,
            Workload(prompts=prompts[:3], max_new_tokens=4, repeats=1),
            Sampling(0.0),
        )


def test_given_profile_is_used(target, draft, prompts, monkeypatch):
    def never(*_, **__):
        raise AssertionError("measured though a profile was given")

    monkeypatch.setattr(running, "_profile", never)
    profile = invented(tables=(TABLE, TABLE))  # sequoia at temperatures 0 and 0.2
    names = ["chain", "k-sequences"]
    rows = little_rows(target, draft, prompts, names=names, temperatures=[0.0, 0.2], profile=profile)
    assert [(row.temperature, row.method) for row in rows] == [
        (t, name) for t in (0.0, 0.2) for name in ("plain", "chain", "k-sequences")
    ]
    assert rows[1].predicted_speedup == pytest.approx(
        step_model(profile).speedup(chain(fastest_length(step_model(profile))))
    )
    assert isinstance(rows[2], MethodRow), "at temperature 0 all rules are one"
    assert isinstance(rows[5], NotRun)
    assert "rule specinfer" in rows[5].reason


def test_a_profile_without_the_temperature_or_with_another_draft_distribution_is_refused(target, draft, prompts):
    def asked(profile, temperature):
        return little_rows(target, draft, prompts, names=["chain"], temperatures=[temperature], profile=profile)

    with pytest.raises(InfeasibleError, match=r"0\.6 was not measured"):
        asked(invented(), 0.6)
    other = replace(invented().acceptances[0], temperature=0.6, draft_sampling=Sampling(0.9))
    with pytest.raises(InvalidValueError, match="leave the profile out"):
        asked(replace(invented(), acceptances=(other,)), 0.6)


def test_an_unknown_name_is_refused_before_anything_runs(target, draft, prompts, monkeypatch):
    monkeypatch.setattr(running, "_profile", None)
    with pytest.raises(InvalidValueError, match="Got 'jacobi'"):
        little_rows(target, draft, prompts, names=["jacobi"], temperatures=[0.0])
