"""Medusa's heads: what they predict beside a slow reference, and texts that stay the target's own."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.support.decoded import PROMPT, TREES, decoded_step, joined
from tests.support.toy_distribution import ToyDistribution
from treeopt import bundled as bundle
from treeopt.errors import FormatError, InvalidValueError, TreeoptError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.drafters.medusa import MedusaDrafter, MedusaHeads, load_medusa
from treeopt.trees import TokenTree, chain, k_ary, level_widths, load

HEADS = 4
FITTING = {name: tree for name, tree in TREES.items() if tree.max_depth <= HEADS} | {"wide": level_widths([20, 40])}
all_trees = pytest.mark.parametrize("tree", FITTING.values(), ids=FITTING.keys())
CHOICES = Path(__file__).resolve().parents[4] / "shared/data/choices/medusa_mc_sim_7b_63.json"


def random_weights(hidden, *, seed=0, heads=HEADS):
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * torch.randn(heads, hidden, hidden, generator=generator), torch.randn(
        heads, hidden, generator=generator
    )


@pytest.fixture(scope="module")
def exact(target_folder):
    """Return a target in float64, random heads on it, and the function that predicts as they should."""
    from transformers import LlamaForCausalLM

    target = load_model(target_folder, dtype=torch.float64)
    slow = LlamaForCausalLM.from_pretrained(target_folder, dtype=torch.float64).eval()
    weight, bias = (part.double() for part in random_weights(target.config.hidden))
    output = slow.lm_head.weight.detach().numpy()

    def token(text, depth, rank):
        """Return the proposal of one head: its token of one rank behind the last of a text, the root."""
        with torch.no_grad():
            hidden = slow.model(torch.tensor([text[:-1]])).last_hidden_state[0, -1].numpy()
        inner = weight[depth - 1].numpy() @ hidden + bias[depth - 1].numpy()
        logits = output @ (hidden + inner / (1 + np.exp(-inner)))
        return sorted(range(len(logits)), key=lambda each: -logits[each])[rank]

    return SimpleNamespace(target=target, heads=MedusaHeads(target, weight, bias), token=token)


def paths_of(tree, tokens):
    """Return the tokens from the root's child down to every node, in the order of the nodes."""
    paths = [()]
    for node in range(1, tree.nodes):
        paths.append((*paths[tree.parents[node]], int(tokens[node])))
    return paths


def slow_paths(token, text, tree):
    paths = [()]
    for node in range(1, tree.nodes):
        paths.append((*paths[tree.parents[node]], token(text, int(tree.depth[node]), int(tree.rank[node]))))
    return paths


def proposals_agree(exact, tree, temperature, steps=6):
    """Tell for each of so many steps whether the proposal is that of the slow reference."""
    decoder = Decoder(exact.target, MedusaDrafter(exact.heads, tree), temperature=temperature, seed=3)
    text, found = list(PROMPT), []
    decoder.start(text)
    for _ in range(steps):
        proposal = decoder.draft()
        assert proposal.tokens.dtype == torch.int64
        same_root = int(proposal.tokens[0]) == text[-1]
        found.append(same_root and paths_of(proposal.tree, proposal.tokens) == slow_paths(exact.token, text, tree))
        text += decoded_step(decoder, proposal)
    return found


