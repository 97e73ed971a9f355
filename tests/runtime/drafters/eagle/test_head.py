"""EAGLE heads in every public layout have the logits of a slow twin, after any sequence and drafted path."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support import eagle_heads as layouts
from tests.support import recorded
from tests.support.decoded import PROMPT
from tests.support.eagle_heads import make_head, save_head
from tests.support.passes import level_of, new_cache
from tests.support.slow_eagle import SlowEagle
from treeopt.runtime.drafters.draft_model import new_draft_sequences, node_logits, root_logits
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.runtime.models.model import RequestedStates
from treeopt.runtime.models.runner import GraphPool, Runner
from treeopt.trees import TokenTree

EVERY = (2, 4, 5)
SOME = [1, 2, 5, 6, 9, 11, 14, 15, 20, 22]
CASES = {
    "SafeAILab": (layouts.safeailab, {"ids": SOME}),
    "SafeAILab, all tokens": (layouts.safeailab, {}),
    "SpecForge": (layouts.specforge, {"ids": SOME, "layer_ids": (1, 3, 8)}),
    "SpecForge, post-norm": (layouts.specforge, {"norm_output": True, "fc_norm": True, "theta": 90.0}),
    "speculators": (layouts.speculators, {"ids": SOME, "norm_before_residual": True, "embedding": True}),
    "speculators, norm before fc": (layouts.speculators, {"layer_ids": (0, 7), "norm_before_fc": True}),
    "speculators, two layers": (layouts.speculators, {"layers": 2, "head_norms": True, "embedding": True}),
    "speculators, narrow": (layouts.speculators, {"hidden": 24, "embedding": True, "theta": 90.0}),
    "Model-Optimizer": (layouts.model_optimizer, {"ids": SOME}),
    "Model-Optimizer, the target's output layer": (layouts.model_optimizer, {"own_output": False}),
    "Model-Optimizer, some rows of the target's": (layouts.model_optimizer, {"own_output": False, "ids": SOME}),
    "Model-Optimizer, last state": (layouts.model_optimizer, {"layer_ids": ()}),
    "Model-Optimizer, as it exports": (layouts.model_optimizer, {"ids": SOME, "theta": 90.0, "yarn": (32.0, 64)}),
    "MiMo": (layouts.mimo, {"layer_ids": (), "mtp": True, "own_output": False, "theta": 90.0}),
    "EAGLE-1": (layouts.eagle1, {"layer_ids": (), "eagle1": True}),
}


def loaded(case, folder, target, *, shift=0, **changes):
    """Return a head loaded from a folder, and what it was made of; with a shift other layer ids are given."""
    layout, options = CASES[case]
    made = make_head(target, **{"layer_ids": EVERY, "scale": 0.2, **options})
    save_head(layout, folder, made, target, **changes)
    layer_ids = made.layer_ids if layout is layouts.safeailab else None
    if shift:
        layer_ids = tuple(each + shift if each < 8 else each - shift for each in made.layer_ids)
    return load_eagle(folder, target, layer_ids=layer_ids), made


def states_of(target, text, requested_states):
    """Return the states (T, …) of a text's tokens, in one pass."""
    return target.prefill(torch.tensor(text), new_cache(target, len(text)), requested_states._replace(all_tokens=True))


def rows_of(states):
    """Return for every token the arrays that a head reads."""
    layers = [*states.layers, *([] if states.last is None else [states.last])]
    return [[layer[row].double().numpy() for layer in layers] for row in range(len(layers[0]))]


@pytest.fixture(scope="module")
def twin_of(deep_folder):
    stored = load_file(deep_folder / "model.safetensors")
    ends = [stored[name].double().numpy() for name in ("model.embed_tokens.weight", "lm_head.weight")]
    return lambda made: SlowEagle(made, *ends)


def requested_states_of(made):
    return RequestedStates(made.layer_ids) if made.layer_ids else RequestedStates(last=True)


