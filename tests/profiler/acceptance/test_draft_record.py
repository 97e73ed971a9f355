"""Draft records: what they hold is what fresh passes say, and replaying them is decoding."""

from dataclasses import fields, replace

import numpy as np
import pytest

from tests.support.passes import logits_after
from tests.support.slow_beam_expansion import best
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.planner.replay import Replay
from treeopt.profiler import Checkpoint, RecordFiles, Recording, RecordSize, Settings
from treeopt.profiler.acceptance.expansion import Expander
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, ExpandingDrafter, Transformer
from treeopt.texts.prompts import load_prompts, profile_prompts
from treeopt.trees import chain
from treeopt.trees.drafter_parameters import DynamicTree, pool_nodes

SIZE = RecordSize(top_k=4, depth=4)
SETTINGS = Settings(positions=42, record=SIZE)


def recording(target, draft, prompts, settings=SETTINGS, *, folder=None, resume=False):
    return Recording(target, draft, prompts, settings, files=RecordFiles(folder, resume=resume))


def recorded(*arguments, **keywords):
    return recording(*arguments, **keywords).record(show_progress=False)


def assert_same(one, other):
    for field in fields(one):
        if field.name != "created":
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), field.name)


def log_probs_after(model, tokens):
    """Return the log-probabilities (V,) after a text by a pass over nothing else."""
    return logits_after(model, tokens).float().log_softmax(-1).numpy()


def greedy(model, prompt, count):
    return list(Decoder(model, None, chain(0), temperature=0.0).generate(prompt, count))


def nodes_of(record, root):
    """Return {path of ranks: log-probabilities (K,)} of the nodes expanded below a root."""
    paths, found = [], {}
    for node in range(record.node_starts[root], record.node_starts[root + 1]):
        parent = record.parent[node]
        paths.append(() if parent < 0 else (*paths[parent], int(record.rank[node])))
        found[paths[-1]] = record.log_probs[node]
    assert len(found) == len(paths)
    return found


def grown(nodes, top_k, depth):
    """Return the scores of the pool of one size of tree, by path of ranks and in order, and the beams of each level."""
    scores, pool, beams, levels = {(): np.float32(0)}, [], [()], [[()]]
    for _ in range(depth):
        level = []
        for path in beams:
            for rank in range(top_k):
                scores[*path, rank] = np.float32(scores[path] + nodes[path][rank])
                level.append((*path, rank))
        pool += level
        beams = best(level, scores, top_k)
        levels.append(beams)
    return scores, pool, levels


def accepted(record, root, tree):
    """Return how many levels a step with a dynamic tree accepts at a root."""
    scores, pool, _ = grown(nodes_of(record, root), tree.top_k, tree.depth)
    kept = set(best(pool, scores, tree.nodes - 1))
    ranks = record.outcome[root].tolist()
    length = 0
    while length < tree.depth and tuple(ranks[: length + 1]) in kept:
        length += 1
    return length


def replayed(record, tree):
    """Return the lengths of the steps of every text."""
    texts = []
    for first, end in zip(record.text_starts[:-1].tolist(), record.text_starts[1:].tolist(), strict=True):
        root, steps = first, []
        while root < end:
            steps.append(min(accepted(record, root, tree) + 1, end - root))
            root += steps[-1]
        texts.append(steps)
    return texts


@pytest.fixture(scope="module")
def record(target, draft, prompts):
    return recorded(target, draft, prompts)


@pytest.fixture(scope="module")
def bundled(bundled_pair):
    """Return the bundled pair, some prompts and their record."""
    pair = bundled_pair
    prompts = [pair.tokenizer.encode(text) for text in profile_prompts(load_prompts())[:3]]
    settings = Settings(positions=120, record=RecordSize(top_k=6, depth=6))
    return pair, prompts, recorded(pair.target, pair.draft, prompts, settings)


