"""P-EAGLE heads: logits next to a slow twin and to speculators' class, drafts, and refused files."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.drafters.eagle.test_head import one_pass, rows_of, states_of
from tests.support import eagle_heads as layouts
from tests.support.decoded import PROMPT, decoded_step
from tests.support.eagle_heads import LEVELS, MASK_TOKEN, make_head, save_head
from tests.support.slow_eagle import SlowEagle
from treeopt.errors import FormatError, InvalidValueError, TreeoptWarning
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.drafters.draft_model import new_draft_sequences
from treeopt.runtime.drafters.eagle import EagleHead, PEagleDrafter, load_eagle, load_p_eagle
from treeopt.runtime.drafters.eagle.head import EagleSequence
from treeopt.runtime.models.model import HiddenStates
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import chain, k_ary, level_widths

SOME = [1, 2, 5, 6, 9, 11, 14, 15, 20, 22]
CASES = {
    "speculators": (layouts.speculators_p_eagle, {"ids": SOME, "norm_before_residual": True, "layers": 2}),
    "speculators, norm before fc": (layouts.speculators_p_eagle, {"norm_before_fc": True, "head_norms": True}),
    "speculators, fc norm": (layouts.speculators_p_eagle, {"fc_norm": True, "norm_output": True, "theta": 90.0}),
    "NeMo AutoModel, last state": (layouts.nemo_p_eagle, {"layer_ids": ()}),
    "NeMo AutoModel": (layouts.nemo_p_eagle, {"ids": SOME, "layers": 3, "theta": 90.0}),
}
FIXTURE = Path(__file__).parents[3] / "data" / "p-eagle-speculators.json"
"""Logits of speculators 0.9.0's PEagleDraftModel; `python -m tests.support.check_p_eagle` compares and records them."""


def made_head(target, **options):
    return make_head(target, **{"layer_ids": (1, 3, 8), "scale": 0.2, "embedding": True, "mask": True, **options})


def loaded(folder, target, made, layout=layouts.speculators_p_eagle, **changes):
    return load_p_eagle(save_head(layout, folder, made, target, **changes), target)


@pytest.fixture(scope="module")
def made(deep):
    return made_head(deep, ids=SOME, layers=2)


@pytest.fixture(scope="module")
def head(deep, made, tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("head"), deep, made)


def logits_after(head, states, tokens, levels=LEVELS, change=lambda slots: slots):
    """Return the logits (levels, V) after a text, given the target's states before its root."""
    (sequence,) = new_draft_sequences(head, 40, levels, 1)
    sequence.begin(tokens, states)
    (slots,) = EagleSequence.feed_roots([sequence])
    with torch.inference_mode():
        (output,) = head.forward([change(head.append_masks(slots, levels))])
    return output.logits[-levels:]


def later_masks(slots):
    """Return the slots, those of masks one position later."""
    depth = np.arange(slots.nodes.rows)
    return slots._replace(nodes=PassNodes(depth=depth + (depth > depth[-1] - LEVELS + 1)))


class TestNetwork:
    @pytest.mark.parametrize("case", CASES)
    def test_logits_are_the_slow_twins(self, deep, tmp_path, case):
        layout, options = CASES[case]
        made = made_head(deep, **options)
        head = loaded(tmp_path, deep, made, layout)
        assert (head.levels, head.requested_states.layer_ids) == (LEVELS, made.layer_ids)
        states = states_of(deep, PROMPT[:-1], head.requested_states)
        expected = SlowEagle(made, None, None).levels_after(rows_of(states), PROMPT, MASK_TOKEN, LEVELS)
        np.testing.assert_allclose(logits_after(head, states, PROMPT), expected, atol=1e-5)

    def test_logits_are_those_of_speculators(self, deep, tmp_path):
        recorded = json.loads(FIXTURE.read_text())
        head = loaded(tmp_path, deep, made_head(deep, **recorded["head"]))
        generator = torch.Generator().manual_seed(7)
        layers = [torch.randn((8, 32), generator=generator).double()[: len(recorded["tokens"]) - 1] for _ in range(3)]
        expected = torch.tensor(recorded["logits"], dtype=torch.float64)

        def difference(head, **options):
            logits = logits_after(head, HiddenStates(tuple(layers), None), recorded["tokens"], **options)
            return (logits[:, recorded["head"]["ids"]] - expected).abs().max()

        assert difference(head) < 1e-5
        assert difference(replace(head, mask_input=torch.zeros_like(head.mask_input))) > 0.1
        assert difference(head, change=later_masks) > 0.1

    def test_fewer_levels_are_the_first_of_all(self, deep, head):
        states = states_of(deep, PROMPT[:-1], head.requested_states)
        whole = logits_after(head, states, PROMPT)
        for levels in range(1, LEVELS):
            fewer = logits_after(head, states, PROMPT, levels)
            torch.testing.assert_close(fewer, whole[:levels], rtol=0, atol=1e-9)


