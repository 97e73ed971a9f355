"""Sweeps over the draft length: prediction of unmeasured lengths, and refusal of wrong conventions."""

import csv
import json
import random

import numpy as np
import pytest

from tests.cli.invented import call
from tests.engines.importers.samples import VLLM_BENCH_PRINTED
from tests.engines.importers.test_profiles import mutated
from treeopt.engines.importers import read_latency, sweep_profile
from treeopt.engines.importers.sweep_acceptance import estimate_rate, fit_survival
from treeopt.errors import FormatError, InvalidValueError, TreeoptError
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY
from treeopt.trees import chain

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


@pytest.mark.parametrize("accept_lengths", [("0", "0.6", "1.1"), ("0", "1.6", "2.1"), ("", "1.6", "2.1")])
def test_plain_accept_length_of_0_excludes_the_target_token_or_stands_for_none(tmp_path, accept_lengths):
    rows = zip((0, 1, 3), accept_lengths, (100, 140, 150), strict=True)
    lines = ["k,accept_len,tokens_per_second", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "s.csv").write_text("\n".join(lines))
    table = import_sweep(tmp_path / "s.csv").acceptances[0].table
    assert table.p[0, 0] == pytest.approx(0.6)


@pytest.mark.parametrize(
    "text",
    [
        "k,tok_s,accept_length\n0,100,1\n3,200,2.5\n",
        "K,Throughput (tok/s),Accept Length\n0,100,1\n3,200,2.5\n",
        "k,batch,throughput,accept_length\n0,4,400,1\n3,4,800,2.5\n",
        "name,k,tok_s,accept_length,total_tokens,ttft_s\nplain,0,100,1,90,0.2\nplain,0,100,1,91,0.3\nchain,3,200,2.5,90,0.2\n",
        "| k | tok_s | accept_length |\n|---|---:|:---|\n| 0 | 100 | 1 |\n| 3 | 200 | 2.5 |\n",
        "模型,数据,k,tok_s,accept_length\na,0.1,0,100,1\na,0.2,3,200,2.5\n",
        "k,batch,tok_s_per_user,accept_length\n0,4,100,1\n3,4,200,2.5\n",
        '[{"k": 0, "tok_s": 100, "accept_length": null}, {"k": 3, "tok_s": 200, "accept_length": 2.5}]',
        '{"date": "2025-11-20", "results": [{"k": 0, "tok_s": 100}, {"k": 3, "tok_s": 200, "accept_length": 2.5}]}',
        '{"k": "0", "tok_s": "100"}\n{"k": "3", "tok_s": "200", "accept_length": "2.5"}\n',
        "draft_len,tokens/s,mean acceptance length\n0,100,1\n3,200,2.5\n",
        "spec_tokens,Output token throughput (tok/s),AL\n0,100,1\n3,200,2.5\n",
        "gamma,ms/token,accept_rate\n0,10,\n3,5,0.5\n",
        "k,batch,TPS/User,Acceptance rate (%)\n0,4,100,0\n3,4,200,50\n",
        "k,tps,acceptance_rate\noff,100,\n3,200,50%\n",
        "method,k,tokens/sec,tau\nbaseline,0,100,1\neagle3,3,200,2.5\n",
    ],
)
def test_csv_and_json_rows_give_one_profile(tmp_path, text):
    (tmp_path / "s").write_text(text)
    (latency,) = import_sweep(tmp_path / "s").chain_latencies
    assert [float(chain.steps.median_s) for chain in latency.chains] == pytest.approx([0.01, 0.0125])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[{"k": 3, "tok_s": true, "accept_length": 2.5}]', "tok_s: expected a number. Got 'True'"),
        ('[{"k": 0, "tok_s": 9}, {"tok_s": 9, "accept_length": 2.5}]', "the draft length, such as k"),
        (
            '{"k": 3, "tps": 9, "spec_decode_num_drafts": 9, "spec_decode_draft_tokens": Infinity}',
            "a number. Got 'inf'",
        ),
        ('{"k": 3, "tps": 9, "spec_decode_num_drafts": 1, "spec_decode_draft_tokens": 1e9}', "from 1 to 256"),
        ('{"k": 3, "tps": 9, "spec_decode_num_drafts": 1e-300, "spec_decode_draft_tokens": 1e300}', "256. Got inf"),
        ("k,tps,accept_len\n0,9,1\n1000000,9,2\n", "k: expected a whole number from 0 to 256"),
        ("k,topk,tps,accept_len\n3,4,9,2\n", "Got only trees"),
        ("k,tps,accept_len\n3,9,2\n", "measure plain decoding too"),
        ("k,tps,accept_len\n0,9,0\n3,18,2.2\n", "line 2: expected an accept length of 1 for plain decoding.* Got 0"),
        ("num_draft_tokens,tps,accept_len\n1,9,1.6\n3,18,2.2\n", "from 1 to 1, with the target's own token. Got 1.6"),
        ("task,k,tps\na,0,9\nb,0,9\na,1,9\nb,1,9\n", r"'task'\. Got 'a', 'b': keep the rows of one"),
        (
            "k,input_len,tps,accept_len\n0,256,9,1\n3,256,18,2\n0,4096,7,1\n3,4096,9,2\n",
            r"'input_len'\. Got '256', '4096': keep the rows of one",
        ),
        (
            '{"k": 0, "tps": 9, "temperature": 0}\n{"k": 0, "tps": 7, "temperature": 1}\n{"k": 2, "tps": 9, "accept_length": 2}',
            r"'temperature'\. Got '0', '1'",
        ),
        ("k,step_ms\n0,20\n2,30\n4,40\n", "an accept length with every step time"),
        ("k,tps,accept_len\n0,50,1\n2,70,1.9\n4,80,\n", "the accept length of the longest draft. Got none at 4"),
        ("k,tps\n0,50\n2,70\n", "plain decoding, which is length 0, and two draft lengths"),
        ("k,tps\n0,50\n2,1e12\n4,80\n", "line 3: expected 1e-09 to 1e.06 seconds .* Got 1e-12: is it another unit"),
        ("k,tps,acceptance\n0,50,\n2,80,0.7\n", "unknown column 'acceptance'. Rename it to accept_length if"),
        (
            "k,tok/s,tokens/sec,accept_len\n0,50,50,1\n2,80,80,2\n",
            "one column of 'tok/s'. Got 'tokens/sec' too",
        ),
        (
            "num_draft_tokens,tps,accept_len\n0,9,1\n3,18,2.2\n",
            "includes the root, as in SGLang. Got 0: name the column",
        ),
        (
            "draft,k,tps,accept_len\na,0,9,1\na,2,18,2\nb,0,9,1\nb,2,12,1.5\n",
            "'draft'. Got 'a', 'b': keep the rows of one",
        ),
        ("k,requests\n0,9\n2,18\n", r"needs columns of a draft length \(k\), a speed"),
        ('{"accept_length": 2.5, "mean_tpot_ms": 8.0}', "the draft length of each result"),
        ("[0.8, 0.4]", "give it to --acceptance"),
        (
            '{"k": 3, "mean_tpot_ms": 9, "max_concurrency": 64, "num_prompts": 10}',
            "num_prompts: expected at least 64, as many as run together. Got 10",
        ),
        (
            '{"k": 3, "mean_tpot_ms": 9, "max_concurrency": 8, "num_prompts": 100, "completed": 3}',
            "completed: expected at least 8, as many as run together. Got 3",
        ),
        (
            "draft_tokens,accepted_tokens,tps\n0,0,100\n1200,600,180\n",
            "expected a whole number from 0 to 256. Got 1200",
        ),
        (
            "num_draft_tokens,steps,tps,accept_length\n1,500,100,1\n4,213,180,2.4\n",
            "num_draft_tokens of (501|214), the draft length and the root. Got",
        ),
        (
            "k,batch_size,concurrency,tps,accept_length\n0,256,4,400,1\n3,256,4,720,2.4\n",
            "expected one batch size. Got 4 and 256",
        ),
        ("k,tps,acc\n0,100,1\n3,180,2.4\n5,190,2.8\n", "unknown column 'acc'. Rename it to accept_length if"),
        (
            json.dumps(
                [
                    {"k": 3, "tps": 9, "accept_length": 2.9, "speculative_algorithm": "EAGLE3"},
                    {"k": 7, "tps": 9, "accept_length": 1.6, "speculative_algorithm": "NGRAM"},
                ]
            ),
            "'speculative_algorithm'. Got 'EAGLE3', 'NGRAM'",
        ),
        ('{"k": 3, "mean_tpot_ms": 9, "max_concurrency": null}', "max_concurrency: expected .*--max-concurrency"),
    ],
)
def test_contradictions_are_refused(tmp_path, text, reason):
    (tmp_path / "s").write_text(text)
    with pytest.raises(FormatError, match=reason):
        import_sweep(tmp_path / "s")


