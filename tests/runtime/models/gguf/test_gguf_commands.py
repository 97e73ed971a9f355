"""Commands with GGUF files: profile, run and bench; refusals in one line."""

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("llama_cpp", reason="needs the gguf extra")

from treeopt import Profile
from treeopt.cli.main import main
from treeopt.trees import level_widths

QUICK = ["--max-tokens", "16", "--rounds", "2", "--positions", "24", "--max-prompts", "4", "--context-tokens", "8"]
PROMPTS = "one two three\n\nfour five six\n\nseven eight nine\n\nten eleven twelve\n"


@pytest.fixture
def run_command(tmp_path, monkeypatch):
    """Return a function that runs a command in a new folder and returns exit code, output and messages."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text(PROMPTS, "utf-8")
    level_widths([3]).save(tmp_path / "tree.json")

    def run(*arguments):
        done = CliRunner().invoke(main, list(map(str, arguments)))
        return done.exit_code, done.stdout, done.stderr

    return run


@pytest.fixture
def pair(gguf_files):
    target, draft = gguf_files("q8_0")
    return ["--target", target, "--draft", draft, "--threads", 1]


def test_run_prints_the_text_of_plain_decoding(run_command, pair):
    options = ["--prompt", "import os", "--temperature", 0, "--max-new-tokens", 20]
    level_widths([]).save("root.json")
    (code, text, _), (root_code, plain, _) = (
        run_command("run", tree, *pair, *options) for tree in ("tree.json", "root.json")
    )
    assert (code, root_code) == (0, 0)
    assert text == plain != ""


@pytest.mark.slow
def test_profile_plan_and_bench(run_command, pair, tmp_path):
    code, _, messages = run_command("profile", *pair, *QUICK, "--prompts", "prompts.txt", "-o", "p.yaml")
    assert code == 0, messages
    profile = Profile.load("p.yaml")
    assert (profile.pair.dtype, profile.pair.target, profile.machine.threads) == ("q8_0", "target", 1)
    code, shown, messages = run_command("solve", "--profile", "p.yaml", "--budget", 8, "-o", "t.json")
    assert code == 0, messages
    assert "--dtype" not in shown + messages
    code, shown, messages = run_command(
        "bench", "tree", "tree.json", *pair, "--profile", "p.yaml", "--prompts", "prompts.txt", "--max-new-tokens", 12, "--repeats", 1,
        "--temperature", 0, "-o", "b.json",
    )  # fmt: skip
    assert code == 0, messages
    assert "identical to plain decoding, token by token" in shown + messages
    assert json.loads((tmp_path / "b.json").read_text("utf-8"))


def test_wrong_files_and_options_are_refused_in_one_line(run_command, pair, gguf_files, tmp_path):
    (tmp_path / "cut.gguf").write_bytes(gguf_files()[0].read_bytes()[:-4000])
    cases = [
        (["--target", "cut.gguf", "--draft", "cut.gguf"], 1, "Is the file complete?"),
        ([*pair, "--dtype", "float16"], 2, "--dtype: expected none, because GGUF files keep theirs."),
        ([*pair, "--max-memory", "cpu=1GB"], 1, "expected to run on cpu, as GGUF models do"),
    ]
    for options, expected, message in cases:
        code, shown, messages = run_command("run", "tree.json", *options, "--prompt", "a")
        assert (code, shown) == (expected, "")
        assert message in messages
        assert messages.count("Error: ") == 1


@pytest.mark.slow
def test_profile_of_more_tokens_than_sequences_is_refused(run_command, pair):
    wide = ["--max-tokens", "512", *QUICK[2:]]
    code, _, messages = run_command("profile", *pair, *wide, "--prompts", "prompts.txt", "-o", "p.yaml")
    assert code == 1
    assert "Error: tree: expected at most 255 leaves, because llama.cpp has 256 sequences" in messages
    assert "(--max-tokens)" in messages
