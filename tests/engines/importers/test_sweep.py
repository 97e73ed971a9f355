"""Sweeps over the draft length: prediction of unmeasured lengths, and refusal of wrong conventions."""

import json
import random

import numpy as np
import pytest

from tests.cli.invented import call
from tests.engines.importers.test_profiles import mutated
from treeopt.engines.importers import read_latency, sweep_profile
from treeopt.errors import FormatError, TreeoptError
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY

RATES = (0.62, 0.6, 0.58, 0.57, 0.56, 0.55, 0.55)
MEASURED = (0, 1, 3, 7)


def accept_length(length: int) -> float:
    return 1 + float(np.cumprod(RATES[:length]).sum())


def step_s(length: int, batch: int, knee: int = 32) -> float:
    """Return seconds of a step bound by memory until `knee` tokens are verified, with a draft of 0.4 ms a token."""
    return 0.0066 + 0.0004 * length + 0.0001 * max(0, batch * (1 + length) - knee)


def speedup(length: int, batch: int, knee: int) -> float:
    return accept_length(length) * step_s(0, batch, knee) / step_s(length, batch, knee)


def written(path, batches=(1, 8), shift=0.0, knee=32):
    lines = ["Draft Length;Batch Size;Tokens per second;Accept-Length"]
    for batch in batches:
        for length in MEASURED:
            rate = batch * accept_length(length) / step_s(length, batch, knee)
            lines.append(f"{length};{batch};{rate:.6f};{accept_length(length) + shift:.6f}".replace(".", ","))
    path.write_text("\n".join(lines), "utf-8")
    return path


def import_sweep(path):
    return sweep_profile([path], sampling=GREEDY, context_tokens=256)


@pytest.mark.parametrize(("index", "knee", "within"), [(0, 32, 0.02), (1, 32, 0.02), (1, 24, 0.06)])
def test_unmeasured_lengths_are_predicted_and_the_choice_is_near_the_best(tmp_path, index, knee, within):
    """A knee at 24 tokens lies at length 2 of batch 8, between measured lengths."""
    profile = import_sweep(written(tmp_path / "sweep.csv", knee=knee))
    latency = profile.chain_latencies[index]
    survival = np.cumprod(np.ravel(profile.acceptances[0].table.p))
    survival = np.concatenate([survival, survival[-1] * RATES[-1] ** np.arange(1, 8)])
    times = np.interp(
        range(8),
        [chain.length for chain in latency.chains],
        [float(np.mean(chain.steps.samples_s)) for chain in latency.chains],
    )
    predicted = [(1 + survival[:length].sum()) * times[0] / times[length] for length in range(8)]
    actual = [speedup(length, latency.batch_size, knee) for length in range(8)]
    assert latency.whole_steps.batch_size == (1, 8)[index]
    for length in (2, 5):
        assert predicted[length] == pytest.approx(actual[length], rel=within)
    assert actual[int(np.argmax(predicted))] > (1 - within) * max(actual)


def test_accept_length_above_the_draft_length_is_refused(tmp_path):
    with pytest.raises(FormatError, match="target's own token"):
        import_sweep(written(tmp_path / "sweep.csv", shift=1.0))


def test_plain_accept_length_of_0_excludes_the_target_token(tmp_path):
    lines = ["k,accept_len,tokens_per_second", "0,0,100", "1,0.6,140", "3,0.95,150"]
    (tmp_path / "s.csv").write_text("\n".join(lines))
    table = import_sweep(tmp_path / "s.csv").acceptances[0].table
    assert table.p[0, 0] == pytest.approx(0.6)


@pytest.mark.parametrize(
    "text",
    [
        "k,tok_s,accept_length\n0,100,1\n3,200,2.5\n",
        "K,Throughput (tok/s),Accept Length\n0,100,1\n3,200,2.5\n",
        "k,batch,throughput,accept_length\n0,4,400,1\n3,4,800,2.5\n",
        "模型,数据,k,tok_s,accept_length\na,0.1,0,100,1\na,0.2,3,200,2.5\n",
        "k,batch,tok_s_per_user,accept_length\n0,4,100,1\n3,4,200,2.5\n",
        '[{"k": 0, "tok_s": 100, "accept_length": null}, {"k": 3, "tok_s": 200, "accept_length": 2.5}]',
        '{"k": "0", "tok_s": "100"}\n{"k": "3", "tok_s": "200", "accept_length": "2.5"}\n',
    ],
)
def test_csv_and_json_rows_give_one_profile(tmp_path, text):
    (tmp_path / "s").write_text(text)
    (latency,) = import_sweep(tmp_path / "s").chain_latencies
    assert [float(chain.steps.median_s) for chain in latency.chains] == pytest.approx([0.01, 0.0125])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[{"k": 3, "tok_s": true, "accept_length": 2.5}]', "tok_s: expected a number. Got True"),
        ('[{"k": 0, "tok_s": 9}, {"tok_s": 9, "accept_length": 2.5}]', "the draft length as one of k"),
        ('{"k": 3, "tps": 9, "spec_decode_num_drafts": 9, "spec_decode_draft_tokens": Infinity}', "from 1 to 10000"),
        ("k,tps,accept_len\n0,9,1\n1000000,9,2\n", "k: expected a whole number from 0 to 10000"),
        ("k,topk,tps,accept_len\n3,4,9,2\n", "Got only trees"),
        ("k,tps,accept_len\n3,9,2\n", "measure plain decoding too"),
    ],
)
def test_contradictions_are_refused(tmp_path, text, reason):
    (tmp_path / "s").write_text(text)
    with pytest.raises(FormatError, match=reason):
        import_sweep(tmp_path / "s")


