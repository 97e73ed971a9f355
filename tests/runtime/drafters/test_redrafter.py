"""ReDrafter: a recurrent head whose beams are the slow twin's, and texts that are the target's own."""

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
from treeopt.errors import FormatError, InvalidValueError, TreeoptError
from treeopt.runtime import Decoder, Sampling, load_model
from treeopt.runtime.drafters.redrafter import RedrafterDrafter, load_redrafter
from treeopt.runtime.models.model import RequestedStates
from treeopt.trees.drafter_parameters import REDRAFTER_SETTINGS

EVEN = Sampling(1.0)
SIZES = [(1, 1), (1, 4), (4, 1), (3, 3), (5, 2), (23, 2)]
all_sizes = pytest.mark.parametrize(("width", "length"), SIZES)


def save_head(folder, target, *, seed=0, blocks=2):
    """Save a random head that fits a target; return the folder."""
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
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    config = {"kind": "redrafter", "hidden_size": hidden, "vocabulary": target.config.vocabulary, "blocks": blocks}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def head(target, tmp_path):
    return load_redrafter(save_head(tmp_path, target), target)


@pytest.fixture(scope="module")
def precise(target_folder, tmp_path_factory):
    """Return a target in float64, a head on it, and the head's slow twin."""
    target = load_model(target_folder, dtype=torch.float64)
    folder = save_head(tmp_path_factory.mktemp("head"), target)
    weights = {name: weight.tolist() for name, weight in load_file(folder / "model.safetensors").items()}
    stored = load_file(target_folder / "model.safetensors")
    twin = SlowHead(weights, stored["model.embed_tokens.weight"].tolist(), stored["lm_head.weight"].tolist())
    return target, load_redrafter(folder, target), twin


@pytest.fixture(scope="module")
def bundled(bundled_pair, bundled_texts):
    """Return the bundled target, prompts, and the target's own texts after them."""
    return bundled_pair.target, [prompt for prompt, _ in bundled_texts], [text for _, text in bundled_texts]


def hidden_before(target, text):
    """Return the last hidden state before a text's last token, by a pass over nothing but the text."""
    return target.prefill(torch.tensor(text[:-1]), new_cache(target, len(text)), RequestedStates(last=True)).last


class TestHead:
    @pytest.mark.parametrize("seed", range(4))
    def test_its_distribution_after_every_text_is_that_of_plain_loops(self, precise, seed):
        target, head, twin = precise
        tokens = np.random.default_rng(seed).integers(23, size=5).tolist()
        hidden = hidden_before(target, [*PROMPT, tokens[0]])
        states, context = head.embed(torch.tensor(tokens[:1])), head.from_hidden(hidden)
        for end in range(1, len(tokens) + 1):
            found = head.log_probs(states, context)[0]
            assert found.tolist() == pytest.approx(twin.log_probs_after(hidden[0].tolist(), tokens[:end]), abs=1e-5)
            states = head.advance(states, torch.tensor(tokens[end : end + 1])) if end < len(tokens) else states

    def test_a_head_without_blocks(self, target, target_folder, tmp_path):
        folder = save_head(tmp_path, target, blocks=0)
        weights = {name: weight.tolist() for name, weight in load_file(folder / "model.safetensors").items()}
        stored = load_file(target_folder / "model.safetensors")
        twin = SlowHead(weights, stored["model.embed_tokens.weight"].tolist(), stored["lm_head.weight"].tolist())
        head, hidden = load_redrafter(folder, target), hidden_before(target, PROMPT)
        found = head.log_probs(head.embed(torch.tensor([5])), head.from_hidden(hidden))[0]
        assert found.tolist() == pytest.approx(twin.log_probs_after(hidden[0].tolist(), [5]), abs=1e-3)

    def test_rows_do_not_mix(self, precise):
        target, head, _ = precise
        states, context = head.embed(torch.tensor([3, 8, 3])), head.from_hidden(hidden_before(target, PROMPT))
        together = head.log_probs(head.advance(states, torch.tensor([1, 2, 3])), context)
        for row, token in enumerate([1, 2, 3]):
            alone = head.log_probs(head.advance(states[row : row + 1], torch.tensor([token])), context)
            torch.testing.assert_close(together[row : row + 1], alone)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_tiny_embeddings_have_size_1_in_any_precision(self, make_checkpoint, tmp_path, dtype):
        target = load_model(make_checkpoint(seed=3, initializer_range=0.01), dtype=dtype)
        head = load_redrafter(save_head(tmp_path, target), target)
        sizes = head.embed(torch.arange(23)).double().square().mean(1).sqrt()
        torch.testing.assert_close(sizes, torch.ones(23, dtype=torch.float64), rtol=0.01, atol=0)


