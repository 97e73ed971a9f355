"""Batches: shared passes, errors of single sequences, bounded memory, a tree for each batch size."""

import gc
import weakref
from collections import Counter

import pytest
import torch

from tests.support.decoded import PROMPT
from tests.support.passes import feed_tokens, level_of, new_cache
from treeopt.errors import BatchError, InvalidValueError, OutOfMemoryError
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, ExpandingDrafter, Transformer, load_model
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.runtime.models import attention, memory
from treeopt.runtime.models.attention import BatchedAttention, PerSequenceAttention, build_attention
from treeopt.runtime.models.model import NO_STATES, RequestedStates, SequenceInput, concatenate_outputs
from treeopt.runtime.models.padded_batch import last_outputs
from treeopt.trees import chain, level_widths
from treeopt.trees.drafter_parameters import DynamicTree
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

PROMPTS = [PROMPT, [1], PROMPT[:3] * 4, PROMPT * 3, [4, 5, 6]]
COUNTS = [9, 25, 3, 14, 21]
TREE = level_widths([2, 3, 1])
DYNAMIC = DynamicTree(top_k=2, depth=3, nodes=7)


@pytest.fixture(scope="module")
def pair(make_checkpoint):
    """Return target and draft in float64, whose tokens do not depend on the batch."""
    folders = make_checkpoint(seed=1), make_checkpoint(seed=2, num_hidden_layers=1)
    return [load_model(folder, dtype=torch.float64) for folder in folders]


def decode_all(decoder, requests, *, after_step=lambda _: None, **options):
    """Return the tokens and the errors of each request; `after_step` is called with the index of each output."""
    outputs, errors = [[] for _ in requests], {}
    for index, output in enumerate(decoder.stream_all(requests, **options)):
        outputs[output.request] += output.tokens
        if output.error is not None:
            assert output.finished
            errors[output.request] = str(output.error)
        after_step(index)
    return outputs, errors