class TestLogits:
    @pytest.mark.parametrize("case", CASES)
    def test_they_are_the_slow_twins(self, deep, twin_of, tmp_path, case):
        head, made = loaded(case, tmp_path, deep)
        twin, requested_states = twin_of(made), requested_states_of(made)
        assert head.requested_states == requested_states._replace(all_tokens=True)
        tree = TokenTree([-1, 0, 0, 1, 2, 2])
        drafted = np.random.default_rng(1).integers(23, size=6).tolist()
        (text,) = new_draft_sequences(head, 40, 6, 1)
        tokens = list(PROMPT[:4])
        text.begin(tokens, states_of(deep, tokens[:-1], requested_states))
        runner = Runner(head, max_nodes=6)
        for path, committed in (((0, 2), [drafted[2], 7]), ((0,), [3]), ((0, 1, 3), [drafted[1], drafted[3], 8])):
            states = rows_of(states_of(deep, tokens[:-1], requested_states))
            np.testing.assert_allclose(root_logits(runner, [text])[0], twin.logits_after(states, tokens), atol=1e-5)
            levels = [
                node_logits(runner, [text], [torch.tensor(drafted[first:end])], [level_of(tree, first, end)])
                for first, end in ((1, 3), (3, 6))
            ]
            for node, found in zip(range(1, 6), torch.cat(levels), strict=True):
                way = [drafted[each] for each in np.flatnonzero(tree.ancestor_mask[node])[1:]]
                np.testing.assert_allclose(found, twin.logits_after(states, tokens, way), atol=1e-5)
            nodes = states_of(deep, [*tokens, *committed[:-1]], requested_states)
            read = nodes._replace(
                layers=tuple(_as_fed(each, tokens, path) for each in nodes.layers),
                last=None if nodes.last is None else _as_fed(nodes.last, tokens, path),
            )
            text.accept(Step(path, committed, torch.empty(0), read))
            tokens += committed

    @pytest.mark.parametrize("case", ["SafeAILab", "speculators, two layers", "MiMo", "EAGLE-1"])
    def test_a_batch_has_the_logits_of_each_sequence_alone(self, deep, tmp_path, case, monkeypatch):
        head, _ = loaded(case, tmp_path, deep)
        prompts, tree, narrow = (
            [PROMPT[:4], PROMPT[:2], PROMPT],
            TokenTree([-1, 0, 0, 1, 2, 2]),
            TokenTree([-1, 0, 1, 1]),
        )
        together, alone = new_draft_sequences(head, 40, 6, 3), [new_draft_sequences(head, 40, 6, 1)[0] for _ in prompts]
        for text, prompt in [*zip(together, prompts, strict=True), *zip(alone, prompts, strict=True)]:
            text.begin(prompt, states_of(deep, prompt[:-1], head.requested_states))
        runner = Runner(head, max_nodes=6)
        levels = (
            [level_of(tree, 1, 3), level_of(narrow, 1, 2), level_of(tree, 1, 3)],
            [level_of(tree, 3, 6), level_of(narrow, 2, 4)],
        )
        generator = torch.Generator().manual_seed(1)
        for paths in (((0, 2), (0,), (0, 1, 3)), ((0,), (0, 1), (0, 2, 5)), ((0, 1, 3), (0, 2), (0,))):
            expected = [root_logits(runner, [text]) for text in alone]
            with one_pass(head, monkeypatch):
                found = root_logits(runner, together)
            torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-5)
            for nodes in levels:
                tokens = [torch.randint(23, each.depth.shape, generator=generator) for each in nodes]
                expected = [
                    node_logits(runner, [text], [fed], [each])
                    for text, each, fed in zip(alone, nodes, tokens, strict=False)
                ]
                with one_pass(head, monkeypatch):
                    found = node_logits(runner, together[: len(nodes)], tokens, nodes)
                torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-5)
            for number, path in enumerate(paths):
                committed = torch.randint(23, (len(path),), generator=generator).tolist()
                states = states_of(deep, [7, 8, 9, 10, 11, number], head.requested_states)
                for text in (together[number], alone[number]):
                    text.accept(Step(path, committed, torch.empty(0), states))

    @pytest.mark.parametrize("case", ["MiMo", "SpecForge"])
    def test_a_graph_serves_the_first_slot_and_later_ones(self, deep, twin_of, tmp_path, case, monkeypatch):
        monkeypatch.setattr(GraphPool, "capture", recorded.capture)
        head, made = loaded(case, tmp_path, deep)
        twin = twin_of(made)
        (text,) = new_draft_sequences(head, 40, 6, 1)
        runner = Runner(head, max_nodes=6, pool=GraphPool(torch.device("cpu")))
        for tokens in (PROMPT[:4], PROMPT[:2], PROMPT, PROMPT[3:5]):
            states = states_of(deep, tokens[:-1], requested_states_of(made))
            text.begin(tokens, states)
            logits = root_logits(runner, [text])[0]
            np.testing.assert_allclose(logits, twin.logits_after(rows_of(states), tokens), atol=1e-5)
        assert len(runner.captured) == 1

    @pytest.mark.parametrize("case", ["SpecForge", "speculators, norm before fc", "Model-Optimizer"])
    def test_layer_ids_shifted_by_one_change_them(self, deep, twin_of, tmp_path, case):
        head, made = loaded(case, tmp_path, deep, shift=1)
        (text,) = new_draft_sequences(head, 20, 1, 1)
        text.begin(PROMPT, states_of(deep, PROMPT[:-1], head.requested_states))
        states = rows_of(states_of(deep, PROMPT[:-1], requested_states_of(made)))
        found = root_logits(Runner(head, max_nodes=1), [text])[0].numpy()
        expected = twin_of(made).logits_after(states, PROMPT)
        known = np.isfinite(expected)
        assert np.abs(found[known] - expected[known]).max() > 0.01


@contextmanager
def one_pass(head, monkeypatch):
    """Check that the block takes one pass of a head."""
    passes, hidden = [], type(head).hidden

    def counted(*arguments, **keywords):
        passes.append(None)
        return hidden(*arguments, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(type(head), "hidden", counted)
        yield
    assert len(passes) == 1


def _as_fed(rows, tokens, path):
    """Return the rows of a tree's six nodes, those of the path taken from a pass over the text that they make."""
    found = torch.full((6, rows.shape[1]), torch.nan, dtype=rows.dtype)
    for place, node in enumerate(path):
        found[node] = rows[len(tokens) - 1 + place]
    return found
