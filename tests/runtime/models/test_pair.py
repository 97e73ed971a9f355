"""The bundled pair is what it says, any other pair runs as well, and one that cannot is refused before it is loaded."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import click
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from tests.support.passes import feed_tokens, new_cache
from treeopt import bundled
from treeopt.cli.main import main
from treeopt.cli.options.pair import PairOptions, pair_options
from treeopt.cli.options.prompts import PromptOptions
from treeopt.cli.options.record import options as options_of
from treeopt.errors import FormatError, InvalidValueError, TreeoptError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.texts.prompts import DEFAULT_PROMPTS, bench_prompts, load_prompts, sample_prompts
from treeopt.texts.tokenizer import Tokenizer
from treeopt.trees import chain, level_widths

MOST_BYTES = 20_000_000


def tokenized(folder: Path, *, bundled_pair: bool = False) -> ModelPair:
    """Return what options of prompts need of a pair."""
    return cast("ModelPair", SimpleNamespace(tokenizer=Tokenizer(folder), bundled=bundled_pair))


@pytest.mark.parametrize("folder", [bundled.TARGET, bundled.DRAFT], ids=["target", "draft"])
def test_transformers_loads_the_same_folder_and_gives_the_same_logits(folder) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the hf extra")
    text = load_prompts()[0]
    tokens = torch.tensor(Tokenizer(folder).encode(text))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_model(folder)
    with torch.inference_mode():
        expected = theirs(tokens[None]).logits[0]
    logits = feed_tokens(ours, new_cache(ours, len(tokens)), tokens).logits

    assert tokenizer(text, add_special_tokens=False)["input_ids"] == tokens.tolist()
    torch.testing.assert_close(logits, expected, atol=2e-3, rtol=1e-4)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def test_all_files_together_are_small() -> None:
    total = sum(
        file.stat().st_size for file in bundled.FOLDER.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    )

    assert total <= MOST_BYTES


def test_tokens_are_bytes() -> None:
    text = "def é(x):\n\t…\x00"

    tokenizer = load_pair().tokenizer

    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(text.encode()) == text
    assert "".join(tokenizer.stream(text.encode())) == text


def test_stream_never_yields_half_a_character() -> None:
    pieces = list(load_pair().tokenizer.stream("aé…".encode()))

    assert pieces == ["a", "é", "…"]


def test_prompts_are_from_files_that_training_held_out() -> None:
    entries = json.loads(bundled.PROMPTS.read_text())

    import zlib

    assert len(entries) == 32
    assert all(zlib.crc32(entry["source"].encode()) < 2**32 / 32 for entry in entries)


def test_draft_agrees_with_the_target_on_its_own_text(bundled_pair: ModelPair) -> None:
    models = bundled_pair
    decoder = Decoder(models.target, models.draft, level_widths([1, 1, 1]), temperature=0)
    steps = [
        len(tokens)
        for prompt in bench_prompts(load_prompts())[:3]
        for tokens in decoder.stream(models.tokenizer.encode(prompt), 64)
    ]

    assert sum(steps) / len(steps) > 2.0


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled.TARGET, tmp_path / "target"))


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled.DRAFT, tmp_path / "draft"))


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "treeopt.runtime.models.pair.load_language_model", lambda *_, **__: pytest.fail("a model was loaded")
    )


def change(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


ONLY_PADDING = "Vocabularies: 256 shared ids, 0 that differ, 0 in the target only, 0 in the draft only"


def pad(folder: Path, columns: int, *, scale: float = 30) -> None:
    """Add `columns` logits after those of tokens, by default larger than all others."""
    change(folder / "config.json", vocab_size=256 + columns)
    tensors = load_file(folder / "model.safetensors")
    for name in {"model.embed_tokens.weight", "lm_head.weight"} & tensors.keys():
        more = scale * torch.randn((columns, tensors[name].shape[1]), generator=torch.Generator().manual_seed(0))
        tensors[name] = torch.cat([tensors[name], more.to(tensors[name].dtype)])
    save_file(tensors, folder / "model.safetensors")


def swap_tokens(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")


def add_token(folder: Path, index: int, token: str) -> None:
    """Add a special token to a tokenizer."""
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    options = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"].append({"id": index, "content": token, "special": True, **options})
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")


def refusal(target: Path | str, draft: Path | str, **options: str) -> str:
    with pytest.raises(TreeoptError) as caught:
        load_pair(target, draft, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def decoded(models: object, count: int = 40) -> list[int]:
    assert isinstance(models, type(load_pair()))
    decoder = Decoder(models.target, models.draft, level_widths([2, 1]), temperature=0, max_sequence_tokens=100)
    return list(decoder.generate(models.tokenizer.encode("import os\n"), count))


def steps_of(models: ModelPair) -> int:
    """Return the steps that 40 tokens take."""
    decoder = Decoder(models.target, models.draft, chain(4), temperature=0, max_sequence_tokens=100)
    return len(list(decoder.stream(models.tokenizer.encode("import os\n"), 40)))


class TestFolders:
    def test_a_pair_of_ones_own(self, target: Path, draft: Path) -> None:
        models = load_pair(str(target), draft)

        assert (models.target.name, models.draft.name, models.notes) == ("target", "draft", ())
        assert decoded(models) == decoded(load_pair())

    @pytest.mark.parametrize(
        ("columns", "note"),
        [
            ((24, 8), "280 logits in the target, 264 in the draft."),
            ((0, 24), "256 logits in the target, 280 in the draft."),
            ((24, 24), None),
        ],
    )
    def test_padding_of_both_models_is_never_drafted(
        self, target: Path, draft: Path, columns: tuple[int, int], note: str | None
    ) -> None:
        pad(target, columns[0], scale=0)
        pad(draft, columns[1])

        models = load_pair(target, draft)

        assert models.notes == (() if note is None else (f"{ONLY_PADDING}; {note} Only shared ids are drafted.",))
        assert models.target.config.vocabulary == models.draft.config.vocabulary == 256 + columns[0]
        assert decoded(models) == decoded(load_pair())
        assert steps_of(models) == steps_of(load_pair())

    def test_the_text_is_that_of_all_logits_of_the_target(self, target: Path, draft: Path) -> None:
        """Large padding is no use, but transformers' `generate` samples it too."""
        transformers = pytest.importorskip("transformers", reason="needs the hf extra")
        pad(target, 24)
        reference = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        prompt = torch.tensor([list(b"import os\n")])
        expected = reference.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=-1)[0, prompt.shape[1] :]
        assert int(expected.max()) >= 256  # so the draft reads ids that it has no embedding for

        models = load_pair(target, draft)

        assert decoded(models, 12) == expected.tolist()
        assert isinstance(models.tokenizer.decode(expected.tolist()), str)

    @pytest.mark.parametrize("which", ["target", "draft"])
    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_one_more_special_token_in_one_tokenizer(
        self, target: Path, draft: Path, which: str, temperature: float
    ) -> None:
        folder = {"target": target, "draft": draft}[which]
        add_token(folder, 256, "<one-more>")
        pad(folder, 64, scale=0)

        models = load_pair(target, draft)

        counts = "1 in the target only, 0" if which == "target" else "0 in the target only, 1"
        assert models.notes[0].startswith(f"Vocabularies: 256 shared ids, 0 that differ, {counts} in the draft only;")
        prompt = [*models.tokenizer.encode("import os\n"), *([256] if which == "target" else [])]
        decoder = Decoder(
            models.target, models.draft, level_widths([2, 1]), temperature=temperature, max_sequence_tokens=100
        )
        plain = Decoder(models.target, None, temperature=temperature, max_sequence_tokens=100)
        text = list(decoder.generate(prompt, 40))
        assert len(text) == 40
        if temperature == 0:
            assert text == list(plain.generate(prompt, 40))

    def test_special_tokens_that_differ_are_not_drafted(self, target: Path, draft: Path) -> None:
        for folder, names in ((target, ("<a>", "<b>")), (draft, ("<b>", "<a>"))):
            pad(folder, 8, scale=0)
            for index, name in enumerate(names, start=256):
                add_token(folder, index, name)

        models = load_pair(target, draft)

        assert models.notes[0].startswith("Vocabularies: 256 shared ids, 2 that differ, 0 in the target only, 0 in")
        logits = feed_tokens(models.draft, new_cache(models.draft, 1), [65]).logits[0]
        assert (logits[256:] == -torch.inf).all()
        assert logits[:256].isfinite().all()

    @pytest.mark.usefixtures("nothing_is_loaded")
    def test_another_tokenizer(self, target: Path, draft: Path) -> None:
        content = json.loads((draft / "tokenizer.json").read_text("utf-8"))
        vocabulary = content["model"]["vocab"]
        content["model"]["vocab"] = {token: 255 - index for token, index in vocabulary.items()}
        (draft / "tokenizer.json").write_text(json.dumps(content), "utf-8")

        assert "256 ids stand for other tokens" in refusal(target, draft)

    @pytest.mark.usefixtures("nothing_is_loaded")
    def test_a_draft_with_two_tokens_swapped(self, target: Path, draft: Path) -> None:
        swap_tokens(draft)

        assert refusal(target, draft) == (
            "draft: expected the target's tokenizer. 2 ids stand for other tokens, the first is 97: 'a' in the target, "
            "'b' in the draft. Choose a draft of the same family."
        )

    def test_a_draft_without_a_column_for_every_token_drafts_the_others(self, target: Path, draft: Path) -> None:
        change(draft / "config.json", vocab_size=100)
        tensors = load_file(draft / "model.safetensors")
        for name in {"model.embed_tokens.weight", "lm_head.weight"} & tensors.keys():
            tensors[name] = tensors[name][:100].clone()
        save_file(tensors, draft / "model.safetensors")

        models = load_pair(target, draft)

        assert models.notes[0].endswith("256 logits in the target, 100 in the draft. Only shared ids are drafted.")
        assert decoded(models) == decoded(load_pair())

    @pytest.mark.usefixtures("nothing_is_loaded")
    @pytest.mark.parametrize(
        ("file", "message"),
        [
            ("config.json", "no config.json. Expected a model folder"),
            ("tokenizer.json", "tokenizer.json: no such file"),
            ("model.safetensors", "no model.safetensors"),
        ],
    )
    def test_a_file_is_missing(self, target: Path, draft: Path, file: str, message: str) -> None:
        (draft / file).unlink()

        assert message in refusal(target, draft)

    @pytest.mark.usefixtures("nothing_is_loaded")
    def test_an_architecture_that_nobody_knows(self, target: Path, draft: Path) -> None:
        pytest.importorskip("transformers", reason="needs the hf extra")
        (target / "model.safetensors").unlink()
        change(target / "config.json", architectures=["NewForCausalLM"], model_type="brand-new")

        text = refusal(target, draft)

        assert text.startswith(f"{target / 'config.json'}: architectures: expected one that treeopt or transformers ")
        assert text.endswith("Got NewForCausalLM.")

    @pytest.mark.usefixtures("nothing_is_loaded")
    def test_an_architecture_for_transformers_without_them(
        self, target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "transformers", None)
        change(target / "config.json", architectures=["GPT2LMHeadModel"], model_type="gpt2")

        assert "Got ['GPT2LMHeadModel']). Install treeopt[hf], and transformers will." in refusal(target, draft)

    @pytest.mark.usefixtures("nothing_is_loaded")
    @pytest.mark.parametrize("content", ["", "[]", "5", "{", "\x00"])
    def test_a_broken_configuration(self, target: Path, draft: Path, content: str) -> None:
        (draft / "config.json").write_text(content, "utf-8")

        with pytest.raises(FormatError, match=r"config.json: content: expected"):
            load_pair(target, draft)

    def test_only_one_model(self, target: Path) -> None:
        with pytest.raises(InvalidValueError, match="target: expected a model with the draft model"):
            load_pair(None, target)

    @pytest.mark.parametrize("device", ["cuda:77", "nowhere"])
    def test_no_such_device(self, device: str) -> None:
        with pytest.raises(InvalidValueError, match=r"device: expected auto or a device of this machine: cpu.*Got"):
            load_pair(device=device)


