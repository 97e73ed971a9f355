"""`treeopt bench engine --strict` over HTTP: servers that write another text at a tie pass, and wrong ones do not."""

import json
from pathlib import Path

import pytest

from tests.cli.invented import call
from tests.support.language_server import LanguageServer

QUICK = ("--max-prompts", "12", "--max-new-tokens", "40")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Return the function that probes two honest servers, and benches plain decoding beside another server."""
    monkeypatch.chdir(tmp_path)
    servers = []

    def serve(length, **kind):
        servers.append(LanguageServer(length, **kind))
        return servers[-1].url

    def bench(*options, plain=None, lengths=(0, 3), **kind):
        probed = call(
            "probe", "openai", "--url", f"0={serve(0)},3={serve(3)}", "--lengths", "0,3", "--rounds", "1", *QUICK
        )
        assert probed.exit_code == 0, probed.output
        urls = ",".join(f"{each}={serve(each, **(kind if each else plain or {}))}" for each in lengths)
        return call("bench", "engine", "openai", "--url", urls, "--repeats", "2", *QUICK, "-o", "b.json", *options)

    yield bench
    for each in servers:
        each.close()


def told():
    return [each for row in json.loads(Path("b.json").read_text())["rows"] for each in row.get("divergences", [])]


def test_an_honest_server_passes(bench):
    result = bench("--strict")
    assert (result.exit_code, told()) == (0, []), result.output
    assert "diverged" not in result.stderr


def test_another_text_at_a_tie_passes_and_is_told(bench):
    result = bench("--strict", rounds=True)
    assert result.exit_code == 0, result.output
    assert {each["verdict"] for each in told()} == {"near-tie"}
    assert all(0 < each["gap"] < 1e-3 for each in told())
    assert "at near-ties" in result.stderr


def test_a_tie_is_a_fault_where_none_is_allowed(bench):
    assert bench("--strict", "--near-tie", "0", rounds=True).exit_code == 1


def test_a_wrong_server_is_caught(bench):
    result = bench("--strict", faulty=True)
    assert result.exit_code == 1
    faults = [each for each in told() if each["verdict"] == "fault"]
    assert faults
    assert all(each["gap"] == pytest.approx(1.2527629685, rel=1e-6) for each in faults)  # log(0.7 / 0.2)
    assert all(each["place"] % 9 == 8 for each in faults)
    assert "Fault: 3 draft tokens, prompt" in result.stdout
    assert "with a fault" in result.stderr


def test_chosen_length_between_probed_ones_is_a_warning(bench, monkeypatch):
    for chosen, warnings in ((3, 0), (2, 1)):
        monkeypatch.setattr("treeopt.cli.bench_engine.fastest_length", lambda _, chosen=chosen: chosen)
        result = bench(lengths=(0, 2, 3))
        assert result.exit_code == 0, result.output
        assert result.stderr.count("was not probed") == warnings
        assert [row["length"] for row in json.loads(Path("b.json").read_text())["rows"]] == [0, 2, 3]
    assert "interpolated between lengths 0 and 3. Probe with --lengths 0,2,3 to measure it." in result.stderr


def test_missing_servers_are_listed_before_any_is_contacted(bench, monkeypatch):
    bench()
    monkeypatch.setattr("treeopt.cli.bench_engine.fastest_length", lambda _: 2)
    for url, options, missing, needed in (
        ("http://localhost:1", (), "0, 2", "0=URL,2=URL"),
        ("0=http://localhost:1,3=http://localhost:3", (), "2", "0=URL,2=URL,3=URL"),
        ("0=http://localhost:1,2=http://localhost:3", ("--lengths", "1"), "1", "0=URL,1=URL,2=URL"),
    ):
        result = call("bench", "engine", "openai", "--url", url, *options)
        assert result.exit_code == 2
        assert f"Got none for {missing}: start them, and give --url {needed}." in result.stderr


def test_without_strict_a_wrong_server_is_a_warning(bench):
    result = bench(faulty=True)
    assert result.exit_code == 0
    assert "by more than rounding explains" in result.stderr


def test_what_cannot_be_checked_does_not_pass(bench):
    result = bench("--strict", plain={"forgets": True}, rounds=True)
    assert result.exit_code == 1
    assert {each["verdict"] for each in told()} == {"not checked"}
    assert "not checked: expected log-probabilities" in " ".join(result.stderr.split()).replace("openai: ", "")
    assert bench("--strict", plain={"forgets": True}).exit_code == 0  # nothing to check


def test_plain_decoding_that_changes_does_not_pass(bench):
    result = bench("--strict", plain={"unstable": True})
    assert result.exit_code == 1
    assert "repeatable plain decoding" in result.stderr
    assert json.loads(Path("b.json").read_text())["rows"][0]["divergences"]


def test_strict_is_for_temperature_0(bench):
    result = bench("--strict", "--temperature", "0.5")
    assert (result.exit_code, Path("b.json").exists()) == (2, False)
    assert "--strict: expected temperature 0" in result.stderr