class TestDrafter:
    @pytest.mark.parametrize(
        ("tree", "temperature"),
        [(chain(4), 0.0), (level_widths([10, 20, 3]), 0.0), (k_ary(2, 3), 1.5), (chain(1), 1.5)],
    )
    def test_every_node_has_the_token_of_its_depth_and_rank(self, deep, made, head, tree, temperature, monkeypatch):
        twin, text = SlowEagle(made, None, None), list(PROMPT)
        decoder = Decoder(deep, PEagleDrafter(head, tree, capacity=60), temperature=temperature, seed=5)
        decoder.start(text)
        accepted = 0
        for _ in range(6):
            with one_pass(head, monkeypatch):
                proposal = decoder.draft()
            states = rows_of(states_of(deep, text[:-1], head.requested_states))
            order = np.argsort(-twin.levels_after(states, text, MASK_TOKEN, tree.max_depth), axis=1)
            expected = [text[-1], *(int(order[d - 1, r]) for d, r in zip(tree.depth[1:], tree.rank[1:], strict=True))]
            assert proposal.tokens.tolist() == expected
            tokens = decoded_step(decoder, proposal)
            accepted += len(tokens) - 1
            text += tokens
        assert accepted or tree.nodes < 20

    def test_captured_passes_draft_the_same(self, deep, head):
        prompts, steps = [PROMPT, PROMPT[:4], PROMPT[:2]], []
        for graphs in (False, True):
            drafter = PEagleDrafter(head, level_widths([10, 10]), capacity=60, cuda_graphs=graphs)
            decoder = Decoder(deep, drafter, temperature=0.0, max_sequence_tokens=60)
            outputs = decoder.stream_all([GenerationRequest(prompt, 12) for prompt in prompts], batch_size=3)
            steps.append([(output.request, output.tokens) for output in outputs])
            assert bool(drafter._runner.captured) == graphs
        assert steps[0] == steps[1]
        assert max(len(tokens) for _, tokens in steps[0]) > 1


class TestConfiguration:
    def test_missing_levels_are_warned_of(self, deep, made, tmp_path):
        with pytest.warns(TreeoptWarning, match="num_depths: is missing, and is taken as 8"):
            assert loaded(tmp_path, deep, made, layouts.nemo_p_eagle, num_depths=None).levels == 8

    @pytest.mark.parametrize("name", ["mask_token_id", "pard_token", "ptd_token_id"])
    def test_the_mask_token_has_several_names(self, deep, made, tmp_path, name):
        changes = {"pard_token": None, name: 7}
        assert loaded(tmp_path, deep, made, layouts.nemo_p_eagle, **changes).mask_token == 7

    def test_layer_ids_may_be_arguments(self, deep, made, tmp_path):
        folder = save_head(layouts.speculators_p_eagle, tmp_path, made, deep)
        assert load_p_eagle(folder, deep, layer_ids=(0, 4, 2)).requested_states.layer_ids == (0, 4, 2)


class TestRefusals:
    def test_an_eagle_head_is_refused(self, deep, tmp_path):
        folder = save_head(layouts.speculators, tmp_path, make_head(deep, (1, 3, 8), embedding=True), deep)
        assert isinstance(load_eagle(folder, deep), EagleHead)
        with pytest.raises(FormatError, match=r"mask_hidden: expected a P-EAGLE head.*--drafter eagle=DIR"):
            load_p_eagle(folder, deep)

    def test_load_eagle_refuses_it(self, deep, made, tmp_path):
        folder = save_head(layouts.speculators_p_eagle, tmp_path, made, deep)
        with pytest.raises(
            FormatError, match=r"expected an EAGLE head. Got P-EAGLE: load it with --drafter p-eagle=DIR"
        ):
            load_eagle(folder, deep)

    @pytest.mark.parametrize(
        ("layout", "changes", "reason"),
        [
            (
                layouts.speculators_p_eagle,
                {"mask_token_id": None},
                "mask_token_id: expected the token of a mask. It is",
            ),
            (
                layouts.speculators_p_eagle,
                {"mask_token_id": 23},
                "mask_token_id: expected a token from 0 to 22. Got 23",
            ),
            (layouts.nemo_p_eagle, {"pard_token": 23}, "pard_token: expected a token from 0 to 22. Got 23"),
            (layouts.speculators_p_eagle, {"mask_token_id": "2"}, "mask_token_id: expected a whole number"),
            (layouts.nemo_p_eagle, {"pard_token": -1}, "pard_token: expected a token from 0 to 22. Got -1"),
            (layouts.nemo_p_eagle, {"num_depths": 0}, "num_depths: expected 1 to 1024 draft tokens. Got 0"),
            (layouts.nemo_p_eagle, {"num_depths": True}, "num_depths: expected 1 to 1024 draft tokens. Got True"),
            (
                layouts.speculators_p_eagle,
                {"speculators_config": {"proposal_methods": [{}]}},
                r"proposal_methods\[0\].speculative_tokens: expected 1 to 1024 draft tokens. Got None",
            ),
        ],
    )
    def test_configurations_that_do_not_fit_are_refused(self, deep, made, tmp_path, layout, changes, reason):
        with pytest.raises(FormatError, match=reason):
            loaded(tmp_path, deep, made, layout, **changes)

    def test_a_mask_of_another_size_is_refused(self, deep, made, tmp_path):
        wrong = replace(made, weights=made.weights | {"mask_hidden": torch.zeros(1, 1, 64)})
        with pytest.raises(FormatError, match=r"mask_hidden: expected 96 numbers.*Got shape \(1, 1, 64\)"):
            loaded(tmp_path, deep, wrong)

    def test_trees_beyond_levels_and_tokens_are_refused(self, head):
        with pytest.raises(InvalidValueError, match=r"at most 4 levels, the depth of P-EAGLE head"):
            PEagleDrafter(head, chain(5), capacity=20)
        with pytest.raises(InvalidValueError, match="at most 10 children"):
            PEagleDrafter(head, level_widths([11]), capacity=20)