def make_requests(prompts=PROMPTS, counts=COUNTS):
    return [GenerationRequest(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]


def decode_alone(decoder, requests):
    return [list(decoder.generate(request.token_ids, request.max_new_tokens)) for request in requests]


def count_passes(monkeypatch, *models):
    """Return a counter of the passes of each model by the number of sequences."""
    counts, forward = [Counter() for _ in models], Transformer.forward

    def run(self, inputs, *arguments, **keywords):
        counts[models.index(self)][len(inputs)] += 1
        return forward(self, inputs, *arguments, **keywords)

    monkeypatch.setattr(Transformer, "forward", run)
    return counts


@pytest.mark.parametrize("drafter", ["static", "dynamic"])
def test_a_step_is_one_target_pass_and_one_draft_pass_per_level(pair, monkeypatch, drafter):
    own = ExpandingDrafter(pair[1], DYNAMIC, capacity=128)
    decoder = Decoder(*pair, TREE, temperature=0.0) if drafter == "static" else Decoder(pair[0], own, temperature=0.0)
    counts = count_passes(monkeypatch, *pair)
    outputs = decoder.stream_all([GenerationRequest([*PROMPT[:3], token], 12) for token in range(4)], batch_size=4)
    steps = max(Counter(output.request for output in outputs).values())
    assert [count.total() for count in counts] == [steps, 3 * steps]
    assert counts[0].total() - counts[0][1] >= steps / 2


class TestBatchedPasses:
    """A pass over several sequences has the results of one pass for each."""

    REQUESTED_STATES = RequestedStates(layer_ids=(0, 1), last=True)
    ROWS = (1, 4, 2, 3, 1)

    def inputs(self, target, caches, rows=ROWS):
        """Return the first levels below a root that was fed after a prompt, for each sequence."""
        for number, (prompt, cache, count) in enumerate(zip(PROMPTS, caches, rows, strict=False)):
            cache.clear()
            target.prefill(torch.tensor(prompt), cache)
            feed_tokens(target, cache, [number])
            tree = level_widths([1, count - 1]) if count > 1 else chain(1)
            yield SequenceInput(cache, torch.arange(count) + number, level_of(tree, 1, tree.nodes))

    def check(self, target, caches, rows=ROWS, order=None):
        """Compare logits, states and caches; return the kind of attention."""
        inputs = list(self.inputs(target, caches, rows))
        inputs = [inputs[index] for index in order or range(len(inputs))]
        outputs = target.forward(inputs, self.REQUESTED_STATES)
        written = [[entries.clone() for pair in sequence.cache.layers for entries in pair] for sequence in inputs]
        last = target.forward(inputs, self.REQUESTED_STATES, last_only=True)
        for output, last_row, sequence, expected in zip(outputs, last, inputs, written, strict=True):
            layers = [entries for pair in sequence.cache.layers for entries in pair]
            for entries in layers:
                entries[:, :, sequence.cache.length + 1 :] = 0
            (single,) = target.forward([sequence], self.REQUESTED_STATES)
            torch.testing.assert_close(output, single, rtol=0, atol=1e-12)
            torch.testing.assert_close(last_row, single.map(lambda rows: rows[-1:]), rtol=0, atol=1e-12)
            slots = slice(0, sequence.cache.length + 1 + len(sequence.tokens))
            for batched, entries in zip(expected, layers, strict=True):
                torch.testing.assert_close(batched[:, :, slots], entries[:, :, slots], rtol=0, atol=1e-12)
        return type(build_attention(inputs))

    def test_separate_caches(self, pair):
        caches = [new_cache(pair[0], 40 + 7 * number) for number in range(5)]
        assert self.check(pair[0], caches) is PerSequenceAttention

    @pytest.mark.parametrize(
        ("rows", "order"),
        [((1,) * 5, None), ((3,) * 5, [4, 2, 0, 1, 3]), (ROWS, None), (ROWS, [4, 2, 0, 1, 3]), (ROWS, [1, 2, 3])],
    )
    def test_adjacent_caches(self, pair, monkeypatch, rows, order):
        caches = pair[0].new_caches(40, 5)
        assert self.check(pair[0], caches, rows, order) in (BatchedAttention, PerSequenceAttention)
        monkeypatch.setattr(attention, "MOST_PADDING", 100.0)
        assert self.check(pair[0], caches, rows, order) is BatchedAttention

    def test_sequences_far_apart_in_memory_attend_one_by_one(self, pair):
        caches = pair[0].new_caches(40, 9)
        for cache in caches:
            pair[0].prefill(torch.tensor(PROMPT), cache)

        def kind(*indices):
            return type(build_attention([SequenceInput.causal(caches[index], torch.tensor([1])) for index in indices]))

        assert kind(0, 1, 2) is kind(3, 0) is BatchedAttention
        assert kind(0, 4) is PerSequenceAttention

    @pytest.mark.parametrize(("lengths", "hidden"), [((20, 20, 20), 0), ((20, 5), 15), ((9, 30, 28), 23)])
    def test_sequences_attend_one_by_one_if_calls_cost_less_than_hidden_slots(self, pair, monkeypatch, lengths, hidden):
        caches = pair[0].new_caches(40, len(lengths))
        for length, cache in zip(lengths, caches, strict=True):
            pair[0].prefill(torch.tensor([1] * length), cache)
        inputs = [SequenceInput.causal(cache, torch.tensor([1])) for cache in caches]
        slot_bytes = sum(entries[0, :, 0].nbytes for entries in caches[0].layers[0])
        call_bytes = hidden * slot_bytes / (len(lengths) - 1)
        monkeypatch.setattr(attention, "CALL_BYTES", call_bytes)
        assert type(build_attention(inputs)) is BatchedAttention
        monkeypatch.setattr(attention, "CALL_BYTES", call_bytes - 1)
        assert type(build_attention(inputs)) is PerSequenceAttention


def test_attention_may_return_the_layout_of_gpu_kernels(pair, monkeypatch):
    attention = torch.nn.functional.scaled_dot_product_attention

    def tokens_first(*arguments, **keywords):
        return attention(*arguments, **keywords).transpose(1, 2).contiguous().transpose(1, 2)

    expected = decode_alone(Decoder(*pair, TREE, temperature=0.0), make_requests())
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", tokens_first)
    assert decode_all(Decoder(*pair, TREE, temperature=0.0), make_requests(), batch_size=3)[0] == expected


def test_the_caches_of_a_batch_are_adjacent(pair):
    for decoder in (
        Decoder(*pair, TREE, temperature=0.0),
        Decoder(pair[0], ExpandingDrafter(pair[1], DYNAMIC, capacity=128)),
    ):
        list(decoder.generate(PROMPT, 3))
        list(decoder.generate_all(PROMPTS, 5, batch_size=4))
        drafts = decoder._drafter._sequences
        for pool in (decoder._targets, drafts):
            caches = [pool.acquire(number).cache for number in range(5)]
            first, *others = sorted(caches, key=lambda cache: cache.store.sequences)  # that of `generate` is alone
            assert first.store.sequences == 1
            assert [cache.store for cache in others] == [others[0].store] * 4
            assert sorted(cache.index for cache in others) == [0, 1, 2, 3]


class TestErrors:
    def test_a_sequence_that_is_not_finite_fails_alone_and_leaves_nothing_in_its_cache(self, pair, monkeypatch):
        """The first sequence is the longest, so slots are hidden after the third, which reuses the second's cache."""
        monkeypatch.setattr(attention, "MOST_PADDING", 100.0)
        decoder = Decoder(*pair, TREE, temperature=0.0)
        requests = make_requests([PROMPT * 3, PROMPT * 2, [1, 2]], [40, 30, 12])
        expected = decode_alone(decoder, requests)

        def spoil(index):
            if index == 0:
                with torch.inference_mode():
                    decoder._targets[decoder._last_sequence].cache.layers[0][1][:, :, 0] = torch.nan

        outputs, errors = decode_all(decoder, requests, after_step=spoil, batch_size=2)
        assert list(errors) == [1]
        assert "logits are finite" in errors[1]
        assert outputs[::2] == expected[::2]

    def test_invalid_options_are_refused_before_anything_runs(self, pair):
        decoder = Decoder(*pair, chain(1), temperature=0.0)
        for options, message in (
            ({"batch_size": 0}, "batch_size: expected at least 1. Got 0"),
            ({"seeds": [1]}, "seeds: expected 5, one for each prompt. Got 1"),
            ({"stop": [[]]}, "stop: expected sequences"),
            ({"schedule": make_schedule(chain(6))}, "nodes"),
        ):
            with pytest.raises(InvalidValueError, match=message):
                decoder.generate_all(PROMPTS, 4, **options)
        dynamic = Decoder(pair[0], ExpandingDrafter(pair[1], DYNAMIC, capacity=64))
        with pytest.raises(InvalidValueError, match="brings its own"):
            dynamic.generate_all(PROMPTS, 5, schedule=make_schedule(chain(1)))

    def test_all_sequences_may_fail_or_be_empty(self, pair):
        decoder = Decoder(*pair, TREE, temperature=0.0)
        with pytest.raises(
            BatchError, match=r"2 of 2 sequences could not be decoded. The first is number 0: token_ids:"
        ):
            list(decoder.generate_all([[], [99]], 4))
        assert list(decoder.generate_all([], 4)) == []
        assert list(decoder.generate_all([[1], [2]], 0)) == []

    def test_a_batch_beyond_memory_is_refused(self, pair, monkeypatch):
        decoder = Decoder(*pair, TREE, temperature=0.0)
        sizes = memory.decoder_bytes(*pair, None, sequence_tokens=128, max_nodes=TREE.nodes, sampling=Sampling(0.0))
        monkeypatch.setattr(memory, "free_bytes", lambda _: 3.5 * sizes[torch.device("cpu")])
        with pytest.raises(
            OutOfMemoryError, match=r"batch_size: expected at most 4, because each sequence takes .* Got 5"
        ):
            decoder.generate_all(PROMPTS, 4, batch_size=5)
        list(decoder.generate_all(PROMPTS, 4, batch_size=4))
        assert decoder._targets.free == 4


def test_a_single_sequence_frees_the_caches_of_a_large_batch(pair, monkeypatch):
    caches = []
    for model in pair:

        def record(*arguments, new_caches=model.new_caches):
            new = new_caches(*arguments)
            caches.extend(weakref.ref(cache) for cache in new)
            return new

        monkeypatch.setattr(model, "new_caches", record)
    decoder = Decoder(*pair, TREE, temperature=0.0)
    expected = list(decoder.generate(PROMPT, 10))
    decode_all(decoder, make_requests(), batch_size=len(PROMPTS))
    gc.collect()
    assert sum(cache() is not None for cache in caches) >= 2 * len(PROMPTS)
    assert list(decoder.generate(PROMPT, 10)) == expected
    gc.collect()
    assert sum(cache() is not None for cache in caches) == 2


def test_a_model_that_takes_one_sequence_per_pass_gives_the_same_tokens(pair, monkeypatch):
    expected = decode_all(Decoder(*pair, TREE, temperature=0.9), make_requests(), batch_size=3)
    counts, forward = count_passes(monkeypatch, *pair), Transformer.forward

    def run_one_by_one(self, inputs, requested_states=NO_STATES, *, last_only=False):
        outputs = concatenate_outputs([forward(self, [sequence], requested_states) for sequence in inputs])
        return last_outputs(outputs) if last_only else outputs

    monkeypatch.setattr(Transformer, "forward", run_one_by_one)
    assert decode_all(Decoder(*pair, TREE, temperature=0.9), make_requests(), batch_size=3) == expected
    assert [set(count) for count in counts] == [{1}, {1}]


def make_schedule(*trees):
    """Return the schedule with one tree for each batch size from 1 on."""
    scheduled = [
        ScheduledTree(first_batch_size=size, last_batch_size=size, tree=tree) for size, tree in enumerate(trees, 1)
    ]
    return TreeSchedule(trees=tuple(scheduled))


class TestSchedule:
    def test_every_step_has_the_tree_of_its_batch_size(self, pair, monkeypatch):
        schedule = make_schedule(chain(3), chain(0), level_widths([2, 1]))
        expected = decode_alone(Decoder(*pair, TREE, temperature=0.0), make_requests())
        proposed, propose = set(), StaticTreeDrafter.propose

        def record(self, sequences, generators):
            proposals = propose(self, sequences, generators)
            proposed.update((len(sequences), proposal.tree) for proposal in proposals)
            return proposals

        monkeypatch.setattr(StaticTreeDrafter, "propose", record)
        decoder = Decoder(*pair, TREE, temperature=0.0)
        assert decode_all(decoder, make_requests(), batch_size=3, schedule=schedule)[0] == expected
        assert proposed == {(size, schedule.tree(size)) for size in (1, 2, 3)}

    def test_a_draft_that_paused_reads_all_tokens(self, pair):
        """The draft is the target, so every node of a chain is accepted if the draft's cache is right."""
        decoder = Decoder(pair[0], pair[0], chain(3), temperature=0.0)
        requests = [GenerationRequest([1, 2], 9), GenerationRequest([3], 30)]
        sizes = [[], []]
        for output in decoder.stream_all(requests, batch_size=2, schedule=make_schedule(chain(3), chain(0))):
            sizes[output.request].append(len(output.tokens))
        assert sizes[0] == [1] * 9
        assert sizes[1] == [1] * 9 + [4] * 5 + [1]
