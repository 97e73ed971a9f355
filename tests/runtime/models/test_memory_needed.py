"""The memory that a decoder needs is estimated before it is allocated, and a decoder that does not fit is refused."""

import tracemalloc
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.support.decoded import PROMPT
from tests.support.passes import new_cache
from tests.support.table_model import Table
from treeopt import bundled
from treeopt.errors import OutOfMemoryError, TreeoptError
from treeopt.profiler.latency.memory import is_out_of_memory
from treeopt.runtime import Decoder, ExpandingDrafter, Sampling, load_model
from treeopt.runtime.models import memory, pair
from treeopt.runtime.models.hf import load_adapter
from treeopt.runtime.models.pair import load_pair
from treeopt.runtime.models.vocabulary import limit_draft
from treeopt.trees import chain, k_ary, level_widths
from treeopt.trees.drafter_parameters import DynamicTree

CPU = torch.device("cpu")
GREEDY = Sampling(0.0)
CASES = {
    "masks": (level_widths([20, 400, 480]), 0.0, {}),
    "masks of many levels": (k_ary(2, 9), 0.0, {}),
    "probabilities": (level_widths([8, 30, 8]), 0.8, {"vocab_size": 6000}),
    "probabilities that are sorted": (level_widths([8, 30, 8]), 0.8, {"vocab_size": 6000, "top_p": 0.9}),
    "caches": (chain(3), 0.0, {"max_position_embeddings": 5000, "num_hidden_layers": 4}),
    "a prompt of several chunks": (chain(3), 0.0, {"max_position_embeddings": 8000}),
    "a pass": (level_widths([20, 80]), 0.0, {"intermediate_size": 4000}),
}


def measure_peak(*works):
    """Return the peak bytes of tensors and arrays while functions run one by one, above those allocated before."""
    peak = kept = 0
    for work in works:
        tracemalloc.start()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            work()
        arrays = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
        allocated = torch.tensor([0, *changes]).cumsum(0)
        peak, kept = max(peak, kept + int(allocated.max()) + arrays), kept + int(allocated[-1])
    return peak


@pytest.mark.parametrize("case", CASES)
def test_estimate_is_near_the_measured_peak(make_checkpoint, case):
    tree, temperature, changes = CASES[case]
    changes = dict(changes)
    sampling = Sampling(temperature, top_p=changes.pop("top_p", 1.0))
    pair = [load_model(make_checkpoint(seed=seed, tie_word_embeddings=False, **changes)) for seed in (1, 2)]
    list(Decoder(*pair, chain(1), temperature=temperature).generate(PROMPT, 2))  # allocates what later calls reuse
    length = pair[0].config.max_positions
    prompt = (PROMPT * 1200)[: length - 16]
    decoders = []
    peak = measure_peak(
        lambda: decoders.append(Decoder(*pair, tree, temperature=temperature, top_p=sampling.top_p)),
        lambda: decoders[0].start(prompt),
        lambda: decoders[0].step(),
    )
    assert peak > 2_000_000
    assert 0.8 < estimate(*pair, tree, length, sampling).total() / peak < 1.25


def estimate(target, draft, tree, length=128, sampling=GREEDY):
    nodes = 1 if tree is None else tree.nodes
    return memory.decoder_bytes(target, draft, tree, sequence_tokens=length, max_nodes=nodes, sampling=sampling)


def test_estimate_contains_the_probabilities_of_the_draft(target, draft):
    tree = level_widths([12, 4])
    probabilities = [
        estimate(target, draft, tree, 128, sampling).total() - estimate(target, None, tree, 128, sampling).total()
        for sampling in (Sampling(0.8), GREEDY)
    ]
    sampler = Decoder(target, draft, tree, temperature=0.8)._static._sampler
    assert probabilities[0] - probabilities[1] == sampler._all_values.nbytes