def test_sweep_is_directed_to_its_option(tmp_path):
    with pytest.raises(FormatError, match="give it to --sweep"):
        read_latency(written(tmp_path / "sweep.csv"))


def sweep_rows(lengths):
    return [{"steps": k, "topk": 1, "acc_length": accept_length(k), "step_time": step_s(k, 1)} for k in lengths]


def test_missing_plain_decoding_is_extrapolated(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(sweep_rows((1, 3))), "utf-8")
    (latency,) = import_sweep(tmp_path / "s.json").chain_latencies
    assert [chain.length for chain in latency.chains] == [0, 1, 3]
    assert float(latency.chains[0].steps.median_s) == pytest.approx(step_s(0, 1))


@pytest.mark.parametrize(
    ("rows", "lengths", "warning"),
    [
        (sweep_rows((1, 3)), [0, 1, 3], "plain decoding was not measured"),
        (
            [*sweep_rows((0, 3)), *(row | {"topk": 4} for row in sweep_rows((3,)))],
            [0, 3],
            "1 row of trees (top-k above 1)",
        ),
        (
            [{"k": length, "tps": accept_length(length) / step_s(length, 1)} for length in MEASURED],
            list(MEASURED),
            "acceptance was not measured, and is estimated from the speeds",
        ),
    ],
)
def test_profile_warns_of_missing_measurements(tmp_path, monkeypatch, rows, lengths, warning):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps(rows), "utf-8")
    result = call("profile", "--sweep", "s.json", "-o", "p.yaml")
    assert result.exit_code == 0
    assert warning in " ".join(result.stderr.split())
    assert [chain.length for chain in Profile.load("p.yaml").chain_latencies[0].chains] == lengths


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


