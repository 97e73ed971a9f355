"""Replayed passes of DFlash heads draft what separate passes over context and block do: see `tests.support.recorded`."""

from dataclasses import replace

import pytest
import torch

from tests.support import dflash_heads as heads
from tests.support import recorded
from tests.support.decoded import PROMPT
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.drafters.dflash import DDTreeDrafter, DFlashDrafter, load_dflash
from treeopt.runtime.drafters.dflash import head as head_module
from treeopt.runtime.drafters.dflash.drafters import run_blocks
from treeopt.runtime.drafters.dflash.head import concatenate_layers
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.model import HiddenStates
from treeopt.runtime.models.runner import GraphPool, PassBuffers, Runner
from treeopt.trees import chain, k_ary
from treeopt.trees.drafter_parameters import DDTreeSetting

CPU = torch.device("cpu")
KINDS = {
    "full attention": {},
    "causal": {"causal_head": True},
    "causal sliding layer": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3},
    "sliding layers": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 2, "causal": False},
    "shifted": {"shift_label": True},
}
ROUNDS = [[(7, 0), (3, 4), (5, 9)], [(8, 1), (3, 0), (20, 2)], [(1, 4), (9, 5), (2, 1)], [(7, 2), (9, 1), (2, 3)]]
"""The root of each sequence, and the tokens before it that are new in the context."""


@pytest.fixture(autouse=True, scope="module")
def replayed():
    with pytest.MonkeyPatch.context() as patch:
        recorded.replay_on_cpu(patch)
        yield


@pytest.fixture(scope="module")
def load(deep, tmp_path_factory):
    """Return a function from fields of the configuration to a head."""
    oracle = heads.make_oracle(deep.config)

    def make(**changes):
        config, tensors = heads.z_lab(oracle)
        return load_dflash(heads.save(tmp_path_factory.mktemp("dflash") / "head", config | changes, tensors), deep)

    return make


