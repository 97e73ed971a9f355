"""EAGLE heads in folders: the hidden states that are read, warnings, and refusals in one line."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import eagle_heads as layouts
from tests.support.eagle_heads import IDS, make_head, save_head
from treeopt.errors import FormatError, InvalidValueError, TreeoptError, TreeoptWarning
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.trees import level_widths
from treeopt.trees.drafter_parameters import DynamicTree

LAYER_IDS = (2, 4, 5)
SOME = [1, 2, 5, 6, 9]


def saved(folder, target, layout=layouts.specforge, *, config=None, tensors=None, drop=(), **options):
    """Save a head, fields of its configuration and tensors changed; return the folder."""
    made = make_head(target, **{"layer_ids": LAYER_IDS, "ids": SOME, **options})
    save_head(layout, folder, made, target, **(config or {}))
    weights = folder / "model.safetensors"
    if weights.is_file() and (tensors or drop):
        content = {**load_file(weights), **(tensors or {})}
        save_file({name: content[name] for name in content if name not in drop}, weights)
    return folder


class TestLayerIds:
    @pytest.mark.parametrize(
        ("layout", "listed", "expected"),
        [
            (layouts.specforge, [1, 3, 4], (2, 4, 5)),
            (layouts.specforge, [0, 5, 7], (1, 6, 8)),
            (layouts.specforge, [2, 4, 5], (2, 4, 5)),  # the default ids: saved for an engine that reads these
            (layouts.speculators, [1, 3, 4], (1, 3, 4)),
            (layouts.speculators, [2, 4, 5], (2, 4, 5)),
        ],
    )
    def test_configured_ids_are_read(self, deep, tmp_path, layout, listed, expected):
        config = {IDS: listed} if layout is layouts.speculators else {"eagle_config": {IDS: listed}}
        assert load_eagle(saved(tmp_path, deep, layout, config=config), deep).requested_states.layer_ids == expected

    def test_arguments_come_first_and_defaults_with_a_warning(self, deep, tmp_path):
        assert load_eagle(saved(tmp_path, deep), deep, layer_ids=(0, 8, 3)).requested_states.layer_ids == (0, 8, 3)
        with pytest.warns(TreeoptWarning, match=rf"{IDS}: is missing.*\(2, 4, 5\) are read.*or with --eagle-layers"):
            head = load_eagle(saved(tmp_path, deep, layouts.safeailab), deep)
        assert head.requested_states.layer_ids == (2, 4, 5)

    def test_a_head_that_reads_the_last_state_takes_none(self, deep, tmp_path):
        last = saved(tmp_path / "last", deep, layouts.model_optimizer, layer_ids=())
        older = saved(tmp_path / "older", deep, layouts.eagle1, layer_ids=(), ids=None, eagle1=True)
        module = saved(tmp_path / "module", deep, layouts.mimo, layer_ids=(), ids=None, mtp=True, own_output=False)
        for folder in (last, older, module):
            load_eagle(folder, deep)
            with pytest.raises(InvalidValueError, match=r"reads the target's last state\. Got \(2, 4, 5\): leave out"):
                load_eagle(folder, deep, layer_ids=(2, 4, 5))

    def test_a_missing_residual_is_warned_of(self, deep, tmp_path):
        load_eagle(saved(tmp_path, deep, layouts.speculators), deep)  # complete: a warning would be an error
        folder = saved(tmp_path, deep, layouts.speculators, config={"norm_before_residual": None})
        with pytest.warns(TreeoptWarning, match=r"norm_before_residual: is missing.*add it as true"):
            load_eagle(folder, deep)


WRONG = {
    "another vocabulary": ({"config": {"vocab_size": 99}}, r"vocab_size: expected 23.*Got 99: take"),
    "another hidden size": (
        {"tensors": {"fc.weight": torch.zeros(32, 100)}},
        r"fc.weight: expected states of 32.*Got 100",
    ),
    "no embedding of its own": ({"hidden": 24}, r"hidden_size: expected 32.*has no embed_tokens.weight. Got 24: take"),
    "fewer layer ids": (
        {"config": {"eagle_config": {IDS: [1, 2]}}},
        r"layers: expected 3 hidden-state layer ids from 0 to 8.*Got \(2, 3\)",
    ),
    "a deeper target": (
        {"config": {"eagle_config": {IDS: [1, 20, 30]}}},
        r"layers: expected 3.*Got \(2, 21, 31\): take",
    ),
    "layers by name": ({"config": {"eagle_config": {IDS: ["1"]}}}, rf"{IDS}: expected a list of layers. Got \['1'\]"),
    "a list for fields": ({"config": {"eagle_config": [1]}}, r"eagle_config: expected fields with names. Got \[1\]"),
    "a flag by name": ({"config": {"norm_output": "yes"}}, r"norm_output: expected true or false. Got 'yes'"),
    "two norms before fc": (
        {"fc_norm": True, "norm_before_fc": True},
        r"norm_before_fc: expected no fc_norm with it.*Got both: ",
    ),
    "sliding attention": (
        {"config": {"layer_types": ["sliding_attention"]}},
        r"layer_types: expected full attention in every layer",
    ),
    "no size": ({"config": {"hidden_size": None}}, r"hidden_size: "),
    "tokens by number": (
        {"tensors": {"d2t": torch.tensor([1, 2, 5, 6, 20])}},
        r"d2t: expected offsets to tokens from 0 to 22. Got 20 at 4, which is token 24: are these ids\?",
    ),
    "a token below 0": ({"tensors": {"d2t": torch.tensor([1, 2, -5, 6, 7])}}, r"d2t: expected offsets.*Got -5 at 2"),
    "a token twice": ({"tensors": {"d2t": torch.tensor([1, 0, 5, 6, 7])}}, r"d2t: expected different.*token 1 more"),
    "numbers of tokens": (
        {"tensors": {"d2t": torch.zeros(5)}},
        r"d2t: expected int64 \(5,\). Got torch.float32 \(5,\)",
    ),
    "too few tokens": (
        {"tensors": {"d2t": torch.zeros(4).long()}},
        r"d2t: expected shape \(5,\). Got \(4,\)",
    ),
    "more tokens than the target": (
        {"tensors": {"lm_head.weight": torch.zeros(24, 32)}},
        r"lm_head.weight: expected at most 23 rows, the tokens of .*Got 24: take a head that was trained on this",
    ),
    "no d2t": ({"drop": ["d2t"]}, r"d2t: this tensor is missing.*: take a complete checkpoint"),
    "a single number": ({"tensors": {"fc.weight": torch.tensor(1.0)}}, r"fc.weight: expected states of 32.*Got 1"),
    "a single logit": ({"tensors": {"lm_head.weight": torch.tensor(1.0)}}, r"d2t: expected shape \(1,\). Got \(5,\)"),
    "another shape": (
        {"tensors": {"norm.weight": torch.ones(31)}},
        r"norm.weight: expected shape \(32,\). Got \(31,\)",
    ),
    "whole numbers": (
        {"tensors": {"norm.weight": torch.ones(32).int()}},
        r"norm.weight: expected float32.*Got torch.int32",
    ),
    "P-EAGLE": ({"tensors": {"mask_hidden": torch.ones(1, 96)}}, r"mask_hidden: expected an EAGLE head. Got P-EAGLE"),
    "another network": (
        {"tensors": {"midlayer.self_attn.sinks": torch.ones(4)}},
        r"midlayer.self_attn.sinks: expected tensors of an EAGLE head. This one is of another network",
    ),
    "one of three biases": (
        {"tensors": {"midlayer.self_attn.k_proj.bias": torch.ones(16)}},
        r"k_proj.bias: expected tensors of an EAGLE head",
    ),
    "more layers than are listed": (
        {"layers": 2, "config": {"num_hidden_layers": 1}},
        r"layers.1.\S+: expected tensors of an EAGLE head.*or of more layers than config.json lists",
    ),
    "another MTP module": (
        {
            "layout": layouts.mimo,
            "layer_ids": (),
            "ids": None,
            "mtp": True,
            "own_output": False,
            "tensors": {"model.mtp_layers.0.mlp.gate.weight": torch.ones(4, 32)},
        },
        r"mtp_layers.0.mlp.gate.weight: expected tensors of an MTP module",
    ),
    "DSpark": (
        {"tensors": {"markov_head.weight": torch.ones(1)}},
        r"markov_head.weight: expected an EAGLE head. Got DSpark",
    ),
    "MTP": (
        {"tensors": {"mtp.fc.weight": torch.ones(1)}},
        r"mtp.fc.weight: expected an EAGLE head. Got MTP of another kind",
    ),
    "DFlash": (
        {"tensors": {"hidden_norm.weight": torch.ones(1)}},
        r"hidden_norm.weight: expected an EAGLE head. Got DFlash",
    ),
}
NEEDED = (
    *("fc", "norm", "midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm"),
    *(f"midlayer.self_attn.{name}_proj" for name in "qkvo"),
    *(f"midlayer.mlp.{name}_proj" for name in ("gate", "up", "down")),
)


class TestRefusals:
    @pytest.mark.parametrize("name", WRONG)
    def test_wrong_files_are_refused_in_one_line(self, deep, tmp_path, name):
        options, reason = WRONG[name]
        with pytest.raises(TreeoptError, match=reason) as raised:
            load_eagle(saved(tmp_path, deep, **options), deep)
        assert "\n" not in str(raised.value)

    def test_every_missing_tensor_is_named(self, deep, tmp_path):
        for name in NEEDED:
            folder = saved(tmp_path, deep, drop=[f"{name}.weight"])
            with pytest.raises(FormatError, match=rf"{name}.weight: this tensor is missing"):
                load_eagle(folder, deep)

    def test_every_missing_tensor_of_an_older_head_is_named(self, deep, tmp_path):
        folder = saved(tmp_path, deep, layouts.eagle1, layer_ids=(), ids=None, eagle1=True)
        whole = torch.load(folder / "pytorch_model.bin")
        for name in ("fc.weight", "layers.0.self_attn.q_proj.weight", "layers.0.post_attention_layernorm.weight"):
            torch.save({key: value for key, value in whole.items() if key != name}, folder / "pytorch_model.bin")
            with pytest.raises(FormatError, match=rf"{name}: this tensor is missing"):
                load_eagle(folder, deep)

    def test_another_model_is_refused(self, deep, deep_folder):
        with pytest.raises(FormatError, match=r"hidden_norm.weight: this tensor is missing, which EAGLE heads have"):
            load_eagle(deep_folder, deep)

    def test_other_targets_are_refused(self, deep, target, tmp_path):
        folder = saved(tmp_path, deep)
        with pytest.raises(
            InvalidValueError, match=r"layers: expected 3 hidden-state layer ids from 0 to 2.*Got \(2, 4, 5\)"
        ):
            load_eagle(folder, target)
        with pytest.raises(
            InvalidValueError,
            match=r"target: expected one that treeopt runs itself.*SimpleNamespace: choose a drafter without",
        ):
            load_eagle(folder, SimpleNamespace())

    def test_more_children_than_tokens_are_refused(self, deep, tmp_path):
        head = load_eagle(saved(tmp_path, deep), deep)
        with pytest.raises(InvalidValueError, match=r"tree: expected at most 5 children.*Got 6: take a narrower tree"):
            StaticTreeDrafter(head, level_widths([6]), capacity=20)
        with pytest.raises(InvalidValueError, match=r"policy: expected at most 5 children.*Got 6"):
            ExpandingDrafter(head, DynamicTree(top_k=6, depth=2, nodes=9), capacity=20)


def test_parts_of_the_target_and_rotations_are_not_read(deep, tmp_path):
    names = ("verifier_lm_head.weight", "verifier_norm.weight", "midlayer.self_attn.rotary_emb.inv_freq", "t2d")
    load_eagle(saved(tmp_path, deep, tensors={name: torch.ones(1) for name in names}), deep)


def test_a_field_that_is_null_counts_as_missing(deep, tmp_path):
    folder = saved(tmp_path, deep)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, IDS: None, "norm_output": None}))
    assert load_eagle(folder, deep).requested_states.layer_ids == LAYER_IDS


class OpenOnLoad:
    """Creates a file if it is unpickled carelessly."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


class AllocateOnLoad:
    """Allocates 10 GB if it is unpickled carelessly; torch takes `bytearray` for safe."""

    def __reduce__(self):
        return (bytearray, (10_000_000_000,))


def test_code_in_a_checkpoint_is_not_run(deep, tmp_path):
    folder, proof = saved(tmp_path, deep, layouts.safeailab), tmp_path / "proof"
    for code in (OpenOnLoad(proof), AllocateOnLoad()):
        torch.save({"fc.weight": torch.ones(2, 2), "code": code}, folder / "pytorch_model.bin")
        with pytest.raises(FormatError, match=r"pytorch_model.bin: content: .*may be code and was not run") as error:
            load_eagle(folder, deep)
        assert not proof.exists()
        assert "\n" not in str(error.value)


def test_missing_files_are_refused(deep, tmp_path):
    folder = saved(tmp_path, deep)
    for name, reason in (("model.safetensors", "no model.safetensors and no pytorch_"), ("config.json", "config.json")):
        (folder / name).unlink()
        with pytest.raises(TreeoptError, match=reason):
            load_eagle(folder, deep)
        folder = saved(tmp_path, deep)