class TestDrafting:
    @all_sizes
    def test_the_tree_is_that_of_the_slow_twin_wherever_the_text_goes_on(self, precise, width, length):
        target, head, twin = precise
        drafter, generator = RedrafterDrafter(head, width, length), np.random.default_rng(width + length)
        text = list(PROMPT)
        begun(drafter, text, hidden_before(target, text))
        for _ in range(3):
            proposal = proposed(drafter)
            tree, tokens = proposal.tree, proposal.tokens.tolist()
            assert proposal.tokens.dtype == torch.int64
            assert tree.nodes <= drafter.max_tokens
            assert tokens[0] == text[-1]
            hidden, root = hidden_before(target, text)[0].tolist(), text[-1]
            beams = slow_beams(lambda path, h=hidden, r=root: twin.log_probs_after(h, [r, *path]), width, length)
            assert paths_of(tree, tokens) == beginnings(beams)
            path = np.flatnonzero(tree.ancestor_mask[generator.integers(tree.nodes)]).tolist()
            committed = [*(tokens[node] for node in path[1:]), int(generator.integers(23))]
            text += committed
            read = torch.randn((tree.nodes, 32), dtype=torch.float64)
            read[path[-1]] = hidden_before(target, text)
            accepted(drafter, path, committed, last=read)

    def test_a_child_of_every_token_is_always_accepted(self, head, target):
        decoder = Decoder(target, RedrafterDrafter(head, 23, 1), temperature=1.5, seed=2)
        assert [len(step) for step in decoder.stream(PROMPT, 20)] == [2] * 10

    def test_a_text_of_one_token_starts_without_proposals(self, head, target):
        decoder = Decoder(target, RedrafterDrafter(head, 3, 3), temperature=0.0)
        for prompt in (PROMPT, [1]):
            decoder.start(prompt)
        proposal = decoder.draft()
        assert proposal.tree.nodes == 1
        assert proposal.tokens.tolist() == [1]
        decoder.step()
        assert decoder.draft().tree.nodes > 3

    def test_the_settings_fit_every_vocabulary_of_bytes(self):
        assert len(set(REDRAFTER_SETTINGS)) == len(REDRAFTER_SETTINGS)
        assert all(1 <= setting.width <= 256 and setting.length >= 1 for setting in REDRAFTER_SETTINGS)


