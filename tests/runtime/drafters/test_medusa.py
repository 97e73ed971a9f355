"""Medusa's heads: drafts next to a slow reference, the bundled heads, and refused files."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.support.decoded import PROMPT, TREES, decoded_step, joined
from treeopt import bundled as bundle
from treeopt.errors import FormatError, InvalidValueError, TreeoptError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.drafters.heads import HeadDrafter
from treeopt.runtime.drafters.medusa import MedusaDrafter, MedusaHeads, load_medusa
from treeopt.trees import chain, level_widths, load

HEADS = 4
WIDE = level_widths([20, 40])
CHOICES = Path(__file__).resolve().parents[4] / "shared/data/choices/medusa_mc_sim_7b_63.json"


def random_weights(hidden, *, heads=HEADS):
    generator = torch.Generator().manual_seed(0)
    weight = 0.3 * torch.randn(heads, hidden, hidden, generator=generator)
    return weight, torch.randn(heads, hidden, generator=generator)


@pytest.fixture(scope="module")
def exact(target_folder):
    """Return a target in float64, random heads on it, and the function that predicts a head's token."""
    from transformers import LlamaForCausalLM

    target = load_model(target_folder, dtype=torch.float64)
    slow = LlamaForCausalLM.from_pretrained(target_folder, dtype=torch.float64).eval()
    weight, bias = (part.double() for part in random_weights(target.config.hidden))
    output = slow.lm_head.weight.detach().numpy()

    def token(text, depth, rank):
        """Return the token of a rank that head `depth` predicts after the text's last token, the root."""
        with torch.no_grad():
            hidden = slow.model(torch.tensor([text[:-1]])).last_hidden_state[0, -1].numpy()
        inner = weight[depth - 1].numpy() @ hidden + bias[depth - 1].numpy()
        logits = output @ (hidden + inner / (1 + np.exp(-inner)))
        return sorted(range(len(logits)), key=lambda token: -logits[token])[rank]

    return SimpleNamespace(target=target, heads=MedusaHeads(target, weight, bias), token=token)


def is_expected(exact, proposal, text):
    tree = proposal.tree
    tokens = [text[-1]]
    tokens += [exact.token(text, int(tree.depth[node]), int(tree.rank[node])) for node in range(1, tree.nodes)]
    return proposal.tokens.tolist() == tokens


def compare_steps(exact, tree, temperature):
    """Return for each of 5 steps whether the proposal is that of the slow reference."""
    decoder = Decoder(exact.target, MedusaDrafter(exact.heads, tree), temperature=temperature, seed=3)
    text, equal = list(PROMPT), []
    decoder.start(text)
    for _ in range(5):
        proposal = decoder.draft()
        equal.append(is_expected(exact, proposal, text))
        text += decoded_step(decoder, proposal)
    return equal


def accept_states_of_the_root(monkeypatch):
    """Let heads read the hidden state of the root instead of the last accepted node."""
    accept = HeadDrafter.accept

    def accept_root(self, sequences, steps):
        accept(self, sequences, [step._replace(path=(0,)) for step in steps])

    monkeypatch.setattr(HeadDrafter, "accept", accept_root)


class TestProposals:
    @pytest.mark.parametrize("tree", [TREES["chain of 4"], TREES["wide, then narrow"], TREES["random 2"], WIDE])
    @pytest.mark.parametrize("temperature", [0.0, 1.5])
    def test_every_node_has_the_token_of_its_depth_and_rank(self, exact, tree, temperature):
        assert compare_steps(exact, tree, temperature) == [True] * 5

    def test_the_tree_may_change_between_steps(self, exact):
        drafter = MedusaDrafter(exact.heads, WIDE)
        decoder, text = Decoder(exact.target, drafter, temperature=0.0), list(PROMPT)
        decoder.start(text)
        for tree in (chain(3), WIDE, level_widths([2, 2, 2, 2])):
            drafter.change_tree(tree)
            proposal = decoder.draft()
            assert proposal.tree == tree
            assert is_expected(exact, proposal, text)
            text += decoded_step(decoder, proposal)

    def test_another_nodes_hidden_state_is_found(self, exact, monkeypatch):
        accept_states_of_the_root(monkeypatch)
        equal = compare_steps(exact, WIDE, 1.5)
        assert equal[0]
        assert not all(equal)

    def test_a_sequence_of_one_token_begins_with_its_root_alone(self, exact):
        decoder = Decoder(exact.target, MedusaDrafter(exact.heads, WIDE), temperature=0.0)
        decoder.start([4])
        assert decoder.draft().tokens.tolist() == [4]
        assert len(decoder.step().tokens) == 1
        assert decoder.draft().tree == WIDE