class TestContent:
    def test_roots_are_the_generated_positions(self, record):
        assert (record.sequences, record.roots, record.top_k, record.depth) == (6, 42, 4, 4)
        assert record.text_starts.tolist() == [0, 7, 14, 21, 28, 35, 42]
        assert (record.temperature, record.top_p, record.target_top_k) == (0.0, 1.0, 0)
        assert record.pair == "large + small"

    def test_positions_are_shared_out_evenly(self, target, draft, prompts):
        assert recorded(target, draft, prompts, replace(SETTINGS, positions=7)).roots == 12

    def test_nodes_are_those_that_some_tree_feeds_and_log_probs_those_of_fresh_passes(
        self, record, target, draft, prompts
    ):
        for text, prompt in enumerate(prompts):
            full = [*prompt, *greedy(target, prompt, 7)]
            for position in range(7):
                context = full[: len(prompt) + position]
                nodes = nodes_of(record, 7 * text + position)
                fed = set()
                for top_k in range(1, 5):
                    for level in grown(nodes, top_k, 4)[2][:-1]:
                        fed.update(level)
                assert set(nodes) == fed
                for path, log_probs in nodes.items():
                    tokens = list(context)
                    for rank in path:
                        tokens.append(int(np.argsort(-log_probs_after(draft, tokens))[rank]))
                    fresh = np.sort(log_probs_after(draft, tokens))[::-1][:4]
                    np.testing.assert_allclose(log_probs, fresh, rtol=1e-4, atol=1e-5)

    def test_outcomes_are_where_the_text_goes_on(self, record, target, draft, prompts):
        assert (record.outcome >= 0).any(axis=0).all()
        for text, prompt in enumerate(prompts):
            full = [*prompt, *greedy(target, prompt, 11)]
            for position in range(7):
                root, length = 7 * text + position, len(prompt) + position
                nodes, expected = nodes_of(record, root), []
                for depth in range(4):
                    order = np.argsort(-log_probs_after(draft, full[: length + depth]))[:4].tolist()
                    if tuple(expected) not in nodes or full[length + depth] not in order:
                        break
                    expected.append(order.index(full[length + depth]))
                assert record.outcome[root].tolist() == [*expected, *[-1] * (4 - len(expected))]

    def test_a_draft_like_the_target_is_followed_at_rank_0(self, target, prompts):
        record = recorded(target, target, prompts)
        assert (record.outcome == 0).all()

    def test_all_tokens_of_a_small_vocabulary(self, target, draft, prompts):
        record = recorded(target, draft, prompts, replace(SETTINGS, positions=6, record=RecordSize(top_k=99, depth=2)))
        assert record.top_k == 23
        np.testing.assert_allclose(np.exp(record.log_probs).sum(axis=1), 1, rtol=1e-5)
        assert (record.outcome >= 0).all()

    @pytest.mark.parametrize("size", [RecordSize(top_k=1, depth=1), RecordSize(top_k=1, depth=3)])
    def test_chains(self, target, draft, prompts, size):
        record = recorded(target, draft, prompts, replace(SETTINGS, record=size))
        assert np.diff(record.node_starts).tolist() == [size.depth] * 42

    def test_a_text_that_ends_early_has_fewer_roots(self, target, draft, prompts, record):
        text = greedy(target, prompts[0], 7)
        ending = Transformer(replace(target.config, end_tokens=(text[3],)), target.weights, name="large")
        length = text.index(text[3]) + 1
        cut = recorded(ending, draft, prompts)
        assert cut.text_starts[1] == length
        assert (cut.outcome[length - 1, 1:] == -1).all()
        np.testing.assert_array_equal(cut.outcome[0, :length], record.outcome[0, :length])

    def test_texts_end_at_the_trained_length(self, target, make_model, prompts):
        short = make_model(seed=1, noise=0.15, max_positions=16)
        record = recorded(target, short, prompts, replace(SETTINGS, positions=36))
        assert record.roots == 36
        last = record.text_starts[-1] - 1  # prompt of 10, root 5 at position 14, one token follows
        assert (record.outcome[last, 1:] == -1).all()

    def test_sampled_texts_have_a_seed_each(self, target, draft, prompts):
        settings = replace(SETTINGS, samplings=(Sampling(1.0, 0.9, 20),))
        record = recorded(target, draft, prompts[:1] * 3, settings)
        again = recorded(target, draft, prompts[:1] * 3, settings)
        assert_same(record, again)
        assert (record.temperature, record.top_p, record.target_top_k) == (1.0, 0.9, 20)
        assert len({record.outcome[start : start + 14].tobytes() for start in (0, 14, 28)}) == 3


