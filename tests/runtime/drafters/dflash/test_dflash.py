"""DFlash heads: logits next to transformers' class with the same weights, trees, and refused files."""

from dataclasses import replace

import pytest
import torch

from tests.support import dflash_heads as heads
from tests.support.decoded import PROMPT, decoded_step
from treeopt.errors import FormatError, InvalidValueError
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.dflash import DFlashDrafter, load_dflash
from treeopt.runtime.drafters.dflash.load import default_layer_ids
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.trees import chain, k_ary, level_widths

TEXT = [3, 14, 15, 9, 2, 6, 5, 11, 20]


@pytest.fixture(scope="module")
def oracle(deep):
    return heads.make_oracle(deep.config)


@pytest.fixture(scope="module")
def head(oracle, deep, tmp_path_factory):
    return load_dflash(heads.save(tmp_path_factory.mktemp("dflash") / "head", *heads.z_lab(oracle)), deep)


def logits_of(head, target, text):
    """Return the logits (levels, V) after a text's root, its context read in one go."""
    (cache,) = head.new_caches(len(text), 1)
    head.read(target.compute_states(torch.tensor(text[:-1]), head.requested_states), cache)
    return head.draft([text[-1]], [cache])[0]


class TestNetwork:
    @pytest.mark.parametrize("layout", heads.LAYOUTS.values(), ids=heads.LAYOUTS.keys())
    def test_logits_are_those_of_transformers(self, deep, oracle, tmp_path, layout):
        head = load_dflash(heads.save(tmp_path / "head", *layout(oracle)), deep)
        expected = heads.oracle_logits(oracle, deep, TEXT)[1:]
        found = logits_of(head, deep, TEXT)
        assert found.shape == (heads.BLOCK - 1, 23)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("levels", [1, 2, 4])
    def test_logits_of_smaller_blocks_are_those_of_transformers(self, deep, oracle, head, levels):
        smaller = logits_of(head.with_levels(levels), deep, TEXT)
        expected = heads.oracle_logits(oracle, deep, TEXT, block=levels + 1)[1:]
        torch.testing.assert_close(smaller, expected, atol=1e-5, rtol=1e-5)
        if levels < head.levels:  # slots see the slots after them
            assert not torch.allclose(smaller, logits_of(head, deep, TEXT)[:levels], atol=1e-2)

    def test_smaller_blocks_of_a_causal_head_are_the_beginning_of_larger_ones(self, deep, head):
        causal = replace(head, causal_layers=frozenset({0, 1}))
        torch.testing.assert_close(
            logits_of(causal.with_levels(2), deep, TEXT), logits_of(causal, deep, TEXT)[:2], atol=1e-9, rtol=1e-9
        )

    @pytest.mark.parametrize("levels", [0, 5])
    def test_blocks_larger_than_trained_are_refused(self, head, levels):
        with pytest.raises(InvalidValueError, match=r"block_draft_tokens: expected 1 to 4, because .*Got"):
            head.with_levels(levels)

    def test_states_of_neighbouring_layers_give_others(self, deep, oracle, head):
        for shift in (-1, 1):
            others = heads.oracle_logits(oracle, deep, TEXT, shift=shift)[1:]
            assert not torch.allclose(logits_of(head, deep, TEXT), others, atol=1e-2)

    def test_the_roots_own_state_is_not_in_the_context(self, deep, head):
        (cache,) = head.new_caches(len(TEXT) + 1, 1)
        head.read(deep.compute_states(torch.tensor(TEXT), head.requested_states), cache)
        assert not torch.allclose(head.draft([TEXT[-1]], [cache])[0], logits_of(head, deep, TEXT), atol=1e-2)

    def test_a_context_read_in_pieces_is_the_same(self, deep, head):
        (cache,) = head.new_caches(len(TEXT), 1)
        states = deep.compute_states(torch.tensor(TEXT[:-1]), head.requested_states)
        for rows in (slice(0, 3), slice(3, 4), slice(4, None)):
            head.read(states.map(lambda layer, rows=rows: layer[rows]), cache)
            head.draft([7], [cache])  # leaves nothing behind
        torch.testing.assert_close(
            head.draft([TEXT[-1]], [cache])[0], logits_of(head, deep, TEXT), atol=1e-9, rtol=1e-9
        )

    def test_positions_are_rotated_as_the_heads_own_file_has_it(self, deep, head, tmp_path):
        rope = {"rope_type": "default", "rope_theta": 30.0}
        other = heads.make_oracle(deep.config, rope_parameters=rope)
        found = logits_of(load_dflash(heads.save(tmp_path / "head", *heads.z_lab(other)), deep), deep, TEXT)
        torch.testing.assert_close(found, heads.oracle_logits(other, deep, TEXT)[1:], atol=1e-5, rtol=1e-5)
        assert not torch.allclose(found, logits_of(head, deep, TEXT), atol=1e-2)

    def test_contexts_may_be_longer_than_the_head_was_trained_for(self, deep, oracle, head, tmp_path):
        config, tensors = heads.z_lab(oracle)
        short = load_dflash(heads.save(tmp_path / "head", config | {"max_position_embeddings": 4}, tensors), deep)
        assert torch.equal(logits_of(short, deep, TEXT), logits_of(head, deep, TEXT))

    def test_a_batch_has_the_logits_of_each_sequence_alone(self, deep, oracle, head):
        sequences = (TEXT, TEXT[:4], TEXT[:1])
        caches = head.new_caches(len(TEXT), 3)
        states = [deep.compute_states(torch.tensor(text[:-1]), head.requested_states) for text in sequences[:2]]
        states.append(states[0].map(lambda layer: layer[:0]))
        for new, cache in zip(states, caches, strict=True):
            head.read(new, cache)
        batch = head.draft([text[-1] for text in sequences], caches)
        for text, logits in zip(sequences[:2], batch, strict=False):
            torch.testing.assert_close(logits, logits_of(head, deep, text), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(batch[2], heads.oracle_logits(oracle, deep, TEXT[:1])[1:], atol=1e-5, rtol=1e-5)

    def test_a_head_of_fewer_tokens_predicts_these(self, deep, oracle, tmp_path):
        known = [0, 2, 3, 7, 11, 21]
        config, tensors = heads.speculators(oracle)
        own = torch.randn(len(known), 32)
        offsets = torch.tensor(known) - torch.arange(len(known))
        head = load_dflash(
            heads.save(tmp_path / "head", config, tensors | {"lm_head.weight": own, "d2t": offsets}), deep
        )
        found = logits_of(head, deep, TEXT)
        assert head.tokens == len(known)
        assert found.isfinite().nonzero()[:, 1].unique().tolist() == known
        states = heads.oracle_states(oracle, deep, TEXT)[1:]
        torch.testing.assert_close(found[:, known], states @ own.double().T, atol=1e-4, rtol=1e-4)

    def test_a_shifted_head_predicts_from_the_root_on(self, deep, oracle, tmp_path):
        config, tensors = heads.z_lab(oracle)
        config["architectures"] = ["Qwen3DSparkModel"]
        head = load_dflash(heads.save(tmp_path / "head", config, tensors), deep)
        assert head.levels == heads.BLOCK
        torch.testing.assert_close(
            logits_of(head, deep, TEXT), heads.oracle_logits(oracle, deep, TEXT), atol=1e-5, rtol=1e-5
        )

    def test_in_a_causal_block_later_masks_change_nothing(self, deep, oracle, tmp_path):
        config, tensors = heads.z_lab(oracle)
        found = []
        for block in (heads.BLOCK, 3):
            config["dflash_config"] |= {"causal": True}
            config["block_size"] = block
            head = load_dflash(heads.save(tmp_path / f"head{block}", config, tensors), deep)
            found.append(logits_of(head, deep, TEXT)[:2])
        torch.testing.assert_close(*found, atol=1e-9, rtol=1e-9)
        whole = heads.oracle_logits(oracle, deep, TEXT)[1:3]
        assert not torch.allclose(found[0], whole, atol=1e-2)  # without the mask they see each other

    def test_a_window_hides_earlier_states(self, deep, oracle, head, tmp_path):
        config, tensors = heads.z_lab(oracle)
        config |= {"layer_types": ["sliding_attention"] * 2, "sliding_window": 3}
        windowed = load_dflash(heads.save(tmp_path / "head", config, tensors), deep)
        states = deep.compute_states(torch.tensor(TEXT[:-1]), windowed.requested_states)
        changed = states.map(lambda layer: torch.cat([torch.randn(5, 32).double(), layer[5:]]))
        logits = []
        for rows in (states, changed):
            (cache,) = windowed.new_caches(len(TEXT), 1)
            windowed.read(rows, cache)
            logits.append(windowed.draft([TEXT[-1]], [cache])[0])
        torch.testing.assert_close(*logits, atol=1e-12, rtol=1e-12)
        assert not torch.allclose(logits[0], logits_of(head, deep, TEXT), atol=1e-2)

    @pytest.mark.parametrize(
        ("layout", "fields", "causal"),
        [
            (heads.z_lab, {}, {0}),
            (heads.z_lab, {"is_causal": None, "causal": False}, {}),
            (heads.z_lab, {"is_causal": True}, {0, 1}),
            (heads.speculators, {"sliding_window_non_causal": False}, {0}),
            (heads.speculators, {"sliding_window_non_causal": True}, {}),
            (heads.transformers, {}, {}),
        ],
    )
    def test_slots_of_sliding_layers_see_earlier_slots_only(self, deep, oracle, head, tmp_path, layout, fields, causal):
        """Unless the file denies it, and never in the class of transformers."""
        config, tensors = layout(oracle)
        sizes = config.get("transformer_layer_config", config)
        sizes |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
        found = logits_of(load_dflash(heads.save(tmp_path / "head", config | fields, tensors), deep), deep, TEXT)
        expected = logits_of(replace(head, causal_layers=frozenset(causal)), deep, TEXT)
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
        assert torch.allclose(found, heads.oracle_logits(oracle, deep, TEXT)[1:], atol=1e-2) == (not causal)

    def test_the_mask_may_follow_the_targets_tokens_in_an_embedding_of_its_own(self, deep, oracle, head, tmp_path):
        config, tensors = heads.z_lab(oracle)
        own = torch.cat([deep.weights.embedding, deep.weights.embedding[heads.MASK :]]).float()
        config["dflash_config"]["mask_token_id"] = len(own) - 1
        folder = heads.save(tmp_path / "head", config | {"mask_token_id": None}, tensors | {"embed_tokens.weight": own})
        found = logits_of(load_dflash(folder, deep), deep, TEXT)
        torch.testing.assert_close(found, logits_of(head, deep, TEXT), atol=1e-5, rtol=1e-5)


class TestDrafter:
    @pytest.mark.parametrize(
        ("tree", "temperature"), [(chain(4), 0.0), (k_ary(2, 3), 1.5), (level_widths([3, 5, 2]), 1.5)]
    )
    def test_every_node_has_the_token_of_its_depth_and_rank(self, deep, oracle, head, tree, temperature):
        decoder = Decoder(deep, DFlashDrafter(head, tree, capacity=60), temperature=temperature, seed=5)
        text = list(PROMPT)
        decoder.start(text)
        for _ in range(5):
            proposal = decoder.draft()
            order = torch.argsort(heads.oracle_logits(oracle, deep, text)[1:], descending=True)
            expected = [text[-1], *(int(order[d - 1, r]) for d, r in zip(tree.depth[1:], tree.rank[1:], strict=True))]
            assert proposal.tokens.tolist() == expected
            text += decoded_step(decoder, proposal)

    def test_the_tree_may_change_within_what_the_head_predicts(self, deep, head):
        drafter = DFlashDrafter(head, k_ary(2, 3), capacity=60)
        decoder = Decoder(deep, drafter, temperature=0.0)
        decoder.start(PROMPT)
        for tree in (chain(4), k_ary(2, 3)):
            drafter.change_tree(tree)
            assert decoder.draft().tree == tree
            decoder.step()
        with pytest.raises(InvalidValueError, match="at most 4 levels"):
            drafter.change_tree(chain(5))


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("markov_head.gate_proj.weight", "gated Markov head"),
            ("logit_head.markov_head.joint_proj.bias", "recurrent Markov head"),
            ("logit_head.prefix_gru.weight_ih_l0", "Domino"),
            ("candidate_selector.hidden_projection.weight", "DFlash2"),
            ("prefix_gru.weight_ih_l0", "Domino"),
            ("mask_hidden", "P-EAGLE"),
            ("layers.0.attention_conv.base_kernel", "another network"),
            ("layers.0.self_attn.qkv_proj.weight", "another network"),
        ],
    )
    def test_other_drafters_by_their_tensors(self, deep, oracle, tmp_path, name, kind):
        config, tensors = heads.z_lab(oracle)
        folder = heads.save(tmp_path / "head", config, tensors | {name: torch.ones(2)})
        with pytest.raises(FormatError, match=kind):
            load_dflash(folder, deep)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"block_size": 1}, "block_size: expected 2 to"),
            ({"block_size": None}, "block_size: expected 2 to"),
            ({"block_size": True}, "block_size: expected a whole number"),
            ({"dflash_config": {"mask_token_id": 23, "target_layer_ids": [1, 4]}}, "mask_token_id: expected a token"),
            ({"dflash_config": {"target_layer_ids": [1, 4]}}, "mask_token_id: .*missing"),
            (
                {"dflash_config": {"mask_token_id": 2, "target_layer_ids": [1, 8]}},
                "target_layer_ids: expected layers from -1 to 7",
            ),
            ({"dflash_config": {"mask_token_id": 2, "target_layer_ids": [4, 4]}}, "target_layer_ids: .*each once"),
            ({"dflash_config": {"mask_token_id": 2, "target_layer_ids": [1, 2, 4]}}, "fc.weight: expected shape"),
            ({"dflash_config": 3}, "dflash_config: expected fields"),
            ({"layer_types": ["full_attention", "linear"]}, "layer_types: expected a list of 2"),
            ({"shift_label": "yes"}, "shift_label: expected true or false"),
            ({"output_multiplier": 0.5}, "output_multiplier: expected none. Got 0.5, which is not supported"),
        ],
    )
    def test_configurations_that_do_not_fit(self, deep, oracle, tmp_path, changes, reason):
        config, tensors = heads.z_lab(oracle)
        folder = heads.save(tmp_path / "head", config | changes, tensors)
        with pytest.raises(FormatError, match=reason):
            load_dflash(folder, deep)

    @pytest.mark.parametrize(("name", "expected"), [("hidden_size", 32), ("vocab_size", 23)])
    def test_a_head_of_another_target(self, deep, oracle, tmp_path, name, expected):
        config, tensors = heads.z_lab(oracle)
        folder = heads.save(tmp_path / "head", config | {name: 64}, tensors)
        with pytest.raises(InvalidValueError, match=f"{name}: expected {expected}"):
            load_dflash(folder, deep)

    def test_as_an_eagle_head(self, deep, oracle, tmp_path):
        folder = heads.save(tmp_path / "head", *heads.z_lab(oracle))
        with pytest.raises(FormatError, match="--drafter dflash=DIR"):
            load_eagle(folder, deep)

    def test_single_numbers_for_matrices_are_refused(self, deep, oracle, tmp_path):
        config, tensors = heads.z_lab(oracle)
        for name in ("embed_tokens.weight", "lm_head.weight"):
            folder = heads.save(tmp_path / name, config, tensors | {name: torch.tensor(1.0)})
            with pytest.raises(FormatError, match=r"expected shape|missing"):
                load_dflash(folder, deep)

    def test_an_embedding_of_fewer_tokens_than_the_targets(self, deep, oracle, tmp_path):
        config, tensors = heads.z_lab(oracle)
        folder = heads.save(tmp_path / "head", config, tensors | {"embed_tokens.weight": torch.ones(22, 32)})
        with pytest.raises(FormatError, match=r"embed_tokens.weight: expected shape \(23, 32\). Got \(22, 32\)"):
            load_dflash(folder, deep)

    def test_a_file_of_speculators_without_layer_ids(self, deep, oracle, tmp_path):
        config, tensors = heads.speculators(oracle)
        folder = heads.save(tmp_path / "head", config | {"aux_hidden_state_layer_ids": None}, tensors)
        with pytest.raises(FormatError, match=r"aux_hidden_state_layer_ids: expected a list of layers. Got None"):
            load_dflash(folder, deep)


@pytest.mark.parametrize(("layers", "ids"), [(36, (2, 10, 18, 26, 34)), (30, (2, 9, 15, 21, 28))])
def test_default_layers_are_spread_over_the_target(layers, ids):
    assert default_layer_ids(layers, 5) == ids
