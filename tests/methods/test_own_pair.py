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


def test_every_method_has_a_row_or_a_reason(target, draft, prompts):
    rows = little_rows(target, draft, prompts, names=["all"], temperatures=[0.0])
    assert [row.method for row in rows] == list(NAMES)
    refused, ran = ([row for row in rows if isinstance(row, kind)] for kind in (NotRun, MethodRow))
    assert [row.method for row in refused] == HEADS
    for row in refused:
        assert row.temperature == 0.0
        assert row.reason.startswith("heads: ")
        assert "--drafter" in row.reason
    for row in ran:
        assert row.lossless, row.evidence
        # zero, or above the clock's resolution
        assert min(part_s for part_s in (row.step_s, row.draft_s, row.verify_s, row.overhead_s) if part_s != 0) > 1e-8
    assert [row.method for row in ran if row.assumed] == ["osd"]


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

    prompts = [torch.randint(61, (9,), generator=torch.Generator().manual_seed(seed)).tolist() for seed in range(6)]
    names = ["plain", "prompt-lookup", "chain", "osd", "k-sequences", "medusa", "eagle2"]
    rows = little_rows(model(2, "large"), model(1, "small"), prompts, names=names, temperatures=[0.7])
    assert [row.method for row in rows] == names
    assert [row.method for row in rows if isinstance(row, NotRun)] == ["osd", "medusa"]
    assert all(row.lossless for row in rows if isinstance(row, MethodRow))


def test_method_that_fails_while_decoding_is_not_run(target, prompts):
    def method(name, prompts_before_failure=9):
        def build():
            decoder = Decoder(target, None, chain(0), temperature=0.0)
            start, left = decoder.start, iter(range(prompts_before_failure))

            def limited(prompt, **options):
                if next(left, None) is None:
                    raise InfeasibleError("cache: no room for this prompt")
                start(prompt, **options)

            decoder.start = limited
            return decoder

        return Method(name=name, option=option_of(chain(0)), build=build)

    def bench(*methods):
        workload = Workload(prompts=prompts[:3], max_new_tokens=4, repeats=1)
        return bench_methods(methods, target, workload, Sampling(0.0))

    rows = bench(method("plain"), method("late", 2), method("early", 0), method("other"))
    assert [row.method for row in rows] == ["plain", "late", "early", "other"]
    assert [isinstance(row, MethodRow) for row in rows] == [True, False, False, True]
    assert rows[1] == NotRun(method="late", temperature=0.0, reason="cache: no room for this prompt")
    with pytest.raises(InfeasibleError, match="no room"):
        bench(method("plain", 1))


def test_a_given_profile_is_used(target, draft, prompts, monkeypatch):
    def never(*_, **__):
        raise AssertionError("a given profile must not be measured")

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
    assert isinstance(rows[2], MethodRow), "at temperature 0 all rules are equivalent"
    assert isinstance(rows[5], NotRun)
    assert "rule specinfer" in rows[5].reason


def test_a_profile_without_the_temperature_or_with_another_draft_distribution_is_refused(target, draft, prompts):
    def run(profile, temperature):
        return little_rows(target, draft, prompts, names=["chain"], temperatures=[temperature], profile=profile)

    with pytest.raises(InfeasibleError, match=r"0\.6 was not measured"):
        run(invented(), 0.6)
    other = replace(invented().acceptances[0], sampling=Sampling(0.6), draft_sampling=Sampling(0.9))
    with pytest.raises(InvalidValueError, match="leave the profile out"):
        run(replace(invented(), acceptances=(other,)), 0.6)


def test_an_unknown_name_is_refused_before_anything_runs(target, draft, prompts, monkeypatch):
    monkeypatch.setattr(running, "_profile", None)
    with pytest.raises(InvalidValueError, match="Got 'jacobi'"):
        little_rows(target, draft, prompts, names=["jacobi"], temperatures=[0.0])