class TestProposals:
    @all_trees
    @pytest.mark.parametrize("temperature", [0.0, 1.5])
    def test_every_node_carries_the_token_of_its_path(self, exact, tree, temperature):
        assert proposals_agree(exact, tree, temperature) == [True] * 6

    def test_the_tree_changes_from_one_step_to_the_next(self, exact):
        drafter = MedusaDrafter(exact.heads, level_widths([20, 40]))
        decoder, text = Decoder(exact.target, drafter, temperature=0.0), list(PROMPT)
        decoder.start(text)
        for tree in (chain(3), level_widths([20, 40]), level_widths([2, 2, 2, 2]), chain(1)):
            drafter.change_tree(tree)
            proposal = decoder.draft()
            assert proposal.tree == tree
            assert paths_of(proposal.tree, proposal.tokens) == slow_paths(exact.token, text, tree)
            text += decoded_step(decoder, proposal)
        with pytest.raises(InvalidValueError, match="at most 4 levels"):
            drafter.change_tree(chain(5))

    def test_the_hidden_state_of_another_node_is_found(self, exact, monkeypatch):
        accept = MedusaDrafter.accept
        monkeypatch.setattr(
            MedusaDrafter, "accept", lambda self, texts, steps: accept(self, texts, [steps[0]._replace(path=(0,))])
        )
        found = proposals_agree(exact, level_widths([20, 40]), 1.5)
        assert found[0]
        assert not all(found)

    def test_untrained_heads_say_what_the_target_says(self, exact):
        hidden = torch.randn(3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        heads = MedusaHeads(exact.target, torch.zeros(2, 32, 32), torch.zeros(2, 32))
        for head in range(2):
            torch.testing.assert_close(heads.logits(hidden)[:, head], exact.target.logits(hidden))

    def test_no_rows_give_no_proposals(self, exact):
        assert exact.heads.likeliest(torch.zeros(0, 32, dtype=torch.float64), 3)[1].shape == (0, HEADS, 3)

    def test_the_heads_run_once_in_a_step(self, exact, monkeypatch):
        calls, logits = [], MedusaHeads.logits
        monkeypatch.setattr(MedusaHeads, "logits", lambda *a: calls.append(a[1].shape) or logits(*a))
        drafter = MedusaDrafter(exact.heads, k_ary(2, 3))
        decoder = Decoder(exact.target, drafter, temperature=0.0)
        steps = sum(1 for _ in decoder.stream(PROMPT, 20))
        assert calls == [(1, 32)] * steps

    def test_a_text_of_one_token_begins_with_its_root_alone(self, exact):
        decoder = Decoder(exact.target, MedusaDrafter(exact.heads, k_ary(2, 3)), temperature=0.0)
        decoder.start([4])
        assert decoder.draft().tokens.tolist() == [4]
        assert len(decoder.step().tokens) == 1
        assert decoder.draft().tree == k_ary(2, 3)


@pytest.fixture(scope="module")
def bundled(bundled_pair, bundled_texts):
    """Return the bundled target, its heads, three prompts and plain decoding's text after each."""
    prompts, texts = map(list, zip(*bundled_texts, strict=True))
    heads = load_medusa(bundle.MEDUSA, bundled_pair.target)
    return SimpleNamespace(target=bundled_pair.target, heads=heads, prompts=prompts, texts=texts)


class TestBundled:
    def steps(self, bundled, tree):
        decoder = Decoder(bundled.target, MedusaDrafter(bundled.heads, tree), temperature=0.0)
        steps = [list(decoder.stream(prompt, 60)) for prompt in bundled.prompts]
        assert [joined(each) for each in steps] == bundled.texts
        return sum(map(len, steps))

    @pytest.mark.parametrize("tree", [chain(1), chain(5), level_widths([4, 6, 3, 1, 1])])
    def test_texts_are_those_of_plain_decoding_in_fewer_steps(self, bundled, tree):
        assert self.steps(bundled, tree) < 180 / 1.4

    @pytest.mark.source
    def test_medusas_own_tree_of_64_nodes(self, bundled):
        if not CHOICES.is_file():
            pytest.skip("shared/data/choices is not there")
        tree = load(CHOICES, "mc_sim_7b_63")
        assert (tree.nodes, tree.max_depth, int(tree.rank.max())) == (64, 4, 9)
        assert self.steps(bundled, tree) < 180 / 2.5

    @pytest.mark.slow
    def test_the_hidden_state_of_another_node_takes_more_steps(self, bundled, monkeypatch):
        tree = level_widths([4, 6, 3])
        right = self.steps(bundled, tree)

        accept = MedusaDrafter.accept
        monkeypatch.setattr(
            MedusaDrafter, "accept", lambda self, texts, steps: accept(self, texts, [steps[0]._replace(path=(0,))])
        )
        assert self.steps(bundled, tree) > 1.2 * right


class TestTypical:
    """The one lossy rule is for given drafts, too."""

    @pytest.fixture
    def p_value(self, make_checkpoint, logits_after, chi_squared):
        """Return the function that decodes texts by a rule and gives the p-value of their first tokens."""
        distribution = ToyDistribution(make_checkpoint, logits_after, chi_squared)
        small = distribution.model()

        def p_value(texts, **rule):
            drafter = MedusaDrafter(MedusaHeads(small, *random_weights(32)), TokenTree([-1, 0, 0, 1, 1]))
            decoder = Decoder(small, drafter, temperature=1.0, seed=1, **rule)
            return distribution.of(decoder, small, (2, 0, 3), texts)[0]

        return p_value

    def test_it_is_found_to_change_the_text(self, p_value):
        assert p_value(500, rule="typical", lossy=True) < 1e-6

    def test_it_has_to_be_allowed(self, p_value):
        with pytest.raises(InvalidValueError, match="lossy=True"):
            p_value(1, rule="typical")

    def test_rules_for_sampled_drafts_are_refused(self, p_value):
        with pytest.raises(InvalidValueError, match="rule: expected target or typical"):
            p_value(1, rule="sequoia")


class TestRefusals:
    @pytest.mark.parametrize(
        ("tree", "reason"),
        [
            (chain(5), r"tree: expected at most 4 levels, the depth of Medusa heads of .*. Got 5"),
            (level_widths([24]), r"tree: expected at most 23 children of a node, the vocabulary. Got 24"),
        ],
    )
    def test_a_tree_that_the_heads_cannot_fill(self, exact, tree, reason):
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
    def test_weights_of_other_shapes(self, target, weight, bias, reason):
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

    def test_heads_come_back_as_they_were_stored(self, folder, target):
        hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
        stored = MedusaHeads(target, *random_weights(32, heads=2))
        assert torch.equal(load_medusa(folder, target).logits(hidden), stored.logits(hidden))

    def test_they_take_the_dtype_of_the_target(self, folder, exact):
        assert load_medusa(folder, exact.target).logits(torch.zeros(1, 32, dtype=torch.float64)).dtype == torch.float64

    @pytest.mark.parametrize(
        ("changes", "error", "reason"),
        [
            ({"kind": "redrafter"}, FormatError, r"config.json: kind: expected 'medusa'. Got 'redrafter'"),
            ({"hidden_size": 64}, InvalidValueError, r"hidden_size: expected heads for 32, which .* has. Got 64"),
            ({"vocabulary": 256}, InvalidValueError, r"vocabulary: expected heads for 23, which .* has. Got 256"),
            ({"heads": 0}, FormatError, r"config.json: heads: expected a whole number of at least 1. Got 0"),
            ({"heads": 3}, FormatError, r"safetensors: weight: expected shape \(3, 32, 32\). Got \(2, 32, 32\)"),
            ({"layers": 1}, FormatError, r"config.json: layers: unknown field"),
        ],
    )
    def test_a_config_that_does_not_fit(self, folder, target, changes, error, reason):
        (folder / "config.json").write_text(json.dumps(CONFIG | changes))
        with pytest.raises(error, match=reason):
            load_medusa(folder, target)

    def test_a_config_that_is_no_json(self, folder, target):
        (folder / "config.json").write_text("{")
        with pytest.raises(FormatError, match=r"config.json: content: expected JSON"):
            load_medusa(folder, target)

    @pytest.mark.parametrize(
        ("missing", "reason"),
        [("config.json", "config.json: no such file"), ("model.safetensors", "no model.safetensors and no pytorch_")],
    )
    def test_a_missing_file(self, folder, target, missing, reason):
        (folder / missing).unlink()
        with pytest.raises(TreeoptError, match=reason):
            load_medusa(folder, target)

    def test_a_missing_weight(self, folder, target):
        save_file({"weight": torch.zeros(2, 32, 32)}, folder / "model.safetensors")
        with pytest.raises(FormatError, match=r"bias: this tensor is missing"):
            load_medusa(folder, target)

    def test_a_file_that_was_cut_off(self, folder, target):
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(FormatError, match=r"safetensors: header: cannot be read"):
            load_medusa(folder, target)