class TestThroughTransformers:
    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        transformers = pytest.importorskip("transformers", reason="needs the hf extra")
        sizes = {"vocab_size": 260, "n_positions": 128, "n_embd": 32, "n_layer": 1, "n_head": 2}
        config = transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "other")
        shutil.copy(bundled.TARGET / "tokenizer.json", tmp_path / "other")
        return tmp_path / "other"

    def test_a_draft_of_another_architecture_leaves_the_text_as_it_is(self, target: Path, other: Path) -> None:
        models = load_pair(target, other)

        assert [note.partition(":")[0] for note in models.notes] == [
            "The draft runs through transformers",
            "Vocabularies",
        ]
        assert decoded(models) == decoded(load_pair())

    def test_slower_ways_to_run_are_noted(self, target: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformers import AutoModelForCausalLM

        from treeopt.runtime.models.hf import loading

        from_pretrained = AutoModelForCausalLM.from_pretrained

        def without_sdpa(*args: object, **options: object) -> object:
            if options["attn_implementation"] == "sdpa":
                raise ValueError("GPT2 does not support sdpa")
            return from_pretrained(*args, **options)

        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", without_sdpa)
        monkeypatch.setattr(loading, "why_separate_passes", lambda *_, **__: "its batched pass ended with KeyError: x")
        monkeypatch.setattr("treeopt.runtime.models.linear.reorder_weight", lambda _: None)

        notes = load_pair(target, other).notes

        assert "The draft runs with eager attention, which is slower: GPT2 does not support sdpa" in notes
        assert (
            "The draft decodes the sequences of a batch one after the other: its batched pass ended with KeyError: x."
        ) in notes
        assert any(note.startswith("Matrix products are slower than usual") for note in notes)

    def test_the_draft_follows_a_placed_target_to_its_device(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from treeopt.runtime.models import pair
        from treeopt.runtime.models.hf import Placement

        load, devices = pair.load_language_model, []

        def load_language_model(
            folder: object, *, device: torch.device, placement: object = None, **_: object
        ) -> object:
            devices.append(device.type)
            model = load(folder)  # type: ignore[arg-type]
            model.device = torch.device("meta") if placement is not None else device
            return model

        monkeypatch.setattr(pair, "load_language_model", load_language_model)

        placed = load_pair(placement=Placement(max_memory=(("0", "20GiB"),), offload_folder=tmp_path), device="cpu")

        assert devices == ["cpu", "meta"]
        assert placed.target.device == placed.draft_model.device

    def test_a_placement_is_for_the_target(
        self, target: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from treeopt.runtime.models.hf import loading

        placements, adapted = [], loading.load_adapter

        def load_adapter(folder: Path, **options: object) -> object:
            placements.append((Path(folder).name, options["placement"]))
            return adapted(folder, dtype=torch.float32)

        monkeypatch.setattr(loading, "load_adapter", load_adapter)
        options = PairOptions(
            target=target,
            draft=draft,
            device="cpu",
            dtype="float32",
            threads=None,
            offload=tmp_path,
            max_memory=(("cpu", "4GB"),),
        )

        models = options.load()

        assert placements == [("target", loading.Placement(max_memory=(("cpu", "4GB"),), offload_folder=tmp_path))]
        assert decoded(models, 20) == decoded(load_pair(), 20)


class TestHub:
    """Names of the hub, which is a folder here."""

    @pytest.fixture
    def hub(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        hub = SimpleNamespace(calls=[], cached=set(), online=True)

        def snapshot_download(
            name: str, *, allow_patterns: list[str], ignore_patterns: list[str], local_files_only: bool
        ) -> str:
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
                source = {"org/target": bundled.TARGET, "org/draft": bundled.DRAFT}[name]
                ignored = shutil.ignore_patterns() if whole else shutil.ignore_patterns("*.safetensors")
                shutil.copytree(source, folder, dirs_exist_ok=True, ignore=ignored)
                hub.cached.add(name)
            return str(folder)

        module = SimpleNamespace(snapshot_download=snapshot_download)
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        monkeypatch.chdir(tmp_path)
        return hub

    def test_weights_are_fetched_once_everything_else_fits(self, hub: SimpleNamespace) -> None:
        models = load_pair("org/target", Path("org/draft"))

        assert (models.target.name, models.draft.name) == ("org/target", "org/draft")
        assert [call[:2] for call in hub.calls if call[2] == "network"] == [
            ("org/target", "settings"),
            ("org/draft", "settings"),
            ("org/target", "whole"),
            ("org/draft", "whole"),
        ]

    def test_what_is_in_the_cache_needs_no_network(self, hub: SimpleNamespace) -> None:
        load_pair("org/target", "org/draft")
        hub.online = False
        hub.calls.clear()

        assert load_pair("org/target", "org/draft").target.name == "org/target"
        assert {call[2] for call in hub.calls} == {"cache"}

    @pytest.mark.usefixtures("nothing_is_loaded")
    def test_a_pair_that_does_not_fit_is_refused_without_its_weights(self, hub: SimpleNamespace, draft: Path) -> None:
        swap_tokens(draft)

        assert "2 ids stand for other tokens" in refusal("org/target", draft)
        assert all(kind == "settings" for _, kind, _ in hub.calls)

    def test_no_network(self, hub: SimpleNamespace) -> None:
        hub.online = False

        assert refusal("org/target", "org/draft") == (
            "org/target: no such folder, and it cannot be downloaded from the Hugging Face hub (the network is away). "
            "Check the name, the network and the access rights."
        )

    @pytest.mark.parametrize("online", [False, True])
    def test_a_cached_copy_that_is_wrong_is_refused_for_what_is_wrong(self, hub: SimpleNamespace, online: bool) -> None:
        load_pair("org/target", "org/draft")
        (snapshot,) = Path("hub/org/target/snapshots").iterdir()
        (snapshot / "config.json").write_text("{", "utf-8")
        hub.online = online

        if not online:
            assert "config.json: content: expected" in refusal("org/target", "org/draft")
        else:
            assert load_pair("org/target", "org/draft").target.name == "org/target"

    def test_an_incomplete_copy_without_network(self, hub: SimpleNamespace) -> None:
        load_pair("org/target", "org/draft")
        (snapshot,) = Path("hub/org/target/snapshots").iterdir()
        (snapshot / "model.safetensors").unlink()
        hub.online = False

        assert "cannot be downloaded from the Hugging Face hub (the network is away)" in refusal(
            "org/target", "org/draft"
        )

    def test_built_in_architectures_need_no_transformers(self, tmp_path: Path) -> None:
        for name, folder in (("target", bundled.TARGET), ("draft", bundled.DRAFT)):
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

    def test_no_hub(self, hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)

        assert refusal("org/target", "org/draft") == (
            "org/target: no such folder. To take it from the Hugging Face hub, pip install huggingface_hub."
        )
        assert hub.calls == []

    @pytest.mark.parametrize("name", ["/no/such", "./name", "../name", "name", "a/b/c"])
    def test_other_names_are_folders(self, hub: SimpleNamespace, name: str) -> None:
        assert "no such folder. Expected a model folder" in refusal(name, "org/draft")
        assert hub.calls == []


class TestCommands:
    def test_notes_are_told_on_standard_error(self, target: Path, draft: Path, tmp_path: Path) -> None:
        pad(draft, 24)
        chain(2).save(tmp_path / "tree.json")
        command = ["run", str(tmp_path / "tree.json"), "--prompt", "def f", "--max-new-tokens", "30"]

        padded = CliRunner().invoke(main, [*command, "--target", str(target), "--draft", str(draft)])

        assert padded.stdout == CliRunner().invoke(main, command).stdout
        assert f"{ONLY_PADDING}; 256 logits in the target, 280 in the draft." in padded.stderr

    def test_a_text_longer_than_the_models_know(self, tmp_path: Path) -> None:
        chain(2).save(tmp_path / "tree.json")

        result = CliRunner().invoke(
            main, ["run", str(tmp_path / "tree.json"), "--prompt", "x", "--max-new-tokens", "1024"]
        )

        assert result.exit_code == 1
        assert "--max-new-tokens: expected at most 1023 after a prompt of 1 tokens" in result.stderr

    @pytest.mark.parametrize(
        ("limits", "expected"),
        [
            ("cpu=4GB,0=20GiB", (("cpu", "4GB"), ("0", "20GiB"))),
            ("cpu=500MiB", (("cpu", "500MiB"),)),
            (None, ()),
        ],
    )
    def test_limits_of_memory(self, limits: str | None, expected: tuple[tuple[str, str], ...]) -> None:
        seen: list[PairOptions] = []
        command = click.command()(pair_options(lambda pair: seen.append(pair)))

        result = CliRunner().invoke(command, [] if limits is None else ["--max-memory", limits])

        assert result.exit_code == 0, result.output
        assert [each.max_memory for each in seen] == [expected]

    @pytest.mark.parametrize(
        "limits", ["", "4GB", "cpu=4", "cpu=4Gb", "gpu=4GB", "00=4GB", "cpu=4GB,cpu=5GB", "0=-1GB"]
    )
    def test_wrong_limits_are_usage_errors(self, limits: str) -> None:
        result = CliRunner().invoke(main, ["run", "tree.json", "--prompt", "x", "--max-memory", limits])

        assert result.exit_code == 2
        assert "Invalid value for '--max-memory': expected" in result.stderr

    def test_prompts_are_chosen_and_told(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("one\ntwo\nthree\n" + "é" * 600, "utf-8")
        seen: list[PromptOptions] = []
        command = click.command()(options_of(PromptOptions, "prompts")(lambda prompts: seen.append(prompts)))

        assert CliRunner().invoke(command, []).exit_code == 0
        assert CliRunner().invoke(command, ["--prompts", str(tmp_path / "a.txt"), "--max-prompts", "5"]).exit_code == 0

        assert seen[0] == PromptOptions(prompts=None, chat=None, max_prompts=64)
        assert len(seen[0].load(tokenized(bundled.TARGET, bundled_pair=True))) == 32
        prompts = seen[1].load(tokenized(bundled.TARGET, bundled_pair=True))
        assert [bytes(tokens).decode() for tokens in prompts] == ["one", "two", "three", "é" * 256]

    def test_prompts_in_a_chat_template(self, target: Path, tmp_path: Path) -> None:
        pytest.importorskip("transformers", reason="needs the hf extra")
        (target / "chat_template.jinja").write_text("<{{ messages[0]['content'] }}>", "utf-8")
        (tmp_path / "a.txt").write_text("one\ntwo\n" + "x" * 600, "utf-8")

        prompts = PromptOptions(prompts=tmp_path / "a.txt", chat=True, max_prompts=5).load(tokenized(target))

        assert [bytes(tokens).decode() for tokens in prompts] == ["<one>", "<two>", f"<{'x' * 512}>"]

    @pytest.mark.parametrize(
        ("template", "chat", "expected"),
        [
            (True, None, "<one>"),
            (True, False, "one"),
            (True, True, "<one>"),
            (False, None, "one"),
            (False, False, "one"),
        ],
    )
    def test_a_chat_template_is_used_if_there_is_one(
        self,
        target: Path,
        tmp_path: Path,
        template: bool,
        chat: bool | None,
        expected: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        pytest.importorskip("transformers", reason="needs the hf extra")
        if template:
            (target / "chat_template.jinja").write_text("<{{ messages[0]['content'] }}>", "utf-8")
        (tmp_path / "a.txt").write_text("one\ntwo\nthree", "utf-8")

        prompts = PromptOptions(prompts=tmp_path / "a.txt", chat=chat, max_prompts=5).load(tokenized(target))

        assert bytes(prompts[0]).decode() == expected
        assert ("--no-chat" in capsys.readouterr().err) == (template and chat is None)

    def test_only_the_bundled_pair_has_prompts_of_its_own(
        self, target: Path, draft: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = PromptOptions(prompts=None, chat=None, max_prompts=24)
        bundled_pair, own_pair = load_pair(), load_pair(target, draft)
        texts = load_prompts(DEFAULT_PROMPTS, most=24)

        assert options.load(bundled_pair) == [list(text.encode()) for text in load_prompts(most=24)]
        assert capsys.readouterr().err == ""
        assert options.load(own_pair) == [
            list(text.encode()[:512].decode("utf-8", "ignore").encode()) for text in texts
        ]
        printed = capsys.readouterr().err
        assert "24 of 112 prompts taken, at most 24 (--max-prompts): " in printed
        assert sorted(Counter(sample_prompts(DEFAULT_PROMPTS, most=24).categories).values()) == [3, 3, 3, 3, 4, 4, 4]
        assert all(f" {name}" in printed for name in ("chat", "code", "maths", "translation"))

    def test_an_answer_is_printed_without_the_message(self, target: Path, draft: Path, tmp_path: Path) -> None:
        pytest.importorskip("transformers", reason="needs the hf extra")
        (target / "chat_template.jinja").write_text("def {{ messages[0]['content'] }}(", "utf-8")
        chain(2).save(tmp_path / "tree.json")
        command = ["run", str(tmp_path / "tree.json"), "--target", str(target), "--draft", str(draft)]

        def run(prompt: str, *more: str) -> Result:
            return CliRunner().invoke(main, [*command, "--max-new-tokens", "9", "--prompt", prompt, *more])

        plain, chat, default = run("def f(", "--no-chat"), run("f", "--chat"), run("f")

        assert chat.exit_code == 0, chat.output
        assert plain.stdout == "def f(" + chat.stdout
        assert default.stdout == chat.stdout
        assert ["--no-chat" in each.stderr for each in (plain, chat, default)] == [False, False, True]


def test_a_placed_target_says_where_it_lies(tmp_path):
    pytest.importorskip("transformers", reason="needs the hf extra")
    from treeopt.runtime.models.hf import Placement

    placement = Placement(max_memory=(("cpu", "12MB"),), offload_folder=tmp_path)
    assert load_pair(placement=placement).target.name == "bundled target over cpu, disk"