def test_printed_results_of_vllm_and_sglang(tmp_path):
    """SGLang's bench_serving has the same heading, and prints an accept length without the draft length."""
    plain, _, _ = VLLM_BENCH_PRINTED.partition("---------------Speculative")
    (tmp_path / "plain.txt").write_text(plain.replace("12.65", "25.30"))
    (tmp_path / "k3.txt").write_text(VLLM_BENCH_PRINTED)
    paths = [tmp_path / "plain.txt", tmp_path / "k3.txt"]
    (latency,) = sweep_profile(paths, sampling=GREEDY, context_tokens=256).chain_latencies
    assert latency.batch_size == 4
    assert {chain.length: float(np.mean(chain.steps.samples_s)) for chain in latency.chains} == pytest.approx(
        {0: 0.0253, 3: 0.01265 * 3.2}
    )
    (tmp_path / "sglang.txt").write_text(f"{plain}Accept length:            2.50\n")
    with pytest.raises(FormatError, match="expected the draft length"):
        import_sweep(tmp_path / "sglang.txt")
    (tmp_path / "unlimited.txt").write_text(plain.replace("Maximum request concurrency", "Peak concurrent requests"))
    with pytest.raises(FormatError, match="--max-concurrency"):
        import_sweep(tmp_path / "unlimited.txt")


