"""ReDrafter: beams of its recurrent head next to a slow twin, the bundled head, and refused files."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.decoded import PROMPT, accepted, begun, joined, proposed
from tests.support.passes import new_cache
from tests.support.slow_beam_expansion import paths_of
from tests.support.slow_redrafter import SlowHead, beginnings, slow_beams
from treeopt import bundled as bundle
from treeopt.errors import FormatError, InvalidValueError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.drafters.redrafter import RedrafterDrafter, load_redrafter
from treeopt.runtime.models.model import RequestedStates
from treeopt.trees.drafter_parameters import REDRAFTER_SETTINGS


def save_head(folder, target, *, blocks=2):
    """Save a random head for a target; return the folder."""
    hidden = target.config.hidden
    shapes = {
        "state.weight": (hidden, hidden),
        "state.bias": (hidden,),
        "token.weight": (hidden, hidden),
        "input.weight": (hidden, 2 * hidden),
        "input.bias": (hidden,),
    }
    for index in range(blocks):
        shapes |= {f"blocks.{index}.weight": (hidden, hidden), f"blocks.{index}.bias": (hidden,)}
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    config = {"kind": "redrafter", "hidden_size": hidden, "vocabulary": target.config.vocabulary, "blocks": blocks}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def precise(target_folder):
    return load_model(target_folder, dtype=torch.float64)


@pytest.fixture(scope="module")
def make_twin(target_folder):
    """Return a function from a head's folder to its slow twin."""
    stored = load_file(target_folder / "model.safetensors")
    ends = [stored[name].tolist() for name in ("model.embed_tokens.weight", "lm_head.weight")]

    def make(folder):
        weights = load_file(folder / "model.safetensors")
        return SlowHead({name: weight.tolist() for name, weight in weights.items()}, *ends)

    return make


@pytest.fixture(scope="module")
def pair(precise, make_twin, tmp_path_factory):
    """Return a head in float64 and its slow twin."""
    folder = save_head(tmp_path_factory.mktemp("head"), precise)
    return load_redrafter(folder, precise), make_twin(folder)


def hidden_before(target, text):
    """Return the last hidden state before a text's last token, (1, hidden), from a fresh pass."""
    return target.prefill(torch.tensor(text[:-1]), new_cache(target, len(text)), RequestedStates(last=True)).last


class TestHead:
    @pytest.mark.parametrize("blocks", [0, 2])
    def test_distributions_are_those_of_plain_loops(self, precise, make_twin, tmp_path, blocks):
        folder = save_head(tmp_path, precise, blocks=blocks)
        head, twin = load_redrafter(folder, precise), make_twin(folder)
        tokens = np.random.default_rng(blocks).integers(23, size=5).tolist()
        hidden = hidden_before(precise, [*PROMPT, tokens[0]])
        states, context = head.embed(torch.tensor(tokens[:1])), head.from_hidden(hidden)
        for end in range(1, len(tokens) + 1):
            expected = twin.log_probs_after(hidden[0].tolist(), tokens[:end])
            assert head.log_probs(states, context)[0].tolist() == pytest.approx(expected, abs=1e-5)
            states = head.advance(states, torch.tensor(tokens[end : end + 1])) if end < len(tokens) else states

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_tiny_embeddings_are_normalised_in_any_precision(self, make_checkpoint, tmp_path, dtype):
        target = load_model(make_checkpoint(seed=3, initializer_range=0.01), dtype=dtype)
        head = load_redrafter(save_head(tmp_path, target), target)
        sizes = head.embed(torch.arange(23)).double().square().mean(1).sqrt()
        torch.testing.assert_close(sizes, torch.ones(23, dtype=torch.float64), rtol=0.01, atol=0)


