"""`treeopt probe` and `bench engine` with a fake engine: files, tables, warnings, refusals."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from tests.cli.invented import call
from tests.engines.clients.test_http import serve  # noqa: F401 - a fixture
from tests.support.fake_engine import FakeEngine, FakeRunning
from treeopt import bundled
from treeopt.engines.clients import registry
from treeopt.files.serialization import serialize_record
from treeopt.records.engine import EngineSetting
from treeopt.records.profile import Profile

MODELS = ("--target", "t.gguf", "--draft", "d.gguf")
QUICK = ("--max-prompts", "8", "--rounds", "2", "--max-new-tokens", "30", "--lengths", "0,1,3")


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Return the fake that stands for llama-server, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    fake = FakeEngine(name="llama-server")
    monkeypatch.setattr(registry, "create_client", lambda name, **_: fake if name == "llama-server" else None)
    return fake


def probe(*more):
    return call("probe", "llama-server", *MODELS, *QUICK, *more)


class TestProbe:
    def test_it_writes_a_profile_that_solve_and_export_take(self, engine):
        engine.step_s = lambda length, _: 0.001 * (1 + 0.1 * length)
        result = probe()
        assert result.exit_code == 0, result.stderr
        assert "draft tokens  step, ms" in result.stdout
        assert "ever accepted" not in result.stderr
        assert Profile.load("profile.yaml").engine.name == "llama-server"
        assert not Path("profile.yaml.partial").exists()
        solved = call("solve")
        assert "Fastest: a chain of 3 draft tokens" in solved.stdout, solved.output
        assert solved.stdout.startswith("t.gguf + d.gguf in llama-server on ")
        assert "Next: treeopt bench engine llama-server --profile profile.yaml" in solved.stdout
        exported = call("export", "profile.yaml", "--to", "llama-cpp", "-o", "flags.txt")
        assert exported.exit_code == 0, exported.output
        assert "--spec-draft-n-max 3" in Path("flags.txt").read_text()

    @pytest.mark.usefixtures("engine")
    def test_prompts_keep_their_categories(self):
        rows = [{"category": "ab"[number % 2], "prompt": "x" * number} for number in range(1, 9)]
        Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert probe("--prompts", "mine.jsonl").exit_code == 0
        assert sorted(Profile.load("profile.yaml").acceptances[0].categories) == ["a"] * 3 + ["b"] * 3
        solved = call("solve", "--category", "a")
        assert solved.exit_code == 0, solved.output
        assert "prompts of category a" in solved.stdout

    def test_where_speculation_loses_plans_say_so(self, engine):
        engine.step_s = lambda length, _: 0.001 * (1 + 4 * length)
        assert probe().exit_code == 0
        speedup = re.search(r"Plain decoding is the fastest: .*, reaches (0\.\d\d)x", call("solve").stdout)
        exported = call("export", "profile.yaml", "--to", "llama-cpp", "-o", "flags.txt")
        assert exported.exit_code == 0, exported.output
        assert (
            f"speculation loses: the fastest draft, a chain of 1 draft token, is {speedup[1]} times" in exported.stderr
        )
        assert Path("flags.txt").read_text() == "\n"

    def test_another_method_is_probed_named_and_raced_as_it_was_probed(self, engine, monkeypatch):
        engine.step_s = lambda length, _: 0.001 * (1 + 0.1 * length)
        started = []
        start = engine.start
        monkeypatch.setattr(engine, "start", lambda config: started.append(config) or start(config))
        made = call("probe", "llama-server", *MODELS[:2], *QUICK, "--method", "ngram", "--ngram-tokens", "3")
        assert made.exit_code == 0, made.output
        settings = {each.name: each.value for each in Profile.load("profile.yaml").engine.settings}
        assert (settings["method"], settings["ngram-tokens"]) == ("ngram", "3")
        assert Profile.load("profile.yaml").pair.draft == "ngram"
        raced = call("bench", "engine", "llama-server", "--max-prompts", "12", "--repeats", "1")
        assert raced.exit_code == 0, raced.output
        assert {(each.method, each.ngram_tokens, each.draft) for each in started} == {("ngram", 3, None)}

    def test_batch_sizes_make_schedules(self, engine):
        engine.step_s = lambda length, batch: 0.001 * (1 + 0.1 * length * batch**3)
        assert probe("--batch-sizes", "1,2,4").exit_code == 0
        assert "batch" in call("solve").stdout
        exported = call("export", "profile.yaml", "--to", "vllm", "-o", "vllm.json")
        assert exported.exit_code == 0, exported.output

    def test_an_engine_that_dies_keeps_its_answers(self, engine):
        engine.dies_after = 12
        broken = probe()
        assert broken.exit_code == 1
        assert "it is gone" in broken.stderr
        assert Path("profile.yaml.partial").exists()
        assert not Path("profile.yaml").exists()
        engine.dies_after = None
        before = engine.asked
        assert probe("--resume").exit_code == 0
        assert engine.asked - before < 3 + 36

    @pytest.mark.parametrize(("option", "most_open"), [((), 1), (("--together",), 3)])
    def test_servers_run_one_at_a_time_unless_together(self, engine, option, most_open):
        assert probe(*option).exit_code == 0
        assert engine.most_open == most_open
        engine.most_open = 0
        raced = call("bench", "engine", "llama-server", "--max-prompts", "12", "--repeats", "1", *option)
        assert raced.exit_code == 0, raced.output
        assert engine.most_open == most_open

    def test_a_text_that_ends_at_once_is_one_warning(self, engine):
        Path("mine.json").write_text(json.dumps([*"abcdef", "ends", "h"]), "utf-8")
        engine.ends_at_once = frozenset(["ends"])
        result = probe("--prompts", "mine.json", "--max-prompts", "9")
        assert result.exit_code == 0, result.output
        assert result.stderr.count("ended at once") == 1
        assert "Warning: 6 sequences ended at once" in result.stderr  # 2 rounds of 3 lengths

    @pytest.mark.usefixtures("engine")
    def test_an_unmeasured_length_1_is_told(self):
        result = call("probe", "llama-server", *MODELS, *QUICK[:-2], "--lengths", "0,3")
        assert "Probe with --lengths 0,1,3." in result.stderr

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            ((), "ENGINE: expected one of"),
            (("llama-server",), "--target, --draft: expected both"),
            (("llama-server", "--url", "a:1"), "expected a server for each length"),
            (("llama-server", "--url", "http://a:1"), "--url: expected one length of one server"),
            (("llama-server", "--url", "http://a:1", "--lengths", "3", "-o", "-"), "--output: expected a file"),
            (("vllm", "--url", "http://a:1", "--lengths", "3", "--ngram-tokens", "2"), "that treeopt starts"),
            (("llama-server", *MODELS, "--lengths", "1,3"), "--lengths: expected 0"),
            (("llama-server", *MODELS, "--method", "ngram"), "--method ngram: expected --target alone"),
            (("llama-server", *MODELS, "--method", "mtp"), "expected ngram, eagle3, none with llama-server"),
            (("mlx-lm", *MODELS, "--method", "eagle3"), "--method: expected none with mlx-lm that treeopt starts"),
            (("llama-server", "--target", "t.gguf", "--method", "eagle3"), "--target, --draft: expected both"),
            (("llama-server", *MODELS, "--ngram-tokens", "3"), "--ngram-tokens: it is for --method ngram"),
            (("llama-server", *MODELS, "--lengths", "0,-1"), "whole numbers of at least 0"),
        ],
    )
    def test_bad_input_is_one_line(self, engine, arguments, reason):
        result = call("probe", *arguments)
        assert result.exit_code == 2
        assert reason in " ".join(result.stderr.split())
        assert engine.asked == 0

    def test_lengths_are_those_of_the_servers_that_are_named(self, engine, monkeypatch):
        monkeypatch.setattr(registry, "create_client", lambda *_, **__: engine)
        start = ("probe", "llama-server", *QUICK[:-2], "-o", "p.yaml", "--url", "0=http://a:1,5=http://b:2")
        result = call(*start)
        assert result.exit_code == 0, result.output
        assert [each.length for each in Profile.load("p.yaml").chain_latencies[0].chains] == [0, 5]

    def test_lengths_are_measured_one_after_the_other(self, engine, monkeypatch):
        """Any order, any addresses; each last line is the command that goes on, until the profile is written."""
        asked = []
        monkeypatch.setattr(registry, "create_client", lambda *_, url, **__: asked.append(url) or engine)
        start = ("probe", "llama-server", *QUICK[:-2], "--prompts", "some prompts.txt", "-o", "p.yaml")
        Path("some prompts.txt").write_text("\n".join("abcdefgh") + "\n")
        first = call(*start, "--url", "http://a:1", "--lengths", "3")
        assert first.exit_code == 0, first.output
        assert "measured: 3. Saved in p.yaml.partial" in first.stdout
        assert Path("p.yaml.partial").exists()
        assert not Path("p.yaml").exists()
        again = call(*start, "--url", "http://a:1", "--lengths", "0")
        assert again.exit_code == 1
        assert (
            "p.yaml.partial: exists, and holds what an interrupted run measured. Continue with --resume" in again.stderr
        )
        last = first.stdout.splitlines()[-1]
        assert last.startswith("Missing: 0, plain decoding. Start the server without a draft, then: treeopt probe ")
        program, *command = shlex.split(last.partition("then: ")[2])
        assert program == "treeopt"
        assert {"--resume", "some prompts.txt", "p.yaml", "http://a:1"} < set(command)
        done = call(*command)
        assert done.exit_code == 0, done.output
        assert [each.length for each in Profile.load("p.yaml").chain_latencies[0].chains] == [0, 3]
        assert "Answers stay in p.yaml.partial" in done.stdout
        assert (
            "bench engine llama-server --profile p.yaml --url 0=URL,3=URL"
            in call("solve", "--profile", "p.yaml").stdout
        )
        more = call(*start, "--url", "http://b:2", "--lengths", "1", "--resume")
        assert more.exit_code == 0, more.output
        assert [each.length for each in Profile.load("p.yaml").chain_latencies[0].chains] == [0, 1, 3]
        assert asked == ["3=http://a:1", "0=http://a:1", "1=http://b:2"]

    def test_a_server_that_is_started_anew_with_each_length(self, serve, tmp_path, monkeypatch):  # noqa: F811
        """Over HTTP, the server at one address: it drafts 3 tokens of which 3 in 5 steps are accepted, then none."""
        monkeypatch.chdir(tmp_path)
        counted = {"drafting": True, "texts": 0}

        def completion():
            timings = {"predicted_n": 9, "predicted_ms": 8.0}
            if counted["drafting"]:
                counted["texts"] += 1
                timings |= {"draft_n": 15, "draft_n_accepted": 3, "predicted_ms": 20.0}
            return 200, json.dumps({"content": "text", "timings": timings, "tokens_evaluated": 5})

        def metrics():
            growth = {"drafts": 5, "draft_tokens": 15, "accepted_tokens": 3, 'accepted_tokens_per_pos{position="0"}': 3}
            rows = [(name.partition("{"), each * counted["texts"]) for name, each in growth.items()]
            text = "".join(
                f"# TYPE a:spec_decode_num_{name}_total counter\na:spec_decode_num_{name}_total{mark}{place} {each}\n"
                for (name, mark, place), each in rows
            )
            return (200, text) if counted["drafting"] else (404, "")

        url, _ = serve({"/props": (200, '{"build_info": "b1"}'), "/completion": completion, "/metrics": metrics})
        first = call("probe", "llama-server", *QUICK[:-2], "--url", url, "--lengths", "3", "-o", "p.yaml")
        assert first.exit_code == 0, first.output
        counted["drafting"] = False
        told = shlex.split(first.stdout.splitlines()[-1].partition("then: ")[2])
        done = call(*told[1:])
        assert "with 3 draft tokens, none after number 1 was ever accepted" in " ".join(done.stderr.split())
        assert done.exit_code == 0, done.output
        found = Profile.load("p.yaml")
        plain, drafted = found.chain_latencies[0].chains
        assert (plain.length, drafted.length) == (0, 3)
        assert plain.steps.samples_s == pytest.approx([0.001] * 12)
        assert drafted.steps.samples_s == pytest.approx([0.004] * 12)
        assert found.acceptances[0].chains[0].tokens_per_step == pytest.approx(8 / 5)
        solved = call("solve", "--profile", "p.yaml")  # of a length that is deeper than what was ever accepted
        assert solved.exit_code == 0, solved.output

    def test_after_plain_decoding_a_length_is_proposed(self, engine):
        assert engine.asked == 0
        first = call("probe", "llama-server", *QUICK[:-2], "--url", "http://a:1", "--lengths", "0")
        last = first.stdout.splitlines()[-1]
        assert last.startswith("Missing: one above 0, such as 3. Start the server with 3 draft tokens, then: ")
        assert call(*shlex.split(last.partition("then: ")[2])[1:]).exit_code == 0

    def test_another_prompt_file_is_not_gone_on_with(self, engine):
        """Negative control: what samples depend on stays in the heading."""
        assert call("probe", "llama-server", *QUICK[:-2], "--url", "http://a:1", "--lengths", "0").exit_code == 0
        before = engine.asked
        other = ("probe", "llama-server", "--url", "http://a:1", "--lengths", "3", "--resume", "--temperature", "0.5")
        refused = call(*other, *QUICK[:-2])
        assert refused.exit_code == 1
        assert "other conditions" in refused.stderr
        assert engine.asked == before

    def test_an_unknown_engine_is_one_line(self):
        result = call("probe", "nothing", *MODELS)
        assert result.exit_code == 2
        assert "ENGINE: expected one of llama-server" in result.stderr

    def test_all_engines_are_listed(self):
        result = call("probe", "--list")
        assert result.exit_code == 0
        for name in registry.NAMES:
            assert f"\n{name}  (" in f"\n{result.stdout}"


class TestPlacement:
    @pytest.fixture
    def launched(self, monkeypatch, tmp_path):
        """Return the launches of a fake that stands for transformers."""
        monkeypatch.chdir(tmp_path)
        fake = FakeEngine(name="transformers")
        monkeypatch.setattr(registry, "create_client", lambda *_, **__: fake)
        return fake.started

    def transformers(self, *more):
        return call(
            "probe", "transformers", "--target", str(bundled.TARGET), "--draft", str(bundled.DRAFT), *QUICK, *more
        )

    def test_auto_is_float32_on_the_cpu(self, launched, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        result = self.transformers()
        assert result.exit_code == 0, result.output
        assert {(each.device, each.dtype) for each in launched} == {("cpu", "float32")}
        profile = Profile.load("profile.yaml")
        assert (profile.machine.device, profile.pair.dtype) == ("cpu", "float32")

    def test_a_bench_runs_where_and_in_what_was_probed(self, launched):
        """The checkpoint is float16, and auto on the CPU float32: only the profile has bfloat16."""
        result = self.transformers("--device", "cpu", "--dtype", "bfloat16")
        assert result.exit_code == 0, result.output
        launched.clear()
        bench = ("bench", "engine", "transformers", "--max-prompts", "12", "--repeats", "1")
        same = call(*bench)
        assert same.exit_code == 0, same.output
        assert {(each.device, each.dtype) for each in launched} == {("cpu", "bfloat16")}
        assert "may differ" not in same.stderr
        assert "bfloat16, not float32" in " ".join(call(*bench, "--dtype", "float32").stderr.split())

    @pytest.mark.usefixtures("launched")
    def test_a_device_that_is_not_there_is_one_line(self):
        result = self.transformers("--device", "cuda:9")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "--device: expected auto or a device of this machine: cpu" in result.stderr

    @pytest.mark.usefixtures("launched")
    @pytest.mark.parametrize("option", [("--device", "cpu"), ("--dtype", "float32")])
    def test_an_engine_that_chooses_for_itself_takes_none(self, option):
        result = call("probe", "llama-server", *MODELS, *option)
        assert result.exit_code == 2
        assert f"{option[0]}: expected with transformers alone" in " ".join(result.stderr.split())


class TestBench:
    @pytest.fixture(autouse=True)
    def profile(self, engine):
        engine.step_s = lambda length, _: 0.001 * (1 + 0.1 * length)
        assert probe().exit_code == 0

    def bench(self, *more):
        return call(
            "bench",
            "engine",
            "llama-server",
            "--max-prompts",
            "12",
            "--repeats",
            "2",
            "--max-new-tokens",
            "30",
            *more,
        )

    def test_rows_stand_beside_predictions(self):
        result = self.bench("-o", "bench.json", "--plot", "bench.svg")
        assert result.exit_code == 0, result.stderr
        assert Path("bench.svg").read_text().startswith("<?xml")
        report = json.loads(Path("bench.json").read_text())
        heading = {"tool", "created", "machine", "pair"}
        assert set(report) == heading | {"bench", "engine", "version", "rows", "gap_to_best", "losslessness"}
        probed = Profile.load("profile.yaml")
        assert (report["machine"], report["pair"]) == (serialize_record(probed.machine), serialize_record(probed.pair))
        assert result.stdout.startswith(f"{probed.pair.label} on {probed.machine.processor}")
        assert [row["length"] for row in report["rows"]] == [0, 1, 3]
        assert [row["length"] for row in report["rows"] if row["chosen"]] == [3]
        for row in report["rows"]:
            assert row["tokens_per_s"] == pytest.approx(row["predicted_tokens_per_s"], rel=0.1)
            assert row["identical"] is True
        assert report["gap_to_best"] == 0
        assert "The chosen length is the fastest measured." in result.stdout

    def test_a_choice_that_does_not_hold_is_told(self, engine):
        engine.step_s = lambda length, _: 0.001 * (1 + 9 * length)
        result = self.bench()
        assert "Plain decoding is" in result.stdout
        assert "faster than the choice, 3 draft tokens" in result.stdout

    def test_another_version_and_other_models_are_told(self, engine):
        engine.version = "2"
        result = self.bench("--target", "other.gguf")
        assert "llama-server 1, not 2" in result.stderr
        assert "other.gguf" in result.stderr

    def test_files_of_the_same_name_that_hold_something_else_are_told(self, engine):
        for each in MODELS[1::2]:
            Path(each).write_bytes(b"f16")
        assert probe().exit_code == 0
        assert engine.name
        assert "other weights" not in self.bench().stderr  # negative control
        Path(MODELS[3]).write_bytes(b"q8_0")
        told = " ".join(self.bench().stderr.split())
        assert "t.gguf + d.gguf, and the models of these names have other weights here" in told
        assert "probe again" in told

    @pytest.mark.parametrize(
        ("options", "more", "told"),
        [
            (("--threads", "1"), ("--threads", "2"), "1 thread, not 2 threads"),
            ((), ("--prompts", "mine.txt"), "prompts default_prompts.jsonl "),
            (("--prompts", "mine.txt"), (), "prompts mine.txt "),
        ],
    )
    def test_other_threads_and_other_prompts_are_told(self, engine, options, more, told):
        Path("mine.txt").write_text("\n".join("abcdefgh") + "\n")
        assert probe(*options).exit_code == 0
        assert engine.name
        same = self.bench(*options)
        assert (same.exit_code, told in same.stderr) == (0, False)
        other = " ".join(self.bench(*more).stderr.split())
        assert told in other
        assert "times and acceptance may differ" in other

    def test_another_served_model_is_told(self, engine):
        engine.settings = (EngineSetting(name="model", value="a"),)
        assert probe().exit_code == 0
        engine.settings = (EngineSetting(name="model", value="b"),)
        assert "the profile is of model a, not b" in self.bench().stderr

    def test_a_text_that_differs_is_told_with_what_to_do(self, engine, monkeypatch):
        start = engine.start

        def differing(config):
            running = start(config)
            answer = running._answer
            changed = {"text": "other"} if config.draft_tokens == 1 else {}
            running._answer = lambda *asked: answer(*asked)._replace(**changed)
            return running

        monkeypatch.setattr(engine, "start", differing)
        result = self.bench()
        assert "DIFFER" in result.stdout
        assert "Run it in 32-bit floats, and report it to its developers" in result.stderr

    def test_another_profile_is_refused(self):
        result = call("bench", "engine", "transformers")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "expected a profile of transformers. Got one of llama-server" in result.stderr

    def test_an_unknown_engine_is_refused(self):
        result = call("bench", "engine", "nothing")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "ENGINE: expected one of llama-server" in result.stderr


@pytest.mark.usefixtures("engine")
class TestChatTemplate:
    @pytest.fixture
    def template_folder(self, tmp_path):
        folder = tmp_path / "chat"
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes((bundled.TARGET / "tokenizer.json").read_bytes())
        (folder / "chat_template.jinja").write_text("<user>{{ messages[0]['content'] }}<answer>")
        return folder

    @pytest.fixture
    def other_folder(self, template_folder):
        return shutil.copytree(template_folder, template_folder.parent / "other")

    @pytest.fixture
    def asked(self, monkeypatch):
        """Return the prompts that the engine was asked to continue, as they come."""
        prompts = []
        answer = FakeRunning._answer

        def recording(running, question, batch):
            prompts.append(question.prompt)
            return answer(running, question, batch)

        monkeypatch.setattr(FakeRunning, "_answer", recording)
        return prompts

    def test_prompts_are_put_into_it_in_the_probe_and_then_in_the_bench(self, asked, template_folder, other_folder):
        result = probe("--chat-template", str(template_folder))
        assert result.exit_code == 0, result.stderr
        assert asked
        assert all(text.startswith("<user>") and text.endswith("<answer>") for text in asked)
        asked.clear()
        result = call("bench", "engine", "llama-server", "--max-prompts", "8", "--repeats", "1")
        assert result.exit_code == 0, result.stderr
        assert asked
        assert all(text.startswith("<user>") and text.endswith("<answer>") for text in asked)
        assert "chat-template" not in result.stderr
        result = call("bench", "engine", "llama-server", "--repeats", "1", "--chat-template", str(other_folder))
        assert "chat-template" in result.stderr, "another template than the probe's has to be told"

    def test_without_one_prompts_are_sent_as_they_are(self, asked):
        assert probe().exit_code == 0
        assert asked
        assert not any("<user>" in text for text in asked)

    def test_a_folder_without_a_template_is_refused_before_anything_is_asked(self, asked):
        result = probe("--chat-template", str(bundled.TARGET))
        assert (result.exit_code, result.stdout) == (1, "")
        assert "no chat template" in result.stderr
        assert "leave --chat-template out" in result.stderr
        assert not asked