class TestRefusal:
    @pytest.fixture
    def free(self, monkeypatch):
        """Return the function that sets the free memory in bytes."""
        return lambda size: monkeypatch.setattr(memory, "free_bytes", lambda _: size)

    def test_error_names_both_sizes_and_what_to_do(self, target, draft, free, monkeypatch):
        monkeypatch.setattr(type(target), "new_caches", lambda *_: pytest.fail("a cache was allocated"))
        free(3_000_000_000)
        with pytest.raises(
            OutOfMemoryError,
            match=r"^memory: expected room for a decoder of trees of 65535 nodes and sequences of 128 tokens, \d\d.\d GB. "
            r"Got 3.0 GB free on cpu: take a smaller tree \(solve --budget\), or shorten the sequences \(--max-new-tokens ",
        ):
            Decoder(target, draft, k_ary(2, 15))

    def test_decoder_that_just_fits_is_accepted(self, target, draft, free):
        tree = k_ary(2, 4)
        needed = estimate(target, draft, tree, sampling=Sampling(0.6)).total()
        free(needed)
        Decoder(target, draft, tree)
        free(needed - 1)
        with pytest.raises(TreeoptError):
            Decoder(target, draft, tree)

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

    def test_weights_are_checked_before_they_are_loaded(self, free, monkeypatch):
        monkeypatch.setattr(pair, "load_language_model", lambda *_, **__: pytest.fail("a model was loaded"))
        numbers = sum(load_model(folder).parameters for folder in (bundled.TARGET, bundled.DRAFT))
        for dtype, size in (("float32", 4), ("bfloat16", 2)):
            free(size * numbers - 1)
            with pytest.raises(OutOfMemoryError, match=rf"^memory: .* the weights in {dtype}, 0.0\d GB. Got") as error:
                load_pair(device="cpu", dtype=dtype)
            assert ("--dtype bfloat16" in str(error.value)) == (dtype == "float32")
            free(size * numbers)
            with pytest.raises(pytest.fail.Exception, match="loaded"):
                load_pair(device="cpu", dtype=dtype)

    def test_profiles_recognise_the_error(self):
        assert is_out_of_memory(OutOfMemoryError("memory: …"))


class TestFree:
    def test_container_limits_free_memory(self, tmp_path, monkeypatch):
        monkeypatch.setattr(memory, "CGROUP", tmp_path)
        monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
        assert memory.free_bytes(CPU) == 1000
        for limit, free in (("max", 1000), ("900", 200), ("5000", 1000), ("100", 0)):
            (tmp_path / "memory.max").write_text(f"{limit}\n")
            (tmp_path / "memory.current").write_text("700\n")
            assert memory.free_bytes(CPU) == free

    def test_page_cache_of_a_container_is_free(self, tmp_path, monkeypatch):
        monkeypatch.setattr(memory, "CGROUP", tmp_path)
        monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=10**12))
        (tmp_path / "memory.max").write_text("17200000000\n")
        (tmp_path / "memory.current").write_text("17000000000\n")
        (tmp_path / "memory.stat").write_text("anon 2900000000\nfile 14100000000\ninactive_file 14000000000\n")
        assert memory.free_bytes(CPU) == 14_200_000_000

    def test_unknown_devices_are_not_checked(self):
        assert memory.free_bytes(torch.device("meta")) is None
        memory.check_room(torch.device("meta"), 10**15, "anything")


class TestModels:
    def test_cache_bytes_of_built_in_models(self, target):
        for model in (target, limit_draft(target, range(20), 23)):
            assert 3 * model.cache_bytes(50) == model.new_caches(50, 3)[0].store.entries[0].nbytes

    def test_cache_bytes_of_adapters(self, make_checkpoint):
        pytest.importorskip("transformers", reason="needs the hf extra")
        model = load_adapter(make_checkpoint(seed=1))
        cache = new_cache(model, 50)
        model.prefill(torch.tensor(PROMPT), cache)
        assert model.cache_bytes(50) == sum(entries[0].nbytes for entries in cache.store.entries)

    def test_model_of_unknown_sizes_counts_only_its_logits(self):
        assert estimate(Table.random(0, 4), None, None, 20).total() == 4 * 4

    def test_long_prompt_counts_one_chunk_and_its_mask(self, target, monkeypatch):
        monkeypatch.setattr(memory, "PREFILL_TOKENS", 50)

        def activations(length):
            return estimate(target, None, None, length).total() - target.cache_bytes(length + 1)

        assert activations(20) == target.pass_bytes(20)
        assert activations(50) == target.pass_bytes(50)
        chunk_mask = activations(105) - target.pass_bytes(50)
        assert chunk_mask > 0
        assert activations(210) == target.pass_bytes(50) + 2 * chunk_mask