def vllm_sweep_rows(settings):
    """Return the results of `vllm bench sweep serve`, which adds the settings of the server to each."""
    return [
        {
            "_benchmark_name": f"k{length}",
            "max_concurrency": 4,
            "mean_tpot_ms": 1e3 * step_s(length, 4) / accept_length(length),
            "run_number": 0,
            **settings(length),
        }
        | (
            {
                "spec_decode_num_drafts": 100,
                "spec_decode_draft_tokens": 100 * length,
                "spec_decode_acceptance_length": accept_length(length),
                "spec_decode_per_position_acceptance_rates": np.cumprod(RATES[:length]).tolist(),
            }
            if length
            else {}
        )
        for length in MEASURED
    ]


def write_csv(path, rows):
    """Write rows as pandas does: an index column, and lists and objects as Python prints them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["", *names])
        table.writerows([index, *(row.get(name, "") for name in names)] for index, row in enumerate(rows))
    return path


def nested(length):
    return {"speculative_config": {"method": "eagle3", "num_speculative_tokens": length} if length else None}


def dotted(length):
    return {"speculative_config.num_speculative_tokens": length}


@pytest.mark.parametrize("settings", [nested, dotted])
@pytest.mark.parametrize("name", ["summary.json", "summary.csv"])
def test_results_of_a_vllm_sweep(tmp_path, settings, name):
    rows, path = vllm_sweep_rows(settings), tmp_path / name
    if name.endswith("csv"):
        write_csv(path, rows)
    else:
        path.write_text(json.dumps(rows), "utf-8")
    (latency,) = import_sweep(path).chain_latencies
    assert [chain.length for chain in latency.chains] == list(MEASURED)
    assert float(np.mean(latency.chains[2].steps.samples_s)) == pytest.approx(step_s(3, 4))


@pytest.mark.parametrize("name", ["summary.json", "summary.csv"])
def test_vllm_sweep_over_drafting_methods_is_refused(tmp_path, name):
    rows, path = vllm_sweep_rows(nested), tmp_path / name
    rows[1]["speculative_config"]["method"] = "ngram"
    if name.endswith("csv"):
        write_csv(path, rows)
    else:
        path.write_text(json.dumps(rows), "utf-8")
    with pytest.raises(FormatError, match="one value in the column 'speculative_config_method'"):
        import_sweep(path)


def test_draft_length_of_sglang_results_is_that_of_the_server(tmp_path):
    """`concurrency` of bench_serving is a mean; trees are left out."""
    rows = [
        {
            "max_concurrency": 4,
            "concurrency": 3.97,
            "mean_tpot_ms": 1e3 * step_s(length, 4) / accept_length(length),
            "accept_length": accept_length(length) if length else None,
            "server_info": {
                "model_path": "m",
                "speculative_algorithm": "EAGLE3" if length else None,
                "speculative_num_steps": length or None,
                "speculative_eagle_topk": topk if length else None,
                "speculative_num_draft_tokens": length + 1 if length else None,
            },
        }
        for length, topk in [*((length, 1) for length in MEASURED), (5, 4)]
    ]
    path = tmp_path / "sglang.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    profile = import_sweep(path)
    assert [chain.length for chain in profile.chain_latencies[0].chains] == list(MEASURED)
    assert profile.chain_latencies[0].batch_size == 4
    assert ("left out", "1 row of trees (top-k above 1)") in [(s.name, s.value) for s in profile.engine.settings]


def test_files_of_several_models_are_refused(tmp_path):
    paths = []
    for length, model in ((0, "a/8b"), (2, "a/8b"), (4, "a/70b")):
        row = {"model_id": model, "max_concurrency": 1, "mean_tpot_ms": 10.0}
        row |= {"num_speculative_tokens": length, "acceptance_length": 1 + length / 2}
        paths.append(tmp_path / f"{length}.json")
        paths[-1].write_text(json.dumps(row), "utf-8")
    assert len(sweep_profile(paths[:2], sampling=GREEDY, context_tokens=256).chain_latencies) == 1
    with pytest.raises(FormatError, match=r"4\.json: model: expected the sweep of one model, 'a/8b'\. Got 'a/70b'"):
        sweep_profile(paths, sampling=GREEDY, context_tokens=256)


def test_sweep_is_planned_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "sweep.csv")
    assert "verify times: measured" not in call("profile", "--sweep", "sweep.csv", "-o", "p.yaml").output
    assert [latency.batch_size for latency in Profile.load("p.yaml").chain_latencies] == [1, 8]
    solved = call("solve", "--profile", "p.yaml", "-o", "plan.yaml")
    assert solved.exit_code == 0
    assert "treeopt export" in solved.output
    assert "verify times: measured" not in solved.output
    for option in (("--rounds", "3"), ("--acceptance", "sweep.csv")):
        assert call("profile", "--sweep", "sweep.csv", *option, "-o", "other.yaml").exit_code == 2


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


def accept_lengths(survival, lengths):
    return np.array([1 + sum(survival[:length]) for length in lengths])


@pytest.mark.parametrize(
    "measured",
    [
        {1: 1.85, 3: 3.15, 7: 4.73},
        {15: 7.64, 16: 7.81, 18: 8.22, 20: 8.64, 22: 8.88, 24: 8.91},
        {1: 2.0, 2: 3.0, 4: 3.5},
        {2: 1.0, 5: 1.0},
    ],
)
def test_consistent_accept_lengths_are_kept(measured):
    survival, smoothed = fit_survival(measured)
    assert np.diff(survival, prepend=1.0).max() <= 1e-9
    assert min(survival) >= 0
    if not smoothed:
        assert accept_lengths(survival, measured) == pytest.approx(list(measured.values()), abs=1e-6)


def test_decreasing_accept_length_does_not_remove_later_gains():
    measured = {7: 3.2, 8: 3.2, 9: 3.33, 12: 3.27, 16: 3.31}
    survival, smoothed = fit_survival(measured)
    assert smoothed
    assert accept_lengths(survival, [9])[0] == pytest.approx(3.33)


def test_pooled_gains_are_nearer_than_random_feasible_ones():
    rng, lengths = np.random.default_rng(1), [1, 2, 4, 6, 9]
    counts = np.diff(lengths, prepend=0)
    measured = {1: 1.7, 2: 2.5, 4: 2.9, 6: 3.9, 9: 3.8}

    def distance(values):
        """Return the squared error of the increase per token, weighted by tokens."""
        gains = np.diff([values, list(measured.values())], prepend=1.0) / counts
        return float((counts * (gains[0] - gains[1]) ** 2).sum())

    survival, smoothed = fit_survival(measured)
    fitted = distance(accept_lengths(survival, lengths))
    assert smoothed
    for _ in range(2000):
        gains = np.sort(rng.random(len(lengths)))[::-1]
        assert fitted <= distance(1 + np.cumsum(counts * gains)) + 1e-9


@pytest.mark.parametrize("rate", [0.3, 0.62, 0.95])
@pytest.mark.parametrize("slope_s", [0.0, 0.0007])
def test_rate_is_estimated_from_speeds_of_a_linear_cost(rate, slope_s):
    tokens = {length: sum(rate**power for power in range(length + 1)) for length in (0, 2, 5, 9)}
    speeds = {length: (0.02 + slope_s * length) / tokens[length] for length in tokens}
    assert estimate_rate(speeds) == pytest.approx(rate, abs=0.002)


@pytest.mark.parametrize("token_s", [{0: 0.02, 4: 0.01}, {1: 0.02, 2: 0.015, 4: 0.01}])
def test_rate_is_not_estimated_from_two_lengths(token_s):
    with pytest.raises(InvalidValueError, match="plain decoding, which is length 0, and two draft lengths"):
        estimate_rate(token_s)


def test_speed_without_accept_length_takes_that_of_other_rows(tmp_path):
    (tmp_path / "s.csv").write_text("k,tps,accept_len\n0,50,1\n1,70,1.6\n2,80,\n3,90,2.176\n")
    (latency,) = import_sweep(tmp_path / "s.csv").chain_latencies
    assert float(latency.chains[2].steps.median_s) == pytest.approx(1.96 / 80, rel=0.01)


def test_rate_is_estimated_where_most_lengths_were_timed(tmp_path):
    """Batch size 8 alone determines the rate; batch size 1 has the longest draft."""
    tokens = {length: sum(0.6**power for power in range(length + 1)) for length in (0, 1, 2, 4, 6)}
    rows = [(1, 0), (1, 6), (8, 0), (8, 1), (8, 2), (8, 4)]
    lines = [f"{length},{batch},{batch * tokens[length] / (0.02 + 0.001 * length)}" for batch, length in rows]
    (tmp_path / "s.csv").write_text("\n".join(["k,batch,tps", *lines]))
    profile = import_sweep(tmp_path / "s.csv")
    (acceptance,) = profile.acceptances
    assert acceptance.table.p.ravel() == pytest.approx([0.6] * 6, abs=0.003)
    assert float(profile.chain_latencies[0].chains[1].steps.median_s) == pytest.approx(0.026, rel=0.01)


@pytest.mark.parametrize(
    ("title", "cells", "rates"),
    [
        ("Acceptance rate (%)", ("0.9", "0.5"), (0.009, 0.005)),
        ("acceptance_rate", ("0.9%", "0.5%"), (0.009, 0.005)),
        ("acceptance_rate", ("0.7", "50%"), (0.7, 0.5)),
        ("acceptance_rate", ("70", "50"), (0.7, 0.5)),
        ("acceptance_rate", ("0.7", "0.5"), (0.7, 0.5)),
    ],
)
def test_rates_in_per_cent_are_those_with_a_sign_or_above_1(tmp_path, title, cells, rates):
    (tmp_path / "s.csv").write_text(f"k,tps,{title}\n0,100,\n1,101,{cells[0]}\n3,99,{cells[1]}\n")
    table = import_sweep(tmp_path / "s.csv").acceptance().table
    assert table.expected_tokens(chain(1)) == pytest.approx(1 + rates[0], abs=1e-3)
    assert table.expected_tokens(chain(3)) == pytest.approx(1 + 3 * rates[1], abs=0.02)


def test_printed_runs_keep_their_own_concurrency(tmp_path):
    """Each run prints its concurrency before its result too, below the end of the one before."""
    runs = []
    for batch, drafts in ((1, False), (16, False), (1, True), (16, True)):
        drafting = "Acceptance length: 2.20\nDrafts: 100\nDraft tokens: 300\n" if drafts else ""
        runs.append(
            f"Traffic request rate: inf\nMaximum request concurrency: {batch}\n"
            f"============ Serving Benchmark Result ============\nSuccessful requests: 80\n"
            f"Maximum request concurrency: {batch}\nMean TPOT (ms): {8 + batch}\n{drafting}{50 * '='}\n"
        )
    (tmp_path / "s.txt").write_text("".join(runs))
    profile = import_sweep(tmp_path / "s.txt")
    assert [
        (latency.batch_size, [chain.length for chain in latency.chains]) for latency in profile.chain_latencies
    ] == [
        (1, [0, 3]),
        (16, [0, 3]),
    ]
    assert [latency.chains[0].steps.median_s for latency in profile.chain_latencies] == pytest.approx([9e-3, 24e-3])


def test_drafting_settings_in_a_cell_may_be_json(tmp_path):
    config = json.dumps({"num_speculative_tokens": 3, "draft_tensor_parallel_size": None}).replace('"', '""')
    (tmp_path / "s.csv").write_text(f'speculative_config,k,tps,accept_length\n,0,100,1\n"{config}",,180,2.4\n')
    (latency,) = import_sweep(tmp_path / "s.csv").chain_latencies
    assert [chain.length for chain in latency.chains] == [0, 3]
