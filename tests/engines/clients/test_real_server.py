"""The real llama-server with the bundled pair: probed, planned and benchmarked, with plain decoding's output."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import call
from tests.engines.clients.tokens import copy_with_swapped_tokens
from treeopt import bundled
from treeopt.records.profile import Profile

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.source]
TOOL = Path(__file__).parents[3] / "tools" / "make_gguf.py"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    for package in ("xllamacpp", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install {package}")
    folder = tmp_path_factory.mktemp("gguf")
    for role, source in (("target", bundled.TARGET), ("draft", bundled.DRAFT)):
        subprocess.run([sys.executable, TOOL, source, "--type", "f16", "-o", folder / f"{role}.gguf"], check=True)
    return ("--target", str(folder / "target.gguf"), "--draft", str(folder / "draft.gguf"), "--threads", "1")


PROMPTS = ("--prompts", str(bundled.PROMPTS))
"""The default prompts are too long for a model whose tokens are bytes."""


def test_plan_from_a_probe_is_benchmarked(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = (*PROMPTS, "--max-prompts", "8", "--max-new-tokens", "32")
    probed = call("probe", "llama-server", *models, *quick, "--rounds", "1", "--batch-sizes", "1,2")
    assert probed.exit_code == 0, probed.output
    profile = Profile.load("profile.yaml")
    assert profile.engine.version.startswith("xllamacpp ")
    assert [latency.batch_size for latency in profile.chain_latencies] == [1, 2]
    tokens = [chain.tokens_per_step for chain in profile.acceptances[0].chains]
    assert 1.3 < tokens[0] < tokens[1] < tokens[2] < 8
    assert call("solve").exit_code == 0
    benchmarked = call("bench", "engine", "llama-server", *quick, "--repeats", "1", "-o", "bench.json", "--strict")
    assert benchmarked.exit_code == 0, benchmarked.output
    rows = json.loads(Path("bench.json").read_text())["rows"]
    assert {row["length"] for row in rows} >= {0, 1, 3, 7}  # the plan may choose a length between them
    assert sum(row["chosen"] for row in rows) == 1
    assert all(row["identical"] for row in rows)


def test_server_with_another_target_is_detected(models, tmp_path, monkeypatch):
    """The server runs the draft model as the target if it drafts."""
    from treeopt.engines.clients.llama_server import LlamaServer

    start = LlamaServer.start
    monkeypatch.chdir(tmp_path)
    quick = (*PROMPTS, "--max-prompts", "8", "--max-new-tokens", "32")
    assert call("probe", "llama-server", *models, *quick, "--rounds", "1", "--lengths", "0,3").exit_code == 0
    monkeypatch.setattr(
        LlamaServer,
        "start",
        lambda self, config: start(self, replace(config, target=config.draft) if config.draft_tokens else config),
    )
    benchmarked = call("bench", "engine", "llama-server", *quick, "--repeats", "1", "-o", "bench.json", "--strict")
    assert benchmarked.exit_code == 1
    rows = json.loads(Path("bench.json").read_text())["rows"]
    assert any(divergence["verdict"] == "fault" for divergence in rows[1]["divergences"])


def test_ngrams_are_drafted(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    method = ("--method", "ngram", "--ngram-tokens", "3", "--lengths", "0,4", "--threads", "1")
    probed = call(
        "probe", "llama-server", *models[:2], *method, *PROMPTS, "--max-prompts", "4", "--max-new-tokens", "64"
    )
    assert probed.exit_code == 0, probed.output
    (counts,) = Profile.load("profile.yaml").acceptances[0].chains
    assert 1.02 < counts.tokens_per_step < 5


def test_another_length_than_requested_is_refused(models, tmp_path, monkeypatch):
    """Negative control: the server drafts twice as many tokens as requested."""
    from treeopt.engines.clients.llama_server import LlamaServer

    start = LlamaServer.start
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        LlamaServer,
        "start",
        lambda self, config: start(self, replace(config, draft_tokens=2 * config.draft_tokens)),
    )
    quick = (*PROMPTS, "--max-prompts", "4", "--max-new-tokens", "40", "--lengths", "0,3")
    refused = call("probe", "llama-server", *models, *quick)
    assert refused.exit_code == 1
    assert "another length" in refused.stderr


def test_draft_of_another_vocabulary_is_refused(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = copy_with_swapped_tokens(bundled.DRAFT, tmp_path / "swapped")
    subprocess.run([sys.executable, TOOL, folder, "--type", "f16", "-o", "swapped.gguf"], check=True)
    quick = (*PROMPTS, "--max-prompts", "4", "--max-new-tokens", "8", "--lengths", "0,3")
    refused = call("probe", "llama-server", *models[:2], "--draft", "swapped.gguf", *quick)
    assert refused.exit_code == 1
    assert "expected a draft model with the target's vocabulary" in refused.stderr
