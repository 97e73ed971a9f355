"""Several texts at a time: shared passes, seeds by number, errors of their own, bounded memory."""

import gc
import weakref
from collections import Counter

import pytest
import torch

from tests.support.decoded import PROMPT, TREES
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
from treeopt.runtime.models.vocabulary import limit_draft
from treeopt.trees import chain, level_widths
from treeopt.trees.drafter_parameters import DynamicTree
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

PROMPTS = [PROMPT, [1], PROMPT[:3] * 4, PROMPT * 3, [4, 5, 6]]
COUNTS = [9, 25, 3, 14, 21]
TREE = level_widths([2, 3, 1])


@pytest.fixture(scope="module")
def pair(make_checkpoint):
    """Return target and draft in float64, whose texts are the same whatever shares a pass."""
    folders = make_checkpoint(seed=1), make_checkpoint(seed=2, num_hidden_layers=1)
    return [load_model(folder, dtype=torch.float64) for folder in folders]


def decode_all(decoder, *, batch_size=3, prompts=PROMPTS, counts=COUNTS):
    requests = [GenerationRequest(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
    texts = [[] for _ in requests]
    for found in decoder.stream_all(requests, batch_size=batch_size):
        texts[found.request] += found.tokens
    return texts


def one_by_one(decoder, prompts=PROMPTS, counts=COUNTS):
    return [list(decoder.generate(prompt, count)) for prompt, count in zip(prompts, counts, strict=True)]


def counted_passes(monkeypatch, *models):
    """Return a counter of the passes of each model by the number of sequences."""
    counts, forward = [Counter() for _ in models], Transformer.forward

    def run(self, inputs, *arguments, **keywords):
        counts[models.index(self)][len(inputs)] += 1
        return forward(self, inputs, *arguments, **keywords)

    monkeypatch.setattr(Transformer, "forward", run)
    return counts


@pytest.mark.parametrize("name", ["root alone", "wide, then narrow", "random 1"])
def test_texts_are_those_that_a_fresh_decoder_gives_one_after_the_other(pair, name):
    """For every drafter and both temperatures: tests/contracts/test_batches.py."""

    def fresh():
        return Decoder(*pair, TREES[name], temperature=0.9, seed=4)

    expected = one_by_one(fresh())
    for size in (1, 4, 9):
        assert decode_all(fresh(), batch_size=size) == expected


@pytest.mark.parametrize("drafter", ["static", "dynamic"])
def test_a_step_is_one_pass_of_the_target_and_one_of_the_draft_for_each_level(pair, monkeypatch, drafter):
    grown = DynamicTree(top_k=2, depth=3, nodes=7)
    own = ExpandingDrafter(pair[1], grown, capacity=128)
    decoder = Decoder(*pair, TREE, temperature=0.0) if drafter == "static" else Decoder(pair[0], own, temperature=0.0)
    counts = counted_passes(monkeypatch, *pair)
    steps = list(decoder.stream_all([GenerationRequest([*PROMPT[:3], each], 12) for each in range(4)], batch_size=4))
    most = max(Counter(step.request for step in steps).values())
    assert [each.total() for each in counts] == [most, 3 * most]
    assert counts[0].total() - counts[0][1] >= most / 2


class TestPassesOverSequences:
    """A pass over several sequences against one pass for each, after sequences that were left in the same state."""

    REQUESTED_STATES = RequestedStates(layer_ids=(0, 1), last=True)
    ROWS = (1, 4, 2, 3, 1)

    def inputs(self, target, caches, rows=ROWS):
        """Return the nodes below a root that was fed after a prompt: the first of them, and its children."""
        for number, (prompt, cache, count) in enumerate(zip(PROMPTS, caches, rows, strict=False)):
            cache.clear()
            target.prefill(torch.tensor(prompt), cache)
            feed_tokens(target, cache, [number])
            tree = level_widths([1, count - 1]) if count > 1 else chain(1)
            yield SequenceInput(cache, torch.arange(count) + number, level_of(tree, 1, tree.nodes))

    def check(self, target, caches, rows=ROWS, order=None):
        """Compare logits, states, and what the caches hold after it; return the kind of attention."""
        inputs = list(self.inputs(target, caches, rows))
        inputs = [inputs[each] for each in order or range(len(inputs))]
        outputs = target.forward(inputs, self.REQUESTED_STATES)
        left = [[entries.clone() for pair in sequence.cache.layers for entries in pair] for sequence in inputs]
        last = target.forward(inputs, self.REQUESTED_STATES, last_only=True)
        for output, last_row, sequence, expected in zip(outputs, last, inputs, left, strict=True):
            caches = [each for pair in sequence.cache.layers for each in pair]
            for entries in caches:
                entries[:, :, sequence.cache.length + 1 :] = 0
            (single,) = target.forward([sequence], self.REQUESTED_STATES)
            torch.testing.assert_close(output, single, rtol=0, atol=1e-12)
            torch.testing.assert_close(last_row, single.map(lambda rows: rows[-1:]), rtol=0, atol=1e-12)
            seen = slice(0, sequence.cache.length + 1 + len(sequence.tokens))
            for found, entries in zip(expected, caches, strict=True):
                torch.testing.assert_close(found[:, :, seen], entries[:, :, seen], rtol=0, atol=1e-12)
        return type(build_attention(inputs))

    def test_caches_that_lie_apart(self, pair):
        assert self.check(pair[0], [new_cache(pair[0], 40 + 7 * number) for number in range(5)]) is PerSequenceAttention

    @pytest.mark.parametrize("rows", [(1,) * 5, (3,) * 5, ROWS, (2, 1, 1, 2, 2)])
    @pytest.mark.parametrize("order", [None, [4, 2, 0, 1, 3], [1, 2, 3]], ids=["whole", "shuffled", "some"])
    def test_caches_side_by_side(self, pair, monkeypatch, rows, order):
        caches = pair[0].new_caches(40, 5)
        assert self.check(pair[0], caches, rows, order) in (BatchedAttention, PerSequenceAttention)
        monkeypatch.setattr(attention, "MOST_PADDING", 100.0)
        assert self.check(pair[0], caches, rows, order) is BatchedAttention

    def test_sequences_that_lie_far_apart_attend_in_turn(self, pair):
        caches = pair[0].new_caches(40, 9)
        for cache in caches:
            pair[0].prefill(torch.tensor(PROMPT), cache)

        def kind(*places):
            return type(build_attention([SequenceInput.causal(caches[place], torch.tensor([1])) for place in places]))

        assert kind(0, 1, 2) is kind(3, 0) is BatchedAttention
        assert kind(0, 4) is PerSequenceAttention

    @pytest.mark.parametrize(("lengths", "hidden"), [((20, 20, 20), 0), ((20, 5), 15), ((9, 30, 28), 23)])
    def test_sequences_attend_in_turn_where_calls_cost_less_than_slots_that_are_hidden(
        self, pair, monkeypatch, lengths, hidden
    ):
        caches = pair[0].new_caches(40, len(lengths))
        for length, cache in zip(lengths, caches, strict=True):
            pair[0].prefill(torch.tensor([1] * length), cache)
        inputs = [SequenceInput.causal(cache, torch.tensor([1])) for cache in caches]
        keys, values = caches[0].layers[0]
        slot_bytes = sum(each[0, :, 0].nbytes for each in (keys, values))
        most = hidden * slot_bytes / (len(lengths) - 1)
        monkeypatch.setattr(attention, "CALL_BYTES", most)
        assert type(build_attention(inputs)) is BatchedAttention
        monkeypatch.setattr(attention, "CALL_BYTES", most - 1)
        assert type(build_attention(inputs)) is PerSequenceAttention

    def test_a_limited_draft_rules_out_other_tokens(self, pair):
        model = limit_draft(pair[0], [*range(5), *range(6, 20)], 23)
        inputs = list(self.inputs(pair[0], model.new_caches(40, 5)))
        for shown, whole in zip(model.forward(inputs), pair[0].forward(inputs), strict=True):
            assert shown.states is None
            ruled_out = [5, 20, 21, 22]
            assert (shown.logits[:, ruled_out] == -torch.inf).all()
            rest = [*range(5), *range(6, 20)]
            assert torch.equal(shown.logits[:, rest], whole.logits[:, rest])


def test_attention_may_be_returned_in_the_layout_that_kernels_on_a_gpu_use(pair, monkeypatch):
    attention = torch.nn.functional.scaled_dot_product_attention

    def with_tokens_outside_of_heads(*arguments, **keywords):
        return attention(*arguments, **keywords).transpose(1, 2).contiguous().transpose(1, 2)

    expected = one_by_one(Decoder(*pair, TREE, temperature=0.0))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", with_tokens_outside_of_heads)
    assert decode_all(Decoder(*pair, TREE, temperature=0.0)) == expected


def test_caches_of_a_batch_lie_side_by_side(pair):
    for decoder in (
        Decoder(*pair, TREE, temperature=0.0),
        Decoder(pair[0], ExpandingDrafter(pair[1], DynamicTree(top_k=2, depth=3, nodes=7), capacity=128)),
    ):
        list(decoder.generate(PROMPT, 3))
        list(decoder.generate_all(PROMPTS, 5, batch_size=4))
        drafts = getattr(decoder._drafter, "_static", decoder._drafter)._sequences
        for caches in (
            [each.cache for each in decoder._targets],
            [getattr(each, "draft", each).cache for each in drafts],
        ):
            first, *others = sorted(caches, key=lambda cache: cache.store.sequences)  # that of `generate` is alone
            assert first.store.sequences == 1
            assert [each.store for each in others] == [others[0].store] * 4
            assert sorted(each.index for each in others) == [0, 1, 2, 3]


def test_seeds_are_of_the_texts(pair):
    decoder = Decoder(*pair, TREE, temperature=0.9)
    alone = [
        list(decoder.generate(prompt, 12, seed=seed)) for prompt, seed in zip(PROMPTS, (0, 5, 0, 5, 9), strict=True)
    ]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]):
        found = [[] for _ in PROMPTS]
        seeds = [(0, 5, 0, 5, 9)[number] for number in order]
        for place, tokens in decoder.generate_all([PROMPTS[number] for number in order], 12, seeds=seeds, batch_size=2):
            found[order[place]] += tokens
        assert found == alone