class TestDrafting:
    @pytest.mark.parametrize(("width", "length"), [(1, 4), (4, 1), (3, 3), (23, 2)])
    def test_trees_are_the_slow_twins_after_random_paths(self, precise, pair, width, length):
        head, twin = pair
        drafter, generator = RedrafterDrafter(head, width, length), np.random.default_rng(width + length)
        text = list(PROMPT)
        begun(drafter, text, hidden_before(precise, text))
        for _ in range(3):
            proposal = proposed(drafter)
            tree, tokens = proposal.tree, proposal.tokens.tolist()
            assert (proposal.tokens.dtype, tokens[0]) == (torch.int64, text[-1])
            assert tree.nodes <= drafter.max_tokens
            hidden, root = hidden_before(precise, text)[0].tolist(), text[-1]
            beams = slow_beams(lambda path, h=hidden, r=root: twin.log_probs_after(h, [r, *path]), width, length)
            assert paths_of(tree, tokens) == beginnings(beams)
            path = np.flatnonzero(tree.ancestor_mask[generator.integers(tree.nodes)]).tolist()
            committed = [*(tokens[node] for node in path[1:]), int(generator.integers(23))]
            text += committed
            states = torch.randn((tree.nodes, 32), dtype=torch.float64)
            states[path[-1]] = hidden_before(precise, text)
            accepted(drafter, path, committed, last=states)

    def test_a_child_for_every_token_is_always_accepted(self, precise, pair):
        decoder = Decoder(precise, RedrafterDrafter(pair[0], 23, 1), temperature=1.5, seed=2)
        assert [len(step) for step in decoder.stream(PROMPT, 20)] == [2] * 10

    def test_settings_to_try_fit_every_vocabulary_of_bytes(self):
        assert len(set(REDRAFTER_SETTINGS)) == len(REDRAFTER_SETTINGS)
        assert all(1 <= setting.width <= 256 and setting.length >= 1 for setting in REDRAFTER_SETTINGS)


class StaleDrafter(RedrafterDrafter):
    """Reads the hidden state of the last node instead of the last accepted one."""

    def accept(self, sequences, steps):
        super().accept(sequences, [step._replace(path=(len(step.logits) - 1,)) for step in steps])


class TestBundled:
    @staticmethod
    def count_steps(pair, outputs, width, length, kind=RedrafterDrafter):
        drafter = kind(load_redrafter(bundle.REDRAFTER, pair.target), width, length)
        decoder = Decoder(pair.target, drafter, temperature=0.0)
        steps = [list(decoder.stream(prompt, 60)) for prompt, _ in outputs]
        assert [joined(text) for text in steps] == [text for _, text in outputs]
        return sum(map(len, steps))

    @pytest.mark.parametrize(("width", "length", "least"), [(1, 3, 1.6), (8, 6, 2.2)])
    def test_output_is_plain_decodings_in_fewer_steps(self, bundled_pair, bundled_outputs, width, length, least):
        assert self.count_steps(bundled_pair, bundled_outputs, width, length) < 180 / least

    @pytest.mark.slow
    def test_another_nodes_hidden_state_takes_more_steps(self, bundled_pair, bundled_outputs):
        stale = self.count_steps(bundled_pair, bundled_outputs, 4, 4, StaleDrafter)
        assert stale > 1.15 * self.count_steps(bundled_pair, bundled_outputs, 4, 4)


class TestRefusals:
    @pytest.mark.parametrize(
        ("width", "length", "reason"),
        [
            (0, 3, r"width: expected at least 1. Got 0"),
            (24, 3, r"width: expected at most 23, the vocabulary. Got 24"),
            (2, 0, r"length: expected at least 1. Got 0"),
        ],
    )
    def test_beams_out_of_range_are_refused(self, pair, width, length, reason):
        with pytest.raises(InvalidValueError, match=reason):
            RedrafterDrafter(pair[0], width, length)

    @pytest.mark.parametrize(
        ("blocks", "reason"),
        [
            (3, r"blocks.2.weight: this tensor is missing"),
            (1, r"blocks.1.\w+: expected tensors of a ReDrafter head"),
            (-1, r"config.json: blocks: expected a whole number of at least 0. Got -1"),
        ],
    )
    def test_another_number_of_blocks_is_refused(self, target, tmp_path, blocks, reason):
        path = save_head(tmp_path, target) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"blocks": blocks}))
        with pytest.raises(FormatError, match=reason):
            load_redrafter(tmp_path, target)

    def test_a_weight_of_another_shape_is_refused(self, target, tmp_path):
        path = save_head(tmp_path, target) / "model.safetensors"
        save_file(load_file(path) | {"input.weight": torch.zeros(32, 32)}, path)
        with pytest.raises(FormatError, match=r"input.weight: expected shape \(32, 64\). Got \(32, 32\)"):
            load_redrafter(tmp_path, target)
