"""What a decoder needs is worked out before it is taken, near to what it then takes, and refused where it is not there."""

import tracemalloc
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.support.decoded import PROMPT
from tests.support.passes import new_cache
from tests.support.table_model import Table
from treeopt.errors import OutOfMemoryError, TreeoptError
from treeopt.profiler.latency.memory import is_out_of_memory
from treeopt.runtime import Decoder, ExpandingDrafter, Sampling, load_model
from treeopt.runtime.models import memory
from treeopt.runtime.models.hf import load_adapter
from treeopt.runtime.models.vocabulary import limit_draft
from treeopt.trees import chain, k_ary, level_widths
from treeopt.trees.drafter_parameters import DynamicTree

CPU = torch.device("cpu")
CASES = {
    "masks": (level_widths([20, 400, 480]), 0.0, {}),
    "masks of many levels": (k_ary(2, 9), 0.0, {}),
    "probabilities": (level_widths([8, 30, 8]), 0.8, {"vocab_size": 6000}),
    "probabilities that are sorted": (level_widths([8, 30, 8]), 0.8, {"vocab_size": 6000, "top_p": 0.9}),
    "caches": (chain(3), 0.0, {"max_position_embeddings": 8000, "num_hidden_layers": 4}),
    "a prompt of several chunks": (chain(3), 0.0, {"max_position_embeddings": 8000}),
    "a pass": (level_widths([20, 80]), 0.0, {"intermediate_size": 4000}),
}


def taken(*works):
    """Return the most bytes that tensors and arrays held at once, above what was there before, in works one by one."""
    most = kept = 0
    for work in works:
        tracemalloc.start()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            work()
        arrays = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        events = [each for each in found.profiler.kineto_results.events() if each.name() == "[memory]"]
        held = torch.tensor([0, *(each.nbytes() for each in sorted(events, key=lambda each: each.start_ns()))]).cumsum(
            0
        )
        most, kept = max(most, kept + int(held.max()) + arrays), kept + int(held[-1])
    return most


@pytest.fixture(scope="module")
def needed_and_taken(make_checkpoint):
    def both(tree, temperature, changes):
        changes = dict(changes)
        sampling = Sampling(temperature, top_p=changes.pop("top_p", 1.0))
        pair = [load_model(make_checkpoint(seed=seed, tie_word_embeddings=False, **changes)) for seed in (1, 2)]
        list(Decoder(*pair, chain(1), temperature=temperature).generate(PROMPT, 2))  # what is made once

        prompt = (PROMPT * 1200)[: pair[0].config.max_positions - 16]
        decoders = []
        found = taken(
            lambda: decoders.append(Decoder(*pair, tree, temperature=temperature, top_p=sampling.top_p)),
            lambda: decoders[0].start(prompt),
            lambda: decoders[0].step(),
        )
        size = {"sequence_tokens": pair[0].config.max_positions, "max_nodes": tree.nodes}
        return sum(memory.decoder_bytes(*pair, tree, **size, sampling=sampling).values()), found

    return both


@pytest.mark.parametrize("case", CASES)
def test_what_is_worked_out_is_near_to_what_is_taken(needed_and_taken, case):
    needed, found = needed_and_taken(*CASES[case])
    assert found > 2_000_000
    assert 0.8 < needed / found < 1.25


def test_what_a_draft_allocates_is_what_is_worked_out(target, draft):
    tree = level_widths([12, 4])

    def of_draft(temperature):
        size = {"sequence_tokens": 128, "max_nodes": tree.nodes, "sampling": Sampling(temperature)}
        with_draft, without = (
            memory.decoder_bytes(target, each, tree, **size)[target.device] for each in (draft, None)
        )
        return with_draft - without

    buffers = Decoder(target, draft, tree, temperature=0.8)._static._buffers
    assert of_draft(0.8) - of_draft(0.0) == buffers.probs.nbytes


def test_a_tree_with_more_internal_nodes_takes_the_place_of_one_with_fewer(target, greedy_text):
    decoder = Decoder(target, target, level_widths([3]), temperature=0.0)
    steps = decoder.stream(PROMPT, 40)
    text = [*next(steps)]
    decoder.change_tree(chain(3))
    assert text + [token for step in steps for token in step] == greedy_text(target, PROMPT, 40)