class TestBundled:
    @staticmethod
    def count_steps(pair, outputs, tree):
        drafter = MedusaDrafter(load_medusa(bundle.MEDUSA, pair.target), tree)
        decoder = Decoder(pair.target, drafter, temperature=0.0)
        steps = [list(decoder.stream(prompt, 60)) for prompt, _ in outputs]
        assert [joined(text) for text in steps] == [text for _, text in outputs]
        return sum(map(len, steps))

    @pytest.mark.parametrize("tree", [chain(1), level_widths([4, 6, 3, 1, 1])])
    def test_output_is_plain_decodings_in_fewer_steps(self, bundled_pair, bundled_outputs, tree):
        assert self.count_steps(bundled_pair, bundled_outputs, tree) < 180 / 1.4

    @pytest.mark.source
    def test_medusas_own_tree_of_64_nodes(self, bundled_pair, bundled_outputs):
        if not CHOICES.is_file():
            pytest.skip("shared/data/choices is not there")
        tree = load(CHOICES, "mc_sim_7b_63")
        assert (tree.nodes, tree.max_depth, int(tree.rank.max())) == (64, 4, 9)
        assert self.count_steps(bundled_pair, bundled_outputs, tree) < 180 / 2.5

    @pytest.mark.slow
    def test_another_nodes_hidden_state_takes_more_steps(self, bundled_pair, bundled_outputs, monkeypatch):
        tree = level_widths([4, 6, 3])
        steps = self.count_steps(bundled_pair, bundled_outputs, tree)
        accept_states_of_the_root(monkeypatch)
        assert self.count_steps(bundled_pair, bundled_outputs, tree) > 1.2 * steps


class TestRefusals:
    @pytest.mark.parametrize(
        ("tree", "reason"),
        [
            (chain(5), r"tree: expected at most 4 levels, the depth of Medusa heads of .*. Got 5"),
            (
                level_widths([24]),
                r"tree: expected at most 23 children of a node, the vocabulary of Medusa heads of .*Got 24: take a narrower tree",
            ),
        ],
    )
    def test_a_tree_that_the_heads_cannot_fill_is_refused(self, exact, tree, reason):
        with pytest.raises(InvalidValueError, match=reason):
            MedusaDrafter(exact.heads, tree)

    @pytest.mark.parametrize(
        ("weight", "bias", "reason"),
        [
            ((2, 31, 32), (2, 32), r"weight: expected shape \(D, 32, 32\). Got \(2, 31, 32\)"),
            ((0, 32, 32), (0, 32), r"weight: expected shape \(D, 32, 32\). Got \(0, 32, 32\)"),
            ((2, 32, 32), (3, 32), r"bias: expected shape \(2, 32\). Got \(3, 32\)"),
        ],
    )
    def test_weights_of_other_shapes_are_refused(self, target, weight, bias, reason):
        with pytest.raises(InvalidValueError, match=reason):
            MedusaHeads(target, torch.zeros(weight), torch.zeros(bias))


CONFIG = {"kind": "medusa", "heads": 2, "hidden_size": 32, "vocabulary": 23}


class TestLoading:
    @pytest.fixture
    def folder(self, tmp_path):
        """Return a folder with two heads for the small target."""
        weight, bias = random_weights(32, heads=2)
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        save_file({"weight": weight, "bias": bias}, tmp_path / "model.safetensors")
        return tmp_path

    def test_stored_heads_are_loaded_in_the_targets_dtype(self, folder, target, exact):
        hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
        stored = MedusaHeads(target, *random_weights(32, heads=2))
        assert torch.equal(load_medusa(folder, target).logits(hidden), stored.logits(hidden))
        assert load_medusa(folder, exact.target).logits(hidden.double()).dtype == torch.float64

    @pytest.mark.parametrize(
        ("changes", "error", "reason"),
        [
            ({"kind": "redrafter"}, FormatError, r"config.json: kind: expected 'medusa'. Got 'redrafter'"),
            ({"hidden_size": 64}, InvalidValueError, r"hidden_size: expected 32, which .* has. Got 64"),
            ({"vocabulary": 256}, InvalidValueError, r"vocabulary: expected 23, which .* has. Got 256"),
            ({"heads": 0}, FormatError, r"config.json: heads: expected a whole number of at least 1. Got 0"),
            ({"heads": 3}, FormatError, r"safetensors: weight: expected shape \(3, 32, 32\). Got \(2, 32, 32\)"),
            ({"layers": 1}, FormatError, r"config.json: layers: unknown field"),
        ],
    )
    def test_a_config_that_does_not_fit_is_refused(self, folder, target, changes, error, reason):
        (folder / "config.json").write_text(json.dumps(CONFIG | changes))
        with pytest.raises(error, match=reason):
            load_medusa(folder, target)

    def test_broken_and_missing_files_are_refused(self, folder, target):
        weights, config = folder / "model.safetensors", folder / "config.json"
        whole = weights.read_bytes()
        for file, content, reason in (
            (config, b"{", r"config.json: content: expected JSON"),
            (config, None, "config.json: no such file"),
            (weights, whole[: len(whole) // 2], r"safetensors: header: cannot be read"),
            (weights, None, "no model.safetensors and no pytorch_"),
        ):
            before = file.read_bytes()
            file.unlink() if content is None else file.write_bytes(content)
            with pytest.raises(TreeoptError, match=reason):
                load_medusa(folder, target)
            file.write_bytes(before)
        save_file({"weight": torch.zeros(2, 32, 32)}, weights)
        with pytest.raises(FormatError, match=r"bias: this tensor is missing"):
            load_medusa(folder, target)
        weight, bias = random_weights(32, heads=2)
        save_file({"weight": weight, "bias": bias, "output": bias.clone()}, weights)
        with pytest.raises(FormatError, match=r"output: expected tensors of Medusa heads"):
            load_medusa(folder, target)
