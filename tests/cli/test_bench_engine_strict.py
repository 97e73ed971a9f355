"""`treeopt bench engine --strict` over HTTP: servers that round ties differently pass, and wrong ones do not."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import call, refused, succeed
from tests.support.language_server import LanguageServer
from treeopt.profiler.engine_profile import NGRAM_TOKENS
from treeopt.records.engine import EngineSetting
from treeopt.records.profile import Profile

QUICK = ("--max-prompts", "12", "--max-new-tokens", "40")


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    """Return a profile of two honest servers, without and with 3 draft tokens."""
    path, servers = tmp_path_factory.mktemp("probed") / "profile.yaml", (LanguageServer(0), LanguageServer(3))
    urls = f"0={servers[0].url},3={servers[1].url}"
    succeed("probe", "openai", "--url", urls, "--lengths", "0,3", "--rounds", "1", *QUICK, "-o", path)
    for server in servers:
        server.close()
    return path


@pytest.fixture
def bench(folder, probed):
    """Return the function that benchmarks plain decoding of one server next to drafting of another."""
    shutil.copy(probed, folder / "profile.yaml")
    servers = []

    def serve(length, **faults):
        servers.append(LanguageServer(length, **faults))
        return servers[-1].url

    def bench(*options, plain=None, lengths=(0, 3), **faults):
        urls = ",".join(f"{length}={serve(length, **(faults if length else plain or {}))}" for length in lengths)
        return call("bench", "engine", "openai", "--url", urls, "--repeats", "2", *QUICK, "-o", "b.json", *options)

    yield bench
    for server in servers:
        server.close()


def bench_rows():
    return json.loads(Path("b.json").read_text())["rows"]


def divergences():
    return [divergence for row in bench_rows() for divergence in row.get("divergences", [])]


def test_honest_server_passes(bench):
    result = bench("--strict")
    assert (result.exit_code, divergences()) == (0, []), result.output
    assert "diverged" not in result.stderr


def test_other_texts_at_ties_pass_with_a_warning_unless_no_tie_is_allowed(bench):
    result = bench("--strict", rounds=True)
    assert result.exit_code == 0, result.output
    assert {divergence["verdict"] for divergence in divergences()} == {"near-tie"}
    assert all(0 < divergence["gap"] < 1e-3 for divergence in divergences())
    assert "at near-ties" in result.stderr
    assert bench("--strict", "--near-tie", "0", rounds=True).exit_code == 1


def test_wrong_server_fails_with_strict_and_is_a_warning_without(bench):
    result = bench("--strict", faulty=True)
    assert result.exit_code == 1
    faults = [divergence for divergence in divergences() if divergence["verdict"] == "fault"]
    assert faults
    assert all(fault["gap"] == pytest.approx(1.2527629685, rel=1e-6) for fault in faults)  # log(0.7 / 0.2)
    assert all(fault["position"] % 9 == 8 for fault in faults)
    assert "Fault: 3 draft tokens, prompt" in result.stdout
    assert "with a fault" in result.stderr
    assert "by more than rounding explains" in result.stderr
    assert bench(faulty=True).exit_code == 0


def test_settings_of_the_probed_server_are_left_out_with_url(bench):
    probed = Profile.load("profile.yaml")
    settings = (EngineSetting(name=NGRAM_TOKENS, value="3"),)
    replace(probed, engine=replace(probed.engine, settings=settings)).save("profile.yaml")
    assert bench().exit_code == 0


def test_chosen_length_between_probed_ones_is_a_warning(bench, monkeypatch):
    for chosen, warnings in ((3, 0), (2, 1)):
        monkeypatch.setattr("treeopt.cli.bench_engine.fastest_length", lambda _, chosen=chosen: chosen)
        result = bench(lengths=(0, 2, 3))
        assert result.exit_code == 0, result.output
        assert result.stderr.count("was not probed") == warnings
        assert [row["length"] for row in bench_rows()] == [0, 2, 3]
    assert "interpolated between lengths 0 and 3. Probe with --lengths 0,2,3 to measure it." in result.stderr


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize(
    ("url", "options", "missing", "needed"),
    [
        ("http://localhost:1", (), "0, 2", "0=URL,2=URL"),
        ("0=http://localhost:1,3=http://localhost:3", (), "2", "0=URL,2=URL,3=URL"),
        ("0=http://localhost:1,2=http://localhost:3", ("--lengths", "1"), "1", "0=URL,1=URL,2=URL"),
    ],
)
def test_missing_servers_are_listed_before_any_is_contacted(monkeypatch, url, options, missing, needed):
    monkeypatch.setattr("treeopt.cli.bench_engine.fastest_length", lambda _: 2)
    line = refused("bench", "engine", "openai", "--url", url, *options, code=2)
    assert f"Got none for {missing}: start them, and give --url {needed}." in line


def test_unchecked_divergences_do_not_pass(bench):
    result = bench("--strict", plain={"forgets": True}, rounds=True)
    assert result.exit_code == 1
    assert {divergence["verdict"] for divergence in divergences()} == {"not checked"}
    assert "not checked: expected log-probabilities" in " ".join(result.stderr.split()).replace("openai: ", "")
    assert bench("--strict", plain={"forgets": True}).exit_code == 0  # no divergence to check


def test_changing_plain_decoding_does_not_pass(bench):
    result = bench("--strict", plain={"unstable": True})
    assert result.exit_code == 1
    assert "repeatable plain decoding" in result.stderr
    assert bench_rows()[0]["divergences"]


@pytest.mark.usefixtures("bench")
def test_strict_needs_temperature_0():
    line = refused(
        "bench", "engine", "openai", "--url", "0=http://a:1,3=http://b:1", "--strict", "--temperature", "0.5", code=2
    )
    assert "--strict: expected temperature 0" in line