class TestRefusal:
    @pytest.fixture
    def free(self, monkeypatch):
        """Return the function that sets how many bytes are free."""
        return lambda size: monkeypatch.setattr(memory, "free_bytes", lambda _: size)

    def test_it_says_what_is_needed_what_is_free_and_what_to_do_before_anything_is_taken(
        self, target, draft, free, monkeypatch
    ):
        monkeypatch.setattr(type(target), "new_caches", lambda *_: pytest.fail("taken"))
        free(3_000_000_000)
        with pytest.raises(
            OutOfMemoryError,
            match=r"^memory: expected room for a decoder of trees of 65535 nodes and sequences of 128 tokens, \d\d.\d GB. "
            r"Got 3.0 GB free on cpu: take a smaller tree \(solve --budget\), or shorten the sequences \(--max-new-tokens ",
        ):
            Decoder(target, draft, k_ary(2, 15))

    def test_to_the_byte(self, target, draft, free):
        tree = k_ary(2, 4)
        size = {"sequence_tokens": 128, "max_nodes": tree.nodes, "sampling": Sampling(0.6)}
        (needed,) = memory.decoder_bytes(target, draft, tree, **size).values()
        free(needed)
        Decoder(target, draft, tree)
        free(needed - 1)
        with pytest.raises(TreeoptError):
            Decoder(target, draft, tree)

    def test_shorter_texts_smaller_trees_and_no_draft_need_less(self, target, draft):
        whole = k_ary(2, 8)

        def needed(draft=draft, tree=whole, text=128, temperature=0.6):
            size = {"sequence_tokens": text, "max_nodes": tree.nodes, "sampling": Sampling(temperature)}
            return sum(memory.decoder_bytes(target, draft, tree, **size).values())

        assert needed(text=100) < needed()
        assert needed(tree=k_ary(2, 7)) < needed() / 2
        assert needed(draft=None) < needed()
        assert needed(temperature=0.0) < needed()

    @pytest.mark.parametrize(
        "make",
        [
            lambda target, _: Decoder(target, None, chain(0)),
            lambda target, draft: Decoder(
                target, ExpandingDrafter(draft, DynamicTree(top_k=2, depth=2, nodes=4), capacity=128), temperature=0.0
            ),
        ],
    )
    def test_other_decoders_are_checked(self, target, draft, free, make):
        free(1_000)
        with pytest.raises(OutOfMemoryError, match=r"Got 0.00 GB free on cpu"):
            make(target, draft)

    def test_a_profile_takes_it_for_what_it_is(self):
        assert is_out_of_memory(OutOfMemoryError("memory: …"))


class TestFree:
    def test_a_container_may_have_less_than_its_machine(self, tmp_path, monkeypatch):
        monkeypatch.setattr(memory, "CGROUP", tmp_path)
        monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
        assert memory.free_bytes(CPU) == 1000
        for limit, free in (("max", 1000), ("900", 200), ("5000", 1000), ("100", 0)):
            (tmp_path / "memory.max").write_text(f"{limit}\n")
            (tmp_path / "memory.current").write_text("700\n")
            assert memory.free_bytes(CPU) == free

    def test_page_cache_of_a_container_counts_as_free(self, tmp_path, monkeypatch):
        monkeypatch.setattr(memory, "CGROUP", tmp_path)
        monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=10**12))
        (tmp_path / "memory.max").write_text("17200000000\n")
        (tmp_path / "memory.current").write_text("17000000000\n")
        (tmp_path / "memory.stat").write_text("anon 2900000000\nfile 14100000000\ninactive_file 14000000000\n")
        assert memory.free_bytes(CPU) == 14_200_000_000

    def test_a_device_that_does_not_say_is_not_asked(self):
        assert memory.free_bytes(torch.device("meta")) is None
        memory.check_room(torch.device("meta"), 10**15, "anything")


class TestModels:
    def test_a_cache_is_as_large_as_its_model_says(self, target):
        for each in (target, limit_draft(target, range(20), 23)):
            assert 3 * each.cache_bytes(50) == each.new_caches(50, 3)[0].store.entries.nbytes

    def test_so_it_is_through_transformers(self, make_checkpoint):
        pytest.importorskip("transformers", reason="needs the hf extra")
        model = load_adapter(make_checkpoint(seed=1))
        cache = new_cache(model, 50)
        model.prefill(torch.tensor(PROMPT), cache)
        assert model.cache_bytes(50) == sum(entries.nbytes for entries in cache.store.entries(0))

    def test_one_that_does_not_say_counts_nothing(self):
        table = Table.random(0, 4)
        size = {"sequence_tokens": 20, "max_nodes": 1, "sampling": Sampling(0.0)}
        assert memory.decoder_bytes(table, None, None, **size).total() == 4 * 4

    def test_a_prompt_counts_as_the_tokens_of_one_chunk(self, target, monkeypatch):
        monkeypatch.setattr(memory, "PREFILL_TOKENS", 50)

        def activations(length):
            size = {"sequence_tokens": length, "max_nodes": 1, "sampling": Sampling(0.0)}
            return memory.decoder_bytes(target, None, None, **size).total() - target.cache_bytes(length + 1)

        assert activations(20) == target.pass_bytes(20)
        assert activations(50) == target.pass_bytes(50)
        chunk_mask = activations(105) - target.pass_bytes(50)
        assert chunk_mask > 0
        assert activations(210) == target.pass_bytes(50) + 2 * chunk_mask
