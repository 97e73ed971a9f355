"""Pairs of models: the bundled one, folders, hub names; incompatible pairs are refused before their weights are read."""

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from tests.support.passes import feed_tokens, new_cache
from treeopt import bundled
from treeopt.cli.command import Command
from treeopt.cli.main import main
from treeopt.cli.options.pair import PairOptions
from treeopt.cli.options.prompts import PromptOptions
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.runtime import Decoder
from treeopt.runtime.models import load, pair
from treeopt.runtime.models.hf import Placement, loading
from treeopt.runtime.models.pair import load_pair
from treeopt.texts.prompts import DEFAULT_PROMPTS, bench_prompts, load_prompts, sample_prompts
from treeopt.texts.tokenizer import Tokenizer
from treeopt.trees import chain, level_widths

MAX_BYTES = 20_000_000
PROMPT = "import os\n"
SAME_TOKENS = "Vocabularies: 256 shared ids, 0 that differ, 0 in the target only, 0 in the draft only"
MODEL_FILES = {"target": bundled.TARGET, "draft": bundled.DRAFT}


@pytest.fixture
def target(tmp_path):
    return Path(shutil.copytree(bundled.TARGET, tmp_path / "target"))


@pytest.fixture
def draft(tmp_path):
    return Path(shutil.copytree(bundled.DRAFT, tmp_path / "draft"))


@pytest.fixture
def refuse_weights(monkeypatch):
    monkeypatch.setattr(pair, "load_language_model", lambda *_, **__: pytest.fail("a model was loaded"))


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def resize(folder, columns, *, scale=30.0):
    """Change the number of logits; those added are by default larger than all others."""
    change_json(folder / "config.json", vocab_size=columns)
    tensors = load_file(folder / "model.safetensors")
    for name in {"model.embed_tokens.weight", "lm_head.weight"} & tensors.keys():
        shape = max(0, columns - 256), tensors[name].shape[1]
        added = scale * torch.randn(shape, generator=torch.Generator().manual_seed(0))
        tensors[name] = torch.cat([tensors[name], added.to(tensors[name].dtype)])[:columns].clone()
    save_file(tensors, folder / "model.safetensors")


def swap_tokens(folder):
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")


def add_special_token(folder, index, token):
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    options = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"].append({"id": index, "content": token, "special": True, **options})
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")