class TestReplay:
    """The record's replay in plain Python has the very steps of the decoder."""

    TREES = ((1, 6, 4), (3, 6, 12), (4, 2, 1 + pool_nodes(4, 2)), (6, 6, 40))

    @pytest.mark.parametrize("numbers", TREES)
    def test_steps_are_those_of_decoding(self, bundled, numbers):
        pair, prompts, record = bundled
        tree = DynamicTree(top_k=numbers[0], depth=numbers[1], nodes=numbers[2])
        decoder = Decoder(
            pair.target, ExpandingDrafter(pair.draft, tree, capacity=pair.draft.config.max_positions), temperature=0.0
        )
        decoded = [[len(step) for step in decoder.stream(prompt, 40)] for prompt in prompts]
        assert replayed(record, tree) == decoded

    def test_steps_are_those_of_sampling_along_the_text_that_it_drew(self, bundled):
        pair, prompts, _ = bundled
        tree = DynamicTree(top_k=2, depth=3, nodes=5)
        decoder = Decoder(
            pair.target, ExpandingDrafter(pair.draft, tree, capacity=pair.draft.config.max_positions), temperature=0.6
        )
        settings = Settings(positions=40, samplings=(Sampling(0.6),), record=RecordSize(top_k=6, depth=6))
        making = recording(pair.target, pair.draft, prompts, settings)
        for prompt in prompts:
            steps = list(decoder.stream(prompt, 46))
            sampled = [token for committed in steps for token in committed]
            begins = np.cumsum([0, *map(len, steps[:-1])])
            roots = len(sampled) - tree.depth
            record = making.record_sequence(prompt, sampled, roots)
            found = Replay(record).count_steps(tree.top_k, tree.depth, np.array([tree.nodes]))
            begun = [len(committed) for at, committed in zip(begins, steps, strict=True) if at < roots]
            assert (found.tokens.item(), found.steps.item()) == (sum(begun), len(begun))

    def test_another_size_has_other_steps(self, bundled):
        _, _, record = bundled
        steps = [replayed(record, DynamicTree(top_k=3, depth=6, nodes=nodes)) for nodes in (4, 8, 12)]
        assert steps[0] != steps[1] != steps[2]

    def test_a_record_off_by_one_position_has_other_steps(self, bundled):
        _, _, record = bundled
        tree = DynamicTree(top_k=3, depth=6, nodes=12)
        shifted = replace(record, outcome=np.roll(record.outcome, 1, axis=0))
        assert replayed(shifted, tree) != replayed(record, tree)


class TestResuming:
    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_an_interrupted_record_expands_only_what_is_missing(
        self, target, draft, prompts, tmp_path, temperature, monkeypatch
    ):
        settings = replace(SETTINGS, samplings=(Sampling(temperature),))
        whole = recorded(target, draft, prompts, settings)
        expand, expanded, folder = Expander.expand, [], tmp_path / "texts"

        def until_interrupted(expander, text, roots):
            expanded.append(text[: len(text) - roots + 1])
            if len(expanded) == 4:
                raise KeyboardInterrupt
            return expand(expander, text, roots)

        monkeypatch.setattr(Expander, "expand", until_interrupted)
        with pytest.raises(KeyboardInterrupt):
            recorded(target, draft, prompts, settings, folder=folder)
        assert sorted(path.name for path in folder.iterdir()) == ["0.npz", "1.npz", "2.npz"]
        interrupted = recording(target, draft, prompts, settings, folder=folder, resume=True)
        assert_same(interrupted.record(show_progress=False), whole)
        assert expanded == [*prompts[:4], *prompts[3:]]
        interrupted._files.remove()
        assert not folder.exists()

    def test_a_fresh_record_does_not_take_what_is_there(self, target, draft, prompts, tmp_path):
        folder = tmp_path / "texts"
        recorded(target, target, prompts, folder=folder)
        assert_same(recorded(target, draft, prompts, folder=folder), recorded(target, draft, prompts))

    def test_nothing_is_made_before_there_is_something_to_keep(self, tmp_path):
        files = RecordFiles(tmp_path / "texts")
        assert files.load(0) is None
        files.remove()
        assert list(tmp_path.iterdir()) == []

    def test_a_file_where_the_folder_should_be(self, target, draft, prompts, tmp_path):
        (tmp_path / "texts").touch()
        with pytest.raises(TreeoptError, match="texts"):
            recorded(target, draft, prompts, folder=tmp_path / "texts", resume=True)
        RecordFiles(tmp_path / "texts")  # starts over
        assert list(tmp_path.iterdir()) == []

    def test_starting_over_spares_the_folder_that_a_link_leads_to(self, tmp_path):
        (tmp_path / "mine").mkdir()
        (tmp_path / "texts").symlink_to("mine")
        RecordFiles(tmp_path / "texts")
        assert list(tmp_path.iterdir()) == [tmp_path / "mine"]

    def test_what_is_recorded_is_a_condition_only_where_something_is(self, target, draft, tmp_path):
        conditions = {
            replace(SETTINGS, record=size).conditions(target, draft, [[1]])
            for size in (None, SIZE, RecordSize(), RecordSize(top_k=4))
        }
        assert len(conditions) == 4
        plain = replace(SETTINGS, record=None).conditions(target, draft, [[1]])
        assert "record" not in plain
        Checkpoint(tmp_path / "checkpoint", plain)
        with pytest.raises(TreeoptError, match="other conditions"):
            Checkpoint(tmp_path / "checkpoint", SETTINGS.conditions(target, draft, [[1]]), resume=True)

    @pytest.mark.parametrize("name", ["top_k", "depth"])
    def test_sizes_below_one(self, name):
        with pytest.raises(InvalidValueError, match=f"record {name}: expected at least 1. Got 0"):
            RecordSize(**{name: 0})
