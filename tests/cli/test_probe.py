"""`treeopt probe` and `treeopt bench engine` with a fake engine: files, tables and warnings."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import Result

from tests.cli.invented import call, refused, succeed
from tests.engines.clients.test_http import serve  # noqa: F401 - a fixture
from tests.support.fake_engine import FakeEngine, FakeRunning
from treeopt import bundled
from treeopt.engines.clients import registry
from treeopt.files.serialization import serialize_record
from treeopt.records.engine import EngineSetting
from treeopt.records.profile import Profile

MODELS = ("--target", "t.gguf", "--draft", "d.gguf")
AMOUNTS = ("--max-prompts", "8", "--rounds", "2", "--max-new-tokens", "30")
QUICK = (*AMOUNTS, "--lengths", "0,1,3")
BENCH = ("bench", "engine", "llama-server", "--max-prompts", "12", "--max-new-tokens", "30", "--repeats", "1")


@pytest.fixture
def engine(monkeypatch, folder):  # noqa: ARG001 - files are named relative to it
    """Return the fake in place of llama-server."""
    fake = FakeEngine(name="llama-server", step_s=lambda length, _: 0.001 * (1 + 0.1 * length))
    monkeypatch.setattr(registry, "create_client", lambda name, **_: fake if name == "llama-server" else None)
    return fake


def probe(*options) -> Result:
    return succeed("probe", "llama-server", *MODELS, *QUICK, *options)


def lengths_of(path: str) -> list[int]:
    return [chain.length for chain in Profile.load(path).chain_latencies[0].chains]


class TestProbe:
    @pytest.mark.usefixtures("engine")
    def test_profile_is_solved_and_exported(self):
        result = probe()
        assert "draft tokens  step, ms" in result.stdout
        assert "ever accepted" not in result.stderr
        assert Profile.load("profile.yaml").engine.name == "llama-server"
        assert not Path("profile.yaml.partial").exists()
        output = succeed("solve").stdout
        assert "Fastest: a chain of 3 draft tokens" in output
        assert output.startswith("t.gguf + d.gguf in llama-server on ")
        assert "Next: treeopt bench engine llama-server --profile profile.yaml" in output
        succeed("export", "profile.yaml", "--to", "llama-cpp", "-o", "flags.txt")
        assert "--spec-draft-n-max 3" in Path("flags.txt").read_text()

    @pytest.mark.usefixtures("engine")
    def test_prompts_keep_their_categories(self):
        rows = [{"category": "ab"[number % 2], "prompt": "x" * number} for number in range(1, 9)]
        Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        probe("--prompts", "mine.jsonl")
        assert sorted(Profile.load("profile.yaml").acceptances[0].categories) == ["a"] * 3 + ["b"] * 3
        assert "prompts of category a" in succeed("solve", "--category", "a").stdout

    def test_plan_and_export_warn_that_speculation_loses(self, engine):
        engine.step_s = lambda length, _: 0.001 * (1 + 4 * length)
        probe()
        speedup = re.search(r"Plain decoding is the fastest: .*, reaches (0\.\d\d)x", call("solve").stdout)
        stderr = succeed("export", "profile.yaml", "--to", "llama-cpp", "-o", "flags.txt").stderr
        assert f"speculation loses: the fastest draft, a chain of 1 draft token, is {speedup[1]} times" in stderr
        assert Path("flags.txt").read_text() == "\n"

    def test_bench_uses_the_method_of_the_probe(self, engine):
        ngram = ("--method", "ngram", "--ngram-tokens", "3")
        succeed("probe", "llama-server", *MODELS[:2], *QUICK, *ngram)
        profile = Profile.load("profile.yaml")
        settings = {setting.name: setting.value for setting in profile.engine.settings}
        assert (settings["method"], settings["ngram-tokens"], profile.pair.draft) == ("ngram", "3", "ngram")
        succeed(*BENCH)
        assert {(config.method, config.ngram_tokens, config.draft) for config in engine.started} == {("ngram", 3, None)}

    def test_batch_sizes_make_schedules(self, engine):
        engine.step_s = lambda length, batch: 0.001 * (1 + 0.1 * length * batch**3)
        probe("--batch-sizes", "1,2,4")
        assert "batch" in call("solve").stdout
        succeed("export", "profile.yaml", "--to", "vllm", "-o", "vllm.json")

    def test_answers_of_an_engine_that_stops_are_kept(self, engine):
        engine.dies_after = 12
        result = call("probe", "llama-server", *MODELS, *QUICK)
        assert result.exit_code == 1
        assert "it is gone. Go on with --resume." in result.stderr
        assert Path("profile.yaml.partial").exists()
        assert not Path("profile.yaml").exists()
        engine.dies_after = None
        before = engine.asked
        probe("--resume")
        assert engine.asked - before < 3 + 36

    @pytest.mark.parametrize(("option", "most_open"), [((), 1), (("--together",), 3)])
    def test_servers_run_one_at_a_time_unless_together(self, engine, option, most_open):
        probe(*option)
        assert engine.most_open == most_open
        engine.most_open = 0
        succeed(*BENCH, *option)
        assert engine.most_open == most_open

    def test_sequences_that_end_at_once_are_one_warning(self, engine):
        Path("mine.json").write_text(json.dumps([*"abcdef", "ends", "h"]), "utf-8")
        engine.ends_at_once = frozenset(["ends"])
        stderr = probe("--prompts", "mine.json", "--max-prompts", "9").stderr
        assert stderr.count("ended at once") == 1
        assert "Warning: 6 sequences ended at once" in stderr  # 2 rounds of 3 lengths

    @pytest.mark.usefixtures("engine")
    def test_an_unmeasured_length_of_1_is_a_warning(self):
        assert "Probe with --lengths 0,1,3." in probe("--lengths", "0,3").stderr

    def test_all_engines_are_listed(self):
        result = succeed("probe", "--list")
        for name in registry.NAMES:
            assert f"\n{name}  (" in f"\n{result.stdout}"


class TestServers:
    START = ("probe", "llama-server", *AMOUNTS, "-o", "p.yaml")

    @pytest.fixture
    def addresses(self, engine, monkeypatch):
        """Return the addresses that are contacted."""
        urls = []
        monkeypatch.setattr(registry, "create_client", lambda *_, url, **__: urls.append(url) or engine)
        return urls

    @pytest.mark.usefixtures("addresses")
    def test_lengths_are_those_of_the_named_servers(self):
        succeed(*self.START, "--url", "0=http://a:1,5=http://b:2")
        assert lengths_of("p.yaml") == [0, 5]

    def test_lengths_are_measured_one_by_one_in_any_order(self, addresses):
        Path("some prompts.txt").write_text("\n".join("abcdefgh") + "\n")
        start = (*self.START, "--prompts", "some prompts.txt")
        first = succeed(*start, "--url", "http://a:1", "--lengths", "3")
        assert "measured: 3. Saved in p.yaml.partial" in first.stdout
        assert Path("p.yaml.partial").exists()
        assert not Path("p.yaml").exists()
        line = refused(*start, "--url", "http://a:1", "--lengths", "0")
        assert "p.yaml.partial: exists, and holds what an interrupted run measured. Continue with --resume" in line
        assert first.stdout.splitlines()[-1] == (
            "Missing: 0, plain decoding. Start the server without a draft, and run the same command with --lengths 0 --resume."
        )
        done = succeed(*start, "--url", "http://a:1", "--lengths", "0", "--resume")
        assert lengths_of("p.yaml") == [0, 3]
        assert "Answers stay in p.yaml.partial" in done.stdout
        output = call("solve", "--profile", "p.yaml").stdout
        assert "bench engine llama-server --profile p.yaml --url 0=URL,3=URL" in output
        succeed(*start, "--url", "http://b:2", "--lengths", "1", "--resume")
        assert lengths_of("p.yaml") == [0, 1, 3]
        assert addresses == ["3=http://a:1", "0=http://a:1", "1=http://b:2"]

    @pytest.mark.usefixtures("folder")
    def test_a_server_is_restarted_with_each_length(self, serve):  # noqa: F811
        """Over HTTP: first it drafts 3 tokens, of which 3 in 5 steps are accepted, then none."""
        state = {"drafting": True, "texts": 0}

        def completion():
            timings = {"predicted_n": 9, "predicted_ms": 8.0}
            if state["drafting"]:
                state["texts"] += 1
                timings |= {"draft_n": 15, "draft_n_accepted": 3, "predicted_ms": 20.0}
            return 200, json.dumps({"content": "text", "timings": timings, "tokens_evaluated": 5})

        def metrics():
            growth = {"drafts": 5, "draft_tokens": 15, "accepted_tokens": 3, 'accepted_tokens_per_pos{position="0"}': 3}
            rows = [(name.partition("{"), count * state["texts"]) for name, count in growth.items()]
            text = "".join(
                f"# TYPE a:spec_decode_num_{name}_total counter\na:spec_decode_num_{name}_total{mark}{label} {count}\n"
                for (name, mark, label), count in rows
            )
            return (200, text) if state["drafting"] else (404, "")

        url, _ = serve({"/props": (200, '{"build_info": "b1"}'), "/completion": completion, "/metrics": metrics})
        succeed(*self.START, "--url", url, "--lengths", "3")
        state["drafting"] = False
        done = succeed(*self.START, "--url", url, "--lengths", "0", "--resume")
        assert "with 3 draft tokens, none after number 1 was ever accepted" in " ".join(done.stderr.split())
        profile = Profile.load("p.yaml")
        plain, drafted = profile.chain_latencies[0].chains
        assert (plain.length, drafted.length) == (0, 3)
        assert plain.steps.samples_s == pytest.approx([0.001] * 12)
        assert drafted.steps.samples_s == pytest.approx([0.004] * 12)
        assert profile.acceptances[0].chains[0].tokens_per_step == pytest.approx(8 / 5)
        succeed("solve", "--profile", "p.yaml")  # at a length that is deeper than any accepted token

    @pytest.mark.usefixtures("addresses")
    def test_a_length_is_proposed_after_plain_decoding(self, engine):
        first = succeed(*self.START, "--url", "http://a:1", "--lengths", "0")
        assert first.stdout.splitlines()[-1].endswith("and run the same command with --lengths 3 --resume.")
        before = engine.asked
        again = (*self.START, "--url", "http://a:1", "--lengths", "3", "--resume")
        line = refused(*again, "--temperature", "0.5")  # negative control
        assert "other conditions (temperature 0.0) than asked for now (temperature 0.5)" in line
        assert engine.asked == before
        succeed(*again)

    @pytest.mark.usefixtures("addresses")
    def test_a_probe_that_timed_out_is_resumed_with_a_longer_timeout(self):
        succeed(*self.START, "--url", "http://a:1", "--lengths", "0", "--timeout", "4s")
        succeed(*self.START, "--url", "http://a:1", "--lengths", "3", "--timeout", "9s", "--resume")
        assert lengths_of("p.yaml") == [0, 3]

    @pytest.mark.usefixtures("addresses")
    def test_a_probe_without_an_answer_leaves_nothing_to_resume(self, engine):
        engine.dies_after = 0
        start = (*self.START, "--url", "http://a:1", "--lengths", "0")
        assert refused(*start).endswith("it is gone.")
        assert not Path("p.yaml.partial").exists()
        engine.dies_after = None
        succeed(*start, "--max-new-tokens", "20")


class TestPlacement:
    TRANSFORMERS = ("--target", str(bundled.TARGET), "--draft", str(bundled.DRAFT))

    @pytest.fixture
    def configs(self, monkeypatch, folder):  # noqa: ARG002 - files are named relative to it
        """Return the configurations of a fake in place of transformers."""
        fake = FakeEngine(name="transformers")
        monkeypatch.setattr(registry, "create_client", lambda *_, **__: fake)
        return fake.started

    def test_auto_is_float32_on_the_cpu(self, configs, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        succeed("probe", "transformers", *self.TRANSFORMERS, *QUICK)
        assert {(config.device, config.dtype) for config in configs} == {("cpu", "float32")}
        profile = Profile.load("profile.yaml")
        assert (profile.machine.device, profile.pair.dtype) == ("cpu", "float32")

    def test_bench_uses_device_and_dtype_of_the_probe(self, configs):
        """The checkpoint is float16, and auto on the CPU float32: only the profile has bfloat16."""
        succeed("probe", "transformers", *self.TRANSFORMERS, *QUICK, "--device", "cpu", "--dtype", "bfloat16")
        configs.clear()
        bench = ("bench", "engine", "transformers", "--max-prompts", "12", "--repeats", "1")
        same = succeed(*bench)
        assert {(config.device, config.dtype) for config in configs} == {("cpu", "bfloat16")}
        assert "may differ" not in same.stderr
        assert "bfloat16, not float32" in call(*bench, "--dtype", "float32").stderr


@pytest.mark.usefixtures("profile")
class TestBench:
    @pytest.fixture
    def profile(self, engine):  # noqa: ARG002 - it is probed
        probe()

    def test_rows_contain_predictions(self):
        result = succeed(*BENCH, "-o", "bench.json", "--plot", "bench.svg")
        assert Path("bench.svg").read_text().startswith("<?xml")
        report, profile = json.loads(Path("bench.json").read_text()), Profile.load("profile.yaml")
        heading = {"tool", "created", "machine", "pair"}
        assert set(report) == heading | {"bench", "engine", "version", "rows", "losslessness"}
        assert report["machine"] == serialize_record(profile.machine)
        assert report["pair"] == serialize_record(profile.pair)
        assert result.stdout.startswith(f"{profile.pair.label} on {profile.machine.processor}")
        assert [row["length"] for row in report["rows"]] == [0, 1, 3]
        assert [row["length"] for row in report["rows"] if row["chosen"]] == [3]
        for row in report["rows"]:
            predicted = row["predicted"]["tokens_per_step"] / row["predicted"]["step_s"]
            assert row["tokens_per_s"] == pytest.approx(predicted, rel=0.1)
            assert row["identical"] is True
        assert "The chosen length is the fastest measured." in result.stdout

    def test_a_faster_length_than_the_choice_is_reported(self, engine):
        engine.step_s = lambda length, _: 0.001 * (1 + 9 * length)
        output = succeed(*BENCH).stdout
        assert "Plain decoding is" in output
        assert "faster than the choice, 3 draft tokens" in output

    def test_another_version_and_other_models_are_warnings(self, engine):
        engine.version = "2"
        stderr = call(*BENCH, "--target", "other.gguf").stderr
        assert "llama-server 1, not 2" in stderr
        assert "other.gguf" in stderr

    def test_other_weights_in_files_of_the_same_name_are_a_warning(self):
        for path in MODELS[1::2]:
            Path(path).write_bytes(b"f16")
        probe()
        assert "other weights" not in succeed(*BENCH).stderr  # negative control
        Path(MODELS[3]).write_bytes(b"q8_0")
        stderr = call(*BENCH).stderr
        assert "t.gguf + d.gguf, and the models of these names have other weights here" in stderr
        assert "probe again" in stderr

    @pytest.mark.parametrize(
        ("probed", "benched", "warning"),
        [
            (("--threads", "1"), ("--threads", "2"), "1 thread, not 2 threads"),
            ((), ("--prompts", "mine.txt"), "prompts default_prompts.jsonl "),
        ],
    )
    def test_other_threads_and_other_prompts_are_warnings(self, probed, benched, warning):
        Path("mine.txt").write_text("\n".join("abcdefgh") + "\n")
        probe(*probed)
        assert warning not in succeed(*BENCH, *probed).stderr
        stderr = succeed(*BENCH, *benched).stderr
        assert warning in stderr
        assert "times and acceptance may differ" in stderr

    def test_another_served_model_is_a_warning(self, engine):
        engine.settings = (EngineSetting(name="model", value="a"),)
        probe()
        engine.settings = (EngineSetting(name="model", value="b"),)
        assert "the profile is of model a, not b" in call(*BENCH).stderr

    def test_diverging_outputs_are_a_warning(self, engine, monkeypatch):
        start = engine.start

        def start_differing(config):
            running = start(config)
            answer = running._answer
            changed = {"text": "other"} if config.draft_tokens == 1 else {}
            running._answer = lambda *request: answer(*request)._replace(**changed)
            return running

        monkeypatch.setattr(engine, "start", start_differing)
        result = succeed(*BENCH)
        assert "DIFFER" in result.stdout
        assert "Run it in 32-bit floats, and report it to its developers" in result.stderr


@pytest.mark.usefixtures("engine")
class TestChatTemplate:
    @pytest.fixture
    def prompts(self, monkeypatch):
        """Return the prompts that the engine receives."""
        received = []
        answer = FakeRunning._answer

        def record(running, request, batch):
            received.append(request.prompt)
            return answer(running, request, batch)

        monkeypatch.setattr(FakeRunning, "_answer", record)
        return received

    def test_probe_and_bench_apply_the_template(self, prompts):
        Path("chat").mkdir()
        shutil.copy(bundled.TARGET / "tokenizer.json", "chat")
        Path("chat/chat_template.jinja").write_text("<user>{{ messages[0]['content'] }}<answer>")
        shutil.copytree("chat", "other")
        probe("--chat-template", "chat")
        probed = len(prompts)
        result = succeed(*BENCH)
        assert len(prompts) > probed > 0
        assert all(text.startswith("<user>") and text.endswith("<answer>") for text in prompts)
        assert "chat-template" not in result.stderr
        assert "chat-template" in succeed(*BENCH, "--chat-template", "other").stderr

    def test_without_a_template_prompts_are_sent_as_they_are(self, prompts):
        probe()
        assert prompts
        assert not any("<user>" in text for text in prompts)

    def test_a_folder_without_a_template_is_refused_at_once(self, prompts):
        line = refused("probe", "llama-server", *MODELS, *QUICK, "--chat-template", bundled.TARGET)
        assert "no chat template" in line
        assert "leave --chat-template out" in line
        assert not prompts