def test_another_tree_may_come_within_texts(pair):
    decoder = Decoder(*pair, TREE, temperature=0.0)
    expected = one_by_one(decoder)
    texts = [[] for _ in PROMPTS]
    trees = [chain(0), TREE, chain(3), level_widths([1, 2])] * 20
    requests = [GenerationRequest(prompt, count) for prompt, count in zip(PROMPTS, COUNTS, strict=True)]
    for tree, found in zip(trees, decoder.stream_all(requests, batch_size=3), strict=False):
        texts[found.request] += found.tokens
        decoder.change_tree(tree)
    assert texts == expected


class TestErrors:
    def test_a_text_whose_target_is_not_finite_leaves_the_others_alone(self, pair):
        target, draft = pair
        decoder = Decoder(target, draft, TREE, temperature=0.0)
        expected = one_by_one(decoder)
        found, errors = [[] for _ in PROMPTS], {}
        spoilt = False
        requests = [GenerationRequest(prompt, count) for prompt, count in zip(PROMPTS, COUNTS, strict=True)]
        for step in decoder.stream_all(requests, batch_size=3):
            found[step.request] += step.tokens
            if step.error is not None:
                errors[step.request] = str(step.error)
                assert step.finished
            if not spoilt:  # text 1 is the second of the batch
                spoilt = True
                with torch.inference_mode():
                    decoder._targets[decoder._last_sequence - len(PROMPTS) + 2].cache.layers[0][1][:, :, 0] = torch.nan
        assert list(errors) == [1]
        assert "logits are finite" in errors[1]
        assert [text for number, text in enumerate(found) if number != 1] == expected[:1] + expected[2:]

    def test_nor_does_it_reach_the_text_that_comes_next(self, pair, monkeypatch):
        """The first text is the longest, so that slots are hidden behind the third, in the place of the second."""
        monkeypatch.setattr(attention, "MOST_PADDING", 100.0)
        decoder = Decoder(*pair, TREE, temperature=0.0)
        prompts, counts = [PROMPT * 3, PROMPT * 2, [1, 2]], [40, 30, 12]
        expected = one_by_one(decoder, prompts, counts)
        requests = [GenerationRequest(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
        found, errors = [[] for _ in prompts], []
        for number, step in enumerate(decoder.stream_all(requests, batch_size=2)):
            found[step.request] += step.tokens
            errors += [step.request] * (step.error is not None)
            if number == 0:
                with torch.inference_mode():
                    decoder._targets[decoder._last_sequence - 1].cache.layers[0][1][:, :, 0] = torch.nan
        assert errors == [1]
        assert found[::2] == expected[::2]

    def test_what_fits_no_text_is_said_before_anything_runs(self, pair):
        decoder = Decoder(*pair, TREE, temperature=0.0)
        for options, message in (
            ({"batch_size": 0}, "batch_size: expected at least 1. Got 0"),
            ({"seeds": [1]}, "seeds: expected 5, one for each prompt. Got 1"),
            ({"stop": [[]]}, "stop: expected sequences"),
        ):
            with pytest.raises(InvalidValueError, match=message):
                decoder.generate_all(PROMPTS, 4, **options)

    def test_all_texts_may_fail(self, pair):
        decoder = Decoder(*pair, TREE, temperature=0.0)
        with pytest.raises(
            BatchError, match=r"2 of 2 sequences could not be decoded. The first is number 0: token_ids:"
        ):
            list(decoder.generate_all([[], [99]], 4))
        assert list(decoder.generate_all([], 4)) == []
        assert list(decoder.generate_all([[1], [2]], 0)) == []

    def test_more_texts_than_memory_has_room_for(self, pair, monkeypatch):
        decoder = Decoder(*pair, TREE, temperature=0.0)
        each = memory.decoder_bytes(*pair, None, sequence_tokens=128, max_nodes=TREE.nodes, sampling=Sampling(0.0))[
            torch.device("cpu")
        ]
        monkeypatch.setattr(memory, "free_bytes", lambda _: 3.5 * each)
        with pytest.raises(
            OutOfMemoryError, match=r"batch_size: expected at most 4, because each sequence takes .* Got 5"
        ):
            decoder.generate_all(PROMPTS, 4, batch_size=5)
        assert len(decode_all(decoder, batch_size=4)) == len(PROMPTS)
        assert decoder._targets.free == 4


def test_caches_of_a_large_batch_are_freed_once_a_single_text_follows(pair, monkeypatch):
    made = []
    for model in pair:

        def noted(*arguments, new_caches=model.new_caches):
            caches = new_caches(*arguments)
            made.extend(weakref.ref(cache) for cache in caches)
            return caches

        monkeypatch.setattr(model, "new_caches", noted)
    decoder = Decoder(*pair, TREE, temperature=0.0)
    expected = list(decoder.generate(PROMPT, 10))
    decode_all(decoder, batch_size=len(PROMPTS))
    gc.collect()
    assert sum(each() is not None for each in made) >= 2 * len(PROMPTS)
    assert list(decoder.generate(PROMPT, 10)) == expected
    gc.collect()
    assert sum(each() is not None for each in made) == 2


def test_a_model_that_reads_one_sequence_in_a_pass_gives_the_same_texts(pair, monkeypatch):
    expected = decode_all(Decoder(*pair, TREE, temperature=0.9))
    counts, forward = counted_passes(monkeypatch, *pair), Transformer.forward

    def run_in_turn(self, inputs, requested_states=NO_STATES, *, last_only=False):
        outputs = concatenate_outputs([forward(self, [sequence], requested_states) for sequence in inputs])
        return last_outputs(outputs) if last_only else outputs

    monkeypatch.setattr(Transformer, "forward", run_in_turn)
    assert decode_all(Decoder(*pair, TREE, temperature=0.9)) == expected
    assert [set(each) for each in counts] == [{1}, {1}]


def by_texts(*trees):
    """Return the schedule of one tree for 1, 2, … texts."""
    return TreeSchedule(
        trees=tuple(
            ScheduledTree(first_texts=texts, last_texts=texts, tree=tree) for texts, tree in enumerate(trees, 1)
        )
    )


class TestSchedule:
    def test_every_step_has_the_tree_of_as_many_texts_and_texts_stay_the_same(self, pair, monkeypatch):
        schedule = by_texts(chain(3), chain(0), level_widths([2, 1]))
        expected = one_by_one(Decoder(*pair, TREE, temperature=0.0))
        decoder = Decoder(*pair, TREE, temperature=0.0)
        seen = set()
        propose = StaticTreeDrafter.propose

        def noted(self, sequences, generators):
            proposals = propose(self, sequences, generators)
            seen.update((len(sequences), proposal.tree) for proposal in proposals)
            return proposals

        monkeypatch.setattr(StaticTreeDrafter, "propose", noted)
        requests = [GenerationRequest(prompt, count) for prompt, count in zip(PROMPTS, COUNTS, strict=True)]
        texts = [[] for _ in requests]
        for found in decoder.stream_all(requests, batch_size=3, schedule=schedule):
            texts[found.request] += found.tokens
        assert texts == expected
        assert seen == {(texts, schedule.tree(texts)) for texts in (1, 2, 3)}

    def test_a_draft_that_was_left_out_for_a_while_knows_the_whole_text(self, pair):
        """The draft is the target itself, so that every node of a chain is accepted where the draft's cache is right."""
        decoder = Decoder(pair[0], pair[0], chain(3), temperature=0.0)
        requests = [GenerationRequest([1, 2], 9), GenerationRequest([3], 30)]
        sizes = [[], []]
        for found in decoder.stream_all(requests, batch_size=2, schedule=by_texts(chain(3), chain(0))):
            sizes[found.request].append(len(found.tokens))
        assert sizes[0] == [1] * 9
        assert sizes[1][:9] == [1] * 9
        assert sizes[1][9:-1] == [4] * len(sizes[1][9:-1])
        assert len(sizes[1]) == 9 + 6  # 21 tokens more, 4 at a time

    def test_what_does_not_fit_is_refused_before_anything_runs(self, pair):
        decoder = Decoder(*pair, chain(1), temperature=0.0)
        with pytest.raises(InvalidValueError, match="nodes"):
            decoder.generate_all(PROMPTS, 5, schedule=by_texts(chain(6)))
        dynamic = Decoder(pair[0], ExpandingDrafter(pair[1], DynamicTree(top_k=2, depth=2, nodes=5), capacity=64))
        with pytest.raises(InvalidValueError, match="brings its own"):
            dynamic.generate_all(PROMPTS, 5, schedule=by_texts(chain(1)))