def test_several_workloads_are_refused(tmp_path):
    lines = ["workload,k,accept_len,tokens_per_second", "a,0,1,100", "b,0,1,100", "a,1,1.6,140", "b,1,1.5,140"]
    (tmp_path / "s.csv").write_text("\n".join(lines))
    with pytest.raises(FormatError, match=r"'workload'\. Got 'a', 'b': keep the rows of one"):
        import_sweep(tmp_path / "s.csv")


def test_other_files_are_directed_to_their_option(tmp_path):
    (tmp_path / "rates.json").write_text("[0.8, 0.4]")
    with pytest.raises(FormatError, match="give it to --acceptance"):
        import_sweep(tmp_path / "rates.json")
    with pytest.raises(FormatError, match="give it to --sweep"):
        read_latency(written(tmp_path / "sweep.csv"))


def without_plain(path, lengths):
    rows = [{"steps": k, "topk": 1, "acc_length": accept_length(k), "step_time": step_s(k, 1)} for k in lengths]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return path


def test_missing_plain_decoding_is_extrapolated_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (latency,) = import_sweep(without_plain(tmp_path / "s.jsonl", (1, 3))).chain_latencies
    assert [chain.length for chain in latency.chains] == [0, 1, 3]
    assert float(latency.chains[0].steps.median_s) == pytest.approx(step_s(0, 1))
    result = call("profile", "--sweep", "s.jsonl", "-o", "p.yaml")
    assert "plain decoding was not measured" in " ".join(result.stderr.split())


def test_mutated_files_are_read_or_refused_in_one_line(tmp_path):
    rng, read = random.Random(1), 0
    original = written(tmp_path / "whole.csv").read_bytes()
    for _ in range(60):
        (tmp_path / "s.csv").write_bytes(mutated(rng, original))
        try:
            import_sweep(tmp_path / "s.csv").save(tmp_path / "p.yaml")
            Profile.load(tmp_path / "p.yaml")
            read += 1
        except TreeoptError as error:
            assert "\n" not in str(error)  # noqa: PT017, one line is what the command prints
    assert 5 < read < 58


def test_vllm_result_files_form_one_sweep(tmp_path):
    paths = []
    for length in MEASURED:
        row = {"max_concurrency": 4, "mean_tpot_ms": 1e3 * step_s(length, 4) / accept_length(length)}
        if length:
            row |= {"spec_decode_num_drafts": 100, "spec_decode_num_draft_tokens": 100 * length}
            row |= {"spec_decode_acceptance_length": accept_length(length)}
            row |= {"spec_decode_per_position_acceptance_rates": np.cumprod(RATES[:length]).tolist()}
        paths.append(tmp_path / f"{length}.json")
        paths[-1].write_text(json.dumps(row), "utf-8")
    (latency,) = sweep_profile(paths, sampling=GREEDY, context_tokens=256).chain_latencies
    assert [chain.length for chain in latency.chains] == list(MEASURED)
    assert float(np.mean(latency.chains[2].steps.samples_s)) == pytest.approx(step_s(3, 4))


def test_from_sweep_to_plan_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "sweep.csv")
    assert "verify times: measured" not in call("profile", "--sweep", "sweep.csv", "-o", "p.yaml").output
    assert [latency.batch_size for latency in Profile.load("p.yaml").chain_latencies] == [1, 8]
    solved = call("solve", "--profile", "p.yaml", "-o", "plan.yaml")
    assert solved.exit_code == 0
    assert "treeopt export" in solved.output
    assert "verify times: measured" not in solved.output


def test_measurement_options_are_refused_with_a_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "sweep.csv")
    assert call("profile", "--sweep", "sweep.csv", "--rounds", "3", "-o", "p.yaml").exit_code == 2
    assert call("profile", "--sweep", "sweep.csv", "--acceptance", "sweep.csv", "-o", "p.yaml").exit_code == 2


def test_trees_are_skipped_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"steps": k, "topk": t, "acc_length": a, "step_time": 0.01} for k, t, a in ((0, 1, 1), (3, 1, 2), (3, 4, 3))
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    assert "1 row of trees (top-k above 1)" in call("profile", "--sweep", "s.jsonl", "-o", "p.yaml").stderr
    assert [chain.length for chain in Profile.load("p.yaml").chain_latencies[0].chains] == [0, 3]


def test_estimated_acceptance_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["k,tps", *(f"{length},{accept_length(length) / step_s(length, 1)}" for length in MEASURED)]
    (tmp_path / "s.csv").write_text("\n".join(lines))
    result = call("profile", "--sweep", "s.csv", "-o", "p.yaml")
    assert result.exit_code == 0
    warning = " ".join(result.stderr.split())
    assert "acceptance was not measured, and is estimated from the speeds" in warning
    assert "Add a column accept_length." in warning


@pytest.mark.parametrize(("lengths", "warned"), [((0, 1, 6), True), ((0, 1, 2, 3, 4, 6), False)])
def test_chosen_length_between_measured_ones_is_warned_of(tmp_path, monkeypatch, lengths, warned):
    monkeypatch.chdir(tmp_path)
    rows = [f"{length},{accept_length(length)},{step_s(length, 1, knee=3)}" for length in lengths]
    (tmp_path / "s.csv").write_text("\n".join(["k,accept_len,step_s", *rows]))
    call("profile", "--sweep", "s.csv", "-o", "p.yaml")
    result = call("solve", "--profile", "p.yaml", "-o", "plan.yaml")
    warning = " ".join(result.stderr.split())
    assert ("draft tokens were not measured; the step time is interpolated between 1 and 6" in warning) == warned
    assert ("Measure it before you serve." in warning) == warned