def load_error(target, draft, **options):
    with pytest.raises(TreeoptError) as caught:
        load_pair(target, draft, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def decode_steps(models, count=40, prompt=PROMPT):
    """Return the tokens of each step of greedy decoding."""
    token_ids = models.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    decoder = Decoder(models.target, models.draft, level_widths([2, 1]), temperature=0, max_sequence_tokens=100)
    return list(decoder.stream(token_ids, count))


def decode(models, count=40, prompt=PROMPT):
    return [token for tokens in decode_steps(models, count, prompt) for token in tokens]


@pytest.fixture(scope="module")
def bundled_steps(bundled_pair):
    return decode_steps(bundled_pair)


@pytest.fixture(scope="module")
def bundled_tokens(bundled_steps):
    return [token for tokens in bundled_steps for token in tokens]


class TestBundledPair:
    @pytest.mark.parametrize("role", MODEL_FILES)
    def test_logits_equal_transformers(self, bundled_pair, role):
        transformers = pytest.importorskip("transformers", reason="needs the hf extra")
        folder, model = MODEL_FILES[role], getattr(bundled_pair, role)
        tokens = torch.tensor(bundled_pair.tokenizer.encode(load_prompts()[0]))
        reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        with torch.inference_mode():
            expected = reference(tokens[None]).logits[0]
        logits = feed_tokens(model, new_cache(model, len(tokens)), tokens).logits
        assert tokenizer(load_prompts()[0], add_special_tokens=False)["input_ids"] == tokens.tolist()
        torch.testing.assert_close(logits, expected, atol=2e-3, rtol=1e-4)
        assert torch.equal(logits.argmax(-1), expected.argmax(-1))

    def test_files_are_small(self):
        files = [path for path in bundled.FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert sum(path.stat().st_size for path in files) <= MAX_BYTES

    def test_tokens_are_bytes(self, bundled_pair):
        text, tokenizer = "def é(x):\n\t…\x00", bundled_pair.tokenizer
        assert tokenizer.encode(text) == list(text.encode())
        assert tokenizer.decode(text.encode()) == text
        assert list(tokenizer.stream("aé…".encode())) == ["a", "é", "…"]

    def test_prompts_come_from_files_that_training_held_out(self):
        entries = json.loads(bundled.PROMPTS.read_text())
        assert len(entries) == 32
        assert all(zlib.crc32(entry["source"].encode()) < 2**32 / 32 for entry in entries)

    def test_draft_agrees_with_target(self, bundled_pair):
        decoder = Decoder(bundled_pair.target, bundled_pair.draft, chain(3), temperature=0)
        prompts = [bundled_pair.tokenizer.encode(text) for text in bench_prompts(load_prompts())[:3]]
        steps = [tokens for prompt in prompts for tokens in decoder.stream(prompt, 40)]
        assert 3 * 40 / len(steps) > 2.0


class TestFolders:
    def test_pair_of_folders(self, target, draft, bundled_tokens):
        models = load_pair(str(target), draft)
        assert (models.target.name, models.draft.name, models.notes) == ("target", "draft", ())
        assert decode(models) == bundled_tokens

    @pytest.mark.parametrize(
        ("columns", "note"),
        [
            ((280, 264), "280 logits in the target, 264 in the draft."),
            ((256, 280), "256 logits in the target, 280 in the draft."),
            ((280, 280), None),
        ],
    )
    def test_padding_is_never_drafted(self, target, draft, bundled_steps, columns, note):
        resize(target, columns[0], scale=0)
        resize(draft, columns[1])
        models = load_pair(target, draft)
        assert models.notes == (() if note is None else (f"{SAME_TOKENS}; {note} Only shared ids are drafted.",))
        assert models.target.config.vocabulary == models.draft.config.vocabulary == columns[0]
        assert decode_steps(models) == bundled_steps

    def test_target_may_generate_padding_as_in_transformers(self, target, draft):
        transformers = pytest.importorskip("transformers", reason="needs the hf extra")
        resize(target, 280)
        reference = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        prompt = torch.tensor([list(PROMPT.encode())])
        expected = reference.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=-1)[0, prompt.shape[1] :]
        assert int(expected.max()) >= 256  # the draft has no embedding for these
        models = load_pair(target, draft)
        assert decode(models, 12) == expected.tolist()
        assert isinstance(models.tokenizer.decode(expected.tolist()), str)

    @pytest.mark.parametrize(
        ("role", "counts"), [("target", "1 in the target only, 0"), ("draft", "0 in the target only, 1")]
    )
    def test_one_tokenizer_has_another_special_token(self, target, draft, role, counts):
        folder = {"target": target, "draft": draft}[role]
        add_special_token(folder, 256, "<one-more>")
        resize(folder, 320, scale=0)
        models = load_pair(target, draft)
        assert models.notes[0].startswith(f"Vocabularies: 256 shared ids, 0 that differ, {counts} in the draft only;")
        prompt = [*models.tokenizer.encode(PROMPT), *([256] if role == "target" else [])]
        plain = Decoder(models.target, None, temperature=0, max_sequence_tokens=100)
        assert decode(models, 30, prompt) == list(plain.generate(prompt, 30))

    def test_special_tokens_that_differ_are_not_drafted(self, target, draft):
        for folder, names in ((target, ("<a>", "<b>")), (draft, ("<b>", "<a>"))):
            resize(folder, 264, scale=0)
            for index, name in enumerate(names, start=256):
                add_special_token(folder, index, name)
        models = load_pair(target, draft)
        assert models.notes[0].startswith("Vocabularies: 256 shared ids, 2 that differ, 0 in the target only, 0 in")
        logits = feed_tokens(models.draft, new_cache(models.draft, 1), [65]).logits[0]
        assert (logits[256:] == -torch.inf).all()
        assert logits[:256].isfinite().all()

    @pytest.mark.usefixtures("refuse_weights")
    def test_swapped_tokens_are_refused(self, target, draft):
        swap_tokens(draft)
        assert load_error(target, draft) == (
            "draft: expected the target's tokenizer. 2 ids stand for other tokens, the first is 97: 'a' in the target, "
            "'b' in the draft. Choose a draft of the same family."
        )

    @pytest.mark.usefixtures("refuse_weights")
    @pytest.mark.parametrize(
        ("file", "message"),
        [
            ("config.json", "no config.json. Expected a model folder"),
            ("tokenizer.json", "tokenizer.json: no such file"),
            ("model.safetensors", "no model.safetensors"),
        ],
    )
    def test_missing_file_is_refused(self, target, draft, file, message):
        (draft / file).unlink()
        assert message in load_error(target, draft)

    @pytest.mark.usefixtures("refuse_weights")
    def test_unknown_architecture_is_refused(self, target, draft):
        pytest.importorskip("transformers", reason="needs the hf extra")
        (target / "model.safetensors").unlink()
        change_json(target / "config.json", architectures=["NewForCausalLM"], model_type="brand-new")
        error = load_error(target, draft)
        assert error.startswith(f"{target / 'config.json'}: architectures: expected one that treeopt or transformers ")
        assert error.endswith("Got NewForCausalLM.")

    @pytest.mark.usefixtures("refuse_weights")
    def test_error_names_the_extra_that_runs_another_architecture(self, target, draft, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        change_json(target / "config.json", architectures=["GPT2LMHeadModel"], model_type="gpt2")
        assert "Got ['GPT2LMHeadModel']). Install treeopt[hf], and transformers will." in load_error(target, draft)

    def test_the_working_folder_has_a_name(self, target, monkeypatch):
        monkeypatch.chdir(target)
        assert load_pair(".").target.name == "target"

    def test_draft_without_target_is_refused(self, draft):
        assert load_error(None, draft).startswith("target: expected a model with the draft model")

    @pytest.mark.parametrize("device", ["cuda:77", "nowhere"])
    def test_unavailable_device_is_refused(self, device):
        with pytest.raises(InvalidValueError, match=r"device: expected auto or a device of this machine: cpu.*Got"):
            load_pair(device=device)


class TestThroughTransformers:
    @pytest.fixture
    def gpt2_draft(self, tmp_path):
        transformers = pytest.importorskip("transformers", reason="needs the hf extra")
        sizes = {"vocab_size": 260, "n_positions": 128, "n_embd": 32, "n_layer": 1, "n_head": 2}
        config = transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
        shutil.copy(bundled.TARGET / "tokenizer.json", tmp_path / "gpt2")
        return tmp_path / "gpt2"

    def test_slower_ways_to_run_are_noted(self, target, gpt2_draft, bundled_tokens, monkeypatch):
        from transformers import AutoModelForCausalLM

        from_pretrained = AutoModelForCausalLM.from_pretrained

        def without_sdpa(*args, **options):
            if options["attn_implementation"] == "sdpa":
                raise ValueError("GPT2 does not support torch.sdpa. Please open an issue.")
            return from_pretrained(*args, **options)

        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", without_sdpa)
        monkeypatch.setattr(loading, "why_separate_passes", lambda *_, **__: "its batched pass ended with KeyError: x")
        monkeypatch.setattr("treeopt.runtime.models.linear.reorder_weight", lambda _: None)
        models = load_pair(target, gpt2_draft)
        assert [note.partition(":")[0].partition(",")[0] for note in models.notes] == [
            "The draft runs through transformers",
            "The draft runs with eager attention",
            "The draft decodes the sequences of a batch one after the other",
            "Matrix products are slower than usual",
            "Vocabularies",
        ]
        assert models.notes[1].endswith("which is slower: GPT2 does not support torch.sdpa.")
        assert models.notes[2].endswith(": its batched pass ended with KeyError: x.")
        assert decode(models) == bundled_tokens

    def test_draft_runs_on_the_device_of_a_placed_target(self, tmp_path, monkeypatch):
        load_model, devices = pair.load_language_model, []

        def load_language_model(folder, *, device, placement=None, **_):
            devices.append(device.type)
            model = load_model(folder)
            model.device = torch.device("meta") if placement is not None else device
            return model

        monkeypatch.setattr(pair, "load_language_model", load_language_model)
        models = load_pair(placement=Placement(max_memory=(("0", "20GiB"),), offload_folder=tmp_path), device="cpu")
        assert devices == ["cpu", "meta"]
        assert models.target.device == models.draft_model.device

    def test_only_the_target_is_placed(self, target, draft, tmp_path, bundled_tokens, monkeypatch):
        placements, load_adapter = [], load.load_adapter

        def record_placement(folder, **options):
            placements.append((folder.name, options["placement"]))
            return load_adapter(folder, dtype=torch.float32)

        monkeypatch.setattr(load, "load_adapter", record_placement)
        limits = (("cpu", "4GB"),)
        options = {"target": target, "draft": draft, "device": "cpu", "dtype": "float32", "threads": None}
        models = PairOptions(**options, offload=tmp_path, max_memory=limits).load()
        assert placements == [("target", Placement(max_memory=limits, offload_folder=tmp_path))]
        assert decode(models, 20) == bundled_tokens[:20]

    def test_name_of_a_placed_target_contains_its_devices(self, tmp_path):
        placement = Placement(max_memory=(("cpu", "12MB"),), offload_folder=tmp_path)
        assert load_pair(placement=placement).target.name == "bundled target over cpu, disk"


class TestHub:
    """Hub names, with a folder instead of the hub."""

    @pytest.fixture
    def hub(self, tmp_path, monkeypatch):
        hub = SimpleNamespace(calls=[], cached=set(), online=True)

        def snapshot_download(name, *, allow_patterns, ignore_patterns, local_files_only):
            assert "consolidated*" in ignore_patterns
            whole = "*.safetensors" in allow_patterns
            hub.calls.append((name, "whole" if whole else "settings", "cache" if local_files_only else "network"))
            folder = tmp_path / "hub" / name / "snapshots" / "0f1e2d"
            if local_files_only:
                if name not in hub.cached:
                    raise FileNotFoundError("not in the cache")
            elif not hub.online:
                raise OSError("the network is away\nin two lines")
            else:
                ignored = shutil.ignore_patterns() if whole else shutil.ignore_patterns("*.safetensors")
                source = MODEL_FILES[name.removeprefix("org/")]
                shutil.copytree(source, folder, dirs_exist_ok=True, ignore=ignored)
                hub.cached.add(name)
            return str(folder)

        monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
        monkeypatch.chdir(tmp_path)
        return hub

    @pytest.fixture
    def snapshot(self, hub):
        """Return the cached copy of the target."""
        load_pair("org/target", "org/draft")
        assert hub.cached == {"org/target", "org/draft"}
        return next(Path("hub/org/target/snapshots").iterdir())

    def test_weights_are_downloaded_once_and_last(self, hub):
        models = load_pair("org/target", Path("org/draft"))
        assert (models.target.name, models.draft.name) == ("org/target", "org/draft")
        assert [call[:2] for call in hub.calls if call[2] == "network"] == [
            ("org/target", "settings"),
            ("org/draft", "settings"),
            ("org/target", "whole"),
            ("org/draft", "whole"),
        ]
        hub.online = False
        hub.calls.clear()
        assert load_pair("org/target", "org/draft").target.name == "org/target"
        assert {call[2] for call in hub.calls} == {"cache"}

    @pytest.mark.usefixtures("refuse_weights")
    def test_incompatible_pair_is_refused_before_weights_are_downloaded(self, hub, draft):
        swap_tokens(draft)
        assert "2 ids stand for other tokens" in load_error("org/target", draft)
        assert all(kind == "settings" for _, kind, _ in hub.calls)

    def test_download_error_names_the_reason(self, hub):
        hub.online = False
        assert load_error("org/target", "org/draft") == (
            "org/target: no such folder, and it cannot be downloaded from the Hugging Face hub (the network is away). "
            "Check the name, the network and the access rights."
        )

    @pytest.mark.parametrize("online", [False, True])
    def test_invalid_cached_copy_is_downloaded_again_or_refused(self, hub, snapshot, online):
        (snapshot / "config.json").write_text("{", "utf-8")
        hub.online = online
        if online:
            assert load_pair("org/target", "org/draft").target.name == "org/target"
        else:
            assert "config.json: content: expected" in load_error("org/target", "org/draft")

    def test_incomplete_copy_without_network_is_refused(self, hub, snapshot):
        (snapshot / "model.safetensors").unlink()
        hub.online = False
        error = load_error("org/target", "org/draft")
        assert "cannot be downloaded from the Hugging Face hub (the network is away)" in error

    @pytest.mark.slow
    def test_built_in_architectures_need_no_transformers(self, tmp_path):
        for name, folder in MODEL_FILES.items():
            copy = tmp_path / "hub" / f"models--org--{name}"
            shutil.copytree(folder, copy / "snapshots" / "0f1e2d")
            (copy / "refs").mkdir()
            (copy / "refs" / "main").write_text("0f1e2d")
        script = (
            "import sys; sys.modules.update(transformers=None, accelerate=None)\n"
            "from treeopt.runtime.models.pair import load_pair\n"
            "print(load_pair('org/target', 'org/draft').target.name)"
        )
        offline = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=offline, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.stdout, done.returncode) == ("org/target\n", 0), done.stderr

    def test_error_names_the_missing_package(self, hub, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        assert load_error("org/target", "org/draft") == (
            "org/target: no such folder. To take it from the Hugging Face hub, pip install huggingface_hub."
        )
        assert hub.calls == []

    def test_paths_are_not_hub_names(self, hub):
        for name in ("/no/such", "./name", "../name", "name", "a/b/c"):
            assert "no such folder. Expected a model folder" in load_error(name, "org/draft")
        assert hub.calls == []


class TestCommands:
    def run_tree(self, tmp_path, *arguments):
        chain(2).save(tmp_path / "tree.json")
        return CliRunner().invoke(main, ["run", str(tmp_path / "tree.json"), *map(str, arguments)])

    def test_notes_are_printed_on_standard_error(self, target, draft, tmp_path):
        resize(draft, 280)
        options = ["--prompt", "def f", "--max-new-tokens", 20]
        padded = self.run_tree(tmp_path, *options, "--target", target, "--draft", draft)
        assert padded.stdout == self.run_tree(tmp_path, *options).stdout
        assert f"{SAME_TOKENS}; 256 logits in the target, 280 in the draft." in padded.stderr

    def test_sequence_longer_than_the_model_supports_is_refused(self, tmp_path):
        result = self.run_tree(tmp_path, "--prompt", "x", "--max-new-tokens", 1024)
        assert result.exit_code == 1
        assert "--max-new-tokens: expected at most 1023 after a prompt of 1 tokens" in result.stderr

    def test_memory_limits_are_parsed(self):
        parsed = []
        command = click.command(cls=Command, record=PairOptions)(lambda args: parsed.append(args))
        for arguments in ([], ["--max-memory", "cpu=4GB,0=20GiB"]):
            result = CliRunner().invoke(command, arguments)
            assert result.exit_code == 0, result.output
        assert [args.max_memory for args in parsed] == [(), (("cpu", "4GB"), ("0", "20GiB"))]

    @pytest.mark.parametrize(
        "limits", ["", "4GB", "cpu=4", "cpu=4Gb", "gpu=4GB", "00=4GB", "cpu=4GB,cpu=5GB", "0=-1GB"]
    )
    def test_wrong_memory_limits_are_usage_errors(self, limits):
        result = CliRunner().invoke(main, ["run", "tree.json", "--prompt", "x", "--max-memory", limits])
        assert result.exit_code == 2
        assert "Invalid value for '--max-memory': expected" in result.stderr


class TestPrompts:
    """Prompts in tokens of bytes, with and without a chat template."""

    def load(self, folder, **options):
        models = SimpleNamespace(tokenizer=Tokenizer(folder), bundled=folder == bundled.TARGET)
        prompts = PromptOptions(**{"prompts": None, "chat": None, "max_prompts": 5, **options}).load(models)
        return [bytes(tokens).decode() for tokens in prompts]

    @pytest.fixture
    def with_template(self, target):
        pytest.importorskip("transformers", reason="needs the hf extra")
        (target / "chat_template.jinja").write_text("<{{ messages[0]['content'] }}>", "utf-8")
        return target

    def test_long_prompts_are_cut_before_the_template_is_applied(self, with_template, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text("one\ntwo\nthree\n" + "é" * 600, "utf-8")
        assert self.load(bundled.TARGET, prompts=path) == ["one", "two", "three", "é" * 256]
        assert self.load(with_template, prompts=path, chat=True) == ["<one>", "<two>", "<three>", f"<{'é' * 256}>"]

    @pytest.mark.parametrize(("chat", "expected"), [(None, "<one>"), (False, "one"), (True, "<one>")])
    def test_template_is_applied_unless_no_chat(self, with_template, tmp_path, chat, expected, capsys):
        path = tmp_path / "a.txt"
        path.write_text("one\ntwo\nthree", "utf-8")
        assert self.load(with_template, prompts=path, chat=chat)[0] == expected
        assert ("--no-chat" in capsys.readouterr().err) == (chat is None)
        if not chat:
            assert self.load(bundled.TARGET, prompts=path, chat=chat)[0] == "one"

    def test_only_the_bundled_pair_has_default_prompts_of_its_own(self, target, capsys):
        assert self.load(bundled.TARGET, max_prompts=24) == list(load_prompts(most=24))
        assert capsys.readouterr().err == ""
        texts = load_prompts(DEFAULT_PROMPTS, most=24)
        assert self.load(target, max_prompts=24) == [text.encode()[:512].decode("utf-8", "ignore") for text in texts]
        printed = capsys.readouterr().err
        assert "24 of 112 prompts taken, at most 24 (--max-prompts): " in printed
        assert sorted(Counter(sample_prompts(DEFAULT_PROMPTS, most=24).categories).values()) == [3, 3, 3, 3, 4, 4, 4]
        assert all(f" {name}" in printed for name in ("chat", "code", "maths", "translation"))

    def test_answer_is_printed_without_the_prompt(self, target, draft, tmp_path):
        pytest.importorskip("transformers", reason="needs the hf extra")
        (target / "chat_template.jinja").write_text("def {{ messages[0]['content'] }}(", "utf-8")

        def run(prompt, *options):
            models = ["--target", target, "--draft", draft, "--max-new-tokens", 9]
            return TestCommands().run_tree(tmp_path, *models, "--prompt", prompt, *options)

        plain, chat, default = run("def f(", "--no-chat"), run("f", "--chat"), run("f")
        assert chat.exit_code == 0, chat.output
        assert plain.stdout == "def f(" + chat.stdout
        assert default.stdout == chat.stdout
        assert ["--no-chat" in result.stderr for result in (plain, chat, default)] == [False, False, True]