class TestTemperatureZero:
    @all_sizes
    def test_the_text_is_that_of_plain_decoding(self, target, head, width, length, greedy_text):
        decoder = Decoder(target, RedrafterDrafter(head, width, length), temperature=0.0)
        for prompt in (PROMPT, [1], PROMPT[:3] * 4):
            steps = list(decoder.stream(prompt, 30))
            assert joined(steps) == greedy_text(target, prompt, 30)
            assert all(1 <= len(step) <= length + 1 for step in steps)
            assert {type(token) for token in joined(steps)} == {int}

    @pytest.mark.parametrize(("width", "length", "least"), [(1, 3, 1.6), (4, 4, 2.0), (8, 6, 2.2)])
    def test_the_bundled_head(self, bundled, width, length, least):
        target, prompts, texts = bundled
        drafter = RedrafterDrafter(load_redrafter(bundle.REDRAFTER, target), width, length)
        decoder = Decoder(target, drafter, temperature=0.0)
        steps = [list(decoder.stream(prompt, 60)) for prompt in prompts]
        assert [joined(each) for each in steps] == texts
        assert sum(map(len, texts)) / sum(map(len, steps)) > least

    @pytest.mark.slow
    def test_a_head_that_reads_the_hidden_state_of_another_node_is_found(self, bundled):
        class Stale(RedrafterDrafter):
            def accept(self, texts, steps):
                super().accept(texts, [step._replace(path=(len(step.logits) - 1,)) for step in steps])

        target, prompts, texts = bundled
        head, counts = load_redrafter(bundle.REDRAFTER, target), []
        for kind in (RedrafterDrafter, Stale):
            decoder = Decoder(target, kind(head, 4, 4), temperature=0.0)
            steps = [list(decoder.stream(prompt, 60)) for prompt in prompts]
            assert [joined(each) for each in steps] == texts
            counts.append(sum(map(len, steps)))
        assert counts[1] > 1.15 * counts[0]


class TestRefusals:
    @pytest.mark.parametrize(
        ("width", "length", "reason"),
        [
            (0, 3, r"width: expected at least 1. Got 0"),
            (24, 3, r"width: expected at most 23, the vocabulary. Got 24"),
            (2, 0, r"length: expected at least 1. Got 0"),
        ],
    )
    def test_beams_out_of_range(self, head, width, length, reason):
        with pytest.raises(InvalidValueError, match=reason):
            RedrafterDrafter(head, width, length)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"kind": "medusa"}, r"config.json: kind: expected 'redrafter'. Got 'medusa'"),
            ({"hidden_size": 16}, r"hidden_size: expected heads for 32, .*Got 16"),
            ({"vocabulary": 256}, r"vocabulary: expected heads for 23, .*Got 256"),
            ({"blocks": 3}, r"blocks.2.weight: this tensor is missing"),
            ({"blocks": -1}, r"config.json: blocks: expected a whole number of at least 0. Got -1"),
            ({"kind": None}, r"config.json: kind: is missing"),
            ({"layers": 1}, r"config.json: layers: unknown field"),
        ],
    )
    def test_a_configuration_that_does_not_fit(self, target, tmp_path, changes, reason):
        folder = save_head(tmp_path, target)
        path = folder / "config.json"
        config = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
        with pytest.raises(TreeoptError, match=reason):
            load_redrafter(folder, target)

    def test_a_weight_of_another_shape(self, target, tmp_path):
        path = save_head(tmp_path, target) / "model.safetensors"
        save_file(load_file(path) | {"input.weight": torch.zeros(32, 32)}, path)
        with pytest.raises(FormatError, match=r"input.weight: expected shape \(32, 64\). Got \(32, 32\)"):
            load_redrafter(tmp_path, target)

    def test_a_configuration_that_is_no_json(self, target, tmp_path):
        (save_head(tmp_path, target) / "config.json").write_text("kind: redrafter")
        with pytest.raises(FormatError, match=r"config.json: content: expected JSON"):
            load_redrafter(tmp_path, target)

    @pytest.mark.parametrize(
        ("name", "reason"),
        [("config.json", "config.json: no such file"), ("model.safetensors", "no model.safetensors and no pytorch_")],
    )
    def test_a_file_that_is_not_there(self, target, tmp_path, name, reason):
        (save_head(tmp_path, target) / name).unlink()
        with pytest.raises(TreeoptError, match=reason):
            load_redrafter(tmp_path, target)

    def test_heads_of_another_target(self, make_checkpoint, tmp_path, target):
        other = load_model(make_checkpoint(seed=9, vocab_size=24))
        with pytest.raises(InvalidValueError, match=r"vocabulary: expected heads for 24, .*Got 23"):
            load_redrafter(save_head(tmp_path, target), other)