def states_of(head, tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (len(head.requested_states.layer_ids), tokens, head.target.config.hidden)
    return HiddenStates(tuple(torch.randn(shape, generator=generator, dtype=head.dtype)), None)


def eager_logits(head, root, states):
    (cache,) = head.new_caches(len(states.layers[0]), 1)
    head.read(states, cache)
    return head.draft([root], [cache])[0]


def garbage_caches(head, capacity, sequences):
    """Return caches of random numbers, which no slot may see."""
    caches = head.new_caches(capacity, sequences)
    for cache in caches:
        for entries in cache.layers:
            for tensor in entries:
                tensor.normal_(std=100.0, generator=torch.Generator().manual_seed(0))
    return caches


def largest_difference(head, sequences=(0, 1, 2), runs=None):
    """Return the largest difference of replayed and eager logits, over rounds in which every context grows."""
    runs = runs or Runner(head, max_nodes=head.max_rows, pool=GraphPool(CPU))
    caches, lengths = garbage_caches(head, 40, 3), [0] * 3
    whole = [states_of(head, 40, seed=number) for number in range(3)]
    differences = []
    for each in ROUNDS:
        inputs, expected = [], []
        for number in sequences:
            root, count = each[number]
            start, lengths[number] = lengths[number], lengths[number] + count
            unread = concatenate_layers(
                whole[number].map(lambda layer, start=start, count=count: layer[start : start + count])
            )
            inputs.append(head.feed_block(root, unread, caches[number]))
            expected.append(eager_logits(head, root, whole[number].map(lambda layer, end=lengths[number]: layer[:end])))
        if any(len(sequence.features) > head.levels + 1 for sequence in inputs):
            for sequence in inputs:  # a prompt is read on its own
                if len(sequence.features):
                    head._read([sequence.features], [sequence.cache])
            inputs = [head.feed_block(int(old.tokens[-head.block_tokens]), head.no_states, old.cache) for old in inputs]
        before = [sequence.cache.length for sequence in inputs]
        logits = run_blocks(runs, inputs, head.levels)
        assert [sequence.cache.length for sequence in inputs] == before
        differences += [float((found - right).abs().max()) for found, right in zip(logits, expected, strict=True)]
        for sequence in inputs:
            sequence.cache.length += len(sequence.features)
    assert runs.captured
    return max(differences)


class TestPasses:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("sequences", [(0,), (2, 0), (0, 1, 2)])
    def test_logits_equal_those_of_separate_passes(self, load, kind, sequences):
        assert largest_difference(load(**KINDS[kind]), sequences) < 1e-9

    @pytest.mark.parametrize("kind", ["full attention", "causal sliding layer"])
    def test_an_eager_pass_reads_context_and_block_too(self, load, kind, monkeypatch):
        head = load(**KINDS[kind])
        monkeypatch.setattr(Runner, "captured", True)
        assert largest_difference(head, runs=Runner(head, max_nodes=head.max_rows)) < 1e-9

    def test_rows_of_any_number_share_graphs(self, load):
        head = load()
        runs = Runner(head, max_nodes=head.max_rows, pool=GraphPool(CPU))
        (cache,) = head.new_caches(40, 1)
        for count in range(head.levels + 2):
            unread = concatenate_layers(states_of(head, count, seed=count))
            run_blocks(runs, [head.feed_block(3, unread, cache)], head.levels)
        assert [(shape.tokens, shape.kv_length) for shape in runs.captured] == [(8, 16), (16, 16)]

    @pytest.mark.parametrize("stale", ["tokens", "_numbers", "_visible", "_features"])
    def test_buffer_that_is_not_written_is_detected(self, load, stale, monkeypatch):
        head, write = load(), PassBuffers.load

        def load_all_but_one(buffers, inputs):
            stored = getattr(buffers, stale)
            before = None if stored is None else stored.clone()
            places = write(buffers, inputs)
            if runs.captured and before is not None:
                getattr(buffers, stale).copy_(before)
            return places

        monkeypatch.setattr(PassBuffers, "load", load_all_but_one)
        runs = Runner(head, max_nodes=head.max_rows, pool=GraphPool(CPU))
        assert not largest_difference(head, (0,), runs) < 1e-2

    @pytest.mark.parametrize(
        ("kind", "wrong"),
        [
            ("causal", {"causal": False}),
            ("full attention", {"causal": True}),
            ("sliding layers", {"window": None}),
            ("sliding layers", {"window": 1}),
            ("sliding layers", {"window": 3}),
        ],
    )
    def test_wrong_mask_is_detected(self, load, kind, wrong, monkeypatch):
        attend = head_module._attend_to_block
        monkeypatch.setattr(
            head_module, "_attend_to_block", lambda padded, **options: attend(padded, **{**options, **wrong})
        )
        assert not largest_difference(load(**KINDS[kind]), (0,)) < 1e-2


class TestDrafters:
    @pytest.mark.parametrize("kind", ["full attention", "causal sliding layer", "shifted"])
    @pytest.mark.parametrize("tree", [k_ary(2, 3), None], ids=["static", "ddtree"])
    def test_outputs_equal_those_of_eager_passes(self, deep, load, kind, tree):
        head, steps = load(**KINDS[kind]), []
        for cuda_graphs in (False, True):
            drafter = (
                DFlashDrafter(head, tree, capacity=60, cuda_graphs=cuda_graphs)
                if tree
                else DDTreeDrafter(head, DDTreeSetting(budget=9), capacity=60, cuda_graphs=cuda_graphs)
            )
            decoder = Decoder(deep, drafter, temperature=0.0, max_sequence_tokens=60, cuda_graphs=cuda_graphs)
            requests = [GenerationRequest(prompt, 8) for prompt in (PROMPT, PROMPT[:1], PROMPT[:4])]
            steps.append([(output.request, output.tokens) for output in decoder.stream_all(requests, batch_size=2)])
            assert bool(drafter._runner.captured) == cuda_graphs
        assert steps[0] == steps[1]
        assert max(len(tokens) for _, tokens in steps[0]) > 1

    def draft_after_nan(self, deep, head):
        """Return the drafted tokens of a sequence that begins after one whose block was not finite."""
        broken = head.embedding.index_fill(0, torch.tensor([22]), torch.nan)
        drafter = DFlashDrafter(replace(head, embedding=broken), chain(3), capacity=60, cuda_graphs=True)
        decoder = Decoder(deep, drafter, temperature=0.0, max_sequence_tokens=60)
        decoder.start([*PROMPT, *PROMPT, 22])
        with pytest.warns(match="expected a draft model whose logits are finite"):
            decoder.step()
        decoder.start(PROMPT)
        return decoder.draft()

    def test_a_block_that_is_not_finite_leaves_nothing_behind(self, deep, load, monkeypatch):
        head = load()
        fresh = Decoder(deep, DFlashDrafter(head, chain(3), capacity=60), temperature=0.0)
        fresh.start(PROMPT)
        expected = fresh.draft().tokens.tolist()
        proposal = self.draft_after_nan(deep, head)
        assert proposal.scores.values.isfinite().all()
        assert proposal.tokens.tolist() == expected
        monkeypatch.setattr(KVCache, "_zero_nodes", lambda _: None)
        assert not self.draft_after_nan(deep, head).scores.values.isfinite().all()
